//! Carries operations out, one file an operation.
