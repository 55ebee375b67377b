//! Test programs that run in the virtual machine of `cargo xtask vm`, with another kernel than this machine's.

use std::fmt::Debug;
use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::Arguments;

use crate::skip::{Verdict, skip, trial};
use crate::{in_one_process_each, run};

/// Set where such a program runs: [`INSIDE`], or [`LATER`].
pub const MARK: &str = "REFLOAT_TEST_VM";
/// It is the virtual machine that it runs in.
pub const INSIDE: &str = "inside";
/// Whoever started it runs it in the virtual machine too.
pub const LATER: &str = "later";
/// Where the machine has the programs.
pub const FOLDER: &str = "/tests";
/// The product's binary in that folder.
pub const BINARY: &str = "refloat";

/// In the virtual machine, runs each test as [`in_one_process_each`] does, with the product's binary. Elsewhere no test runs, and
/// all of them are skipped as one.
pub fn in_the_virtual_machine<E: Debug>(
    names: &[&'static str],
    test: impl Fn(&str, &Path) -> Result<Verdict, E>,
) -> ExitCode {
    match std::env::var(MARK).as_deref() {
        Ok(INSIDE) => in_one_process_each(names, |name| test(name, &Path::new(FOLDER).join(BINARY))),
        Ok(LATER) => ExitCode::SUCCESS,
        _ => {
            let why = "`cargo xtask vm` boots one and runs them there";
            let all = trial("all tests in a virtual machine", move || Ok::<_, String>(skip(why)));
            run(&Arguments::from_args(), vec![all])
        }
    }
}
