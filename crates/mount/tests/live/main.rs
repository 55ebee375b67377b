//! Tests on real mounts, in a private mount namespace of this process: as root, and once more as an ordinary user in
//! a user namespace where the kernel permits it. Each runs with all that the kernel has, with the new mount calls alone, and with the old ones.

mod bind;
mod hung;
mod loopdev;
mod remove;
mod root;
mod scene;
mod table;
mod unmount;
mod watch;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use refloat_mount::{Kernel, KernelFeatures};

use scene::Scene;

/// Set in the process that runs the same tests as an ordinary user.
const AS_USER: &str = "REFLOAT_TEST_AS_USER";

/// A test: panics or answers an error if it fails.
type Test = fn(&Scene);

/// What runs everywhere.
fn tests() -> Vec<(&'static str, Test)> {
    [table::TESTS, bind::TESTS, root::TESTS, remove::TESTS, unmount::TESTS, hung::TESTS, watch::TESTS].concat()
}

/// A kernel such as Linux 5.15: mounts are made detached, the table comes from mountinfo, and there are no unique ids.
fn middle() -> Kernel {
    let KernelFeatures { new_mount_calls, mount_setattr, openat2, .. } = Kernel::detect().features();
    Kernel::with_features(KernelFeatures { new_mount_calls, mount_setattr, openat2, ..KernelFeatures::default() })
}

/// The older ways.
fn old() -> Kernel {
    let openat2 = Kernel::detect().features().openat2;
    Kernel::with_features(KernelFeatures { openat2, ..KernelFeatures::default() })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They look at the mount table of the one namespace that all threads share.
    arguments.test_threads = Some(1);
    let user = match refloat_mount::enter_private_namespace() {
        Ok(user) => user,
        Err(error) => {
            let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            println!("skipped all tests of `live`: {error}: {why}");
            return ExitCode::SUCCESS;
        }
    };
    println!("in a private mount namespace{}", if user { " of an ordinary user" } else { "" });
    let mut trials = Vec::new();
    let new = Kernel::detect();
    let ways = [("new", new), ("middle", middle()), ("old", old())];
    for (way, kernel) in ways.into_iter().filter(|(way, kernel)| *way == "old" || kernel.features().new_mount_calls) {
        for (name, test) in tests() {
            trials.push(Trial::test(format!("{way}::{name}"), move || {
                test(&Scene::new(kernel)?);
                Ok(())
            }));
        }
    }
    if !new.features().new_mount_calls {
        println!("skipped new::* and middle::*: this kernel has no new mount calls");
    }
    if std::env::var_os(AS_USER).is_none() && !user {
        for &(name, test) in loopdev::TESTS {
            trials.push(Trial::test(name, move || {
                test(&Scene::new(new)?);
                Ok(())
            }));
        }
        trials.push(Trial::test("as_an_ordinary_user", as_user));
    } else {
        println!("skipped loopdev::*: loop devices need root");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs all tests again as nobody, who needs a user namespace.
fn as_user() -> Result<(), Failed> {
    // The build folder may be closed to others; a copy is not.
    let folder = tempfile::Builder::new().prefix("refloat-live").tempdir()?;
    let copy = folder.path().join("live");
    std::fs::copy(std::env::current_exe()?, &copy)?;
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let output = std::process::Command::new(&copy).env(AS_USER, "1").current_dir("/").uid(65534).gid(65534).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|line| line.starts_with("skipped")) {
        println!("as_an_ordinary_user: {line}");
    }
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)).into())
}
