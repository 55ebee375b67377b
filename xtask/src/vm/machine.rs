//! The virtual machine's run.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::root::Root;
use crate::process::find_tool;

const QEMU: &str = "qemu-system-x86_64";
/// How long everything may take: boot and tests. A hundred seconds are usual.
const PATIENCE: Duration = Duration::from_secs(600);
/// What `tests/vm/init` says at the end.
const END: &str = "the tests in the virtual machine ended: ";

/// Why there can be none here, if so.
pub(super) fn unavailable() -> Option<String> {
    if std::env::consts::ARCH != "x86_64" {
        return Some(format!("it has the tests' own programs, and there is no {} one", std::env::consts::ARCH));
    }
    let tools = [QEMU, "apt-get", "dpkg-deb", "tar"];
    tools.into_iter().find(|tool| find_tool(tool).is_none()).map(|tool| format!("there is no {tool}"))
}

/// Ended whatever happens here.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs it to its end; answers the code that the tests ended with. What the kernel says goes to the file `console`.
pub(super) fn run(root: &Root, tests: &Path, console: &Path, line: &mut dyn FnMut(&str)) -> Result<i32> {
    let mut command = Command::new(QEMU);
    // Emulated: hardware support may be there by name and hang without a word, as in a virtual machine that is one itself.
    command.args(["-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "qemu64,-svm", "-smp", "2", "-m", "2G"]);
    // Nothing from outside, and no way out.
    command.args(["-nodefaults", "-nic", "none", "-display", "none", "-no-reboot"]);
    command.arg("-kernel").arg(&root.kernel).arg("-initrd").arg(&root.initramfs);
    command.args(["-append", "console=ttyS0 quiet panic=-1"]);
    // What is written to the first disk is forgotten.
    command.arg("-drive").arg(format!("file={},format=raw,if=virtio,snapshot=on", root.disk.display()));
    command.arg("-drive").arg(format!("file={},format=raw,if=virtio,readonly=on", tests.display()));
    command.arg("-serial").arg(format!("file:{}", console.display())).args(["-serial", "stdio"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut machine = Machine(command.spawn().context("cannot run qemu")?);
    let output = BufReader::new(machine.0.stdout.take().context("it has no output")?);
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in output.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let end = Instant::now() + PATIENCE;
    let mut code = None;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(text) => match text.strip_prefix(END) {
                Some(number) => code = Some(number.parse().context("cannot read the tests' exit code")?),
                None => line(&text),
            },
            Err(RecvTimeoutError::Timeout) => {
                bail!("the tests in the virtual machine did not end in {PATIENCE:?}{}", tail(console))
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    code.with_context(|| format!("the virtual machine ended before its tests did{}", tail(console)))
}

/// The end of what the kernel said.
fn tail(console: &Path) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(console).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    format!("; the end of {}:\n{}", console.display(), lines[lines.len().saturating_sub(30)..].join("\n"))
}
