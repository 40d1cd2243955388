//! The bytes of a file: chunks, slices and blocks, and how they travel.
