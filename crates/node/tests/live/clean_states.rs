//! `clean --yes` on nodes made at random: mounts within mounts, binds of one disk, stacks, subPaths, plain folders with data,
//! and a process that moves folders away and plants symlinks in their place while it runs. Every file system and folder has a
//! canary.
//!
//! `REFLOAT_CLEAN_STATES` says how many nodes (`cargo xtask clean-states`), `REFLOAT_CLEAN_SEED` which one alone.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use refloat_mount::{Kernel, TableReader};
use refloat_node::clean::{Authority, CleanOptions, Cleaner, CleanerOptions, Verdict};
use refloat_record::{PodUid, UniqueVolumeName};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

refloat_test_support::tests![no_canary_is_lost_on_any_node];

/// So many without being told, and no longer than this.
const STATES: u64 = 400;
const PATIENCE: Duration = Duration::from_secs(40);

/// Numbers that look random and are the same at every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % sides
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(len as u64)).unwrap()
    }

    fn often(&mut self, in_ten: u64) -> bool {
        self.roll(10) < in_ten
    }
}

/// Pods are wanted, gone or not known, as the state has it.
struct Said {
    wanted: BTreeSet<String>,
    unknown: BTreeSet<String>,
}

impl Authority for Said {
    fn refresh(&mut self) {}

    fn verdict(&self, pod: &PodUid) -> Verdict {
        if self.wanted.contains(pod.as_str()) {
            Verdict::Wanted { by: "the test".into() }
        } else if self.unknown.contains(pod.as_str()) {
            Verdict::Unknown { why: "the test does not say".into() }
        } else {
            Verdict::Gone { by: "the test".into(), since: None }
        }
    }

    fn verdict_of_unused(&self, _: Option<&UniqueVolumeName>, _: &Path) -> Verdict {
        Verdict::Gone { by: "the test".into(), since: None }
    }

    fn objection_to_unused(&self, _: Option<&UniqueVolumeName>, _: &Path) -> Option<String> {
        None
    }
}

/// One node.
struct State {
    base: PathBuf,
    root: PathBuf,
    /// Folders of the host, each with a canary; some are file systems of their own.
    sources: Vec<PathBuf>,
    /// Files that must be there at the end.
    canaries: Vec<PathBuf>,
    /// Mount points that must be as often mounted as before.
    stays: Vec<(PathBuf, usize)>,
    /// Folders that the racing process may move.
    movable: Vec<PathBuf>,
    said: Said,
}

fn bind(from: &Path, to: &Path) {
    rustix::mount::mount_bind(from, to).unwrap();
    rustix::mount::mount_change(to, MountPropagationFlags::PRIVATE).unwrap();
}

fn tmpfs(at: &Path) {
    rustix::mount::mount("canary", at, "tmpfs", MountFlags::empty(), Some(c"size=256k")).unwrap();
}

fn canary(folder: &Path) -> PathBuf {
    let file = folder.join("canary");
    std::fs::write(&file, "alive").unwrap();
    file
}

impl State {
    fn new(base: &Path, dice: &mut Dice) -> Self {
        tmpfs(base);
        let mut state = Self {
            base: base.to_path_buf(),
            root: base.join("kubelet"),
            sources: vec![],
            canaries: vec![],
            stays: vec![],
            movable: vec![],
            said: Said { wanted: BTreeSet::new(), unknown: BTreeSet::new() },
        };
        std::fs::create_dir(&state.root).unwrap();
        for n in 0..4 {
            let source = base.join("host").join(n.to_string());
            std::fs::create_dir_all(&source).unwrap();
            if n % 2 == 1 {
                tmpfs(&source);
            }
            // Below the top, so that a global mount of it has no other reference above.
            let inner = source.join("volume");
            std::fs::create_dir_all(inner.join("sub/deeper")).unwrap();
            for folder in [&source, &inner, &inner.join("sub"), &inner.join("sub/deeper")] {
                state.canaries.push(canary(folder));
            }
            state.sources.push(inner);
        }
        for n in 0..=dice.roll(4) {
            let uid = format!("u{n}");
            match dice.roll(10) {
                0..3 => drop(state.said.wanted.insert(uid.clone())),
                3 => drop(state.said.unknown.insert(uid.clone())),
                _ => {}
            }
            for v in 0..=dice.roll(4) {
                state.volume(dice, &uid, v);
            }
        }
        let table = TableReader::new(Kernel::detect()).read().unwrap();
        let keeps = |path: &Path| {
            let all = state.said.wanted.iter().chain(&state.said.unknown);
            all.into_iter().any(|uid| path.starts_with(state.root.join("pods").join(uid)))
        };
        let points: BTreeSet<&Path> =
            table.under(&state.root).map(refloat_mount::Mount::point).filter(|p| keeps(p)).collect();
        state.stays = points.into_iter().map(|p| (p.to_path_buf(), table.stack(p).len())).collect();
        state
    }

