//! iSCSI volumes on simulated targets (`refloat_test_support::ScsiSim`): the disks are real block devices with real file systems;
//! how sessions and disks come and go is played, by an `iscsiadm` too.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use refloat_node::manager::Outcome as Settled;
use refloat_node::{RecordState, VolumeState};
use refloat_test_support::scsi_sim::{LogOutDoes, PortalDoes, UnitSpec};
use refloat_test_support::{Outcome, ScsiSim, Skip, assert_readable};
use refloat_volume::scsi::Sys;

use crate::san::{self, CLAIM, block_pod, lose, only_failure, read, wwid};
use crate::stage::{Stage, assert_all_mounted, pod, volume};

refloat_test_support::tests![
    a_disk_lives_and_goes,
    a_restart_asks_nobody,
    two_pods_share_a_disk,
    two_units_share_the_sessions,
    a_target_whose_name_begins_like_another,
    an_interface_of_its_own_comes_and_goes,
    one_portal_is_down,
    a_discovery_that_another_one_ended_is_made_again,
    a_portal_with_a_name,
    a_session_that_others_made_stays,
    a_session_whose_other_unit_is_used_stays,
    a_login_that_is_cut_off,
    a_logout_that_fails_keeps_the_record,
    chap_is_told_to_nobody_else,
    chap_of_a_discovery,
    what_iscsiadm_prints_is_not_trusted,
    what_goes_wrong_is_told,
    a_multipath_map_is_used_and_flushed,
    a_read_only_volume,
    after_a_reboot,
    a_record_is_lost,
    what_the_kubelet_mounted_goes,
    a_block_volume_lives_and_goes,
    a_block_volume_without_records,
    a_block_volume_whose_disk_is_gone,
];

const OF_U1: &str = "pods/u1/volumes/kubernetes.io~iscsi/pv";

/// A node with a target.
struct San {
    stage: Stage,
    sim: ScsiSim,
    iqn: String,
    portals: Vec<String>,
}

impl San {
    /// With a target with so many portals, and a unit `0` with a file system.
    fn new(portals: usize, multipath: bool) -> Result<Self, Skip> {
        let mut stage = Stage::new();
        let sim = ScsiSim::new(&stage.path("scsi"))?;
        stage.options.sys = Sys::new(sim.sysfs(), sim.dev()).with_iscsi(sim.iscsi());
        let (iqn, portals) = sim.target(portals);
        let san = Self { stage, sim, iqn, portals };
        san.unit(0, &san.iqn, multipath)?;
        Ok(san)
    }

    /// A unit with this number behind this target, called so, with an ext4 in which is `disk.txt`.
    fn unit(&self, number: u64, iqn: &str, multipath: bool) -> Result<(), Skip> {
        let image = self.stage.disk_image(&format!("unit{number}.img"))?;
        let (name, wwid) = (number.to_string(), format!("naa.{}", wwid(number)));
        let (lun, image) = (number, image.as_path());
        self.sim.unit(&UnitSpec { name: &name, wwid: &wwid, lun, ports: &[], multipath, image });
        self.sim.put_behind(&name, iqn);
        Ok(())
    }

    /// A manifest with a `PersistentVolume` of this name, and its claim, on this unit.
    fn persistent(&self, name: &str, iqn: &str, lun: u64, more: &str) {
        self.persistent_at(name, &self.portals[0], &format!("iqn: \"{iqn}\", lun: {lun}{}{more}", self.others()), "");
    }

    fn persistent_at(&self, name: &str, portal: &str, source: &str, of_spec: &str) {
        let source = format!("iscsi: {{targetPortal: \"{portal}\", {source}}}");
        san::persistent(&self.stage, name, &source, of_spec);
    }

    /// The field of the other portals.
    fn others(&self) -> String {
        if self.portals.len() == 1 {
            String::new()
        } else {
            format!(", portals: [\"{}\"]", self.portals[1..].join("\", \""))
        }
    }

    /// As [`San::new`], and a pod that has the unit `0`.
    fn with_pod(portals: usize, multipath: bool) -> Result<(Self, Settled), Skip> {
        let san = Self::new(portals, multipath)?;
        san.persistent("pv", &san.iqn, 0, "");
        san.stage.manifest("u1.yaml", &pod("u1", CLAIM));
        let settled = san.stage.settle_well();
        assert_all_mounted(&settled, 1);
        Ok((san, settled))
    }

