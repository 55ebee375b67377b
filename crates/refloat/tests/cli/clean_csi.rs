//! `refloat clean` and `release` of CSI volumes, through a driver in a process of its own that really mounts.
//!
//! The manager sets the volumes up and ends. What a kubelet would have left is the same without the manager's records: each
//! way a volume is undone is tried with them and without.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use refloat_test_csi_driver::{Action, Event, Fault, Options, Process, Program};
use serde_json::Value;

use crate::clean::{all_done, bind, clean, codes, kept, source, steps, tree};
use crate::node::{Node, mount_tmpfs};
use crate::{Test, Verdict};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("clean_csi_of_two_pods_is_unstaged_once", shared),
    ("clean_csi_block", block),
    ("clean_csi_inline", inline),
    ("clean_csi_asks_until_ok", codes_of_the_driver),
    ("clean_csi_a_driver_that_hangs_holds_up_nobody", hangs),
    ("clean_csi_believes_the_mount_table", lies),
    ("clean_csi_without_its_driver", without_driver),
    ("clean_csi_mounted_deeper_without_its_driver", deeper),
    ("clean_csi_block_without_its_driver", block_without_driver),
    ("release_csi", release),
];

const DRIVER: &str = "disk.test";

/// With the manager's records, and as after a kubelet, without.
const RECORDS: [bool; 2] = [true, false];

/// Why the driver cannot do its work here.
fn cannot() -> Option<String> {
    let mkfs = Command::new("mkfs.ext4").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !mkfs.is_ok_and(|status| status.success()) {
        return Some("mkfs.ext4 cannot be run".into());
    }
    std::fs::File::open("/dev/loop-control").err().map(|error| format!("no loop device can be had: {error}"))
}

/// A node whose manager has ended, and a driver.
struct World<'n> {
    node: &'n Node,
    driver: Process,
}

impl Drop for World<'_> {
    /// The mounts go before the driver detaches the loop devices that are mounted.
    fn drop(&mut self) {
        for point in self.node.mounts().unwrap_or_default().iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl<'n> World<'n> {
    fn new(node: &'n Node) -> Result<Self> {
        let registry = node.root.join("plugins_registry");
        std::fs::create_dir_all(&registry)?;
        let mut options = Options::new(DRIVER, node.folder().join(DRIVER));
        options.registration = Some(registry.join(format!("{DRIVER}-reg.sock")));
        Ok(Self { node, driver: Process::start(Program::This, options)? })
    }

    /// The manager sets up what the manifests say and ends; without records the node is as a kubelet leaves it.
    fn set_up(&self, recorded: bool) -> Result<()> {
        self.node.once()?.expect(0)?;
        if !recorded {
            for kind in ["devices", "volumes", "pods"] {
                for entry in std::fs::read_dir(self.node.state.join(kind))? {
                    std::fs::remove_file(entry?.path())?;
                }
            }
        }
        Ok(())
    }

    /// How many calls of the volume began, and how many were answered with OK.
    fn calls(&self, call: &str) -> Result<(usize, usize)> {
        let journal = self.driver.journal()?;
        let count = |event: &Event| journal.iter().filter(|e| e.call == call && e.event == *event).count();
        Ok((count(&Event::Begin), count(&Event::End("Ok".into()))))
    }

    /// Says that unpublish and unstage were each called so often (begun, OK), or what they were.
    #[track_caller]
    fn expect_calls(&self, unpublish: (usize, usize), unstage: (usize, usize)) -> Result<()> {
        let found = (self.calls("NodeUnpublishVolume")?, self.calls("NodeUnstageVolume")?);
        let at = std::panic::Location::caller();
        ensure!(found == (unpublish, unstage), "{at}: unpublish and unstage (begun, OK): {found:?}");
        Ok(())
    }

    /// What was really called on the volume, in order, that was answered with OK.
    fn done(&self) -> Result<Vec<String>> {
        let ended = self.driver.journal()?.into_iter().filter(|e| e.event == Event::End("Ok".into()));
        let of_volumes = ended.map(|e| e.call).filter(|c| c.starts_with("Node") && c.ends_with("Volume"));
        Ok(of_volumes.map(|c| c.trim_start_matches("Node").trim_end_matches("Volume").to_owned()).collect())
    }

    fn order(&self, call: &str, fault: &Fault) -> Result<()> {
        Ok(self.driver.faults().order(call, fault)?)
    }

    /// Nothing is mounted, and nothing of a pod or device is left; the driver has detached its disks.
    #[track_caller]
    fn expect_nothing_left(&self) -> Result<()> {
        let at = std::panic::Location::caller();
        let mounts = self.node.mounts()?;
        ensure!(mounts.is_empty(), "{at}: {mounts:?}");
        for folder in ["pods", "plugins"] {
            let path = self.node.root.join(folder);
            let files = if tree(self.node).has(folder) { crate::node::files(&path)? } else { vec![] };
            ensure!(files.is_empty(), "{at}: {folder}: {files:?}");
        }
        for kind in ["devices", "volumes", "pods"] {
            let left = std::fs::read_dir(self.node.state.join(kind))?.count();
            ensure!(left == 0, "{at}: {left} records of {kind}");
        }
        let state = &self.driver.options().state;
        let loops: Vec<_> =
            refloat_mount::loopdev::all()?.into_iter().filter(|l| l.backing.starts_with(state)).collect();
        ensure!(loops.is_empty(), "{at}: {loops:?}");
        Ok(())
    }

    fn target(&self, uid: &str) -> PathBuf {
        self.node.root.join(format!("pods/{uid}/volumes/kubernetes.io~csi/pv/mount"))
    }

    /// The one staged file system.
    fn global(&self) -> Result<PathBuf> {
        let mounts = self.node.mounts()?;
        mounts.into_iter().find(|m| m.ends_with("globalmount")).context("nothing is staged")
    }

    fn is_mounted(&self, path: &Path) -> Result<bool> {
        Ok(self.node.mounts()?.iter().any(|m| m == path))
    }
}

/// The volume `pv` of the driver, and a claim for it.
fn claim(mode: &str) -> String {
    let access = if mode == "Block" { "ReadWriteMany" } else { "ReadWriteOnce" };
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv}}\nspec: {{capacity: {{storage: 16Mi}}, accessModes: \
         [{access}], volumeMode: {mode}, csi: {{driver: {DRIVER}, volumeHandle: h1}}, claimRef: {{namespace: test, name: \
         pv}}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: pv, namespace: test}}\nspec: \
         {{volumeName: pv, accessModes: [{access}], volumeMode: {mode}, resources: {{requests: {{storage: 16Mi}}}}}}\n"
    )
}

