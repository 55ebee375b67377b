//! Volumes without a record: what the kubelet's files, the mount table and the folders tell.

use refloat_node::{ReconstructionResult, RecordState, VolumeState};
use refloat_test_support::Outcome;

use crate::stage::{pod, volume};
use crate::world::{DRIVER, World, assert_mounted, csi_driver, one_volume, pod_with, target};

refloat_test_support::tests!(
    records_are_lost_and_the_pod_is_gone,
    records_are_lost_and_the_pod_is_there,
    a_torn_file_is_made_up_for_by_the_stage,
    both_files_are_torn,
    a_staged_volume_that_nobody_uses,
    a_second_user_without_a_record_keeps_the_stage,
    an_empty_folder_is_nothing,
    an_inline_volume_of_a_gone_pod_is_unpublished_though_nothing_is_mounted,
);

/// Forgets everything but the drivers.
pub fn lose_records(world: &World) {
    for kind in ["devices", "volumes", "pods"] {
        let folder = world.stage.options.state_dir.join(kind);
        for entry in std::fs::read_dir(folder).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

fn records_are_lost_and_the_pod_is_gone() -> Outcome {
    let world = one_volume()?;
    lose_records(&world);
    world.end(&["pod.yaml"]);
    assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"]);
    Ok(())
}

fn records_are_lost_and_the_pod_is_there() -> Outcome {
    let world = one_volume()?;
    let mount = world.stage.table().at(&world.target("u1", "pv")).unwrap().id();
    lose_records(&world);
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    assert_eq!(
        world.stage.table().at(&world.target("u1", "pv")).unwrap().id(),
        mount,
        "the pod's mount was not touched"
    );
    assert_eq!(world.begun("NodeUnpublishVolume") + world.begun("NodeUnstageVolume"), 0);
    world.end(&["pod.yaml"]);
    Ok(())
}

/// B11.
fn a_torn_file_is_made_up_for_by_the_stage() -> Outcome {
    for torn in ["", "{", "{\"driverName\":\"dis", "\0\0\0\0", "[1]", "{\"driverName\":7}"] {
        let world = one_volume()?;
        lose_records(&world);
        let file = world.target("u1", "pv").with_file_name("vol_data.json");
        std::fs::write(&file, torn).unwrap();
        // With its pod, nothing is done but what keeps it.
        world.end(&["pod.yaml"]);
        assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"], "{torn:?}");
    }
    Ok(())
}

/// B11.
fn both_files_are_torn() -> Outcome {
    let world = one_volume()?;
    lose_records(&world);
    std::fs::write(world.target("u1", "pv").with_file_name("vol_data.json"), "").unwrap();
    let global = world.stage.files("plugins").into_iter().find(|p| p.ends_with("vol_data.json")).unwrap();
    std::fs::write(&global, "").unwrap();
    world.stage.remove_manifest("pod.yaml");
    let outcome = world.stage.settle_well();
    assert!(!world.stage.is_mounted(&target("u1", "pv")), "its mount is undone all the same");
    assert_eq!(world.begun("NodeUnpublishVolume"), 0, "of what, nobody knows");
    assert_eq!(world.stage.files("pods"), Vec::<std::path::PathBuf>::new());
    let device = &outcome.actual.devices[0];
    assert_eq!((device.record_state, device.state), (RecordState::Damaged, VolumeState::Mounted));
    assert!(device.conflict.is_some(), "it stays and is shown");
    Ok(())
}

/// B08.
fn a_staged_volume_that_nobody_uses() -> Outcome {
    let world = one_volume()?;
    world.stage.unmount(&world.target("u1", "pv"));
    std::fs::remove_dir_all(world.stage.root("pods/u1")).unwrap();
    lose_records(&world);
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle_well();
    world.assert_clean();
    assert_eq!(world.count("Unstage"), 1);
    Ok(())
}

/// B12.
fn an_empty_folder_is_nothing() -> Outcome {
    let world = World::new()?;
    for inside in ["", "/mount"] {
        let folder = world.stage.root(&format!("pods/u1/volumes/kubernetes.io~csi/pv1{inside}"));
        std::fs::create_dir_all(folder).unwrap();
        world.stage.settle_well();
        world.assert_clean();
    }
    assert_eq!(world.begun("NodeUnpublishVolume"), 0);
    // With a pod that wants it, it is used.
    std::fs::create_dir_all(world.stage.root("pods/u2/volumes/kubernetes.io~csi/pv/mount")).unwrap();
    world.stage.manifest("pv.yaml", &crate::world::claim("pv", DRIVER, "h1", "", ""));
    world.stage.manifest("pod.yaml", &pod_with("u2", "pv"));
    let outcome = world.stage.settle_well();
    assert_mounted(volume(&outcome, "pv"));
    assert_eq!(volume(&outcome, "pv").reconstruction, ReconstructionResult::Full);
    world.end(&["pod.yaml"]);
    Ok(())
}

/// B07.
fn a_second_user_without_a_record_keeps_the_stage() -> Outcome {
    let world = one_volume()?;
    world.stage.manifest("other.yaml", &pod_with("u2", "pv"));
    world.stage.settle_well();
    std::fs::remove_file(world.stage.record_file("volumes", "u2")).unwrap();
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle_well();
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (1, 0));
    assert!(world.stage.is_mounted(&target("u2", "pv")));
    world.end(&["other.yaml"]);
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (2, 1));
    Ok(())
}

/// B17.
fn an_inline_volume_of_a_gone_pod_is_unpublished_though_nothing_is_mounted() -> Outcome {
    for recorded in [true, false] {
        let world = World::with(|options| options.noop = true)?;
        world
            .stage
            .manifest("driver.yaml", &csi_driver(DRIVER, "volumeLifecycleModes: [Ephemeral], podInfoOnMount: true"));
        let volumes = format!("  - {{name: scratch, csi: {{driver: {DRIVER}}}}}\n");
        world.stage.manifest("pod.yaml", &pod("u1", &volumes));
        world.stage.manifest("other.yaml", &pod("u2", &volumes));
        world.stage.settle_well();
        if !recorded {
            lose_records(&world);
        }
        world.stage.remove_manifest("pod.yaml");
        let outcome = world.stage.settle_well();
        let journal = world.driver.journal().unwrap();
        let of =
            |call: &str| journal.iter().filter(|e| e.call == call && e.path.contains("pods/u1/")).collect::<Vec<_>>();
        assert_eq!(of("NodeUnpublishVolume")[0].volume, of("NodePublishVolume")[0].volume, "records: {recorded}");
        assert_eq!(
            (world.begun("NodeUnpublishVolume"), world.begun("NodeUnstageVolume")),
            (1, 0),
            "records: {recorded}"
        );
        assert_eq!(volume(&outcome, "scratch").key.pod.as_str(), "u2");
        world.end(&["other.yaml"]);
        assert_eq!(world.count("Unpublish"), 2);
    }
    Ok(())
}