    fn folder(&self, interface: &str, lun: u64) -> String {
        format!("plugins/kubernetes.io/iscsi/iface-{interface}/{}-{}-lun-{lun}", self.portals[0], self.iqn)
    }

    /// No disk and no session is on the node, nothing of any pod, and nothing of ours in the database.
    #[track_caller]
    fn assert_clean(&self) {
        san::assert_clean(&self.stage, &self.sim);
        assert_eq!(self.sim.sessions(&self.iqn), Vec::<u32>::new(), "{:?}", self.sim.events());
        assert_eq!(self.database(), Vec::<String>::new());
    }

    /// The records in the database of open-iscsi.
    fn database(&self) -> Vec<String> {
        fn files(folder: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { files(&path, found) } else { found.push(path.to_str().unwrap().to_owned()) }
            }
        }
        let mut found = vec![];
        files(&self.sim.iscsi(), &mut found);
        found
    }
}

fn a_disk_lives_and_goes() -> Outcome {
    let (san, settled) = San::with_pod(1, false)?;
    let (stage, portal, iqn) = (&san.stage, &san.portals[0], &san.iqn);
    let name = volume(&settled, "pv").unique_name.clone().unwrap();
    assert_eq!(name.as_str(), format!("kubernetes.io/iscsi/{portal}:{iqn}:0"));
    let global = san.folder("default", 0);
    assert!(stage.is_mounted(&global) && stage.is_mounted(OF_U1));
    assert_eq!(read(&stage.root(OF_U1)), "the disk's");
    let node = stage.table().at(&stage.root(&global)).unwrap().source().into_owned();
    assert_eq!(node, san.sim.dev().join("sda").to_str().unwrap());
    let [session] = san.sim.sessions(iqn).try_into().unwrap();
    let info = san::info(&san.stage);
    assert_eq!(
        (&info["iqn"], &info["lun"], &info["interface"], &info["id"]),
        (&iqn.as_str().into(), &0.into(), &"default".into(), &format!("3{}", wwid(0)).into())
    );
    let login = &info["access"]["logins"][0];
    assert_eq!((&login["ours"], &login["portal"]["host"]), (&session.into(), &"127.0.0.1".into()));
    assert_eq!((&info["paths"][0]["name"], &info["disk"]["fsType"]), (&"sda".into(), &"ext4".into()));
    // Only what is needed comes, and nothing is done at a boot.
    let [record] = san.database().try_into().unwrap();
    let record = std::fs::read_to_string(record).unwrap();
    assert!(record.contains("node.startup = manual") && record.contains("node.session.scan = manual"), "{record}");
    std::fs::write(stage.root(OF_U1).join("written"), "by the pod").unwrap();
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    assert_eq!(
        (san::events(&san.sim, "delete"), san::events(&san.sim, "logout")),
        (vec!["delete sda".into()], vec![format!("logout {session}")])
    );
    san.assert_clean();
    // Its data is there when it comes back.
    stage.manifest("u2.yaml", &pod("u2", CLAIM));
    stage.settle_well();
    let file = stage.root("pods/u2/volumes/kubernetes.io~iscsi/pv/written");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "by the pod");
    Ok(())
}

fn a_restart_asks_nobody() -> Outcome {
    let (san, first) = San::with_pod(2, true)?;
    let (calls, sysfs) = (san.sim.iscsiadm_calls(), san.sim.sysfs());
    for index in 0..2 {
        san.sim.portal(&san.iqn, index, PortalDoes::Hang);
    }
    // Whoever looked for it now would not find it.
    std::fs::rename(sysfs.join("block"), sysfs.join("hidden")).unwrap();
    let begun = Instant::now();
    let second = san.stage.settle_well();
    std::fs::rename(sysfs.join("hidden"), sysfs.join("block")).unwrap();
    assert_eq!(volume(&first, "pv").mount, volume(&second, "pv").mount);
    assert_eq!((san.sim.iscsiadm_calls(), volume(&second, "pv").record_state), (calls, RecordState::Ok));
    assert!(begun.elapsed() < Duration::from_secs(5));
    san.stage.remove_manifest("u1.yaml");
    san.stage.settle_well();
    san.assert_clean();
    Ok(())
}