/// A pod with these volumes.
fn pod(uid: &str, container: &str, volumes: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{uid}, namespace: test, uid: {uid}}}\nspec:\n  containers:\n  - \
         {{name: c, image: i{container}}}\n  volumes:\n{volumes}"
    )
}

const OF_CLAIM: &str = "  - {name: data, persistentVolumeClaim: {claimName: pv}}\n";

fn one_pod(world: &World<'_>, recorded: bool) -> Result<()> {
    world.node.apply("pv.yaml", &claim("Filesystem"))?;
    world.node.apply("u1.yaml", &pod("u1", "", OF_CLAIM))?;
    world.set_up(recorded)?;
    ensure!(world.is_mounted(&world.target("u1"))?);
    std::fs::write(world.target("u1").join("keep.txt"), "keep")?;
    world.node.delete("u1.yaml")
}

/// The data is on the volume's disk still: it is set up once more.
fn data_is_kept(world: &World<'_>) -> Result<()> {
    world.node.apply("u1.yaml", &pod("u1", "", OF_CLAIM))?;
    world.set_up(true)?;
    kept(&world.target("u1"))?;
    world.node.delete("u1.yaml")?;
    all_done(&clean(world.node, &["--yes"])?.expect(0)?)?;
    world.expect_nothing_left()
}

fn result_of<'p>(plan: &'p Value, action: &str) -> Option<&'p str> {
    let step = plan["steps"].as_array()?.iter().find(|s| s["action"] == action)?;
    step["result"].as_str()
}

fn shared(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    for recorded in RECORDS {
        let world = World::new(node)?;
        let before = world.done()?.len();
        node.apply("u2.yaml", &pod("u2", "", OF_CLAIM))?;
        one_pod(&world, recorded)?;
        let (unpublish, unstage) = (world.calls("NodeUnpublishVolume")?.0, world.calls("NodeUnstageVolume")?.0);
        // A dry run asks no driver for anything.
        clean(node, &[])?.expect(0)?;
        world.expect_calls((unpublish, unpublish), (unstage, unstage))?;
        all_done(&clean(node, &["--yes"])?.expect(0)?)?;
        world.expect_calls((unpublish + 1, unpublish + 1), (unstage, unstage))?;
        kept(&world.target("u2"))?;
        ensure!(!tree(node).has("pods/u1"));
        node.delete("u2.yaml")?;
        all_done(&clean(node, &["--yes"])?.expect(0)?)?;
        let done = world.done()?;
        ensure!(done[before..] == ["Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage"], "{done:?}");
        world.expect_nothing_left()?;
        data_is_kept(&world)?;
    }
    Ok(Verdict::Passed)
}

