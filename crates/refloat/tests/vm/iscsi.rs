//! iSCSI volumes with the kernel's target and initiator, open-iscsi, udev and multipath as Debian has them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use refloat_test_support::Verdict;
use rustix::process::Signal;

use crate::Test;
use crate::kit::{Manager, path_of, pod, wait, wait_for};
use crate::node::{Node, files};
use crate::services::{
    Iscsid, Multipathd, Silence, Target, TargetOptions, remove_tree, say, sessions, settle, start_iscsid,
    start_multipathd, start_target,
};
use crate::shared::{
    MEMORY, check_raw, map_exists, mount_of, nothing_waits, persistent, pod_of, raw_pod, wait_for_nothing,
};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("iscsi::a_disk_lives_goes_and_comes_back", life),
    ("iscsi::two_disks_of_one_target_share_a_session", shared_session),
    ("iscsi::two_portals_make_one_map_and_both_sessions_end", two_portals),
    ("iscsi::a_portal_that_is_lost_harms_nothing", lost_portal),
    ("iscsi::a_session_that_somebody_else_made_is_left", others_session),
    ("iscsi::a_target_gets_its_password_and_nobody_else", password),
    ("iscsi::a_silent_target_holds_up_nothing_and_comes_back", silent),
    ("iscsi::sessions_without_records", no_records),
    ("iscsi::a_volume_with_an_initiator_name_of_its_own", initiator),
    ("iscsi::a_raw_disk_lives_and_goes", raw),
];

const IQN: &str = "iqn.2026-01.test.refloat:one";
const PORTALS: [&str; 2] = ["127.0.0.1:3260", "127.0.0.2:3260"];
/// How long the end of sessions, maps and disks may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// A target, and what the node reaches it with.
struct San {
    // Dropped in this order: maps, sessions, the target.
    _multipathd: Option<Multipathd>,
    _iscsid: Iscsid,
    target: Target,
    luns: usize,
}

impl San {
    fn start(portals: usize, luns: u32, chap: Option<(&str, &str)>) -> Result<Self> {
        let target = start_target(&TargetOptions { iqn: IQN, portals: &PORTALS[..portals], luns, chap })?;
        let iscsid = start_iscsid()?;
        let multipathd = if portals > 1 { Some(start_multipathd()?) } else { None };
        Ok(Self { _multipathd: multipathd, _iscsid: iscsid, target, luns: luns.try_into()? })
    }

    /// The disks of the node that are paths to a unit.
    fn paths(&self, lun: usize) -> Result<Vec<String>> {
        let wwid = self.target.wwid(lun)?;
        let mut found = vec![];
        for entry in std::fs::read_dir("/sys/block")? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let id = std::fs::read_to_string(format!("/sys/block/{name}/device/wwid")).unwrap_or_default();
            if id.trim().strip_prefix("naa.") == wwid.strip_prefix('3') {
                found.push(name);
            }
        }
        found.sort();
        Ok(found)
    }

    /// Whether nothing of it is on the node.
    fn is_gone(&self) -> Result<bool> {
        let mut gone = sessions()?.is_empty();
        for lun in 0..self.luns {
            gone &= self.paths(lun)?.is_empty() && !map_exists(&self.target.wwid(lun)?)?;
        }
        Ok(gone)
    }
}

/// What open-iscsi's database has about targets.
fn nodes() -> String {
    say("iscsiadm", &["-m", "node"]).unwrap_or_default()
}

/// A `PersistentVolume` of a unit, and its claim. `more` goes into the source, `both` into both specs.
fn persistent_of(node: &Node, name: &str, lun: usize, more: &str, both: &str) -> Result<()> {
    let source = format!("iscsi: {{targetPortal: \"{}\", iqn: \"{IQN}\", lun: {lun}{more}}}", PORTALS[0]);
    persistent(node, name, &source, both)
}