    fn source(&self, dice: &mut Dice) -> PathBuf {
        let source = &self.sources[dice.index(self.sources.len())];
        if dice.often(3) { source.join("sub") } else { source.clone() }
    }

    fn volume(&mut self, dice: &mut Dice, uid: &str, number: u64) {
        let keeps = self.said.wanted.contains(uid) || self.said.unknown.contains(uid);
        let pod = self.root.join("pods").join(uid);
        let name = format!("v{number}");
        let at = |plugin: &str| {
            let path = pod.join(format!("volumes/kubernetes.io~{plugin}/{name}"));
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        match dice.roll(9) {
            // An emptyDir, with things mounted inside.
            0 | 1 => {
                let path = at("empty-dir");
                let own = canary(&path);
                if keeps {
                    self.canaries.push(own);
                }
                for n in 0..dice.roll(3) {
                    let inside = path.join(format!("n{n}"));
                    std::fs::create_dir(&inside).unwrap();
                    for _ in 0..=dice.roll(2) {
                        bind(&self.source(dice), &inside);
                    }
                    if dice.often(4) && inside.join("deeper").is_dir() {
                        bind(&self.source(dice), &inside.join("deeper"));
                    }
                }
                self.movable.push(path);
            }
            2 => {
                let path = at("empty-dir");
                tmpfs(&path);
                let own = canary(&path);
                if keeps {
                    self.canaries.push(own);
                }
            }
            // A bind of a folder of the host, in one or several layers, with perhaps another inside.
            3 | 4 => {
                let path = at(if dice.often(5) { "nfs" } else { "local-volume" });
                let source = self.source(dice);
                for _ in 0..=dice.roll(3) {
                    bind(&source, &path);
                }
                if dice.often(2) {
                    bind(&self.source(dice), &path);
                }
                if dice.often(3) && path.join("deeper").is_dir() {
                    bind(&self.source(dice), &path.join("deeper"));
                }
            }
            // A device, mounted globally and for the pod.
            5 => {
                let global = self.root.join("plugins/kubernetes.io/local-volume/mounts").join(&name);
                std::fs::create_dir_all(&global).unwrap();
                let source = self.sources[dice.index(self.sources.len())].join("sub");
                let table = TableReader::new(Kernel::detect()).read().unwrap();
                if table.at(&global).is_none() {
                    bind(&source, &global);
                }
                bind(&global, &at("local-volume"));
            }
            // A subPath, whose volume may have no folder.
            6 => {
                let path = pod.join(format!("volume-subpaths/{name}/c/0"));
                std::fs::create_dir_all(&path).unwrap();
                bind(&self.source(dice), &path);
                self.movable.push(pod.join("volume-subpaths").join(&name));
            }
            // Files where nothing is mounted.
            7 => {
                let path = at(["nfs", "csi", "local-volume", "rbd"][dice.index(4)]);
                self.canaries.push(canary(&path));
            }
            // What an atomic writer made.
            _ => {
                let path = at("configmap");
                let stamped = "..2024_01_01_00_00_00.1";
                std::fs::create_dir(path.join(stamped)).unwrap();
                std::fs::write(path.join(stamped).join("key"), "value").unwrap();
                symlink(stamped, path.join("..data")).unwrap();
                symlink("..data/key", path.join("key")).unwrap();
                if dice.often(3) {
                    self.canaries.push(canary(&path));
                }
                self.movable.push(path);
            }
        }
    }

    /// Moves folders of pods that are gone away, with a symlink to a folder of the host in their place, and back.
    fn race(&self, stop: &Arc<AtomicBool>, mut dice: Dice) -> std::thread::JoinHandle<()> {
        let kept: Vec<PathBuf> =
            self.said.wanted.iter().chain(&self.said.unknown).map(|uid| self.root.join("pods").join(uid)).collect();
        let movable: Vec<PathBuf> =
            self.movable.iter().filter(|path| !kept.iter().any(|pod| path.starts_with(pod))).cloned().collect();
        let (stop, sources) = (Arc::clone(stop), self.sources.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) && !movable.is_empty() {
                let path = &movable[dice.index(movable.len())];
                let away = path.with_extension("away");
                if std::fs::rename(path, &away).is_ok() {
                    let _ = symlink(&sources[dice.index(sources.len())], path);
                    std::thread::sleep(Duration::from_micros(dice.roll(300)));
                    let _ = std::fs::remove_file(path);
                    let _ = std::fs::rename(&away, path);
                }
                std::thread::sleep(Duration::from_micros(dice.roll(500)));
            }
        })
    }

    fn check(&self, seed: u64) {
        for canary in &self.canaries {
            let text = std::fs::read_to_string(canary);
            assert!(text.as_deref().ok() == Some("alive"), "seed {seed}: {} is lost: {text:?}", canary.display());
        }
        let table = TableReader::new(Kernel::detect()).read().unwrap();
        for (point, layers) in &self.stays {
            assert_eq!(table.stack(point).len(), *layers, "seed {seed}: {} of a wanted pod", point.display());
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.base, UnmountFlags::DETACH);
    }
}

