//! Pods' cgroups with living processes in them.
//!
//! # Source
//! `pkg/kubelet/cm/cgroup_manager_linux.go` and `pod_container_manager_linux.go`: with the driver `cgroupfs` a pod's cgroup
//! is `kubepods[/burstable|/besteffort]/pod<uid>`, with `systemd` it is `kubepods[-burstable|-besteffort]-pod<uid>.slice`
//! with `_` for `-`; both below `--cgroup-root`, where a node in a container has a whole path. The kernel's
//! `cgroup-v1/cgroups.rst` and `cgroup-v2.rst`: a process is in one cgroup of each hierarchy; in v2 `cgroup.events` of
//! a cgroup tells of it and all below it.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use jiff::Timestamp;
use refloat_node::{Answer, Claim, Covers, KnownPod, PodSource, SourceError, SourceKind};
use refloat_record::PodUid;

/// How deep cgroups are looked for. A node in a container in a container has its pods ten levels down.
const MAX_DEPTH: usize = 32;

/// A cgroup file system, and where it is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point.
    pub path: PathBuf,
    /// Whether it is of version 2.
    pub unified: bool,
}

/// The cgroups of a node. Only that a pod runs is learned from them, never that it is to run or that it may go.
#[derive(Debug, Clone)]
pub struct Cgroups {
    hierarchies: Option<Vec<Hierarchy>>,
}

impl Cgroups {
    /// Those of this machine, as far as this mount namespace shows them.
    pub fn of_this_node() -> Self {
        Self { hierarchies: None }
    }

    /// Those that are mounted here.
    pub fn at(hierarchies: Vec<Hierarchy>) -> Self {
        Self { hierarchies: Some(hierarchies) }
    }
}

impl PodSource for Cgroups {
    fn name(&self) -> String {
        "cgroups".into()
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Cgroup
    }

    fn ask(&self, deadline: Instant) -> Result<Answer, SourceError> {
        let asked_at = Timestamp::now();
        let hierarchies = match &self.hierarchies {
            Some(given) => given.clone(),
            None => mounted()?,
        };
        let mut search = Search { deadline, running: BTreeSet::new(), kubepods: false };
        for hierarchy in &hierarchies {
            search.folder(&hierarchy.path, hierarchy.unified, false, 0)?;
        }
        // Whoever runs in a cgroup namespace of its own sees no pods, and a kubelet can be told to make none for them.
        let mut answer = Answer::new(if search.kubepods { Covers::Every } else { Covers::Nobody }, asked_at);
        for uid in search.running {
            answer.insert(KnownPod { uid, name: None, claim: Claim::Wanted, since: None });
        }
        Ok(answer)
    }
}

/// The cgroup file systems in this mount namespace.
fn mounted() -> Result<Vec<Hierarchy>, SourceError> {
    const TABLE: &str = "/proc/self/mountinfo";
    let table = fs::read(TABLE).map_err(|e| SourceError::failed(format!("reading {TABLE}"), e))?;
    let hierarchies = hierarchies(&table);
    if hierarchies.is_empty() {
        return Err(SourceError::incomplete("no cgroup file system is mounted"));
    }
    Ok(hierarchies)
}

/// The cgroup file systems in a mount table, each once.
fn hierarchies(table: &[u8]) -> Vec<Hierarchy> {
    let mut seen = BTreeSet::new();
    let lines = table.split(|b| *b == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines
        .filter_map(|line| {
            let (front, back) = line.split_once(" - ")?;
            let unified = match back.split(' ').next()? {
                "cgroup2" => true,
                "cgroup" => false,
                _ => return None,
            };
            let mut fields = front.split(' ').skip(2);
            let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
            // The same one bound to another place adds nothing; another part of it may.
            seen.insert((device, root)).then(|| Hierarchy { path: unescaped(point), unified })
        })
        .collect()
}

/// A path as the mount table spells it: a blank, tab, newline and backslash stand there in octal.
fn unescaped(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok());
        if let (Some(code), Some(rest)) = (code, part.get(3..)) {
            plain.push(code.into());
            plain.push_str(rest);
        } else {
            plain.push('\\');
            plain.push_str(part);
        }
    }
    plain.into()
}

/// One look at all hierarchies.
struct Search {
    deadline: Instant,
    /// Pods with a living process.
    running: BTreeSet<PodUid>,
    /// Whether the cgroup that all pods of a kubelet are in was seen.
    kubepods: bool,
}

impl Search {
    /// Looks at all cgroups in one. `inside` says whether it is in a kubelet's.
    fn folder(&mut self, folder: &Path, unified: bool, inside: bool, depth: usize) -> Result<(), SourceError> {
        if Instant::now() >= self.deadline {
            return Err(SourceError::incomplete("there are too many cgroups to look at in time"));
        }
        if depth > MAX_DEPTH {
            return Err(SourceError::incomplete(format!("{} is deeper than is looked", folder.display())));
        }
        for (name, path) in children(folder)? {
            let is_root = name == "kubepods" || name.ends_with("kubepods.slice");
            self.kubepods |= is_root;
            let inside = inside || is_root;
            match pod_of(&name).filter(|_| inside) {
                None => self.folder(&path, unified, inside, depth + 1)?,
                Some(pod) if !self.running.contains(&pod) && lives(&path, unified, depth)? => {
                    self.running.insert(pod);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The cgroups in one. One that vanished meanwhile has none.
fn children(folder: &Path) -> Result<Vec<(String, PathBuf)>, SourceError> {
    let failed = |e| SourceError::failed(format!("listing {}", folder.display()), e);
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if is_gone(&e) => return Ok(found),
        Err(e) => return Err(failed(e)),
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) if is_gone(&e) => break,
            Err(e) => return Err(failed(e)),
        };
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
    }
    Ok(found)
}

/// Whether a process lives in this cgroup or in one below it.
fn lives(cgroup: &Path, unified: bool, depth: usize) -> Result<bool, SourceError> {
    let read = |name: &str| match fs::read_to_string(cgroup.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(e) if is_gone(&e) => Ok(None),
        Err(e) => Err(SourceError::failed(format!("reading {}", cgroup.join(name).display()), e)),
    };
    if unified {
        let Some(events) = read("cgroup.events")? else { return Ok(false) };
        let populated = events.lines().find_map(|line| line.strip_prefix("populated "));
        return match populated.map(str::trim) {
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            _ => Err(SourceError::incomplete(format!("{}/cgroup.events says nothing of processes", cgroup.display()))),
        };
    }
    if read("cgroup.procs")?.is_some_and(|text| !text.trim().is_empty()) {
        return Ok(true);
    }
    if depth > MAX_DEPTH {
        return Err(SourceError::incomplete(format!("{} is deeper than is looked", cgroup.display())));
    }
    for (_, below) in children(cgroup)? {
        if lives(&below, false, depth + 1)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an error says that the cgroup was removed, before or after it was opened.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::NODEV)
}

/// The pod whose cgroup bears this name; none if it is no pod's. No uid has a `_`: the kubelet refuses it.
fn pod_of(name: &str) -> Option<PodUid> {
    let spelled = match name.strip_suffix(".slice") {
        None => name.strip_prefix("pod")?,
        Some(slice) => slice.rsplit_once("-pod").filter(|(parents, _)| parents.contains("kubepods"))?.1,
    };
    PodUid::new(spelled.replace('_', "-")).ok()
}
