//! The kernel's protocol and nothing else.