fn volume_path(node: &Node, pod: &str) -> Result<PathBuf> {
    path_of(&node.scan()?.json()?, pod, "v")
}

fn records(node: &Node) -> Result<String> {
    Ok(node.run(&["record", "list", "-o", "json"])?.expect(0)?.stdout)
}

/// Lets a manager tear everything down, and waits until no mount, folder or record of it is left.
fn tear_down(node: &Node) -> Result<()> {
    let manager = Manager::start(node)?;
    node.delete_all()?;
    wait_for_nothing(node, "kubernetes.io/iscsi", PATIENCE)?;
    ensure!(manager.stop(Signal::TERM)? == Some(0));
    let left = files(&node.root.join("plugins"))?;
    ensure!(!left.iter().any(|path| path.to_string_lossy().contains("-lun-")), "{left:?}");
    Ok(())
}

fn tear_down_all(node: &Node, san: &San) -> Result<()> {
    tear_down(node)?;
    ensure!(san.is_gone()?, "{:?} {:?}", sessions()?, san.paths(0)?);
    ensure!(!nodes().contains(IQN), "{}", nodes());
    Ok(())
}

/// A blank disk gets a file system; it stays over a crash; with its pod the session ends, and the data is there when it comes back.
fn life(node: &mut Node) -> Result<Verdict> {
    let san = San::start(1, 1, None)?;
    persistent_of(node, "pv", 0, "", "")?;
    pod_of(node, "web", "pv")?;
    node.once()?.expect(0)?;
    let first = mount_of(node, "web")?;
    ensure!(first["fsType"] == "ext4" && sessions()?.len() == 1, "{first:#}");
    std::fs::write(volume_path(node, "web")?.join("written"), "by the pod")?;

    let manager = Manager::start(node)?;
    node.apply("other.yaml", &pod("other", "[]", MEMORY))?;
    wait("the other pod", || Ok(node.mounts()?.len() == 3))?;
    manager.stop(Signal::KILL)?;
    node.once()?.expect(0)?;
    ensure!(mount_of(node, "web")? == first && sessions()?.len() == 1, "another mount after a crash");
    tear_down_all(node, &san)?;

    persistent_of(node, "pv", 0, "", "")?;
    pod_of(node, "again", "pv")?;
    node.once()?.expect(0)?;
    ensure!(std::fs::read_to_string(volume_path(node, "again")?.join("written"))? == "by the pod");
    tear_down_all(node, &san)?;
    Ok(Verdict::Passed)
}

/// One session, two volumes: the end of one leaves session, disk and mount of the other; the LUNs 1 and 10 are not mixed up.
fn shared_session(node: &mut Node) -> Result<Verdict> {
    let san = San::start(1, 11, None)?;
    for (name, lun) in [("one", 1), ("ten", 10)] {
        persistent_of(node, name, lun, "", "")?;
        pod_of(node, name, name)?;
    }
    node.once()?.expect(0)?;
    let (session, left) = (sessions()?, mount_of(node, "ten")?);
    ensure!(session.len() == 1, "{session:?}");
    // Nothing else of the target came along.
    ensure!(san.paths(1)?.len() == 1 && san.paths(10)?.len() == 1 && san.paths(0)?.is_empty());
    let manager = Manager::start(node)?;
    node.delete("one.yaml")?;
    wait_for(PATIENCE, "the first disk going", || Ok(san.paths(1)?.is_empty()))?;
    manager.stop(Signal::TERM)?;
    ensure!(sessions()? == session && mount_of(node, "ten")? == left && san.paths(10)?.len() == 1);
    tear_down_all(node, &san)?;
    Ok(Verdict::Passed)
}

fn both_portals() -> String {
    format!(", portals: [\"{}\"]", PORTALS[1])
}

