//! Developing Refloat.
fn main() {}
