//! A CSI driver for the tests.
