//! A manifest file: read, and resolved to what its pods want.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| refloat_node::fuzz::manifest(bytes));
