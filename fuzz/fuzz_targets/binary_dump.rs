#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| sluicefs_fuzz::run("binary_dump", data));
