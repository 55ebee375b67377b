//! What drivers are told: secrets, groups, modes.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use refloat_csi::UsageUnit;
use refloat_node::VolumeState;
use refloat_test_csi_driver::Event;
use refloat_test_support::Outcome;
use refloat_volume::plugins::csi;

use crate::stage::volume;
use crate::world::{DRIVER, Kind, World, assert_mounted, claim, csi_driver, pod_with};

refloat_test_support::tests!(
    secrets_come_by_reference_and_stay_nowhere,
    a_missing_secret_is_waited_for,
    a_group_by_policy,
    a_group_by_the_driver,
    a_volume_that_the_pod_only_reads,
    tokens_cannot_be_had,
    attaching_is_waited_for,
    what_a_volume_holds,
);

const SECRETS: &str = ", nodeStageSecretRef: {namespace: kube, name: stage}, nodePublishSecretRef: {namespace: kube, \
                       name: publish}";

fn secret(name: &str, key: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: kube}}\nstringData: {{{key}: hunter2}}\n---\n"
    )
}

/// The names of the secrets that the first call of this name had.
fn told(world: &World, call: &str) -> Vec<String> {
    let journal = world.driver.journal().unwrap();
    journal.into_iter().find(|e| e.call == call && e.event == Event::Begin).map(|e| e.secrets).unwrap_or_default()
}

fn holds(folder: &Path, text: &str) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            holds(&path, text)
        } else {
            std::fs::read(&path).is_ok_and(|t| t.windows(text.len()).any(|w| w == text.as_bytes()))
        }
    })
}

fn secrets_come_by_reference_and_stay_nowhere() -> Outcome {
    let world = World::new()?;
    world.stage.manifest("secrets.yaml", &(secret("stage", "s") + &secret("publish", "p")));
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", SECRETS, ""));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    let outcome = world.stage.settle_well();
    assert_mounted(volume(&outcome, "pv"));
    assert_eq!(
        (told(&world, "NodeStageVolume"), told(&world, "NodePublishVolume")),
        (vec!["s".into()], vec!["p".into()])
    );
    assert!(!holds(&world.stage.options.state_dir, "hunter2") && !holds(&world.stage.root(""), "hunter2"));
    assert!(!format!("{:?}", outcome.desired).contains("hunter2"));
    // Not needed to undo it.
    world.stage.remove_manifest("secrets.yaml");
    world.end(&["pod.yaml"]);
    Ok(())
}

fn a_missing_secret_is_waited_for() -> Outcome {
    let world = World::new()?;
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", SECRETS, ""));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    world.stage.manifest("secrets.yaml", &secret("stage", "s"));
    let outcome = world.stage.settle();
    let problem = &outcome.desired.pods.values().next().unwrap().waiting[0].problem;
    assert!(problem.code == "SecretMissing" && problem.message.contains("kube/publish"), "{problem:?}");
    assert_eq!(world.begun("NodeStageVolume"), 0);
    world.stage.manifest("more.yaml", &secret("publish", "p"));
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    world.stage.remove_manifest("more.yaml");
    let outcome = world.stage.settle();
    assert_eq!(volume(&outcome, "pv").state, VolumeState::Mounted, "what is mounted stays");
    assert_eq!(world.begun("NodeUnpublishVolume"), 0);
    world.end(&["pod.yaml"]);
    Ok(())
}

/// A pod whose group is 4242.
fn grouped(uid: &str) -> String {
    pod_with(uid, "pv").replace("spec:\n", "spec:\n  securityContext: {fsGroup: 4242}\n")
}

fn a_group_by_policy() -> Outcome {
    for (policy, fs_type, modes, wanted) in [
        ("", "ext4", "ReadWriteOnce", true),
        ("", "", "ReadWriteOnce", false),
        ("", "ext4", "ReadWriteMany", false),
        ("fsGroupPolicy: File", "", "ReadWriteMany", true),
        ("fsGroupPolicy: None", "ext4", "ReadWriteOnce", false),
    ] {
        let world = World::new()?;
        world.stage.manifest("driver.yaml", &csi_driver(DRIVER, policy));
        let text = claim("pv", DRIVER, "h1", "", "");
        let text = text.replace("fsType: ext4", &format!("fsType: '{fs_type}'"));
        world
            .stage
            .manifest("pv.yaml", &text.replace("accessModes: [ReadWriteOnce]", &format!("accessModes: [{modes}]")));
        world.stage.manifest("pod.yaml", &grouped("u1"));
        assert_mounted(volume(&world.stage.settle_well(), "pv"));
        let root = std::fs::metadata(world.target("u1", "pv")).unwrap();
        assert_eq!(root.gid() == 4242, wanted, "{policy:?} {fs_type:?} {modes}");
        if wanted {
            assert_eq!(root.mode() & 0o2770, 0o2770);
        }
        world.end(&["pod.yaml"]);
    }
    Ok(())
}

