//! Escapes of mountinfo, and of names that are folders.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    refloat_mount::fuzz::escapes(bytes);
    refloat_record::fuzz::names(bytes);
});