/// Sets a block volume up and deletes its pod.
fn block_pod(world: &World<'_>, recorded: bool) -> Result<()> {
    let container = ", volumeDevices: [{name: data, devicePath: /dev/x}]";
    world.node.apply("pv.yaml", &claim("Block"))?;
    world.node.apply("u1.yaml", &pod("u1", container, OF_CLAIM))?;
    world.set_up(recorded)?;
    ensure!(tree(world.node).has("pods/u1/volumeDevices/kubernetes.io~csi/pv"));
    world.node.delete("u1.yaml")
}

fn block(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    for recorded in RECORDS {
        let world = World::new(node)?;
        let before = world.done()?.len();
        block_pod(&world, recorded)?;
        all_done(&clean(node, &["--yes"])?.expect(0)?)?;
        let done = world.done()?;
        ensure!(done[before..] == ["Stage", "Publish", "Unpublish", "Unstage"], "{done:?}");
        world.expect_nothing_left()?;
    }
    Ok(Verdict::Passed)
}

fn inline(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    for recorded in RECORDS {
        let world = World::new(node)?;
        let before = world.done()?.len();
        let spec = "{volumeLifecycleModes: [Ephemeral], podInfoOnMount: true}";
        node.apply(
            "driver.yaml",
            &format!("apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {DRIVER}}}\nspec: {spec}\n"),
        )?;
        node.apply("u1.yaml", &pod("u1", "", &format!("  - {{name: scratch, csi: {{driver: {DRIVER}}}}}\n")))?;
        world.set_up(recorded)?;
        ensure!(node.mounts()?.len() == 1);
        node.delete("u1.yaml")?;
        all_done(&clean(node, &["--yes"])?.expect(0)?)?;
        let done = world.done()?;
        ensure!(done[before..] == ["Publish", "Unpublish"], "{done:?}");
        world.expect_nothing_left()?;
    }
    Ok(Verdict::Passed)
}

/// gRPC's `INTERNAL`.
fn internal() -> Action {
    Action::Code { code: 13, message: "not now".into() }
}

fn codes_of_the_driver(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    let data = source(node, "x")?;
    for recorded in RECORDS {
        // A few times each: it is asked again at once, and not once more after OK.
        let world = World::new(node)?;
        let (first, second) = (world.calls("NodeUnpublishVolume")?, world.calls("NodeUnstageVolume")?);
        one_pod(&world, recorded)?;
        world.order("NodeUnpublishVolume", &Fault { times: Some(2), ..Fault::always(internal()) })?;
        let after = Action::CodeAfter { code: 14, message: "done, but".into() };
        world.order("NodeUnstageVolume", &Fault { times: Some(2), ..Fault::always(after) })?;
        all_done(&clean(node, &["--yes"])?.expect(0)?)?;
        world.expect_calls((first.0 + 3, first.1 + 1), (second.0 + 3, second.1 + 1))?;
        world.expect_nothing_left()?;
        data_is_kept(&world)?;
    }
    for call in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
        let world = World::new(node)?;
        one_pod(&world, true)?;
        let global = world.global()?;
        bind(&data, &tree(node).volume("u9", "nfs", "v")?)?;
        world.order(call, &Fault::always(internal()))?;
        let unstaged = world.calls("NodeUnstageVolume")?.0;
        let plan = clean(node, &["--yes"])?.expect(1)?.json()?;
        let of_device = call == "NodeUnstageVolume";
        // Nobody unmounts behind the driver's back, and nothing is unstaged that is published.
        ensure!(world.is_mounted(&global)? && world.is_mounted(&world.target("u1"))? != of_device, "{plan:#}");
        ensure!(of_device || world.calls("NodeUnstageVolume")?.0 == unstaged, "{plan:#}");
        let action = if of_device { "UnmountDevice" } else { "TearDown" };
        ensure!(result_of(&plan, action) == Some("Failed"), "{plan:#}");
        ensure!(plan.to_string().contains("not now"), "{plan:#}");
        ensure!(!tree(node).has("pods/u9"), "others proceed: {plan:#}");
        world.driver.faults().withdraw_all()?;
        all_done(&clean(node, &["--yes"])?.expect(0)?)?;
        world.expect_nothing_left()?;
        kept(&data)?;
    }
    Ok(Verdict::Passed)
}

