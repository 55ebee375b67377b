//! Fibre Channel volumes on real SCSI disks (`scsi_debug`) with the real udev, multipathd and `multipath`. The disks have no Fibre
//! Channel ports, so their volumes name them by their ids; the ports' side is tested on a simulated array.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use refloat_test_support::Verdict;
use rustix::process::Signal;

use crate::Test;
use crate::kit::{Manager, path_of, pod, wait};
use crate::node::{Node, files};
use crate::services::{Multipathd, ScsiDebug, load, remove_tree, say, settle, start_multipathd, start_scsi_debug};
use crate::shared::{MEMORY, check_raw, map_exists, mount_of, persistent, pod_of, raw_pod, wait_for_nothing};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("fc::a_disk_lives_goes_and_comes_back", life),
    ("fc::two_maps_of_one_array_are_apart", two_maps),
    ("fc::a_map_that_somebody_has_open_stays_until_it_is_closed", open_map),
    ("fc::a_path_that_is_lost_harms_nothing", lost_path),
    ("fc::a_map_that_a_crash_flushed_is_made_again", flushed),
    ("fc::disks_without_records_go_too", no_records),
    ("fc::a_raw_disk_lives_and_goes", raw),
];

/// How long the end of maps and disks may take.
const PATIENCE: Duration = Duration::from_secs(15);
const GLOBAL: &str = "plugins/kubernetes.io/fc";

/// A node with an array over memory.
struct San {
    disks: ScsiDebug,
    _multipathd: Option<Multipathd>,
    /// The ids of its units, as `wwids` has them.
    ids: Vec<String>,
}

