//! Volumes of plugins whose place CSI drivers have taken: set up, known again and undone by those.

use std::path::PathBuf;

use refloat_node::manager::Outcome as Round;
use refloat_node::{ActualVolume, RecordState};
use refloat_record::{PodVolume, Record};
use refloat_test_csi_driver::Event;
use refloat_test_support::{Outcome, Skip};

use crate::foreign::lose_records;
use crate::stage::{pod, volume};
use crate::world::{World, assert_mounted, codes, csi_driver, pod_with, start, target};

refloat_test_support::tests!(
    a_disk_from_set_up_to_gone,
    known_again_with_its_record,
    known_again_with_a_damaged_record,
    known_again_without_a_record,
    undone_without_a_record,
    a_record_that_lost_what_its_driver_was_told,
    two_pods_have_one_disk_inline,
    one_disk_under_two_names_of_a_pod,
    a_read_only_disk,
    a_driver_that_is_not_there,
    an_attachment_of_an_inline_disk,
    other_labels_are_another_disk,
    a_block_volume,
    a_regional_disk,
    the_mounts_of_a_plugin_that_is_gone_stay_with_their_pod,
);

const GCE: &str = "pd.csi.storage.gke.io";
const AWS: &str = "ebs.csi.aws.com";

/// How a pod names its disk.
#[derive(Debug, Clone, Copy)]
enum Kind {
    InlineGce,
    ClaimAws,
}

const BOTH: [Kind; 2] = [Kind::InlineGce, Kind::ClaimAws];

impl Kind {
    fn driver(self) -> &'static str {
        match self {
            Self::InlineGce => GCE,
            Self::ClaimAws => AWS,
        }
    }

    fn spec_name(self) -> &'static str {
        match self {
            Self::InlineGce => "pd.csi.storage.gke.io-pd-1",
            Self::ClaimAws => "pv",
        }
    }

    fn handle(self) -> &'static str {
        match self {
            Self::InlineGce => "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/pd-1",
            Self::ClaimAws => "vol-0a1b",
        }
    }

    fn pod(self, uid: &str) -> String {
        match self {
            Self::InlineGce => inline(uid, ""),
            Self::ClaimAws => pod_with(uid, "pv"),
        }
    }

    fn world(self) -> Result<World, Skip> {
        let world = World::of(self.driver(), |_| {})?;
        if matches!(self, Self::ClaimAws) {
            let source = "awsElasticBlockStore: {volumeID: 'aws://us-east-1a/vol-0a1b', fsType: ext4}";
            world.stage.manifest("pv.yaml", &claim(source, "topology.kubernetes.io/zone: us-east-1a"));
        }
        Ok(world)
    }

    /// A node with one pod and its disk, set up.
    fn set_up(self) -> Result<World, Skip> {
        let world = self.world()?;
        world.stage.manifest("pod.yaml", &self.pod("u1"));
        assert_mounted(self.seen(&world.stage.settle_well()));
        Ok(world)
    }

    fn seen(self, round: &Round) -> &ActualVolume {
        volume(round, self.spec_name())
    }

    fn target(self, world: &World) -> PathBuf {
        world.target("u1", self.spec_name())
    }

    /// The record has what the pod and the claim say, and what the driver was told.
    fn assert_recorded(self, record: &PodVolume) {
        assert_eq!(record.plugin.as_str(), "kubernetes.io/csi");
        assert_eq!(record.unique_name.as_str(), format!("kubernetes.io/csi/{}^{}", self.driver(), self.handle()));
        let (original, field) = match self {
            Self::InlineGce => (&record.volume, "gcePersistentDisk"),
            Self::ClaimAws => (record.persistent_volume.as_ref().unwrap(), "aws://us-east-1a/vol-0a1b"),
        };
        assert!(original.get().contains(field) && !original.get().contains("csi"), "{original:?}");
        assert_eq!(record.persistent_volume.is_some(), matches!(self, Self::ClaimAws), "none is made up");
        let info: serde_json::Value = record.provider_info.as_ref().unwrap().parse().unwrap();
        assert_eq!(
            (info["driver"].as_str(), info["volumeHandle"].as_str()),
            (Some(self.driver()), Some(self.handle()))
        );
    }
}

