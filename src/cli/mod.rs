//! The commands: parse, run, answer.
