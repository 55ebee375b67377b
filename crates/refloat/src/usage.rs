//! How full the mounted volumes are: the one thing that asks the file systems, which may not answer.
//!
//! A process of its own asks, so that one that waits in the kernel keeps nobody: this program never waits for it. It asks
//! each file system that is on a server or a daemon on a thread of its own, and all others one after another. What has not
//! been answered in time hangs, and that is said of its volume.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use refloat_mount::{Kernel, Mount, TableReader};
use refloat_node::hanging_problem;
use serde::Serialize;

use crate::look::View;

/// How long the file systems have to answer.
const DEADLINE: Duration = Duration::from_secs(1);

/// The command that makes this program the one that asks.
const PROBE: &str = "usage-probe";

/// How full a file system is, in bytes and inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Usage {
    pub(crate) total_bytes: u64,
    pub(crate) used_bytes: u64,
    /// For those who are not root.
    pub(crate) available_bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_used: u64,
    pub(crate) inodes_free: u64,
}

/// Asks how full each mounted volume is, and puts the answers into what was seen. Volumes whose file system does not answer
/// in time get a problem.
pub(crate) fn ask(view: &mut View) {
    let volumes = view.actual.volumes.iter().filter(|volume| volume.mount.is_some());
    let paths: Vec<PathBuf> = volumes.filter_map(|volume| volume.path.clone()).collect();
    let answers = ask_of(&paths);
    let answers: BTreeMap<PathBuf, Answer> = paths.into_iter().zip(answers).collect();
    for volume in &mut view.actual.volumes {
        let Some(path) = volume.path.clone() else { continue };
        match answers.get(&path) {
            None | Some(Answer::Failed) => {}
            Some(Answer::Usage(usage)) => {
                view.usage.insert(path, *usage);
            }
            Some(Answer::None) => {
                let known = volume.problems.iter().any(|problem| problem.code == "FileSystemHangs");
                if !known {
                    let who = format!("volume {:?} of pod {}", volume.key.spec_name.as_str(), volume.key.pod);
                    let why = format!("it was asked how full it is, and said nothing for {} s", DEADLINE.as_secs());
                    volume.problems.push(hanging_problem(&who, &path, &why));
                }
            }
        }
    }
}

/// What a file system said.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Usage(Usage),
    /// An error: it is there, and answers.
    Failed,
    None,
}

fn ask_of(paths: &[PathBuf]) -> Vec<Answer> {
    let mut answers = vec![Answer::None; paths.len()];
    if paths.is_empty() {
        return answers;
    }
    let failed = vec![Answer::Failed; paths.len()];
    let Ok(program) = std::env::current_exe() else { return failed };
    let mut command = Command::new(program);
    command.arg(PROBE).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return failed };
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return failed };
    let list: Vec<u8> = paths.iter().flat_map(|path| [path.as_os_str().as_bytes(), b"\0"].concat()).collect();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        // The child reads all of it before it asks anybody.
        let written = input.write_all(&list);
        drop(input);
        if written.is_ok() {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).ok();
        }
    });
    let end = Instant::now() + DEADLINE;
    // Until all are answered and the child ends, or until the time is over.
    while let Ok(line) = receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
        if let Some((index, answer)) = parse(&line)
            && let Some(place) = answers.get_mut(index)
        {
            *place = answer;
        }
    }
    // It may wait where no signal reaches it: nobody waits for it.
    let _ = child.kill();
    let _ = child.try_wait();
    answers
}

fn parse(line: &str) -> Option<(usize, Answer)> {
    let (index, rest) = line.split_once(' ')?;
    let index = index.parse().ok()?;
    let numbers: Vec<u64> = rest.split(' ').filter_map(|text| text.parse().ok()).collect();
    let [block, blocks, free, available, inodes, inodes_free] = numbers.as_slice() else {
        return Some((index, Answer::Failed));
    };
    let usage = Usage {
        total_bytes: blocks.saturating_mul(*block),
        used_bytes: blocks.saturating_sub(*free).saturating_mul(*block),
        available_bytes: available.saturating_mul(*block),
        inodes: *inodes,
        inodes_used: inodes.saturating_sub(*inodes_free),
        inodes_free: *inodes_free,
    };
    Some((index, Answer::Usage(usage)))
}

/// The file systems of this kernel that wait for nobody else when they are asked how full they are.
const LOCAL: [&str; 8] = ["tmpfs", "ext4", "ext3", "ext2", "xfs", "btrfs", "hugetlbfs", "overlay"];

/// The process that asks: paths on standard input, each with a NUL behind it; a line for each answer.
pub(crate) fn probe() -> std::io::Result<()> {
    let mut list = vec![];
    std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut list)?;
    let paths: Vec<PathBuf> = list
        .split(|&byte| byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| std::ffi::OsString::from_vec(path.to_vec()).into())
        .collect();
    let table = TableReader::new(Kernel::detect()).read().ok();
    let (mut local, mut others) = (vec![], BTreeMap::<_, Vec<(usize, PathBuf)>>::new());
    for (index, path) in paths.into_iter().enumerate() {
        let mount = table.as_ref().and_then(|table| table.at(&path));
        match mount.filter(|mount| LOCAL.contains(&&*mount.fs_type())) {
            Some(_) => local.push((index, path)),
            None => others.entry(mount.map(Mount::device)).or_default().push((index, path)),
        }
    }
    let groups = others.into_values().chain([local]).filter(|group| !group.is_empty());
    let threads: Vec<_> = groups.map(|group| std::thread::spawn(move || answer(group))).collect();
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn answer(paths: Vec<(usize, PathBuf)>) {
    for (index, path) in paths {
        let line = match statfs(&path) {
            Ok(text) => format!("{index} {text}\n"),
            Err(_) => format!("{index} error\n"),
        };
        // One write each: lines of several threads do not mix.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }
}

fn statfs(path: &Path) -> rustix::io::Result<String> {
    let told = rustix::fs::statvfs(path)?;
    Ok(format!(
        "{} {} {} {} {} {}",
        told.f_frsize, told.f_blocks, told.f_bfree, told.f_bavail, told.f_files, told.f_ffree
    ))
}
