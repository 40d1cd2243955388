//! The `sluice` command: parse, run, exit code.

fn main() {}