fn two_pods_share_a_disk() -> Outcome {
    let (san, _) = San::with_pod(1, false)?;
    let stage = &san.stage;
    stage.manifest("u2.yaml", &pod("u2", CLAIM));
    let settled = stage.settle_well();
    assert_all_mounted(&settled, 2);
    assert_eq!(settled.actual.devices[0].users.len(), 2);
    stage.remove_manifest("u1.yaml");
    assert_all_mounted(&stage.settle_well(), 1);
    assert_eq!((san::events(&san.sim, "delete"), san::events(&san.sim, "logout")), (vec![], vec![]));
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    san.assert_clean();
    Ok(())
}

/// B30: who goes first takes its disk along, and the last one the sessions, whoever made them.
fn two_units_share_the_sessions() -> Outcome {
    for first in ["u1", "u2"] {
        let (san, _) = San::with_pod(2, false)?;
        let stage = &san.stage;
        san.unit(1, &san.iqn, false)?;
        san.persistent("second", &san.iqn, 1, "");
        stage.manifest("u2.yaml", &pod("u2", "  - {name: d, persistentVolumeClaim: {claimName: second}}\n"));
        assert_all_mounted(&stage.settle_well(), 2);
        assert_eq!((san.sim.sessions(&san.iqn).len(), san::events(&san.sim, "login").len()), (2, 2));
        let (gone, stays, second) = if first == "u1" { ("0", "1", "u2") } else { ("1", "0", "u1") };
        stage.remove_manifest(&format!("{first}.yaml"));
        assert_all_mounted(&stage.settle_well(), 1);
        assert_eq!((san.sim.disks(gone).len(), san.sim.disks(stays).len()), (0, 2), "{first}");
        assert_eq!((san.sim.sessions(&san.iqn).len(), san.database().len()), (2, 2), "{first}");
        stage.remove_manifest(&format!("{second}.yaml"));
        stage.settle_well();
        assert_eq!(san::events(&san.sim, "logout").len(), 2);
        san.assert_clean();
    }
    Ok(())
}

/// A name that another one begins with is another target.
fn a_target_whose_name_begins_like_another() -> Outcome {
    let (san, _) = San::with_pod(1, false)?;
    let stage = &san.stage;
    let beside = san.sim.target_beside(&san.iqn);
    san.unit(1, &beside, false)?;
    san.persistent("second", &beside, 1, "");
    stage.manifest("u2.yaml", &pod("u2", "  - {name: d, persistentVolumeClaim: {claimName: second}}\n"));
    assert_all_mounted(&stage.settle_well(), 2);
    stage.remove_manifest("u1.yaml");
    assert_all_mounted(&stage.settle_well(), 1);
    assert_eq!((san.sim.sessions(&san.iqn).len(), san.sim.sessions(&beside).len()), (0, 1));
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    san.assert_clean();
    Ok(())
}

/// B30: with an initiator name, the volume has an interface of its own.
fn an_interface_of_its_own_comes_and_goes() -> Outcome {
    let san = San::new(2, false)?;
    let stage = &san.stage;
    san.persistent("pv", &san.iqn, 0, ", initiatorName: iqn.2001-04.org.example:me");
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    assert_all_mounted(&stage.settle_well(), 1);
    let interface = format!("{}:pv", san.portals[0]);
    assert!(stage.is_mounted(&san.folder(&interface, 0)));
    let record = std::fs::read_to_string(san.sim.iscsi().join("ifaces").join(&interface)).unwrap();
    assert!(record.contains("iface.initiatorname = iqn.2001-04.org.example:me"), "{record}");
    assert!(record.contains("iface.transport_name = tcp"), "{record}");
    assert_eq!(san::info(&san.stage)["access"]["madeInterface"], true);
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    assert_eq!(san::events(&san.sim, "no interface"), [format!("no interface {interface}")]);
    san.assert_clean();
    Ok(())
}