fn a_group_by_the_driver() -> Outcome {
    let world = World::with(|options| options.mount_group = true)?;
    world.stage.manifest("driver.yaml", &csi_driver(DRIVER, "fsGroupPolicy: None"));
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
    world.stage.manifest("pod.yaml", &grouped("u1"));
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    assert_eq!(std::fs::metadata(world.target("u1", "pv")).unwrap().gid(), 4242, "the driver gave it");
    world.end(&["pod.yaml"]);
    Ok(())
}

fn a_volume_that_the_pod_only_reads() -> Outcome {
    let world = World::new()?;
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ", mountOptions: [noatime]"));
    let read_only = grouped("u1").replace("claimName: pv}", "claimName: pv, readOnly: true}");
    world.stage.manifest("pod.yaml", &read_only);
    let outcome = world.stage.settle_well();
    let seen = volume(&outcome, "pv");
    assert_mounted(seen);
    let options = &seen.mount.as_ref().unwrap().options;
    assert!(options.starts_with("ro") && options.contains("noatime"), "{options}");
    assert_ne!(std::fs::metadata(world.target("u1", "pv")).unwrap().gid(), 4242);
    world.end(&["pod.yaml"]);
    Ok(())
}

fn waits(driver: &str) -> Result<(World, &'static str), refloat_test_support::Skip> {
    let world = World::new()?;
    world.stage.manifest("driver.yaml", &csi_driver(DRIVER, driver));
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    let outcome = world.stage.settle();
    let code = outcome.desired.pods.values().next().unwrap().waiting[0].problem.code;
    assert_eq!(world.begun("NodeStageVolume"), 0);
    Ok((world, code))
}

fn tokens_cannot_be_had() -> Outcome {
    let (_, code) = waits("tokenRequests: [{audience: x}]")?;
    assert_eq!(code, "TokensUnavailable");
    Ok(())
}

fn attaching_is_waited_for() -> Outcome {
    let (world, code) = waits("attachRequired: true")?;
    assert_eq!(code, "NotAttached");
    let attachment = |attached: bool| {
        format!(
            "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {{name: a}}\nspec: {{attacher: {DRIVER}, \
             nodeName: node-1, source: {{persistentVolumeName: pv}}}}\nstatus: {{attached: {attached}, attachmentMetadata: {{lun: \
             '7'}}}}\n"
        )
    };
    world.stage.manifest("attachment.yaml", &attachment(false));
    assert!(!world.stage.settle().desired.pods.values().next().unwrap().waiting.is_empty());
    world.stage.manifest("attachment.yaml", &attachment(true));
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    let device = world.stage.records().into_iter().find_map(|record| match record {
        refloat_record::Record::DeviceMount(device) => device.publish_context,
        _ => None,
    });
    assert_eq!(device.unwrap().get(), r#"{"lun":"7"}"#);
    world.end(&["pod.yaml"]);
    Ok(())
}

/// `NodeGetVolumeStats`, of what is set up.
fn what_a_volume_holds() -> Outcome {
    for kind in Kind::BOTH {
        let world = crate::world::one_volume_of(kind)?;
        let record = world.volume_record();
        let host = world.host();
        let error = csi::stats(&host, &record).unwrap_err().problem();
        assert!(error.code == "DriverMissing" && error.message.contains("NodeGetVolumeStats"), "{error:?}");
        host.drivers.remember(DRIVER, &world.driver.options().endpoint);
        let seen = csi::stats(&host, &record).unwrap().expect("the driver can tell");
        let of = |unit| seen.usage.iter().find(|usage| usage.unit == unit);
        let bytes = of(UsageUnit::Bytes).expect("bytes");
        match kind {
            Kind::Filesystem => {
                let fs = rustix::fs::statvfs(world.target("u1", "pv")).unwrap();
                assert_eq!(bytes.total.cast_unsigned(), fs.f_blocks * fs.f_frsize);
                let inodes = of(UsageUnit::Inodes).expect("inodes");
                assert_eq!(inodes.total.cast_unsigned(), fs.f_files);
                assert!(inodes.used > 0 && bytes.used + bytes.available <= bytes.total, "{seen:?}");
            }
            Kind::Block => assert_eq!(bytes.total, 16 << 20),
        }
        let gone = refloat_test_csi_driver::Action::Code { code: 5, message: "no such volume".into() };
        let fault = refloat_test_csi_driver::Fault::always(gone);
        world.driver.faults().order("NodeGetVolumeStats", &fault).unwrap();
        let error = csi::stats(&host, &record).unwrap_err().problem();
        assert!(error.code == "DriverRefused" && error.message.contains("no such volume"), "{error:?}");
        world.end(&["pod.yaml"]);
    }
    Ok(())
}