fn inline(uid: &str, more: &str) -> String {
    pod(uid, &format!("  - {{name: data, gcePersistentDisk: {{pdName: pd-1, fsType: ext4{more}}}}}\n"))
}

/// The claim `pv` and its volume with this source and these labels, in flow style.
fn claim(source: &str, labels: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv, labels: {{{labels}}}}}\nspec: {{capacity: {{storage: \
         16Mi}}, accessModes: [ReadWriteOnce], {source}, claimRef: {{namespace: default, name: pv}}}}\n---\napiVersion: \
         v1\nkind: PersistentVolumeClaim\nmetadata: {{name: pv, namespace: default}}\nspec: {{volumeName: pv, accessModes: \
         [ReadWriteOnce], resources: {{requests: {{storage: 16Mi}}}}}}\n---\n"
    )
}

fn a_disk_from_set_up_to_gone() -> Outcome {
    for kind in BOTH {
        let world = kind.set_up()?;
        std::fs::write(kind.target(&world).join("file"), "data").unwrap();
        kind.assert_recorded(&world.volume_record());
        let round = world.stage.settle_well();
        let device = &round.actual.devices[0];
        assert_eq!((device.users.len(), round.actual.devices.len()), (1, 1));
        assert_eq!(device.unique_name, kind.seen(&round).unique_name);
        let staged = device.record.as_ref().unwrap();
        assert_eq!(staged.volume.is_some(), matches!(kind, Kind::InlineGce), "{staged:?}");
        assert_eq!(staged.persistent_volume.is_some(), matches!(kind, Kind::ClaimAws), "{staged:?}");
        // A kubelet finds them by this.
        let data = std::fs::read_to_string(kind.target(&world).with_file_name("vol_data.json")).unwrap();
        for part in [kind.driver(), kind.handle(), kind.spec_name(), "Persistent"] {
            assert!(data.contains(&format!("{part:?}")), "{part} is not in {data}");
        }
        let journal = world.driver.journal().unwrap();
        let told: Vec<_> = journal.iter().filter(|e| e.event == Event::Begin && e.call == "NodeStageVolume").collect();
        assert_eq!(told.iter().map(|e| e.volume.as_str()).collect::<Vec<_>>(), [kind.handle()]);
        world.end(&["pod.yaml"]);
        assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"], "{kind:?}");

        world.stage.manifest("pod.yaml", &kind.pod("u2"));
        world.stage.settle_well();
        let file = world.target("u2", kind.spec_name()).join("file");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "data");
        world.end(&["pod.yaml"]);
    }
    Ok(())
}

fn known_again_with_its_record() -> Outcome {
    for kind in BOTH {
        let world = kind.set_up()?;
        for _ in 0..2 {
            let round = world.stage.settle_well();
            let seen = kind.seen(&round);
            assert_mounted(seen);
            assert_eq!(
                (seen.record_state, &seen.reconstruction),
                (RecordState::Ok, &refloat_node::ReconstructionResult::Full)
            );
        }
        assert_eq!(world.done(), ["Stage", "Publish"], "{kind:?}: nothing is asked twice");
        world.stage.reboot();
        assert_mounted(kind.seen(&world.stage.settle_well()));
        assert_eq!(world.done(), ["Stage", "Publish", "Stage", "Publish"], "{kind:?}");
        world.end(&["pod.yaml"]);
    }
    Ok(())
}