/// B30, the variant in which one portal is down; that it hangs is no worse.
fn one_portal_is_down() -> Outcome {
    for does in [PortalDoes::Refuse, PortalDoes::Hang] {
        let mut san = San::new(2, false)?;
        san.stage.options.operation_deadline = Duration::from_secs(12);
        let stage = &san.stage;
        san.sim.portal(&san.iqn, 1, does);
        san.persistent("pv", &san.iqn, 0, "");
        stage.manifest("u1.yaml", &pod("u1", CLAIM));
        assert_all_mounted(&stage.settle_well(), 1);
        assert_eq!(san.sim.sessions(&san.iqn).len(), 1, "{does:?}");
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        san.assert_clean();
    }
    Ok(())
}

/// As on a real target whose portals are asked at the same time: `iscsiadm` asks all of them by one session identifier.
fn a_discovery_that_another_one_ended_is_made_again() -> Outcome {
    let san = San::new(2, true)?;
    let stage = &san.stage;
    san.sim.portal(&san.iqn, 0, PortalDoes::EndDiscovery);
    san.persistent("pv", &san.iqn, 0, "");
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    assert_all_mounted(&stage.settle_well(), 1);
    assert_eq!(san.sim.sessions(&san.iqn).len(), 2);
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    san.assert_clean();
    Ok(())
}

/// Its addresses are looked up once, and recorded.
fn a_portal_with_a_name() -> Outcome {
    let san = San::new(1, false)?;
    let stage = &san.stage;
    let portal = san.portals[0].replace("127.0.0.1", "localhost");
    san.persistent_at("pv", &portal, &format!("iqn: \"{}\", lun: 0", san.iqn), "");
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    assert_all_mounted(&stage.settle_well(), 1);
    let portal = &san::info(&san.stage)["portals"][0];
    assert_eq!(portal["host"], "localhost");
    assert!(portal["addresses"].to_string().contains("127.0.0.1"), "{portal}");
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    san.assert_clean();
    Ok(())
}

/// B30, the variant with a session of the system itself.
fn a_session_that_others_made_stays() -> Outcome {
    for startup in ["automatic", "manual"] {
        let san = San::new(1, false)?;
        let stage = &san.stage;
        let session = san.sim.somebody_logs_in(&san.iqn, 0, startup);
        san.persistent("pv", &san.iqn, 0, "");
        stage.manifest("u1.yaml", &pod("u1", CLAIM));
        assert_all_mounted(&stage.settle_well(), 1);
        assert_eq!(
            (san::events(&san.sim, "login"), &san::info(&san.stage)["access"]["logins"][0]["others"]),
            (vec![], &session.into())
        );
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        stage.assert_clean();
        assert_eq!((san.sim.sessions(&san.iqn), san::events(&san.sim, "logout")), (vec![session], vec![]));
        assert_eq!(san.database().len(), 1);
    }
    Ok(())
}

/// Somebody of this node has another unit of the target, which no record names.
fn a_session_whose_other_unit_is_used_stays() -> Outcome {
    let (san, _) = San::with_pod(1, false)?;
    let stage = &san.stage;
    san.unit(1, &san.iqn, false)?;
    san.sim.appear();
    let [disk] = san.sim.disks("1").try_into().unwrap();
    let folder = stage.host("by-hand");
    let device = san.sim.dev().join(disk);
    rustix::mount::mount(&device, &folder, "ext4", rustix::mount::MountFlags::empty(), None).unwrap();
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    assert_eq!((san.sim.disks("0").len(), san.sim.disks("1").len(), san::events(&san.sim, "logout")), (0, 1, vec![]));
    assert_eq!(read(&folder), "the disk's");
    stage.unmount(&folder);
    Ok(())
}

/// `iscsiadm` is killed at its deadline, and the session comes: it is known to be ours.
fn a_login_that_is_cut_off() -> Outcome {
    let mut san = San::new(1, false)?;
    san.stage.options.operation_deadline = Duration::from_secs(8);
    let stage = &san.stage;
    san.sim.portal(&san.iqn, 0, PortalDoes::LogInUnseen);
    san.persistent("pv", &san.iqn, 0, "");
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    assert_all_mounted(&stage.settle_well(), 1);
    let [session] = san.sim.sessions(&san.iqn).try_into().unwrap();
    assert_eq!(san::info(&san.stage)["access"]["logins"][0]["ours"], session);
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    san.assert_clean();
    Ok(())
}

