//! Test programs that start themselves again.

use std::fmt::Debug;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Output, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::namespace::enter;
use crate::skip::{Verdict, say_skipped};

/// Set for the process of one test: its name.
const INSIDE: &str = "REFLOAT_TEST_INSIDE";
/// Set in the process that runs the same tests as an ordinary user.
const AS_NOBODY: &str = "REFLOAT_TEST_AS_NOBODY";

/// Runs each test in a process of its own, in a private mount namespace: this program starts itself again for it, and
/// `run` is called there with the test's name. What `main` answers.
pub fn in_one_process_each<E: Debug>(names: &[&'static str], run: impl Fn(&str) -> Result<Verdict, E>) -> ExitCode {
    if let Ok(name) = std::env::var(INSIDE) {
        return inside(&name, run);
    }
    let trials = names.iter().map(|&name| Trial::test(name, move || outside(name))).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Starts this program again for one test.
fn outside(name: &str) -> Result<(), Failed> {
    let program = std::env::current_exe()?;
    let output = Command::new(program).env(INSIDE, name).stdin(Stdio::null()).output()?;
    pass_on_skipped("", &output);
    ended_well(&output)
}

/// Runs one test, in this process.
fn inside<E: Debug>(name: &str, run: impl Fn(&str) -> Result<Verdict, E>) -> ExitCode {
    if enter(name).is_none() {
        return ExitCode::SUCCESS;
    }
    match run(name) {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Skipped(why)) => {
            say_skipped(name, why);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

/// Whether this process is the one that [`as_nobody`] started.
pub fn is_as_nobody() -> bool {
    std::env::var_os(AS_NOBODY).is_some()
}

/// Runs all tests of this program again as nobody, who needs a user namespace. Only root can.
///
/// # Errors
/// If it cannot be started, or a test failed: with all its output.
pub fn as_nobody() -> Result<(), Failed> {
    // The build folder may be closed to others; a copy is not.
    let folder = tempfile::Builder::new().prefix("refloat-tests-").tempdir()?;
    let copy = folder.path().join("tests");
    std::fs::copy(std::env::current_exe()?, &copy)?;
    for path in [folder.path(), &copy] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
    }
    let mut command = Command::new(&copy);
    command.env(AS_NOBODY, "1").env_remove("TMPDIR").current_dir("/").uid(65534).gid(65534).stdin(Stdio::null());
    let output = command.output()?;
    // Not counted: this test is one, and runs.
    pass_on_skipped("\nas an ordinary user: ", &output);
    ended_well(&output)
}

/// Prints what another process of this program skipped.
fn pass_on_skipped(prefix: &str, output: &Output) {
    for text in [&output.stdout, &output.stderr] {
        for line in String::from_utf8_lossy(text).lines() {
            if let Some(what) = line.strip_prefix("skipped: ") {
                println!("{prefix}skipped: {what}");
            }
        }
    }
}

fn ended_well(output: &Output) -> Result<(), Failed> {
    if output.status.success() {
        return Ok(());
    }
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    Err(format!("{}\n{stdout}{stderr}", output.status).into())
}
