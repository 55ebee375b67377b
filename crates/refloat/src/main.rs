//! The `refloat` binary.
fn main() {}
