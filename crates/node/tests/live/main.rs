//! The manager on a real kernel, in a private mount namespace: what goes right, and how it must fail.
//!
//! What cannot run here is skipped by name, with the reason.

// Everything here is for these tests alone.
#![allow(unreachable_pub, missing_docs)]
// Tests look at their own files, which do not hang.
#![allow(clippy::disallowed_methods)]
// They read better as what the stage does.
#![allow(clippy::unused_self)]

/// Lists functions as tests.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[$crate::Test] =
            &[$((concat!(module_path!(), "::", stringify!($name)), || $crate::Run::run($name()))),*];
    };
}

mod by_hand;
mod changed;
mod devices;
mod life;
mod manifests;
mod running;
mod stage;
mod state_folder;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Failed, Trial};

static BASE: OnceLock<PathBuf> = OnceLock::new();

/// A tmpfs for everything that the tests make.
pub fn base() -> &'static Path {
    BASE.get().expect("set before the first test")
}

/// What a test answers: done, or why it cannot run here.
pub type Outcome = Result<(), Skip>;
pub struct Skip(pub String);

fn main() {
    let arguments = Arguments::from_args();
    // Before any thread is started: a namespace belongs to a thread and to those that it starts.
    if let Err(error) = refloat_mount::enter_private_namespace() {
        eprintln!("skipped: all tests that mount: {error}");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let base = folder.path().join("base");
    std::fs::create_dir(&base).expect("a folder in it");
    rustix::mount::mount("refloat-tests", &base, "tmpfs", rustix::mount::MountFlags::empty(), None)
        .expect("a tmpfs in a private namespace");
    BASE.set(base.clone()).expect("set once");

    let tests = [
        by_hand::TESTS,
        changed::TESTS,
        devices::TESTS,
        life::TESTS,
        manifests::TESTS,
        running::TESTS,
        state_folder::TESTS,
    ];
    let trials = tests.concat().into_iter().map(|(name, test)| {
        Trial::test(name, move || match test() {
            Ok(()) => Ok(()),
            Err(Skip(why)) => {
                eprintln!("skipped: {name}: {why}");
                Ok::<(), Failed>(())
            }
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    let _ = rustix::mount::unmount(&base, rustix::mount::UnmountFlags::DETACH);
    drop(folder);
    conclusion.exit();
}

/// A test by its name.
pub type Test = (&'static str, fn() -> Outcome);

/// So that a test which is never skipped needs no answer.
pub trait Run {
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
