//! A mountinfo text: parsed, looked up, printed.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| refloat_mount::fuzz::mountinfo(bytes));
