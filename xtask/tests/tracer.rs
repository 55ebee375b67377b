//! The kill sweep's tracer, on this very program.

#[path = "../src/kill_sweep/calls.rs"]
mod calls;
#[path = "../src/kill_sweep/tracer.rs"]
mod tracer;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use nix::unistd::Pid;
use tracer::{Kill, Moment, Trace};

/// Folders that each thread of `worker` makes.
const FOLDERS: usize = 6;
/// Messages of `talk`.
const MESSAGES: usize = 5;
/// The calls by which the standard library may read from a socket.
const READS: &[&str] = &["read", "recvfrom"];

fn main() {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.first().and_then(|word| word.to_str()) {
        Some(tracer::EXEC) => match tracer::exec(&words[1..]) {
            Ok(never) => match never {},
            Err(error) => panic!("{error:#}"),
        },
        Some("worker") => worker(Path::new(&words[1]), words[2].to_str().unwrap().parse().unwrap()),
        Some("helped") => helped(Path::new(&words[1])),
        Some("talk") => talk(),
        _ => {
            let tests: [(&str, fn()); 8] = [
                ("calls_of_all_threads_are_counted", calls_of_all_threads_are_counted),
                ("exactly_the_calls_up_to_the_kill_happen", exactly_the_calls_up_to_the_kill_happen),
                ("no_thread_goes_on_after_the_kill", no_thread_goes_on_after_the_kill),
                ("a_helper_outlives_the_kill", a_helper_outlives_the_kill),
                ("calls_on_sockets_count_if_asked", calls_on_sockets_count_if_asked),
                ("another_process_can_be_killed", another_process_can_be_killed),
                ("a_program_that_ends_before_is_not_hit", a_program_that_ends_before_is_not_hit),
                ("a_program_that_is_not_there_is_an_error", a_program_that_is_not_there_is_an_error),
            ];
            let trial = |(name, test): (&str, fn())| {
                Trial::test(name, move || {
                    test();
                    Ok(())
                })
            };
            let tests = tests.map(trial).into();
            libtest_mimic::run(&Arguments::from_args(), tests).exit();
        }
    }
}

// What is traced.

fn worker(folder: &Path, threads: usize) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for i in 0..FOLDERS {
                    std::fs::create_dir(folder.join(format!("{thread}-{i}"))).unwrap();
                }
            });
        }
    });
}

fn helped(folder: &Path) {
    let late = folder.join("late");
    let mut helper = Command::new("sh");
    helper.args(["-c", "sleep 0.2; mkdir \"$0\""]).arg(late).status().unwrap();
    std::fs::create_dir(folder.join("own")).unwrap();
}

fn talk() {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    for _ in 0..MESSAGES {
        here.write_all(b"x").unwrap();
        there.read_exact(&mut [0]).unwrap();
        std::fs::read("/proc/self/stat").unwrap();
    }
}

// Tests.

fn run(words: &[&str], sockets: &[&str], kill: Option<&Kill>) -> Trace {
    let mut command = tracer::command(&std::env::current_exe().unwrap());
    tracer::run(command.args(words).stdin(Stdio::null()), sockets, kill).unwrap()
}

/// A run of `worker` or `helped` in an empty folder: what it did, and the folder.
fn run_in_folder(what: &str, threads: &str, kill: Option<&Kill>) -> (Trace, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (run(&[what, folder.path().to_str().unwrap(), threads], &[], kill), folder)
}

fn entries(folder: &tempfile::TempDir) -> usize {
    std::fs::read_dir(folder.path()).unwrap().count()
}

fn folders_made(calls: &[(usize, &str)]) -> usize {
    calls.iter().filter(|(_, name)| name.starts_with("mkdir")).count()
}

fn calls_of_all_threads_are_counted() {
    let (trace, folder) = run_in_folder("worker", "3", None);
    assert!(trace.status.success());
    assert_eq!(folders_made(&trace.calls), 3 * FOLDERS);
    assert_eq!(entries(&folder), 3 * FOLDERS);
    for thread in 1..=3 {
        assert_eq!(
            folders_made(&trace.calls.iter().copied().filter(|(t, _)| *t == thread).collect::<Vec<_>>()),
            FOLDERS
        );
    }
    assert!(trace.calls.iter().all(|(_, name)| !name.starts_with("clone")), "a thread is no process");
}