fn hangs(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    let data = source(node, "x")?;
    for action in [Action::Hang, Action::HangAfter] {
        for call in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
            let world = World::new(node)?;
            one_pod(&world, true)?;
            bind(&data, &tree(node).volume("u9", "nfs", "v")?)?;
            world.order(call, &Fault::always(action.clone()))?;
            let (begun, unstaged) = (Instant::now(), world.calls("NodeUnstageVolume")?.0);
            let ran = clean(node, &["--yes", "--timeout", "3s"])?;
            ensure!(begun.elapsed() < Duration::from_secs(15), "it took {:?}", begun.elapsed());
            ensure!([1, 3].contains(&ran.code), "{ran:?}");
            let plan = ran.json()?;
            let told = steps(&plan).iter().any(|(.., result)| result == "Failed");
            ensure!(told, "{plan:#}");
            // Folders are a later stage, which is not begun when the time is over.
            ensure!(!world.is_mounted(&tree(node).volume("u9", "nfs", "v")?)?, "others proceed: {plan:#}");
            kept(&data)?;
            if call == "NodeUnpublishVolume" {
                ensure!(world.calls("NodeUnstageVolume")?.0 == unstaged, "{action:?}: {plan:#}");
            }
            world.driver.faults().withdraw_all()?;
            let oks = world.calls(call)?.1;
            all_done(&clean(node, &["--yes"])?.expect(0)?)?;
            ensure!(world.calls(call)?.1 == oks + 1, "until OK, and once: {action:?} {call}");
            world.expect_nothing_left()?;
        }
    }
    Ok(Verdict::Passed)
}

fn lies(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    let data = source(node, "x")?;
    for recorded in RECORDS {
        for call in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
            let world = World::new(node)?;
            one_pod(&world, recorded)?;
            let global = world.global()?;
            bind(&data, &tree(node).volume("u9", "nfs", "v")?)?;
            let unstaged = world.calls("NodeUnstageVolume")?.0;
            world.order(call, &Fault::always(Action::Lie))?;
            let plan = clean(node, &["--yes"])?.expect(1)?.json()?;
            ensure!(world.is_mounted(&global)?, "{plan:#}");
            if call == "NodeUnpublishVolume" {
                kept(&world.target("u1"))?;
                ensure!(world.calls("NodeUnstageVolume")?.0 == unstaged, "{plan:#}");
            }
            ensure!(!tree(node).has("pods/u9"), "others proceed: {plan:#}");
            kept(&data)?;
            world.driver.faults().withdraw_all()?;
            all_done(&clean(node, &["--yes"])?.expect(0)?)?;
            world.expect_nothing_left()?;
            data_is_kept(&world)?;
        }
    }
    Ok(Verdict::Passed)
}

/// The driver is back: it is asked to unstage what was unmounted without it, and then nothing is left.
fn driver_comes_back(world: &mut World<'_>) -> Result<()> {
    let oks = world.calls("NodeUnstageVolume")?.1;
    world.driver.restart(|_| {})?;
    all_done(&clean(world.node, &["--yes"])?.expect(0)?)?;
    ensure!(world.calls("NodeUnstageVolume")?.1 == oks + 1, "the driver wants to hear it");
    world.expect_nothing_left()
}

fn without_driver(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    let node = &*node;
    for recorded in RECORDS {
        let mut world = World::new(node)?;
        one_pod(&world, recorded)?;
        let (global, target) = (world.global()?, world.target("u1"));
        world.driver.terminate()?;
        let plan = clean(node, &["--yes"])?.expect(3)?.json()?;
        ensure!(codes(&plan, &target).contains(&"DriverMissing".into()), "{plan:#}");
        kept(&target)?;
        kept(&global)?;
        let plan = clean(node, &["--yes", "--without-driver"])?.expect(3)?.json()?;
        ensure!(codes(&plan, &global) == ["NotUnstaged"], "records: {recorded}: {plan:#}");
        ensure!(node.mounts()?.is_empty(), "records: {recorded}: {plan:#}");
        ensure!(!tree(node).has("pods/u1"), "records: {recorded}: {plan:#}");
        // It is not forgotten, however often this is run.
        let again = clean(node, &["--yes", "--without-driver"])?.expect(3)?.json()?;
        ensure!(!codes(&again, &global).is_empty(), "records: {recorded}: {again:#}");
        driver_comes_back(&mut world)?;
        data_is_kept(&world)?;
    }
    Ok(Verdict::Passed)
}