fn a_logout_that_fails_keeps_the_record() -> Outcome {
    for (does, expected) in [
        (LogOutDoes::Refuse, "ToolFailed"),
        (LogOutDoes::Lie, "SessionOpen"),
        (LogOutDoes::Hang, "ToolTimeout"),
        (LogOutDoes::Garbage, "ToolFailed"),
    ] {
        let (mut san, _) = San::with_pod(1, false)?;
        san.stage.options.operation_deadline = Duration::from_secs(4);
        san.sim.log_outs(does);
        san.stage.remove_manifest("u1.yaml");
        let settled = san.stage.settle();
        assert_eq!(only_failure(&settled).0, expected, "{does:?}: {:?}", settled.failures);
        assert_readable(only_failure(&settled).1);
        assert_eq!((san::devices(&san.stage).len(), san.sim.sessions(&san.iqn).len()), (1, 1), "{does:?}");
        assert_eq!(san.stage.mounts(), Vec::<std::path::PathBuf>::new(), "{does:?}");
        san.sim.log_outs(LogOutDoes::Well);
        san.stage.options.operation_deadline = crate::stage::PATIENCE;
        san.stage.settle_well();
        san.assert_clean();
    }
    Ok(())
}

fn secret(of: &str, password: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: chap, namespace: default}}\ntype: kubernetes.io/iscsi-chap\n\
         stringData: {{{of}.username: the-user, {of}.password: {password}, other: unused}}\n"
    )
}

const SECRET: &str = "s3cret-of-the-target";

/// A target that wants CHAP of its sessions, and a volume behind it.
fn with_chap() -> Result<San, Skip> {
    let san = San::new(1, false)?;
    san.sim.want_chap(&san.iqn, Some(("the-user", SECRET)), None);
    san.persistent("pv", &san.iqn, 0, ", chapAuthSession: true, secretRef: {name: chap, namespace: default}");
    Ok(san)
}

/// What must not tell the secret: arguments, records, messages.
#[track_caller]
fn assert_untold(san: &San, settled: &Settled) {
    let said = format!("{:?} {settled:?} {:?}", san.sim.iscsiadm_calls(), san.stage.records());
    assert!(!said.contains(SECRET) && !said.contains("the-user"), "{said}");
}

fn chap_is_told_to_nobody_else() -> Outcome {
    let san = with_chap()?;
    let stage = &san.stage;
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    // Without its Secret it waits.
    stage.settle();
    assert_eq!((san.sim.iscsiadm_calls(), stage.mounts().len()), (vec![], 0));
    stage.manifest("chap.yaml", &secret("node.session.auth", "not-the-one"));
    let settled = stage.settle();
    assert_eq!(only_failure(&settled).0, "ChapRefused");
    assert!(!format!("{settled:?}").contains("not-the-one"));
    stage.manifest("chap.yaml", &secret("node.session.auth", SECRET));
    let settled = stage.settle_well();
    assert_all_mounted(&settled, 1);
    assert_untold(&san, &settled);
    let [record] = san.database().try_into().unwrap();
    let text = std::fs::read_to_string(&record).unwrap();
    assert!(text.contains(SECRET) && text.contains("node.session.auth.authmethod = CHAP"), "{text}");
    assert_eq!(std::fs::metadata(&record).unwrap().permissions().mode() & 0o777, 0o600);
    stage.remove_manifest("u1.yaml");
    assert_untold(&san, &stage.settle_well());
    san.assert_clean();
    Ok(())
}

/// What `iscsiadm` prints is shown in part, without what a terminal would obey, and without the passwords, whole or in part. A
/// portal group that is none leads to no file.
fn what_iscsiadm_prints_is_not_trusted() -> Outcome {
    let san = with_chap()?;
    let stage = &san.stage;
    stage.manifest("chap.yaml", &secret("node.session.auth", SECRET));
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    for (does, code) in [(PortalDoes::OfferGarbage, "TargetNotOffered"), (PortalDoes::LogInGarbage, "ChapRefused")] {
        san.sim.portal(&san.iqn, 0, does);
        let settled = stage.settle();
        let (its, message) = only_failure(&settled);
        assert_eq!(its, code, "{message}");
        assert_readable(message);
        let half = SECRET.split_at(SECRET.len() / 2).0;
        assert!(!format!("{settled:?}").contains(half), "{does:?}: {message}");
        assert_untold(&san, &settled);
        assert_eq!(
            (san.sim.sessions(&san.iqn), san.database(), san::devices(stage).len()),
            (vec![], vec![], 0),
            "{does:?}"
        );
    }
    let asked = san.sim.iscsiadm_calls();
    assert!(!asked.iter().any(|call| call.contains("..")), "{asked:?}");
    san.sim.portal(&san.iqn, 0, PortalDoes::Well);
    assert_all_mounted(&stage.settle_well(), 1);
    Ok(())
}

