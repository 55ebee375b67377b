//! `/proc/self/mountinfo`: the parser.
//!
//! Bytes in, borrowed slices out. One bad line is reported and skipped, never fatal.

/// A line that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub number: usize,
    /// The line.
    pub line: Vec<u8>,
    /// What is wrong.
    pub why: &'static str,
}
