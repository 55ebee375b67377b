//! `cargo xtask test`: all tests, and one line at the end that counts them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::packages;
use crate::peer::check;
use crate::process::{build_refloat, cargo, find_tool, timed};
use crate::{kill_sweep, real_node, sanity};
use refloat_test_support::virtual_machine;

/// Arguments of `test`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Only the crates' tests: no demo, no kill sweep
    #[arg(long)]
    quick: bool,
    /// Only the tests in the virtual machine
    #[arg(long, conflicts_with = "quick")]
    vm: bool,
}

#[derive(Debug, Default)]
struct Count {
    passed: usize,
    failed: usize,
    skipped: usize,
    what_failed: Vec<String>,
    what_skipped: Vec<String>,
}

impl Count {
    fn skip(&mut self, what: String) {
        self.skipped += 1;
        self.what_skipped.push(what);
    }

    fn result(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                self.what_failed.push(format!("{name}: {error:#}"));
            }
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut count = Count::default();
    for (tool, what) in timed("packages", packages::install_missing) {
        count.skip(format!("{what}: there is no {tool}"));
    }
    if args.vm {
        vm(&mut count);
        return Ok(conclude(&count));
    }
    let real_node = if args.quick { None } else { timed("a real node", || build_real_node(&mut count)) };
    timed("the crates' tests", || crates(&mut count, real_node.as_deref(), args.quick))?;
    if !args.quick {
        timed("the virtual machine", || vm(&mut count));
        timed("the demo", || demo(&mut count))?;
        timed("the peer's check", || peer(&mut count));
        timed("csi-sanity", || sanity(&mut count));
        timed("the kill sweep", || sweep(&mut count));
    }
    Ok(conclude(&count))
}

/// Says what did not run or failed and, in the last line, how many.
fn conclude(count: &Count) -> ExitCode {
    for (title, list) in [("skipped", &count.what_skipped), ("failed", &count.what_failed)] {
        for line in list {
            println!("{title}: {line}");
        }
    }
    println!("{} passed, {} failed, {} skipped", count.passed, count.failed, count.skipped);
    if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The programs of the real node, that some of the crates' tests run beside. Without them those say themselves that they are
/// skipped.
fn build_real_node(count: &mut Count) -> Option<PathBuf> {
    let why = match real_node::build() {
        Ok(Ok(out)) => return Some(out),
        Ok(Err(why)) => why,
        Err(error) => format!("{error:#}"),
    };
    count.skip(format!("the build of a real node: {why}"));
    None
}

/// `cargo test --workspace`. A test that cannot run here passes and says `skipped: NAME: REASON`.
fn crates(count: &mut Count, real_node: Option<&Path>, without_vm: bool) -> Result<()> {
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast", "--", "--nocapture"]);
    if let Some(folder) = real_node {
        command.env(refloat_test_support::real_node::OUT, folder);
    }
    if !without_vm {
        command.env(virtual_machine::MARK, virtual_machine::LATER);
    }
    let (read, write) = std::io::pipe().context("cannot make a pipe")?;
    command.stdout(write.try_clone()?).stderr(write);
    let mut child = command.spawn().context("cannot run cargo test")?;
    drop(command);
    let failed_before = count.failed;
    for line in BufReader::new(read).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        count_line(&line, count);
    }
    let status = child.wait()?;
    if !status.success() && count.failed == failed_before {
        // It did not build, or a test program died without a result.
        count.failed += 1;
        count.what_failed.push(format!("cargo test ended with {status}"));
    }
    Ok(())
}

fn count_line(line: &str, count: &mut Count) {
    if let Some(what) = line.trim_start().strip_prefix("skipped: ") {
        count.skip(what.into());
        // The test that says so ends as passed.
        count.passed = count.passed.wrapping_sub(1);
        return;
    }
    if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
        count.what_failed.push(name.into());
    }
    let Some(result) = line.strip_prefix("test result: ") else { return };
    let Some((_, numbers)) = result.split_once(". ") else { return };
    for part in numbers.split("; ") {
        let mut words = part.split(' ');
        let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<usize>), words.next()) else { continue };
        match what {
            "passed" => count.passed = count.passed.wrapping_add(number),
            "failed" => count.failed += number,
            "ignored" => count.skipped += number,
            _ => {}
        }
    }
}

