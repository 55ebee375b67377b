//! Local volumes on a device that pods share.

use refloat_node::RecordState;
use refloat_record::{Record, Store};
use refloat_test_support::Outcome;

use crate::stage::{Stage, assert_all_mounted, local, pod};

refloat_test_support::tests![
    a_device_stays_while_any_pod_uses_it,
    a_missing_record_hides_no_user,
    a_device_without_users_goes
];

const CLAIM: &str = "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n";
const GLOBAL: &str = "plugins/kubernetes.io/local-volume/mounts/pv";

fn shared() -> Result<Stage, refloat_test_support::Skip> {
    let mut stage = Stage::new();
    let disk = stage.disk("disk.img")?;
    stage.manifest("pv.yaml", &local("pv", &disk));
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    stage.manifest("u2.yaml", &pod("u2", CLAIM));
    let outcome = stage.settle_well();
    assert_all_mounted(&outcome, 2);
    assert_eq!(outcome.actual.devices.len(), 1);
    assert_eq!(outcome.actual.devices[0].users.len(), 2);
    Ok(stage)
}

fn of_pod(uid: &str) -> String {
    format!("pods/{uid}/volumes/kubernetes.io~local-volume/pv")
}

/// B07.
fn a_device_stays_while_any_pod_uses_it() -> Outcome {
    let stage = shared()?;
    stage.remove_manifest("u1.yaml");
    let outcome = stage.settle_well();
    assert_all_mounted(&outcome, 1);
    assert!(stage.is_mounted(GLOBAL) && !stage.is_mounted(&of_pod("u1")));
    assert_eq!(std::fs::read_to_string(stage.root(&of_pod("u2")).join("disk.txt")).unwrap(), "the disk's");
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    stage.assert_clean();
    Ok(())
}

/// B07, variant: the record of one user, or of the device, is missing.
fn a_missing_record_hides_no_user() -> Outcome {
    let stage = shared()?;
    let store = Store::open(&stage.options.state_dir).unwrap();
    for record in store.load().unwrap().records {
        let of_u2 = matches!(&record, Record::PodVolume(v) if v.pod.uid.as_str() == "u2");
        if of_u2 {
            store.remove(&record.key()).unwrap();
        }
    }
    drop(store);
    // Nobody can tell whether u2 is wanted, so its mount stays, and with it the device.
    stage.manifest("u2.yaml", "{apiVersion: v1, kind: Pod, metadata: {name: pod-u2, uid: u2}}\n");
    stage.remove_manifest("u1.yaml");
    let outcome = stage.settle();
    assert!(stage.is_mounted(GLOBAL) && stage.is_mounted(&of_pod("u2")));
    assert_eq!(outcome.actual.devices[0].users.len(), 1);
    assert_eq!(outcome.actual.volumes[0].record_state, RecordState::Missing);
    // The pod comes back: what is mounted is what it wants, so it is recorded anew and never touched.
    let id = |stage: &Stage| stage.table().at(&stage.root(&of_pod("u2"))).unwrap().id();
    let before = id(&stage);
    stage.manifest("u2.yaml", &pod("u2", CLAIM));
    let outcome = stage.settle();
    assert_eq!((id(&stage), stage.mounts().len()), (before, 2), "{:#?}", outcome.plan.report);
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    stage.assert_clean();
    Ok(())
}

/// B08: a device is mounted, recorded or not, and no pod has a folder.
fn a_device_without_users_goes() -> Outcome {
    for recorded in [true, false] {
        let stage = shared()?;
        let store = Store::open(&stage.options.state_dir).unwrap();
        for record in store.load().unwrap().records {
            if !recorded || !matches!(record, Record::DeviceMount(_)) {
                store.remove(&record.key()).unwrap();
            }
        }
        drop(store);
        for uid in ["u1", "u2"] {
            stage.unmount(&stage.root(&of_pod(uid)));
            std::fs::remove_dir_all(stage.root("pods").join(uid)).unwrap();
            stage.remove_manifest(&format!("{uid}.yaml"));
        }
        assert!(stage.is_mounted(GLOBAL));
        stage.settle_well();
        stage.assert_clean();
    }
    Ok(())
}