fn chap_of_a_discovery() -> Outcome {
    let san = San::new(2, false)?;
    let stage = &san.stage;
    san.sim.want_chap(&san.iqn, None, Some(("the-user", SECRET)));
    san.persistent("pv", &san.iqn, 0, ", chapAuthDiscovery: true, secretRef: {name: chap, namespace: default}");
    stage.manifest("chap.yaml", &secret("discovery.sendtargets.auth", SECRET));
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    let settled = stage.settle_well();
    assert_all_mounted(&settled, 1);
    assert_untold(&san, &settled);
    // That record was needed for the discovery alone.
    assert!(san.database().iter().all(|file| file.contains("/nodes/")), "{:?}", san.database());
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    san.assert_clean();
    Ok(())
}

fn what_goes_wrong_is_told() -> Outcome {
    let mut san = San::new(1, false)?;
    san.stage.options.operation_deadline = Duration::from_secs(4);
    let stage = &san.stage;
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    for (does, code, part) in
        [(PortalDoes::Refuse, "ToolFailed", "Connection refused"), (PortalDoes::Hang, "ToolTimeout", "iscsiadm")]
    {
        san.sim.portal(&san.iqn, 0, does);
        san.persistent("pv", &san.iqn, 0, "");
        let settled = stage.settle();
        let (its, message) = only_failure(&settled);
        assert!(its == code && message.contains(part), "{does:?}: {its}: {message}");
        assert_eq!((san::devices(&san.stage).len(), san.database().len()), (0, 0), "{does:?}");
    }
    san.sim.portal(&san.iqn, 0, PortalDoes::Well);
    let beside = format!("{}-none", san.iqn);
    san.persistent("pv", &beside, 0, "");
    let settled = stage.settle();
    let (code, message) = only_failure(&settled);
    assert!(code == "TargetNotOffered" && message.contains(&beside), "{code}: {message}");
    // It is offered, and has no such unit: the session that was made for it ends.
    san.persistent("pv", &san.iqn, 7, "");
    let settled = stage.settle();
    let (code, message) = only_failure(&settled);
    assert!(code == "DiskNotFound" && message.contains("LUN 7"), "{code}: {message}");
    assert_eq!((san.sim.sessions(&san.iqn), san::devices(&san.stage).len()), (vec![], 0));
    san.persistent("pv", &san.iqn, 0, "");
    assert_all_mounted(&stage.settle_well(), 1);
    Ok(())
}

fn a_multipath_map_is_used_and_flushed() -> Outcome {
    let (san, _) = San::with_pod(2, true)?;
    let stage = &san.stage;
    let (name, alias) = san.sim.map("0").unwrap();
    let global = san.folder("default", 0);
    assert_eq!(&*stage.table().at(&stage.root(&global)).unwrap().source(), san.sim.dev().join(&name).to_str().unwrap());
    assert_eq!(san::info(&san.stage)["map"]["name"], alias);
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    let undone: Vec<String> = ["flush", "delete"].iter().flat_map(|kind| san::events(&san.sim, kind)).collect();
    assert_eq!(undone, [format!("flush {alias}"), "delete sda".into(), "delete sdb".into()]);
    assert_eq!(san::events(&san.sim, "logout").len(), 2);
    san.assert_clean();
    Ok(())
}

fn a_read_only_volume() -> Outcome {
    let san = San::new(1, false)?;
    let stage = &san.stage;
    san.persistent("pv", &san.iqn, 0, ", readOnly: true");
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    assert_all_mounted(&stage.settle_well(), 1);
    let table = stage.table();
    for path in [OF_U1, &san.folder("default", 0)] {
        let mount = table.at(&stage.root(path)).unwrap();
        assert!(mount.read_only(), "{path}");
    }
    assert!(std::fs::write(stage.root(OF_U1).join("x"), "").is_err());
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    san.assert_clean();
    Ok(())
}

