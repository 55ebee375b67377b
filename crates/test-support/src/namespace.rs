//! All tests of a program in one private mount namespace.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::skip::{Test, say_skipped, trial};

static BASE: OnceLock<PathBuf> = OnceLock::new();

/// A tmpfs for everything that the tests make.
///
/// # Panics
/// Outside of [`in_one_namespace`].
pub fn base() -> &'static Path {
    BASE.get().expect("the tests run by `in_one_namespace`")
}

/// Moves this process into a private mount namespace. Answers whether a user namespace was needed for that; none, and
/// why is printed, if this machine lets it have none: then all of `what` is skipped.
///
/// To be called before any thread is started: a namespace belongs to a thread and to those that it starts.
pub fn enter(what: &str) -> Option<bool> {
    match refloat_mount::enter_private_namespace() {
        Ok(user) => Some(user),
        Err(error) => {
            let why = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            say_skipped(what, format_args!("{error}{why}"));
            None
        }
    }
}

/// Runs all tests in this process, in a private mount namespace, on a tmpfs of their own: [`base`]. What `main` answers.
///
/// # Panics
/// If no folder or tmpfs can be made in the namespace.
pub fn in_one_namespace(tests: &[&[Test]]) -> ExitCode {
    let arguments = Arguments::from_args();
    if enter("all tests that mount").is_none() {
        return ExitCode::SUCCESS;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let base = folder.path().join("base");
    std::fs::create_dir(&base).expect("a folder in it");
    rustix::mount::mount("refloat-tests", &base, "tmpfs", MountFlags::empty(), None)
        .expect("a tmpfs in a private namespace");
    BASE.set(base.clone()).expect("a program runs its tests once");
    let trials = tests.concat().into_iter().map(|(name, test)| trial(name, move || Ok::<_, String>(test())));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    let _ = rustix::mount::unmount(&base, UnmountFlags::DETACH);
    drop(folder);
    conclusion.exit_code()
}

/// Runs these trials. What `main` answers, for a program that does not leave the rest to [`in_one_namespace`].
pub fn run(arguments: &Arguments, trials: Vec<Trial>) -> ExitCode {
    libtest_mimic::run(arguments, trials).exit_code()
}
