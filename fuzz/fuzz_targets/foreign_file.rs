//! A file that another program wrote about a volume: iscsi.json, rbd.json, and the pair of the 2017 proposal.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| refloat_node::fuzz::foreign_file(bytes));