/// No session outlives a boot: that with the same number is another one.
fn after_a_reboot() -> Outcome {
    for wanted in [true, false] {
        let (san, _) = San::with_pod(2, true)?;
        let stage = &san.stage;
        stage.reboot();
        san.sim.vanish("0", true);
        san.sim.end_sessions();
        if wanted {
            assert_all_mounted(&stage.settle_well(), 1);
            assert_eq!(read(&stage.root(OF_U1)), "the disk's");
            assert_eq!(san.sim.sessions(&san.iqn).len(), 2);
        }
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        san.assert_clean();
    }
    Ok(())
}

/// The rows of docs/plugins.md. Without the device's record, nothing tells who made the session: it stays.
fn a_record_is_lost() -> Outcome {
    for damaged in [false, true] {
        for (of_volume, of_device) in [(true, false), (false, true), (true, true)] {
            for wanted in [true, false] {
                let shown =
                    format!("damaged: {damaged}, volume's: {of_volume}, device's: {of_device}, wanted: {wanted}");
                let (san, first) = San::with_pod(1, false)?;
                let stage = &san.stage;
                let before = stage.records();
                if of_volume {
                    lose(stage, "volumes", "u1", damaged);
                }
                if of_device {
                    lose(stage, "devices", "iscsi", damaged);
                }
                if wanted {
                    stage.settle();
                    let settled = stage.settle();
                    let seen = volume(&settled, "pv");
                    assert_eq!(seen.state, VolumeState::Mounted, "{shown}");
                    let ids = [seen, volume(&first, "pv")].map(|v| v.mount.as_ref().and_then(|m| m.id));
                    assert_eq!(ids[0], ids[1], "{shown}");
                    if of_volume {
                        assert_eq!(stage.records().len(), before.len(), "{shown}: {:#?}", settled.plan.report);
                        assert_eq!(san::info(&san.stage)["id"], format!("3{}", wwid(0)), "{shown}");
                    }
                }
                stage.remove_manifest("u1.yaml");
                stage.settle();
                assert_eq!((stage.mounts(), stage.root("pods/u1").exists()), (vec![], false), "{shown}");
                assert_eq!(san.sim.disks("0"), Vec::<String>::new(), "{shown}: {:?}", san.sim.events());
                assert_eq!(san.sim.sessions(&san.iqn).len(), usize::from(of_device), "{shown}");
            }
        }
    }
    Ok(())
}

/// A kubelet's tree: its file below the mount says what it logged in to. What the node logs in to by itself stays.
fn what_the_kubelet_mounted_goes() -> Outcome {
    for (startup, with_file) in [("manual", true), ("automatic", true), ("manual", false)] {
        for wanted in [true, false] {
            let shown = format!("{startup}, file: {with_file}, wanted: {wanted}");
            let san = San::new(1, false)?;
            let stage = &san.stage;
            let session = san.sim.somebody_logs_in(&san.iqn, 0, startup);
            san.persistent("pv", &san.iqn, 0, "");
            stage.manifest("u1.yaml", &pod("u1", CLAIM));
            let folder = stage.root(&san.folder("default", 0));
            std::fs::create_dir_all(&folder).unwrap();
            if with_file {
                let text = serde_json::json!({ "VolName": "pv", "Portals": [san.portals[0]], "Iqn": san.iqn, "Lun": "0",
                    "InitIface": "default", "Iface": "default", "InitiatorName": "", "MetricsProvider": null });
                std::fs::write(folder.join("iscsi.json"), text.to_string()).unwrap();
            }
            let device = san.sim.dev().join("sda");
            rustix::mount::mount(&device, &folder, "ext4", rustix::mount::MountFlags::empty(), None).unwrap();
            let of_pod = stage.root(OF_U1);
            std::fs::create_dir_all(&of_pod).unwrap();
            stage.bind(&folder, &of_pod);
            if wanted {
                assert_all_mounted(&stage.settle_well(), 1);
            }
            stage.remove_manifest("u1.yaml");
            stage.settle_well();
            assert_eq!((stage.mounts(), folder.exists()), (vec![], false), "{shown}");
            let left = if startup == "manual" && with_file { vec![] } else { vec![session] };
            assert_eq!((san.sim.sessions(&san.iqn), san.sim.disks("0")), (left, vec![]), "{shown}");
        }
    }
    // A file that another mount has left is no pod's data.
    let san = San::new(1, false)?;
    let folder = san.stage.root(&san.folder("default", 0));
    std::fs::create_dir_all(&folder).unwrap();
    let text = serde_json::json!({ "Portals": [san.portals[0]], "Iqn": san.iqn, "Lun": "0" });
    std::fs::write(folder.join("iscsi.json"), text.to_string()).unwrap();
    san.persistent("pv", &san.iqn, 0, "");
    san.stage.manifest("u1.yaml", &pod("u1", CLAIM));
    assert_all_mounted(&san.stage.settle_well(), 1);
    san.stage.remove_manifest("u1.yaml");
    san.stage.settle_well();
    san.assert_clean();
    Ok(())
}

