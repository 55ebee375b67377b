//! A node that another program made: reconstructed from its mount table and its files.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| refloat_node::fuzz::foreign(bytes));