fn two_portals(node: &mut Node) -> Result<Verdict> {
    let san = San::start(2, 2, None)?;
    for (name, lun) in [("one", 0), ("two", 1)] {
        persistent_of(node, name, lun, &both_portals(), "")?;
        pod_of(node, name, name)?;
    }
    node.once()?.expect(0)?;
    ensure!(sessions()?.len() == 2, "{:?}", sessions()?);
    for (name, lun) in [("one", 0), ("two", 1)] {
        let mount = mount_of(node, name)?;
        let source = mount["source"].as_str().context("no source")?.to_owned();
        let uuid = std::fs::read_to_string(format!("/sys/block/{}/dm/uuid", source.trim_start_matches("/dev/")));
        let wanted = format!("mpath-{}", san.target.wwid(lun)?);
        ensure!(uuid.is_ok_and(|uuid| uuid.trim() == wanted), "{mount:#}");
    }
    let left = mount_of(node, "two")?;
    let manager = Manager::start(node)?;
    node.delete("one.yaml")?;
    let map = san.target.wwid(0)?;
    wait_for(PATIENCE, "the first disk going", || Ok(san.paths(0)?.is_empty() && !map_exists(&map)?))?;
    manager.stop(Signal::TERM)?;
    ensure!(mount_of(node, "two")? == left && san.paths(1)?.len() == 2 && sessions()?.len() == 2);
    tear_down_all(node, &san)?;
    Ok(Verdict::Passed)
}

/// The second portal is not there when the volume is set up: the first is enough, and that is told.
fn lost_portal(node: &mut Node) -> Result<Verdict> {
    let san = San::start(1, 1, None)?;
    persistent_of(node, "pv", 0, &both_portals(), "")?;
    pod_of(node, "web", "pv")?;
    let ran = node.once()?.expect(0)?;
    ensure!(ran.stderr.contains("PortalNotUsed") && ran.stderr.contains(PORTALS[1]), "{ran:?}");
    mount_of(node, "web")?;
    tear_down_all(node, &san)?;
    Ok(Verdict::Passed)
}

/// An administrator's: it is used, and neither ended nor forgotten.
fn others_session(node: &mut Node) -> Result<Verdict> {
    let san = San::start(1, 1, None)?;
    say("iscsiadm", &["-m", "discovery", "-t", "sendtargets", "-p", PORTALS[0]])?;
    say("iscsiadm", &["-m", "node", "-T", IQN, "-p", PORTALS[0], "--login"])?;
    settle()?;
    let session = sessions()?;
    persistent_of(node, "pv", 0, "", "")?;
    pod_of(node, "web", "pv")?;
    node.once()?.expect(0)?;
    ensure!(sessions()? == session, "{:?}", sessions()?);
    mount_of(node, "web")?;
    tear_down(node)?;
    ensure!(sessions()? == session && nodes().contains(IQN), "{:?}", sessions()?);
    say("iscsiadm", &["-m", "node", "-T", IQN, "-p", PORTALS[0], "--logout"])?;
    ensure!(san.is_gone()?);
    Ok(Verdict::Passed)
}

fn password(node: &mut Node) -> Result<Verdict> {
    const RIGHT: &str = "right-right-right";
    const WRONG: &str = "wrong-wrong-wrong";
    let secret = |password: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: chap, namespace: test}}\nstringData:\n  \
             node.session.auth.username: user\n  node.session.auth.password: {password}\n"
        )
    };
    let san = San::start(1, 1, Some(("user", RIGHT)))?;
    let chap = ", chapAuthSession: true, secretRef: {name: chap, namespace: test}";
    node.apply("secret.yaml", &secret(WRONG))?;
    persistent_of(node, "pv", 0, chap, "")?;
    pod_of(node, "web", "pv")?;
    let refused = node.once()?;
    ensure!(refused.code != 0 && refused.stderr.contains("ChapRefused"), "{refused:?}");
    ensure!(sessions()?.is_empty());
    node.apply("secret.yaml", &secret(RIGHT))?;
    let ran = node.once()?.expect(0)?;
    mount_of(node, "web")?;
    for text in [refused.stdout, refused.stderr, ran.stdout, ran.stderr, records(node)?] {
        ensure!(!text.contains(RIGHT) && !text.contains(WRONG), "a password is told: {text}");
    }
    for path in files(&node.state)? {
        let bytes = std::fs::read(node.state.join(&path)).unwrap_or_default();
        ensure!(!String::from_utf8_lossy(&bytes).contains(RIGHT), "a password is in {}", path.display());
    }
    // It is needed for nothing more.
    node.remove("secret.yaml")?;
    tear_down_all(node, &san)?;
    let kept = say("grep", &["-r", "-l", RIGHT, "/etc/iscsi", "/var/lib/iscsi"]);
    ensure!(kept.is_err(), "the password is left in {kept:?}");
    Ok(Verdict::Passed)
}