const BLOCK: &str = "\n  volumeMode: Block";

/// A pod with the unit `0` as a raw device.
fn with_block_pod() -> Result<San, Skip> {
    let san = San::new(1, false)?;
    san.persistent_at("pv", &san.portals[0], &format!("iqn: \"{}\", lun: 0", san.iqn), BLOCK);
    san.stage.manifest("u1.yaml", &block_pod("u1"));
    assert_all_mounted(&san.stage.settle_well(), 1);
    Ok(san)
}

fn global_map(san: &San) -> String {
    format!("plugins/kubernetes.io/iscsi/volumeDevices/iface-default/{}-{}-lun-0", san.portals[0], san.iqn)
}

fn a_block_volume_lives_and_goes() -> Outcome {
    let san = with_block_pod()?;
    let (stage, map) = (&san.stage, global_map(&san));
    let link = std::fs::read_link(stage.root("pods/u1/volumeDevices/kubernetes.io~iscsi/pv")).unwrap();
    assert_eq!(link, san.sim.dev().join("sda"));
    assert!(stage.is_mounted(&format!("{map}/u1")));
    let [device] = san::devices(&san.stage).try_into().unwrap();
    assert_eq!((device.device_mount_path.as_str(), device.confirmed, device.mount), (map.as_str(), true, None));
    let calls = san.sim.iscsiadm_calls();
    stage.manifest("u2.yaml", &block_pod("u2"));
    assert_all_mounted(&stage.settle_well(), 2);
    assert_eq!(san.sim.iscsiadm_calls(), calls);
    stage.remove_manifest("u1.yaml");
    assert_all_mounted(&stage.settle_well(), 1);
    assert_eq!((san::events(&san.sim, "delete"), san::events(&san.sim, "logout")), (vec![], vec![]));
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    assert_eq!(
        (san::events(&san.sim, "delete"), san::events(&san.sim, "logout").len()),
        (vec!["delete sda".to_owned()], 1)
    );
    san.assert_clean();
    Ok(())
}

fn a_block_volume_without_records() -> Outcome {
    for (of_volume, of_device) in [(true, false), (false, true), (true, true)] {
        for wanted in [true, false] {
            let shown = format!("volume's: {of_volume}, device's: {of_device}, wanted: {wanted}");
            let san = with_block_pod()?;
            let stage = &san.stage;
            if of_volume {
                lose(stage, "volumes", "u1", false);
            }
            if of_device {
                lose(stage, "devices", "iscsi", false);
            }
            if wanted {
                stage.settle();
                assert_eq!(volume(&stage.settle(), "pv").state, VolumeState::Mounted, "{shown}");
            }
            stage.remove_manifest("u1.yaml");
            stage.settle();
            assert_eq!((stage.mounts(), san.sim.disks("0")), (vec![], vec![]), "{shown}: {:?}", san.sim.events());
            assert_eq!(san.sim.sessions(&san.iqn).len(), usize::from(of_device), "{shown}");
        }
    }
    Ok(())
}

/// B31 (b): the disk is really gone, with its session or without.
fn a_block_volume_whose_disk_is_gone() -> Outcome {
    for with_session in [true, false] {
        let san = with_block_pod()?;
        san.sim.vanish("0", true);
        if with_session {
            san.sim.end_sessions();
        }
        san.stage.remove_manifest("u1.yaml");
        san.stage.settle_well();
        assert_eq!(san::events(&san.sim, "delete"), Vec::<String>::new());
        san.assert_clean();
    }
    Ok(())
}