fn one(base: &Path, seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        dice.roll(2);
    }
    let mut state = State::new(base, &mut dice);
    let racing = dice.often(4);
    let options = CleanOptions {
        grace: Duration::ZERO,
        delete_ephemeral: dice.often(5),
        without_driver: dice.often(5),
        release: dice.often(1),
        ..CleanOptions::default()
    };
    let said = std::mem::replace(&mut state.said, Said { wanted: BTreeSet::new(), unknown: BTreeSet::new() });
    state.said = Said { wanted: said.wanted.clone(), unknown: said.unknown.clone() };
    let mut cleaner = Cleaner::open(
        CleanerOptions {
            flex_volume_dir: PathBuf::new(),
            sys: refloat_volume::scsi::Sys::default(),
            provider_dir: None,
            root_dir: state.root.clone(),
            state_dir: base.join("state"),
            write: true,
            workers: 1 + dice.index(4),
            operation_deadline: Duration::from_secs(20),
            timeout: Duration::from_secs(20),
        },
        Box::new(said),
    )
    .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let racer = racing.then(|| state.race(&stop, Dice(seed | 1)));
    let (plan, _) = cleaner.plan(&options).unwrap();
    let report = cleaner.execute(plan, &options).unwrap();
    stop.store(true, Ordering::Relaxed);
    if let Some(racer) = racer {
        racer.join().unwrap();
    }
    drop(cleaner);
    state.check(seed);
    if !racing {
        assert_eq!(report.stopped, None, "seed {seed}: {:#?}", report.plan.steps().collect::<Vec<_>>());
        assert!(!report.is_unfinished(), "seed {seed}: {:#?}", report.plan.steps().collect::<Vec<_>>());
    }
}

fn no_canary_is_lost_on_any_node() {
    let base = tempfile::tempdir_in(refloat_test_support::base()).unwrap();
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("REFLOAT_CLEAN_SEED") {
        return one(base.path(), seed);
    }
    let told = number("REFLOAT_CLEAN_STATES");
    let begun = Instant::now();
    for seed in 0..told.unwrap_or(STATES) {
        one(base.path(), seed);
        if told.is_none() && begun.elapsed() > PATIENCE {
            println!("{} nodes within the time", seed + 1);
            return;
        }
    }
}