impl San {
    /// So many units behind so many hosts each; with more than one, multipathd runs.
    fn start(hosts: usize, units: usize) -> Result<Self> {
        load(&["sd_mod"])?;
        let disks = start_scsi_debug(u32::try_from(hosts)?, u32::try_from(units)?)?;
        wait("all disks", || Ok(disks.disks()?.len() == hosts * units))?;
        let multipathd = if hosts > 1 { Some(start_multipathd()?) } else { None };
        settle()?;
        let mut ids = vec![];
        for (address, disk) in disks.disks()? {
            let id = id_of(&disk)?;
            ensure!(ids.len() < units || ids.contains(&id), "{address} has an id of its own");
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ensure!(ids.len() == units, "{ids:?}");
        let san = Self { disks, _multipathd: multipathd, ids };
        if hosts > 1 {
            for id in &san.ids {
                wait("a map with all its paths", || Ok(paths_of(id) == hosts))?;
            }
        }
        settle()?;
        Ok(san)
    }

    /// The names of the disks that are paths to a unit.
    fn paths(&self, unit: usize) -> Result<Vec<String>> {
        let mut found = vec![];
        for (_, disk) in self.disks.disks()? {
            if id_of(&disk).is_ok_and(|id| id == self.ids[unit]) {
                found.push(disk);
            }
        }
        Ok(found)
    }

    fn persistent(&self, node: &Node, name: &str, unit: usize, both: &str) -> Result<()> {
        persistent(node, name, &format!("fc: {{wwids: [\"{}\"]}}", self.ids[unit]), both)
    }

    fn global(&self, node: &Node, unit: usize) -> PathBuf {
        node.root.join(GLOBAL).join(&self.ids[unit])
    }
}

/// The id of a disk as udev and multipath spell it: it is below `/dev/disk/by-id` as `scsi-` and this.
fn id_of(disk: &str) -> Result<String> {
    let said = say(
        "udevadm",
        &["info", "--query=property", "--property=ID_SERIAL", "--value", &format!("/sys/block/{disk}")],
    )?;
    ensure!(!said.trim().is_empty(), "{disk} has no id");
    Ok(said.trim().to_owned())
}

/// How many paths a map has.
fn paths_of(map: &str) -> usize {
    say("multipath", &["-ll", map]).unwrap_or_default().matches("active ready").count()
}

/// Lets a manager tear everything down, and looks that nothing is left of it.
fn tear_down(node: &Node, san: &San) -> Result<()> {
    let manager = Manager::start(node)?;
    node.delete_all()?;
    wait_for_nothing(node, "kubernetes.io/fc", PATIENCE)?;
    ensure!(san.disks.disks()?.is_empty(), "{:?}", san.disks.disks()?);
    ensure!(manager.stop(Signal::TERM)? == Some(0));
    for id in &san.ids {
        ensure!(!map_exists(id)?, "the map {id} is left");
    }
    let left = files(&node.root.join("plugins"))?;
    ensure!(!left.iter().any(|path| san.ids.iter().any(|id| path.ends_with(id))), "{left:?}");
    Ok(())
}

/// A blank disk gets a file system; it stays over a crash; it leaves the node with its pod, and has its data when it comes back.
fn life(node: &mut Node) -> Result<Verdict> {
    let san = San::start(1, 1)?;
    san.persistent(node, "pv", 0, "")?;
    pod_of(node, "web", "pv")?;
    node.once()?.expect(0)?;
    let first = mount_of(node, "web")?;
    ensure!(first["fsType"] == "ext4", "{first:#}");
    let path = path_of(&node.scan()?.json()?, "web", "v")?;
    std::fs::write(path.join("written"), "by the pod")?;

    let manager = Manager::start(node)?;
    node.apply("other.yaml", &pod("other", "[]", MEMORY))?;
    wait("the other pod", || Ok(node.mounts()?.len() == 3))?;
    manager.stop(Signal::KILL)?;
    node.once()?.expect(0)?;
    ensure!(mount_of(node, "web")? == first, "another mount after a crash");
    tear_down(node, &san)?;

    san.persistent(node, "pv", 0, "")?;
    pod_of(node, "again", "pv")?;
    node.once()?.expect(0)?;
    let path = path_of(&node.scan()?.json()?, "again", "v")?;
    ensure!(std::fs::read_to_string(path.join("written"))? == "by the pod");
    tear_down(node, &san)?;
    Ok(Verdict::Passed)
}

/// Two units behind two hosts: maps are mounted, and the end of one volume leaves the other's map, paths and mount as they are.
fn two_maps(node: &mut Node) -> Result<Verdict> {
    let san = San::start(2, 2)?;
    for (unit, name) in ["one", "two"].into_iter().enumerate() {
        san.persistent(node, name, unit, "")?;
        pod_of(node, name, name)?;
    }
    node.once()?.expect(0)?;
    for (unit, name) in ["one", "two"].into_iter().enumerate() {
        let mount = mount_of(node, name)?;
        let source = mount["source"].as_str().context("no source")?.to_owned();
        ensure!(source.starts_with("/dev/dm-"), "{mount:#}");
        ensure!(
            std::fs::read_to_string(format!("/sys/block/{}/dm/uuid", &source[5..]))?.trim()
                == format!("mpath-{}", san.ids[unit])
        );
    }
    let (left, paths) = (mount_of(node, "two")?, san.paths(1)?);
    let manager = Manager::start(node)?;
    node.delete("one.yaml")?;
    wait("the first disk going", || Ok(san.paths(0)?.is_empty() && !map_exists(&san.ids[0])?))?;
    manager.stop(Signal::TERM)?;
    ensure!(mount_of(node, "two")? == left && san.paths(1)? == paths && paths_of(&san.ids[1]) == 2);
    ensure!(!san.global(node, 0).try_exists()? && san.global(node, 1).try_exists()?);
    tear_down(node, &san)?;
    Ok(Verdict::Passed)
}

/// Somebody who keeps a device open.
struct Opener(Child);

impl Opener {
    fn start(device: &str) -> Result<Self> {
        let file = std::fs::File::open(device).with_context(|| format!("cannot open {device}"))?;
        Ok(Self(Command::new("sleep").arg("1000").stdin(file).stdout(Stdio::null()).spawn()?))
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Who it is neither mount table nor sysfs tell; the kernel does not let the map go.
fn open_map(node: &mut Node) -> Result<Verdict> {
    let san = San::start(2, 1)?;
    san.persistent(node, "pv", 0, "")?;
    pod_of(node, "web", "pv")?;
    node.once()?.expect(0)?;
    let opener = Opener::start(&format!("/dev/mapper/{}", san.ids[0]))?;
    node.delete("web.yaml")?;
    let ran = node.once()?;
    ensure!(ran.code != 0 && ran.stderr.contains("MapNotFlushed") && ran.stderr.contains(&san.ids[0]), "{ran:?}");
    ensure!(san.paths(0)?.len() == 2 && map_exists(&san.ids[0])?, "{:?}", san.disks.disks()?);
    let records = node.run(&["record", "list", "-o", "json"])?.expect(0)?;
    ensure!(records.stdout.contains("kubernetes.io/fc"), "{}", records.stdout);
    drop(opener);
    tear_down(node, &san)?;
    Ok(Verdict::Passed)
}

/// What is written goes by the path that is left; the end of the volume takes the rest.
fn lost_path(node: &mut Node) -> Result<Verdict> {
    let san = San::start(2, 1)?;
    san.persistent(node, "pv", 0, "")?;
    pod_of(node, "web", "pv")?;
    node.once()?.expect(0)?;
    let (before, path) = (mount_of(node, "web")?, path_of(&node.scan()?.json()?, "web", "v")?);
    let lost = san.paths(0)?.pop().context("no path")?;
    std::fs::write(format!("/sys/block/{lost}/device/delete"), "1")?;
    wait("the map without it", || Ok(paths_of(&san.ids[0]) == 1))?;
    std::fs::write(path.join("written"), "by the pod")?;
    rustix::fs::syncfs(std::fs::File::open(&path)?)?;
    node.once()?.expect(0)?;
    ensure!(mount_of(node, "web")? == before, "another mount after a path was lost");
    tear_down(node, &san)?;
    Ok(Verdict::Passed)
}

/// What a crash leaves between the flush of a map and the removal of its paths. multipathd makes no map of paths that it knows, unless it
/// is asked.
fn flushed(node: &mut Node) -> Result<Verdict> {
    let san = San::start(2, 1)?;
    say("multipath", &["-f", &san.ids[0]])?;
    settle()?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(!map_exists(&san.ids[0])? && san.paths(0)?.len() == 2, "the map came back by itself");
    san.persistent(node, "pv", 0, "")?;
    pod_of(node, "web", "pv")?;
    let ran = node.once()?.expect(0)?;
    ensure!(!ran.stderr.contains("NoMultipathMap"), "{}", ran.stderr);
    let mount = mount_of(node, "web")?;
    ensure!(mount["source"].as_str().is_some_and(|source| source.starts_with("/dev/dm-")), "{mount:#}");
    ensure!(map_exists(&san.ids[0])? && paths_of(&san.ids[0]) == 2);
    tear_down(node, &san)?;
    Ok(Verdict::Passed)
}

/// What is mounted says which disk it is.
fn no_records(node: &mut Node) -> Result<Verdict> {
    let san = San::start(2, 2)?;
    for (unit, name) in ["one", "two"].into_iter().enumerate() {
        san.persistent(node, name, unit, "")?;
        pod_of(node, name, name)?;
    }
    node.once()?.expect(0)?;
    remove_tree(&node.state.join("volumes"))?;
    remove_tree(&node.state.join("devices"))?;
    node.delete("one.yaml")?;
    let manager = Manager::start(node)?;
    wait("the first disk going", || Ok(san.paths(0)?.is_empty() && !map_exists(&san.ids[0])?))?;
    manager.stop(Signal::TERM)?;
    mount_of(node, "two")?;
    tear_down(node, &san)?;
    Ok(Verdict::Passed)
}

fn raw(node: &mut Node) -> Result<Verdict> {
    let san = San::start(2, 1)?;
    san.persistent(node, "pv", 0, "  volumeMode: Block\n")?;
    raw_pod(node)?;
    node.once()?.expect(0)?;
    check_raw(&san.ids[0])?;
    tear_down(node, &san)?;
    Ok(Verdict::Passed)
}
