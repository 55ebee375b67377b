//! B11: the kubelet's `vol_data.json`, torn anywhere, and no record of ours.

use refloat_node::{Manager, RecordState, VolumeState};
use refloat_test_support::Outcome;

use crate::stage::volume;
use crate::world::{DRIVER, Kind, World, assert_mounted, claim, one_volume, pod_with, target};

refloat_test_support::tests!(any_cut_of_a_pods_file_is_made_up_for, any_cut_of_the_stages_file_is_shown);

/// What a torn file may hold: each beginning of it, and what else has been seen.
fn torn(text: &[u8]) -> Vec<Vec<u8>> {
    // Without its line feed it says the same.
    let mut all: Vec<_> = (0..text.len() - 1).map(|end| text[..end].to_vec()).collect();
    all.extend([vec![0; text.len()], b"[1]".to_vec(), b"\"text\"".to_vec(), b"{\"driverName\":7}".to_vec()]);
    all
}

/// One staged volume of as many pods as there are ways to tear the file.
fn any_cut_of_a_pods_file_is_made_up_for() -> Outcome {
    let world = World::new()?;
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
    let file = |uid: &str| world.stage.root(&target(uid, "pv")).with_file_name("vol_data.json");
    world.stage.manifest("pod.yaml", &pod_with("first", "pv"));
    world.stage.settle_well();
    let all = torn(&std::fs::read(file("first")).unwrap());
    assert!(all.len() > 100);
    let pods: Vec<_> = (0..all.len()).map(|number| format!("u{number}")).collect();
    let manifests: Vec<_> = pods.iter().map(|uid| pod_with(uid, "pv")).collect();
    world.stage.manifest("more.yaml", &manifests.join("---\n"));
    world.stage.settle_well();
    crate::foreign::lose_records(&world);
    for (uid, text) in pods.iter().zip(&all) {
        std::fs::write(file(uid), text).unwrap();
    }

    let found = Manager::start(world.stage.options.clone()).unwrap();
    for (uid, text) in pods.iter().zip(&all) {
        let text = String::from_utf8_lossy(text);
        let volume = found.actual().volumes.iter().find(|v| v.key.pod.as_str() == uid).unwrap();
        assert_eq!(volume.record_state, RecordState::Damaged, "{text:?}: {volume:#?}");
        let name = volume.unique_name.as_ref().map(refloat_record::UniqueVolumeName::as_str);
        assert_eq!(name, Some("kubernetes.io/csi/disk.test^h1"), "{text:?}: the staged volume tells it");
    }
    let whole = found.actual().volumes.iter().find(|v| v.key.pod.as_str() == "first").unwrap();
    assert_eq!(whole.record_state, RecordState::Foreign, "{whole:#?}");
    drop(found);

    world.stage.remove_manifest("more.yaml");
    world.stage.settle_well();
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (all.len(), 0));
    assert!(world.stage.is_mounted(&target("first", "pv")), "another pod's is not affected");
    world.end(&["pod.yaml"]);
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (all.len() + 1, 1));
    Ok(())
}

fn any_cut_of_the_stages_file_is_shown() -> Outcome {
    let world = one_volume()?;
    let file = world.stage.files("plugins").into_iter().find(|p| p.ends_with("vol_data.json")).unwrap();
    let text = std::fs::read(&file).unwrap();
    crate::foreign::lose_records(&world);
    for torn in torn(&text) {
        std::fs::write(&file, &torn).unwrap();
        let found = Manager::start(world.stage.options.clone()).unwrap();
        let torn = String::from_utf8_lossy(&torn);
        let [device] = &found.actual().devices[..] else { panic!("{torn:?}: {:#?}", found.actual()) };
        assert_eq!((device.record_state, device.state), (RecordState::Damaged, VolumeState::Mounted), "{torn:?}");
        assert!(device.conflict.is_some(), "{torn:?}: it stays and is shown: {device:#?}");
        let [volume] = &found.actual().volumes[..] else { panic!("{torn:?}: {:#?}", found.actual()) };
        assert_eq!(volume.record_state, RecordState::Foreign, "{torn:?}: its own file tells");
    }
    // Its pod wants it: it is asked for again, which puts the file right.
    let outcome = world.stage.settle();
    assert_eq!(volume(&outcome, "pv").state, VolumeState::Mounted, "{:#?}", outcome.failures);
    assert!(world.stage.is_mounted(&Kind::Filesystem.published("u1")));
    std::fs::write(&file, &text).unwrap();
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    world.end(&["pod.yaml"]);
    Ok(())
}
