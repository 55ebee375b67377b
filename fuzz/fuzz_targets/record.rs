//! A record file, its content without a checksum, and its name.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| refloat_record::fuzz::record(bytes));
