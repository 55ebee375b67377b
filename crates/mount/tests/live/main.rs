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

use std::process::ExitCode;

use refloat_mount::{Kernel, KernelFeatures};
use refloat_test_support::{Arguments, Trial};

use scene::Scene;

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
    let Some(user) = refloat_test_support::enter("all tests of `live`") else { return ExitCode::SUCCESS };
    println!("in a private mount namespace{}", if user { " of an ordinary user" } else { "" });
    let mut trials = Vec::new();
    let new = Kernel::detect();
    let ways = [("new", new), ("middle", middle()), ("old", old())];
    for (way, kernel) in ways.into_iter().filter(|(way, kernel)| *way == "old" || kernel.features().new_mount_calls) {
        for (name, test) in tests() {
            trials.push(on(kernel, format!("{way}::{name}"), test));
        }
    }
    if !new.features().new_mount_calls {
        println!("skipped: new::* and middle::*: this kernel has no new mount calls");
    }
    if user || refloat_test_support::is_as_nobody() {
        println!("skipped: loopdev::*: loop devices need root");
    } else {
        trials.extend(loopdev::TESTS.iter().map(|&(name, test)| on(new, name.to_owned(), test)));
        trials.push(Trial::test("as_an_ordinary_user", refloat_test_support::as_nobody));
    }
    refloat_test_support::run(&arguments, trials)
}

/// A test on this kernel.
fn on(kernel: Kernel, name: String, test: Test) -> Trial {
    Trial::test(name, move || {
        test(&Scene::new(kernel)?);
        Ok(())
    })
}