/// The tests that need another kernel than this machine's.
fn vm(count: &mut Count) {
    let name = "the tests in a virtual machine";
    let failed_before = count.failed;
    let ended = crate::vm::check(None, &mut |line| {
        println!("{line}");
        count_line(line, count);
    });
    match ended {
        Ok(Err(why)) => count.skip(format!("{name}: {why}")),
        Ok(Ok(code)) if code != 0 && count.failed == failed_before => {
            count.result(name, Err(anyhow::anyhow!("they ended with code {code}")));
        }
        Ok(Ok(_)) => {}
        Err(error) => count.result(name, Err(error)),
    }
}

/// The demo, as root and as somebody without privilege, and that neither leaves anything behind.
fn demo(count: &mut Count) -> Result<()> {
    let binary = build_refloat(false)?;
    println!("demo");
    let leftovers = || -> Result<usize> {
        let temp = std::fs::read_dir(std::env::temp_dir())?;
        Ok(temp.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("refloat-demo-")).count())
    };
    let before = leftovers()?;
    let run = |command: &mut Command| -> Result<(Option<i32>, String)> {
        let output = command.stdin(Stdio::null()).output().context("cannot run the demo")?;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
    };
    let (code, text) = run(Command::new(&binary).arg("demo"))?;
    if code == Some(1) && text.contains("the demo needs a mount namespace of its own") {
        count.skip(format!("the demo: {}", text.lines().next().unwrap_or_default()));
    } else {
        count.result("the demo", if code == Some(0) { Ok(()) } else { Err(anyhow::anyhow!("{code:?}\n{text}")) });
    }
    if rustix::process::geteuid().is_root() && find_tool("setpriv").is_some() {
        // Where the binary is may be hidden from others, so they get a copy.
        let folder = tempfile::Builder::new().prefix("refloat-unprivileged-").tempdir()?;
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let copy = folder.path().join("refloat");
        std::fs::copy(&binary, &copy)?;
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&copy).arg("demo");
        let (code, text) = run(command.current_dir("/").env_remove("TMPDIR"))?;
        let name = "the demo without privilege";
        if code == Some(1) && text.contains("the demo needs a mount namespace of its own") {
            count.skip(format!("{name}: {}", text.lines().last().unwrap_or_default()));
        } else {
            count.result(name, if code == Some(0) { Ok(()) } else { Err(anyhow::anyhow!("{code:?}\n{text}")) });
        }
    }
    let left = leftovers()?;
    let clean = if left == before { Ok(()) } else { Err(anyhow::anyhow!("{} folders are left", left - before)) };
    count.result("the demo leaves nothing behind", clean);
    Ok(())
}

/// What `scan` finds on a tree that a kubelet made.
fn peer(count: &mut Count) {
    let name = "the peer's check";
    match check::check(&check::Args::default()) {
        Ok(Err(why)) => count.skip(format!("{name}: {why}")),
        Ok(Ok(summary)) => {
            println!("{name}: {summary}");
            count.result(name, Ok(()));
        }
        Err(error) => count.result(name, Err(error)),
    }
}

/// The CSI conformance suite.
fn sanity(count: &mut Count) {
    let name = "csi-sanity on the tests' CSI driver";
    match sanity::check() {
        Ok(Err(why)) => count.skip(format!("{name}: {why}")),
        Ok(Ok(said)) => {
            println!("{name}: {said}");
            count.result(name, Ok(()));
        }
        Err(error) => count.result(name, Err(error)),
    }
}

fn sweep(count: &mut Count) {
    match kill_sweep::sweep(&kill_sweep::Args::of_part()) {
        Ok(kill_sweep::Summary { skipped: Some(why), .. }) => count.skip(format!("the kill sweep: {why}")),
        Ok(summary) => {
            for what in summary.left_out {
                count.skip(format!("a part of the kill sweep: {what}"));
            }
            count.passed += summary.passed;
            count.failed += summary.failed;
            if summary.failed > 0 {
                count.what_failed.push(format!("{} kill points; see above", summary.failed));
            }
        }
        Err(error) => count.result("the kill sweep", Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let mut count = Count::default();
        for line in [
            "test a ... ok",
            "test b ... FAILED",
            "skipped: c: no strace",
            "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            count_line(line, &mut count);
        }
        assert_eq!((count.passed, count.failed, count.skipped), (7, 1, 3));
        assert_eq!(count.what_failed, ["b"]);
    }
}