/// The pod's mount is the same before and after, its record is whole again, and its driver was asked to undo nothing.
fn mended(kind: Kind, harm: impl Fn(&World)) -> Outcome {
    let world = kind.set_up()?;
    let mount = |world: &World| world.stage.table().at(&kind.target(world)).unwrap().id();
    let before = mount(&world);
    harm(&world);
    assert_mounted(kind.seen(&world.stage.settle_well()));
    assert_eq!(mount(&world), before, "{kind:?}: the pod's mount was not touched");
    kind.assert_recorded(&world.volume_record());
    assert_eq!(world.begun("NodeUnpublishVolume") + world.begun("NodeUnstageVolume"), 0, "{kind:?}");
    world.end(&["pod.yaml"]);
    Ok(())
}

/// Tears the records of volumes and devices in two.
fn tear_records(world: &World) {
    for (folder, part) in [("devices", ""), ("volumes", "u1")] {
        let file = world.stage.record_file(folder, part);
        let text = std::fs::read(&file).unwrap();
        std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    }
}

fn known_again_with_a_damaged_record() -> Outcome {
    BOTH.into_iter().try_for_each(|kind| mended(kind, tear_records))
}

fn known_again_without_a_record() -> Outcome {
    BOTH.into_iter().try_for_each(|kind| mended(kind, lose_records))
}

fn undone_without_a_record() -> Outcome {
    for kind in BOTH {
        for harm in [tear_records, lose_records] {
            let world = kind.set_up()?;
            harm(&world);
            world.stage.remove_manifest("pod.yaml");
            world.stage.settle_well();
            assert_eq!(world.stage.mounts(), Vec::<PathBuf>::new(), "{kind:?}");
            assert_eq!(world.stage.files("plugins"), Vec::<PathBuf>::new(), "{kind:?}");
            assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"], "{kind:?}");
        }
    }
    Ok(())
}

/// What the driver was told is then translated again.
fn a_record_that_lost_what_its_driver_was_told() -> Outcome {
    for kind in BOTH {
        let world = kind.set_up()?;
        let store = refloat_record::Store::open(&world.stage.options.state_dir).unwrap();
        for mut record in store.load().unwrap().records {
            match &mut record {
                Record::PodVolume(volume) => volume.provider_info = None,
                Record::DeviceMount(device) => device.provider_info = None,
                Record::PodCheckpoint(_) | Record::Driver(_) => continue,
            }
            store.put(&record).unwrap();
        }
        drop(store);
        world.end(&["pod.yaml"]);
        assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"], "{kind:?}");
    }
    Ok(())
}

fn two_pods_have_one_disk_inline() -> Outcome {
    let kind = Kind::InlineGce;
    let world = kind.set_up()?;
    world.stage.manifest("other.yaml", &kind.pod("u2"));
    world.stage.settle_well().actual.volumes.iter().for_each(assert_mounted);
    assert_eq!((world.count("Stage"), world.count("Publish")), (1, 2));
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle_well();
    assert!(world.stage.is_mounted(&target("u2", kind.spec_name())), "the other keeps it");
    assert_eq!(world.count("Unstage"), 0);
    world.end(&["other.yaml"]);
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (2, 1));
    Ok(())
}

fn one_disk_under_two_names_of_a_pod() -> Outcome {
    let world = Kind::InlineGce.world()?;
    let disk = |name: &str| format!("  - {{name: {name}, gcePersistentDisk: {{pdName: pd-1, fsType: ext4}}}}\n");
    world.stage.manifest("pod.yaml", &pod("u1", &(disk("one") + &disk("two"))));
    let round = world.stage.settle();
    assert_mounted(Kind::InlineGce.seen(&round));
    let problem = &round.desired.pods.values().next().unwrap().waiting[0].problem;
    assert_eq!(problem.code, "SameFolderTwice");
    assert!(problem.hint.contains("the disk in one volume"), "{problem:?}");
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle_well();
    world.assert_clean();
    Ok(())
}

