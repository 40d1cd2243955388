//! Names, attributes and slices: the semantics, written once.