fn exactly_the_calls_up_to_the_kill_happen() {
    let all = run_in_folder("worker", "1", None).0.calls.len();
    for number in 1..=all {
        for moment in [Moment::Before, Moment::After] {
            let (trace, folder) = run_in_folder("worker", "1", Some(&Kill { number, moment, other: None }));
            assert_eq!(trace.status.signal(), Some(9));
            assert_eq!(trace.calls.len(), number);
            let happened = if moment == Moment::Before { number - 1 } else { number };
            assert_eq!(entries(&folder), folders_made(&trace.calls[..happened]), "{number} {moment:?}");
            let (_, name) = trace.calls[number - 1];
            let hit = trace.hit.unwrap();
            assert!(hit.starts_with(&format!("{name}(")), "{hit}");
            if name.starts_with("mkdir") {
                assert!(hit.contains(folder.path().to_str().unwrap()), "{hit}");
            }
        }
    }
}

fn no_thread_goes_on_after_the_kill() {
    for number in 1..=2 * FOLDERS {
        for moment in [Moment::Before, Moment::After] {
            let (trace, folder) = run_in_folder("worker", "3", Some(&Kill { number, moment, other: None }));
            assert_eq!(trace.status.signal(), Some(9));
            let happened = folders_made(&trace.calls[..if moment == Moment::Before { number - 1 } else { number }]);
            let made = entries(&folder);
            // Each of the two other threads may have been on its way into a call.
            assert!(made <= happened && happened <= made + 2, "{number} {moment:?}: {made} of {happened}");
        }
    }
}

fn a_helper_outlives_the_kill() {
    let (trace, folder) = run_in_folder("helped", "", None);
    assert!(trace.status.success());
    assert_eq!(entries(&folder), 2);
    assert_eq!(folders_made(&trace.calls), 1, "the helper's calls are not counted: {:?}", trace.calls);
    let waits = trace.calls.iter().position(|(_, name)| name.starts_with("wait")).expect("it waits for its helper");
    let kill = Kill { number: waits + 1, moment: Moment::Before, other: None };
    let (trace, folder) = run_in_folder("helped", "", Some(&kill));
    assert_eq!(trace.status.signal(), Some(9));
    assert_eq!(entries(&folder), 0);
    let start = Instant::now();
    while entries(&folder) == 0 && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(std::fs::metadata(folder.path().join("late")).is_ok());
}

fn calls_on_sockets_count_if_asked() {
    let count = |sockets: &[&str]| {
        let calls = run(&["talk"], sockets, None).calls;
        calls.iter().filter(|(_, name)| READS.contains(name)).count()
    };
    assert_eq!(count(&[]), 0);
    assert_eq!(count(&["sendmsg"]), 0);
    assert_eq!(count(READS), MESSAGES, "files do not count");
}

fn another_process_can_be_killed() {
    let mut victim = Command::new("sleep").arg("1000").spawn().unwrap();
    let other = Some(Pid::from_raw(victim.id().try_into().unwrap()));
    for moment in [Moment::Before, Moment::After] {
        let (trace, folder) = run_in_folder("worker", "3", Some(&Kill { number: 2, moment, other }));
        assert!(trace.status.success(), "the traced program goes on");
        assert!(trace.hit.is_some());
        assert_eq!(entries(&folder), 3 * FOLDERS);
    }
    let ended = victim.try_wait().unwrap().expect("it is dead before the traced program goes on");
    assert_eq!(ended.signal(), Some(9));
}

fn a_program_that_ends_before_is_not_hit() {
    let (trace, folder) =
        run_in_folder("worker", "1", Some(&Kill { number: 1000, moment: Moment::Before, other: None }));
    assert!(trace.status.success());
    assert!(trace.hit.is_none());
    assert_eq!(entries(&folder), FOLDERS);
}

fn a_program_that_is_not_there_is_an_error() {
    let mut command = tracer::command(Path::new("/there/is/none"));
    tracer::run(command.stderr(Stdio::null()), &[], None).unwrap_err();
}
