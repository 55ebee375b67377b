//! How a test ends: it passes, panics, or says why it cannot run here.

use libtest_mimic::{Failed, Trial};

/// What a test answers that panics if it fails: done, or why it cannot run here.
pub type Outcome = Result<(), Skip>;

/// Why a test cannot run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip(pub String);

/// The answer of a test that cannot run here.
pub fn skip(why: impl Into<String>) -> Outcome {
    Err(Skip(why.into()))
}

/// How a test ended that did not fail, for those that answer errors instead of panicking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It cannot run here; the text says why.
    Skipped(String),
}

/// A test by its name.
pub type Test = (&'static str, fn() -> Outcome);

/// So that a test which is never skipped needs no answer.
pub trait Run {
    /// The test's answer as an outcome.
    fn run(self) -> Outcome;
}

impl Run for () {
    fn run(self) -> Outcome {
        Ok(())
    }
}

impl Run for Outcome {
    fn run(self) -> Outcome {
        self
    }
}

/// A trial of the test program: one that is skipped says so and passes.
pub fn trial<E: Into<Failed>>(
    name: impl Into<String>,
    test: impl FnOnce() -> Result<Outcome, E> + Send + 'static,
) -> Trial {
    let name = name.into();
    Trial::test(name.clone(), move || {
        if let Err(Skip(why)) = test().map_err(Into::into)? {
            say_skipped(&name, why);
        }
        Ok(())
    })
}

/// Says that something was skipped, in the words that `cargo xtask test` counts.
pub(crate) fn say_skipped(what: &str, why: impl std::fmt::Display) {
    println!("skipped: {what}: {why}");
}