/// What is sent to the target is lost; then it is heard again.
fn silent(node: &mut Node) -> Result<Verdict> {
    let san = San::start(1, 1, None)?;
    persistent_of(node, "pv", 0, "", "")?;
    pod_of(node, "web", "pv")?;
    node.once()?.expect(0)?;
    let before = mount_of(node, "web")?;
    let silence = Silence::of(&[3260])?;
    nothing_waits(node, 2)?;
    drop(silence);
    ensure!(mount_of(node, "web")? == before);
    let path = volume_path(node, "web")?;
    std::fs::write(path.join("written"), "by the pod")?;
    tear_down_all(node, &san)?;
    Ok(Verdict::Passed)
}

/// Nobody can tell who made the session: it stays, and that is told; the disk leaves.
fn no_records(node: &mut Node) -> Result<Verdict> {
    let san = San::start(1, 2, None)?;
    for (name, lun) in [("one", 0), ("two", 1)] {
        persistent_of(node, name, lun, "", "")?;
        pod_of(node, name, name)?;
    }
    node.once()?.expect(0)?;
    let left = mount_of(node, "two")?;
    remove_tree(&node.state.join("volumes"))?;
    remove_tree(&node.state.join("devices"))?;
    let manager = Manager::start(node)?;
    node.delete("one.yaml")?;
    wait_for(PATIENCE, "the first disk going", || Ok(san.paths(0)?.is_empty()))?;
    manager.stop(Signal::TERM)?;
    ensure!(mount_of(node, "two")? == left && sessions()?.len() == 1);
    tear_down(node)?;
    ensure!(san.paths(1)?.is_empty() && sessions()?.len() == 1, "{:?}", sessions()?);
    Ok(Verdict::Passed)
}

/// It has an interface record of its own, so that its session is another one than that of other volumes.
fn initiator(node: &mut Node) -> Result<Verdict> {
    let san = San::start(1, 2, None)?;
    persistent_of(node, "own", 0, ", initiatorName: \"iqn.2026-01.test.refloat:own\"", "")?;
    persistent_of(node, "plain", 1, "", "")?;
    for name in ["own", "plain"] {
        pod_of(node, name, name)?;
    }
    node.once()?.expect(0)?;
    ensure!(sessions()?.len() == 2, "{:?}", sessions()?);
    let shown = say("iscsiadm", &["-m", "session", "-P", "1"])?;
    ensure!(shown.contains("iqn.2026-01.test.refloat:own"), "{shown}");
    tear_down_all(node, &san)?;
    let interfaces = say("iscsiadm", &["-m", "iface"])?;
    ensure!(!interfaces.contains("refloat:own"), "{interfaces}");
    Ok(Verdict::Passed)
}

fn raw(node: &mut Node) -> Result<Verdict> {
    let san = San::start(2, 1, None)?;
    persistent_of(node, "pv", 0, &both_portals(), "  volumeMode: Block\n")?;
    raw_pod(node)?;
    check_raw(&san.target.wwid(0)?)?;
    tear_down_all(node, &san)?;
    Ok(Verdict::Passed)
}