fn a_read_only_disk() -> Outcome {
    let world = Kind::InlineGce.set_up()?;
    world.end(&["pod.yaml"]);
    world.stage.manifest("pod.yaml", &inline("u1", ", readOnly: true"));
    let round = world.stage.settle_well();
    assert_mounted(Kind::InlineGce.seen(&round));
    assert!(world.volume_record().read_only);
    let error = std::fs::write(Kind::InlineGce.target(&world).join("file"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    world.end(&["pod.yaml"]);
    Ok(())
}

fn a_driver_that_is_not_there() -> Outcome {
    for kind in BOTH {
        let mut world = kind.world()?;
        world.driver.terminate().unwrap();
        world.stage.manifest("pod.yaml", &kind.pod("u1"));
        let round = world.stage.settle();
        assert_eq!(codes(&round), ["DriverMissing"], "{kind:?}");
        assert!(round.failures[0].message.contains(kind.driver()), "{:?}", round.failures);
        assert_eq!(world.stage.mounts(), Vec::<PathBuf>::new(), "nothing is mounted without it");
        world.driver.restart(|_| {}).unwrap();
        assert_mounted(kind.seen(&world.stage.settle_well()));
        world.driver.terminate().unwrap();
        world.stage.remove_manifest("pod.yaml");
        assert_eq!(codes(&world.stage.settle()), ["DriverMissing"], "{kind:?}");
        assert!(world.stage.is_mounted(&target("u1", kind.spec_name())), "nothing is undone without it");
        world.driver.restart(|_| {}).unwrap();
        world.stage.settle_well();
        world.assert_clean();
    }
    Ok(())
}

/// The attach/detach controller makes it for a volume that has no `PersistentVolume`.
fn an_attachment_of_an_inline_disk() -> Outcome {
    let kind = Kind::InlineGce;
    let world = kind.world()?;
    world.stage.manifest("driver.yaml", &csi_driver(GCE, "attachRequired: true"));
    world.stage.manifest("pod.yaml", &kind.pod("u1"));
    let waiting = |round: &Round| round.desired.pods.values().next().unwrap().waiting[0].problem.clone();
    assert_eq!(waiting(&world.stage.settle()).code, "NotAttached");
    let attachment = |disk: &str, attached: bool| {
        format!(
            "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {{name: a}}\nspec: {{attacher: {GCE}, nodeName: \
             node-1, source: {{inlineVolumeSpec: {{accessModes: [ReadWriteOnce], csi: {{driver: {GCE}, volumeHandle: \
             projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{disk}}}}}}}}}\nstatus: {{attached: {attached}}}\n"
        )
    };
    for (disk, attached) in [("pd-2", true), ("pd-1", false)] {
        world.stage.manifest("attachment.yaml", &attachment(disk, attached));
        let problem = waiting(&world.stage.settle());
        assert_eq!(problem.code, "NotAttached", "{disk}: {problem:?}");
    }
    world.stage.manifest("attachment.yaml", &attachment("pd-1", true));
    assert_mounted(kind.seen(&world.stage.settle_well()));
    world.end(&["pod.yaml"]);
    Ok(())
}

/// A handle is made of the zone's label too. A pod keeps what it has.
fn other_labels_are_another_disk() -> Outcome {
    let world = World::of(GCE, |_| {})?;
    let source = "gcePersistentDisk: {pdName: pd-1, fsType: ext4}";
    let zone = |zone: &str| claim(source, &format!("topology.kubernetes.io/zone: {zone}"));
    world.stage.manifest("pv.yaml", &zone("europe-west1-b"));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    world.stage.manifest("pv.yaml", &zone("europe-west1-c"));
    let round = world.stage.settle();
    let seen = volume(&round, "pv");
    assert_eq!(seen.problems.iter().map(|p| p.code).collect::<Vec<_>>(), ["SpecChanged"], "{seen:#?}");
    assert_eq!(world.done(), ["Stage", "Publish"]);
    assert!(seen.unique_name.as_ref().unwrap().as_str().ends_with("zones/europe-west1-b/disks/pd-1"));
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle_well();
    world.assert_clean();
    assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"], "of what it had");
    Ok(())
}

fn a_block_volume() -> Outcome {
    let world = World::of(AWS, |_| {})?;
    let text = claim("awsElasticBlockStore: {volumeID: vol-1}, volumeMode: Block", "");
    world.stage.manifest("pv.yaml", &text);
    let device = "{name: c, image: i, volumeDevices: [{name: data, devicePath: /dev/x}]}";
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv").replace("{name: c, image: i}", device));
    let round = world.stage.settle_well();
    assert_mounted(volume(&round, "pv"));
    assert_eq!(volume(&round, "pv").key.mode, refloat_record::VolumeMode::Block);
    lose_records(&world);
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    world.end(&["pod.yaml"]);
    Ok(())
}

fn a_regional_disk() -> Outcome {
    let world = World::of(GCE, |_| {})?;
    // Another driver has nothing to do with it.
    let other = start(&world.stage, AWS, |_| {});
    let zones = "topology.kubernetes.io/zone: europe-west1-b__europe-west1-c";
    let source = "gcePersistentDisk: {pdName: pd-1, fsType: ext4, partition: 0}";
    world.stage.manifest("pv.yaml", &claim(source, zones));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    let round = world.stage.settle_well();
    assert_mounted(volume(&round, "pv"));
    let name = "kubernetes.io/csi/pd.csi.storage.gke.io^projects/UNSPECIFIED/regions/europe-west1/disks/pd-1";
    assert_eq!(volume(&round, "pv").unique_name.as_ref().unwrap().as_str(), name);
    world.end(&["pod.yaml"]);
    assert_eq!(crate::world::done(&other), Vec::<String>::new());
    let zones = "topology.kubernetes.io/zone: europe-west1-b__europe-west4-c";
    world.stage.manifest("pv.yaml", &claim(source, zones));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    let round = world.stage.settle();
    let problem = &round.desired.pods.values().next().unwrap().waiting[0].problem;
    assert_eq!(problem.code, "BadSpec");
    assert!(problem.message.contains("two regions: europe-west1 and europe-west4"), "{problem:?}");
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle_well();
    world.assert_clean();
    Ok(())
}

/// The pod's containers may have what a kubelet mounted that still had the plugin.
fn the_mounts_of_a_plugin_that_is_gone_stay_with_their_pod() -> Outcome {
    for kind in BOTH {
        let mut world = kind.world()?;
        let (plugin, name, disk) = match kind {
            Kind::InlineGce => ("gce-pd", "data", "pd-1"),
            Kind::ClaimAws => ("aws-ebs", "pv", "aws/us-east-1a/vol-0a1b"),
        };
        let device = world.stage.disk("old.img")?;
        let global = format!("plugins/kubernetes.io/{plugin}/mounts/{disk}");
        let old = format!("pods/u1/volumes/kubernetes.io~{plugin}/{name}");
        for folder in [&global, &old] {
            std::fs::create_dir_all(world.stage.root(folder)).unwrap();
        }
        let global_path = world.stage.root(&global);
        rustix::mount::mount(&device, &global_path, "ext4", rustix::mount::MountFlags::empty(), None).unwrap();
        world.stage.bind(&global_path, &world.stage.root(&old));
        world.stage.manifest("pod.yaml", &kind.pod("u1"));
        for _ in 0..2 {
            let round = world.stage.settle();
            let mut of_driver = round.actual.volumes.iter().filter(|v| v.key.plugin.as_str() == "kubernetes.io/csi");
            assert_mounted(of_driver.next().unwrap());
            assert!(world.stage.is_mounted(&old) && world.stage.is_mounted(&global), "{:#?}", round.plan.report);
        }
        // Not even when it is not known how the driver is to make it.
        world.stage.manifest("driver.yaml", &csi_driver(kind.driver(), "attachRequired: true"));
        world.stage.settle();
        assert!(world.stage.is_mounted(&old) && world.stage.is_mounted(&global));
        world.stage.remove_manifest("driver.yaml");
        world.stage.remove_manifest("pod.yaml");
        world.stage.settle_well();
        world.assert_clean();
    }
    Ok(())
}
