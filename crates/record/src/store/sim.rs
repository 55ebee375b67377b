//! The store on a simulated disk, which forgets what was not synced and fails where it is told to.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rustix::io::Errno;

use super::*;
use crate::disk::{Entry, EntryType, FileRead};
use crate::samples::{checkpoint, device, volume};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    File(usize),
    Folder(usize),
}

type Names = BTreeMap<OsString, Node>;

/// A change of names that no folder sync has covered yet. Each happens whole or not at all.
#[derive(Debug, Clone)]
enum Change {
    Link(usize, OsString, Node),
    Unlink(usize, OsString),
    Move { from: usize, name: OsString, to: usize, new: OsString, node: Node },
    Exchange { folder: usize, a: (OsString, Node), b: (OsString, Node) },
}

impl Change {
    fn touches(&self, f: usize) -> bool {
        match self {
            Self::Link(folder, ..) | Self::Unlink(folder, _) | Self::Exchange { folder, .. } => *folder == f,
            Self::Move { from, to, .. } => *from == f || *to == f,
        }
    }

    fn apply(self, folders: &mut [Names]) {
        match self {
            Self::Link(folder, name, node) => drop(folders[folder].insert(name, node)),
            Self::Unlink(folder, name) => drop(folders[folder].remove(&name)),
            Self::Move { from, name, to, new, node } => {
                if folders[from].get(&name) == Some(&node) {
                    folders[from].remove(&name);
                }
                folders[to].insert(new, node);
            }
            Self::Exchange { folder, a, b } => {
                folders[folder].insert(a.0, b.1);
                folders[folder].insert(b.0, a.1);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Content {
    now: Vec<u8>,
    durable: Option<Vec<u8>>,
}

/// When calls fail.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    None,
    /// From this call on, none has an effect: the power is gone.
    PowerCut(usize),
    /// This call fails.
    Once(usize, Errno),
    /// From this call on, everything fails that needs space or a healthy disk; removing works.
    From(usize, Errno),
}

#[derive(Debug)]
struct State {
    live: Vec<Names>,
    durable: Vec<Names>,
    pending: Vec<Change>,
    files: Vec<Content>,
    calls: usize,
    trouble: Trouble,
    /// The call that failed.
    hit: Option<&'static str>,
}

#[derive(Debug)]
struct Sim(Mutex<State>);

/// The state folder's number.
const ROOT: usize = 0;

impl Sim {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            live: vec![Names::new()],
            durable: vec![Names::new()],
            pending: vec![],
            files: vec![],
            calls: 0,
            trouble: Trouble::None,
            hit: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and lets it fail if it is its turn.
    fn call(&self, what: &'static str) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        let number = state.calls;
        state.calls += 1;
        let error = match state.trouble {
            Trouble::PowerCut(n) if number >= n => Errno::IO,
            Trouble::Once(n, e) if number == n => e,
            Trouble::From(n, e) if number >= n && what != "unlink" => e,
            _ => return Ok(state),
        };
        state.hit.get_or_insert(what);
        Err(error.into())
    }

    fn trouble(&self, trouble: Trouble) {
        let mut state = self.state();
        (state.trouble, state.hit) = (trouble, None);
    }

    /// The power comes back. `keep` says, for each change of names that was not synced, whether it had reached the
    /// disk all the same, and for each file that was not, how much of it (in 256ths).
    fn restart(&self, mut keep: impl FnMut() -> u8) {
        let mut state = self.state();
        for change in std::mem::take(&mut state.pending) {
            if keep() >= 128 {
                change.apply(&mut state.durable);
            }
        }
        state.live = state.durable.clone();
        for file in &mut state.files {
            file.now = if let Some(durable) = file.durable.take() {
                durable
            } else {
                let mut part = file.now.clone();
                let reached = part.len() * usize::from(keep()) / 255;
                part[reached..].fill(0);
                part
            };
            file.durable = Some(file.now.clone());
        }
        (state.trouble, state.hit) = (Trouble::None, None);
    }

    /// Temporary files in folders that have a name. A folder whose name did not reach the disk is nowhere, and what is in
    /// it as well.
    fn temps(&self) -> usize {
        let is_temp = |name: &&OsString| name.to_string_lossy().starts_with(TEMP);
        let state = self.state();
        let folders = state.live[ROOT].values().filter_map(|node| match node {
            Node::Folder(folder) => Some(*folder),
            Node::File(_) => None,
        });
        folders.chain([ROOT]).map(|folder| state.live[folder].keys().filter(is_temp).count()).sum()
    }
}

impl State {
    fn find(&self, folder: usize, name: &OsStr) -> io::Result<Node> {
        self.live[folder].get(name).copied().ok_or_else(|| Errno::NOENT.into())
    }

    fn change(&mut self, change: Change) {
        change.clone().apply(&mut self.live);
        self.pending.push(change);
    }
}

impl Disk for Arc<Sim> {
    type Folder = usize;
    type File = usize;

    fn make_folder(&self, parent: &usize, name: &str) -> io::Result<bool> {
        let mut state = self.call("make_folder")?;
        if state.find(*parent, OsStr::new(name)).is_ok() {
            return Ok(false);
        }
        let number = state.live.len();
        state.live.push(Names::new());
        state.durable.push(Names::new());
        state.change(Change::Link(*parent, name.into(), Node::Folder(number)));
        Ok(true)
    }

    fn open_folder(&self, parent: &usize, name: &str) -> io::Result<usize> {
        match self.call("open_folder")?.find(*parent, OsStr::new(name))? {
            Node::Folder(number) => Ok(number),
            Node::File(_) => Err(Errno::NOTDIR.into()),
        }
    }

    fn sync_folder(&self, folder: &usize) -> io::Result<()> {
        let mut state = self.call("sync_folder")?;
        let (here, other) = std::mem::take(&mut state.pending).into_iter().partition(|c| c.touches(*folder));
        state.pending = other;
        let here: Vec<Change> = here;
        for change in here {
            change.apply(&mut state.durable);
        }
        Ok(())
    }

    fn list(&self, folder: &usize) -> io::Result<Vec<Entry>> {
        let state = self.call("list")?;
        Ok(state.live[*folder]
            .iter()
            .map(|(name, node)| Entry {
                name: name.clone(),
                kind: match node {
                    Node::File(_) => EntryType::File,
                    Node::Folder(_) => EntryType::Other("a folder"),
                },
            })
            .collect())
    }

    fn read(&self, folder: &usize, name: &OsStr, _: u64, into: &mut Vec<u8>) -> io::Result<FileRead> {
        into.clear();
        let state = self.call("read")?;
        match state.find(*folder, name)? {
            Node::File(number) => {
                into.extend_from_slice(&state.files[number].now);
                Ok(FileRead::Whole)
            }
            Node::Folder(_) => Ok(FileRead::NotAFile("a folder")),
        }
    }

    fn create(&self, folder: &usize, name: &str) -> io::Result<usize> {
        let mut state = self.call("create")?;
        if state.find(*folder, OsStr::new(name)).is_ok() {
            return Err(Errno::EXIST.into());
        }
        let number = state.files.len();
        state.files.push(Content::default());
        state.change(Change::Link(*folder, name.into(), Node::File(number)));
        Ok(number)
    }

    fn write(&self, file: &mut usize, bytes: &[u8]) -> io::Result<()> {
        match self.call("write") {
            Ok(mut state) => {
                state.files[*file].now.extend_from_slice(bytes);
                Ok(())
            }
            Err(e) => {
                // A full disk takes a part.
                self.state().files[*file].now.extend_from_slice(&bytes[..bytes.len() / 2]);
                Err(e)
            }
        }
    }

    fn start_sync(&self, _: &usize, _: u64) {}

    fn sync(&self, file: &usize) -> io::Result<()> {
        let mut state = self.call("sync")?;
        let content = &mut state.files[*file];
        content.durable = Some(content.now.clone());
        Ok(())
    }

    fn rename_new(&self, from: &usize, name: &OsStr, to: &usize, new: &OsStr) -> io::Result<()> {
        let mut state = self.call("rename_new")?;
        let node = state.find(*from, name)?;
        if state.find(*to, new).is_ok() {
            return Err(Errno::EXIST.into());
        }
        state.change(Change::Move { from: *from, name: name.into(), to: *to, new: new.into(), node });
        Ok(())
    }

    fn exchange(&self, folder: &usize, a: &str, b: &str) -> io::Result<()> {
        let mut state = self.call("exchange")?;
        let (node_a, node_b) = (state.find(*folder, OsStr::new(a))?, state.find(*folder, OsStr::new(b))?);
        state.change(Change::Exchange { folder: *folder, a: (a.into(), node_a), b: (b.into(), node_b) });
        Ok(())
    }

    fn replace(&self, from: &usize, name: &OsStr, to: &usize, new: &OsStr) -> io::Result<()> {
        let mut state = self.call("replace")?;
        let node = state.find(*from, name)?;
        state.change(Change::Move { from: *from, name: name.into(), to: *to, new: new.into(), node });
        Ok(())
    }

    fn unlink(&self, folder: &usize, name: &OsStr) -> io::Result<()> {
        let mut state = self.call("unlink")?;
        state.find(*folder, name)?;
        state.change(Change::Unlink(*folder, name.into()));
        Ok(())
    }
}

fn open(sim: &Arc<Sim>) -> Result<Store<Arc<Sim>>, OpenError> {
    Store::open_on(sim.clone(), ROOT, Path::new("/state"))
}

/// What is in the store now, whatever trouble there is.
fn look(sim: &Arc<Sim>) -> Loaded {
    let (trouble, calls) = {
        let mut state = sim.state();
        (std::mem::replace(&mut state.trouble, Trouble::None), state.calls)
    };
    let loaded = load::read_on(sim, &ROOT, Path::new("/state")).unwrap();
    let mut state = sim.state();
    (state.trouble, state.calls) = (trouble, calls);
    loaded
}

/// What a manager does.
#[derive(Debug, Clone)]
enum Step {
    Put(Vec<Record>),
    Remove(RecordKey),
}

/// New records, updates, several at once (two of one key among them), removals, and a record that comes again.
fn scenario() -> Vec<Step> {
    let one = |record| Step::Put(vec![record]);
    vec![
        one(checkpoint("u1", "1")),
        one(volume("u1", "a", "1")),
        one(volume("u1", "a", "2")),
        Step::Put(vec![
            device("pv", "1"),
            volume("u1", "b", "1"),
            volume("u1", "a", "3"),
            volume("u1", "b", "2"),
            checkpoint("u1", "2"),
        ]),
        Step::Remove(volume("u1", "b", "").key()),
        one(volume("u1", "b", "3")),
        Step::Remove(volume("u1", "a", "").key()),
        Step::Remove(device("pv", "").key()),
    ]
}

/// For each key, what the store may have: one content, or one of several where nobody can know.
type May = BTreeMap<RecordKey, Vec<Option<Record>>>;

fn has(store: &Loaded) -> BTreeMap<RecordKey, Record> {
    store.records.iter().map(|r| (r.key(), r.clone())).collect()
}

fn check(loaded: &Loaded, may: &May, when: &str) {
    assert_eq!(loaded.unreadable, vec![], "{when}");
    let has = has(loaded);
    for (key, options) in may {
        assert!(options.contains(&has.get(key).cloned()), "{when}: {key:?} is {:?}, not of {options:?}", has.get(key));
    }
    assert!(has.keys().all(|k| may.contains_key(k)), "{when}");
}

/// Does one step and notes what may be there now. Answers whether all of it succeeded.
fn step(store: &Store<Arc<Sim>>, step: &Step, may: &mut May, exact: bool) -> bool {
    let mut note = |key: RecordKey, new: Option<Record>, done: bool, durable: bool| {
        let old = may.entry(key).or_insert_with(|| vec![None]);
        match (done, durable) {
            (true, true) => *old = vec![new],
            // A removal is not synced: after a power cut the record may be back. Only then.
            (true, false) if exact => *old = vec![new],
            (false, _) if exact => {}
            _ => old.push(new),
        }
    };
    match step {
        Step::Put(records) => {
            let outcomes = store.put_all(records);
            let mut all = true;
            for (record, outcome) in records.iter().zip(&outcomes) {
                note(record.key(), Some(record.clone()), outcome.is_ok(), true);
                all &= outcome.is_ok();
            }
            all
        }
        Step::Remove(key) => {
            let outcome = store.remove(key);
            note(key.clone(), None, outcome.is_ok(), false);
            outcome.is_ok()
        }
    }
}

/// Runs the scenario until the power is cut before call `n`, starts again, and checks that nothing acknowledged is lost
/// and nothing half done is left. Answers whether the power was cut at all.
fn power_cut(n: usize, keep: impl FnMut() -> u8) -> bool {
    let sim = Sim::new();
    sim.trouble(Trouble::PowerCut(n));
    let mut may = May::new();
    if let Ok(store) = open(&sim)
        && store.load().is_ok()
    {
        for s in scenario() {
            if !step(&store, &s, &mut may, false) {
                break;
            }
        }
    }
    let cut = sim.state().hit.is_some();
    let when = format!("power cut before call {n} ({:?})", sim.state().hit);
    sim.restart(keep);
    let store = open(&sim).unwrap();
    check(&store.load().unwrap(), &may, &when);
    assert_eq!(sim.temps(), 0, "{when}");
    // And life goes on, durably.
    let mut may = May::new();
    for s in scenario() {
        assert!(step(&store, &s, &mut may, true), "{when}");
    }
    store.put(&device("pv2", "x")).unwrap();
    sim.restart(|| 0);
    let loaded = open(&sim).unwrap().load().unwrap();
    assert_eq!(has(&loaded)[&device("pv2", "").key()], device("pv2", "x"), "{when}");
    assert_eq!(has(&loaded)[&volume("u1", "b", "").key()], volume("u1", "b", "3"), "{when}");
    cut
}

/// B11: the power is cut before each call; nothing that was not synced has reached the disk, or all of it has.
#[test]
fn a_power_cut_anywhere_loses_nothing() {
    let cuts = (0..10_000).take_while(|&n| power_cut(n, || 0) | power_cut(n, || 255)).count();
    assert!((61..10_000).contains(&cuts), "{cuts} calls");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The same, with any part of what was not synced on the disk.
    #[test]
    fn a_power_cut_with_any_part_written(n in 0..110usize, keep in prop::collection::vec(any::<u8>(), 64)) {
        let mut keep = keep.into_iter().cycle();
        power_cut(n, || keep.next().unwrap());
    }

    /// Threads that share syncs, and a power cut in the middle.
    #[test]
    fn a_power_cut_under_group_commit(n in 16..84usize, keep in prop::collection::vec(any::<u8>(), 64)) {
        let sim = Sim::new();
        sim.trouble(Trouble::PowerCut(n));
        let store = open(&sim).unwrap();
        store.load().ok();
        let all: Mutex<May> = Mutex::default();
        std::thread::scope(|scope| for t in 0..4 {
            let (store, all) = (&store, &all);
            scope.spawn(move || {
                let mut may = May::new();
                for i in 0..4 {
                    let record = volume(&format!("u{t}"), &format!("v{}", i % 2), &i.to_string());
                    if !step(store, &Step::Put(vec![record]), &mut may, false) {
                        break;
                    }
                }
                all.lock().unwrap().extend(may);
            });
        });
        let mut keep = keep.into_iter().cycle();
        sim.restart(|| keep.next().unwrap());
        check(&open(&sim).unwrap().load().unwrap(), &all.into_inner().unwrap(), "group commit");
    }
}

const ERRORS: [Errno; 4] = [Errno::NOSPC, Errno::IO, Errno::DQUOT, Errno::ROFS];

/// B13: each call fails once with each error. What failed is as it was before, nothing half made is left, the error
/// says where and why, and trying again works.
#[test]
fn any_call_may_fail_once() {
    let mut failed = 0;
    for error in ERRORS {
        for n in 0.. {
            let sim = Sim::new();
            let mut may = May::new();
            sim.trouble(Trouble::Once(n, error));
            let store = match open(&sim) {
                Ok(store) => store,
                Err(OpenError::Io { path, source, .. }) => {
                    assert!(path.starts_with("/state") && source.raw_os_error() == Some(error.raw_os_error()));
                    open(&sim).unwrap()
                }
                Err(other) => panic!("{other}"),
            };
            if store.load().is_err() {
                store.load().unwrap();
            }
            for s in scenario() {
                while !step(&store, &s, &mut may, true) {
                    let when = format!("{error:?} at call {n} ({:?})", sim.state().hit);
                    check(&look(&sim), &may, &when);
                    assert_eq!(sim.temps(), 0, "{when}");
                }
            }
            check(&look(&sim), &may, "at the end");
            // What the store says is there stays, whatever failed before.
            may.values_mut().filter(|m| **m == [None]).for_each(|m| m.extend(leftovers(&scenario())));
            sim.restart(|| 0);
            check(&open(&sim).unwrap().load().unwrap(), &may, "after a power cut");
            if sim.state().calls <= n {
                break;
            }
            failed += 1;
        }
    }
    assert!(failed > 4 * 60, "{failed} failures");
}

/// Every content that a scenario ever wrote: what a removal that was not synced may bring back.
fn leftovers(steps: &[Step]) -> Vec<Option<Record>> {
    let records = steps.iter().flat_map(|s| match s {
        Step::Put(records) => records.clone(),
        Step::Remove(_) => vec![],
    });
    records.map(Some).collect()
}

/// B13: the disk is full (broken, read-only) from some call on, until somebody frees it. Old records stay whole, and
/// then everything works again by itself.
#[test]
fn a_full_disk_harms_no_record() {
    for error in ERRORS {
        for n in 0..80 {
            let sim = Sim::new();
            let store = open(&sim).unwrap();
            store.load().unwrap();
            let old = [volume("u1", "a", "old"), checkpoint("u1", "old"), device("pv", "old")];
            assert!(store.put_all(&old).iter().all(Result::is_ok));
            let mut may: May = old.iter().map(|r| (r.key(), vec![Some(r.clone())])).collect();
            let calls = sim.state().calls;
            sim.trouble(Trouble::From(calls + n, error));
            for s in scenario() {
                step(&store, &s, &mut may, false);
            }
            check(&look(&sim), &may, "full");
            sim.trouble(Trouble::None);
            let mut may = May::new();
            for s in scenario() {
                assert!(step(&store, &s, &mut may, true));
            }
            check(&store.load().unwrap(), &may, "freed");
            assert_eq!(sim.temps(), 0);
        }
    }
}

/// A start waits for no disk; the first write makes the names of the folders durable before the record counts.
#[test]
fn the_first_write_makes_the_folders_durable() {
    let sim = Sim::new();
    let store = open(&sim).unwrap();
    store.load().unwrap();
    let folders = RecordKind::ALL.len() + 1;
    assert_eq!(sim.state().durable[ROOT].len(), 0);
    assert_eq!(sim.state().live[ROOT].len(), folders);
    store.put(&checkpoint("u1", "1")).unwrap();
    assert_eq!(sim.state().durable[ROOT].len(), folders);
    // Also when an earlier start made the folders, which may have died before it synced them.
    let store = open(&sim).unwrap();
    let calls = sim.state().calls;
    sim.trouble(Trouble::From(calls, Errno::IO));
    let error = store.put(&checkpoint("u1", "2")).unwrap_err();
    sim.trouble(Trouble::None);
    assert_eq!(error.source.raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(look(&sim).records, [checkpoint("u1", "1")]);
}

/// Nor is a bad file moved to a folder that a power cut takes away.
#[test]
fn what_is_set_aside_survives_a_power_cut() {
    let sim = Sim::new();
    let store = open(&sim).unwrap();
    let folder = store.folders.of(RecordKind::PodVolume);
    let mut file = sim.create(folder, "bad.json").unwrap();
    sim.write(&mut file, b"no record").unwrap();
    sim.sync(&file).unwrap();
    assert_eq!(store.load().unwrap().unreadable.len(), 1);
    sim.sync_folder(folder).unwrap();
    sim.restart(|| 0);
    let listed = set_aside::list_on(&sim, &ROOT, Path::new("/state")).unwrap();
    assert_eq!(listed.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["bad.json"]);
}

/// The simulated disk does forget: without the syncs, records are lost.
#[test]
fn the_simulated_disk_forgets() {
    let sim = Sim::new();
    let store = open(&sim).unwrap();
    let folder = store.folders.of(RecordKind::PodVolume);
    let mut file = sim.create(folder, "x").unwrap();
    sim.write(&mut file, b"content").unwrap();
    sim.sync_folder(folder).unwrap();
    sim.rename_new(folder, OsStr::new("x"), folder, OsStr::new("y")).unwrap();
    sim.restart(|| 0);
    let mut content = vec![];
    assert!(sim.read(folder, OsStr::new("y"), 99, &mut content).is_err(), "the rename was not synced");
    sim.read(folder, OsStr::new("x"), 99, &mut content).unwrap();
    assert_eq!(content, [0; 7], "nor was the content");
}
