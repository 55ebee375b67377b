//! What the tests of iSCSI stand on: that target, initiator, CHAP and multipath work in this machine.

use std::path::Path;

use anyhow::{Result, ensure};
use refloat_test_support::Verdict;

use crate::Test;
use crate::kit::wait;
use crate::node::Node;
use crate::services::{TargetOptions, say, sessions, settle, start_iscsid, start_multipathd, start_target};

pub(crate) const TESTS: &[(&str, Test)] =
    &[("scsi::two_portals_of_a_target_make_one_map", one_map), ("scsi::a_target_wants_its_password", password)];

const IQN: &str = "iqn.2026-01.test.refloat:one";
const PORTALS: [&str; 2] = ["127.0.0.1:3260", "127.0.0.2:3260"];

fn log_in(portal: &str) -> Result<String> {
    say("iscsiadm", &["-m", "node", "-T", IQN, "-p", portal, "--login"])
}

fn set_node(name: &str, value: &str) -> Result<String> {
    say("iscsiadm", &["-m", "node", "-T", IQN, "-o", "update", "-n", name, "-v", value])
}

/// Whether a map of this name has this many paths.
fn has_paths(map: &str, wanted: usize) -> Result<bool> {
    Ok(say("multipath", &["-ll", map])?.matches("active ready").count() == wanted)
}

fn one_map(_: &mut Node) -> Result<Verdict> {
    let target = start_target(&TargetOptions { iqn: IQN, portals: &PORTALS, luns: 2, chap: None })?;
    let _iscsid = start_iscsid()?;
    let _multipathd = start_multipathd()?;
    let found = say("iscsiadm", &["-m", "discovery", "-t", "sendtargets", "-p", PORTALS[0]])?;
    for portal in PORTALS {
        ensure!(found.contains(&format!("{portal},1 {IQN}")), "{found}");
        log_in(portal)?;
    }
    settle()?;
    ensure!(sessions()?.len() == 2, "{:?}", sessions()?);
    for lun in 0..2 {
        for portal in PORTALS {
            let path = format!("/dev/disk/by-path/ip-{portal}-iscsi-{IQN}-lun-{lun}");
            wait(&path, || Ok(Path::new(&path).try_exists()?))?;
        }
        let map = target.wwid(lun)?;
        wait("both paths", || has_paths(&map, 2))?;
        // It is a disk.
        let device = format!("/dev/mapper/{map}");
        say("mkfs.ext4", &["-q", &device])?;
        say("multipath", &["-f", &map])?;
        ensure!(!Path::new(&device).try_exists()?, "the map is there after it was flushed");
    }
    for portal in PORTALS {
        say("iscsiadm", &["-m", "node", "-T", IQN, "-p", portal, "--logout"])?;
    }
    ensure!(sessions()?.is_empty(), "{:?}", sessions()?);
    Ok(Verdict::Passed)
}

fn password(_: &mut Node) -> Result<Verdict> {
    let chap = Some(("user", "secret-secret"));
    let _target = start_target(&TargetOptions { iqn: IQN, portals: &PORTALS[..1], luns: 1, chap })?;
    let _iscsid = start_iscsid()?;
    say("iscsiadm", &["-m", "discovery", "-t", "sendtargets", "-p", PORTALS[0]])?;
    let refused = log_in(PORTALS[0]).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("authorization failure"), "{refused:?}");
    set_node("node.session.auth.authmethod", "CHAP")?;
    set_node("node.session.auth.username", "user")?;
    set_node("node.session.auth.password", "secret-secret")?;
    log_in(PORTALS[0])?;
    ensure!(sessions()?.len() == 1, "{:?}", sessions()?);
    Ok(Verdict::Passed)
}