/// Some drivers mount in a folder of their own below the path that they are told.
fn deeper(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    let node = &*node;
    for recorded in RECORDS {
        let mut world = World::new(node)?;
        one_pod(&world, recorded)?;
        let (global, target) = (world.global()?, world.target("u1"));
        world.driver.terminate()?;
        rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty())?;
        rustix::mount::unmount(&global, rustix::mount::UnmountFlags::empty())?;
        let deep = global.join("h1");
        std::fs::create_dir(&deep)?;
        mount_tmpfs(&deep, "1m")?;
        let plan = clean(node, &["--yes"])?.expect(3)?.json()?;
        ensure!(codes(&plan, &target) == ["DriverMissing"] && codes(&plan, &global) == ["InUse"], "{plan:#}");
        ensure!(plan.to_string().contains("--without-driver"), "the way out is named: {plan:#}");
        ensure!(world.is_mounted(&deep)?);
        // Somebody who stays has what is mounted there: it is not taken off under him.
        let user = tree(node).volume("u2", "nfs", "v")?;
        bind(&deep, &user)?;
        node.apply("u2.yaml", &pod("u2", "", "  - {name: v, nfs: {server: s, path: /}}\n"))?;
        let plan = clean(node, &["--yes", "--without-driver"])?.expect(3)?.json()?;
        ensure!(world.is_mounted(&deep)? && world.is_mounted(&user)?, "{plan:#}");
        ensure!(codes(&plan, &global) == ["InUse"], "records: {recorded}: {plan:#}");
        node.delete("u2.yaml")?;
        rustix::mount::unmount(&user, rustix::mount::UnmountFlags::empty())?;
        let plan = clean(node, &["--yes", "--without-driver"])?.expect(3)?.json()?;
        ensure!(node.mounts()?.is_empty(), "records: {recorded}: {plan:#}");
        ensure!(codes(&plan, &global).contains(&"NotUnstaged".into()), "records: {recorded}: {plan:#}");
        // The driver's own folder is the driver's.
        std::fs::remove_dir(&deep)?;
        driver_comes_back(&mut world)?;
    }
    Ok(Verdict::Passed)
}

fn block_without_driver(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    let node = &*node;
    for recorded in RECORDS {
        let mut world = World::new(node)?;
        block_pod(&world, recorded)?;
        world.driver.terminate()?;
        let before = node.mounts()?;
        let plan = clean(node, &["--yes"])?.expect(3)?.json()?;
        ensure!(node.mounts()? == before, "{plan:#}");
        let plan = clean(node, &["--yes", "--without-driver"])?.expect(3)?.json()?;
        ensure!(node.mounts()?.is_empty(), "records: {recorded}: {plan:#}");
        driver_comes_back(&mut world)?;
    }
    Ok(Verdict::Passed)
}

fn release(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    let node = &*node;
    let pods = node.pods();
    let pods = pods.to_str().context("no text")?;
    let run = |more: &[&str]| node.run(&[&["release", "--yes", "-o", "json", "--manifests", pods], more].concat());
    for recorded in RECORDS {
        let mut world = World::new(node)?;
        let before = world.done()?.len();
        node.apply("u2.yaml", &pod("u2", "", OF_CLAIM))?;
        one_pod(&world, recorded)?;
        let some = run(&[])?.expect(3)?.json()?;
        ensure!(!world.is_mounted(&world.target("u1"))? && world.is_mounted(&world.target("u2"))?, "{some:#}");
        world.global()?;
        let all = run(&["--including-running"])?.expect(0)?.json()?;
        ensure!(all["left"] == serde_json::json!([]), "{all:#}");
        let done = world.done()?;
        let ends = ["Unpublish", "Unpublish", "Unstage"];
        ensure!(done[before..].ends_with(&ends.map(String::from)), "{done:?}");
        // The folder of a pod that is wanted is not looked into.
        node.delete("u2.yaml")?;
        all_done(&clean(node, &["--yes"])?.expect(0)?)?;
        world.expect_nothing_left()?;
        // What is staged with a driver that is gone is no released node, mounted or not.
        one_pod(&world, recorded)?;
        world.driver.terminate()?;
        let left = run(&["--without-driver"])?.expect(3)?.json()?;
        ensure!(node.mounts()?.is_empty(), "{left:#}");
        let kinds = left["left"].as_array().into_iter().flatten().map(|l| l["kind"].as_str());
        ensure!(kinds.eq([Some("StagedVolume")]), "records: {recorded}: {left:#}");
        world.driver.restart(|_| {})?;
        run(&[])?.expect(0)?;
        world.expect_nothing_left()?;
    }
    Ok(Verdict::Passed)
}
