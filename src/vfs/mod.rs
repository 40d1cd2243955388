//! Where names and bytes meet: handles, reading, writing.
