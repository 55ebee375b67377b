//! Drivers that do not answer.

use std::time::Duration;

use refloat_node::VolumeState;
use refloat_test_csi_driver::{Action, Event, Fault, Process};
use refloat_test_support::Outcome;

use crate::stage::{pod, volume, wait_for};
use crate::world::{DRIVER, Kind, World, assert_mounted, claim, codes, done, pod_with, start, target};

refloat_test_support::tests!(
    a_hang_in_any_call_is_told_and_survived,
    volumes_wait_for_their_driver_and_no_other,
    a_driver_that_is_stopped_holds_up_no_other,
    a_registration_that_hangs_holds_up_no_other,
);

/// How long an operation may take here: most of it is the driver's.
const SHORT: Duration = Duration::from_secs(2);
/// Longer than any test: what waits for a call that hangs waits for the end of the test.
const FOREVER: Duration = Duration::from_secs(3600);

fn a_hang_in_any_call_is_told_and_survived() -> Outcome {
    for kind in Kind::BOTH {
        for call in ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"] {
            for action in [Action::Hang, Action::HangAfter] {
                let shown = format!("{kind:?} {call} {action:?}");
                let mut world = World::new()?;
                world.stage.manifest("pv.yaml", &kind.claim());
                world.stage.manifest("pod.yaml", &kind.pod("u1"));
                let undoing = call.starts_with("NodeUn");
                if undoing || call == "NodePublishVolume" {
                    // What takes its time is not to be taken for what hangs: the file system is made now.
                    world.stage.settle_well();
                    world.stage.remove_manifest("pod.yaml");
                    if !undoing {
                        world.stage.settle_well();
                        world.stage.manifest("pod.yaml", &kind.pod("u1"));
                    }
                }
                let patient = std::mem::replace(&mut world.stage.options.operation_deadline, SHORT);
                world.driver.faults().order(call, &Fault::always(action.clone())).unwrap();
                let outcome = world.stage.settle();
                assert_eq!(codes(&outcome), ["DriverTimeout"], "{shown}: {:?}", outcome.failures);
                let message = &outcome.failures[0].message;
                assert!(message.contains(DRIVER) && message.contains(call), "{shown}: {message}");
                match call {
                    "NodeStageVolume" | "NodeUnstageVolume" => {
                        assert_eq!(outcome.actual.devices[0].state, VolumeState::Uncertain, "{shown}");
                    }
                    _ => assert_eq!(volume(&outcome, "pv").state, VolumeState::Uncertain, "{shown}"),
                }
                let work_done = action == Action::HangAfter;
                if call.ends_with("publishVolume") || call == "NodePublishVolume" {
                    let mounted = world.stage.is_mounted(&kind.published("u1"));
                    assert_eq!(mounted, work_done != undoing, "{shown}: what the driver did is as it did it");
                }
                world.driver.faults().withdraw_all().unwrap();
                world.stage.options.operation_deadline = patient;
                let outcome = world.stage.settle_well();
                if !undoing {
                    assert_mounted(volume(&outcome, "pv"));
                    world.stage.remove_manifest("pod.yaml");
                    world.stage.settle_well();
                }
                world.assert_clean();
            }
        }
    }
    Ok(())
}

/// A driver with more volumes under way than there are workers, none of which ends.
struct Held {
    world: World,
    names: Vec<String>,
}

impl Held {
    fn new() -> Result<Self, refloat_test_support::Skip> {
        let mut world = World::new()?;
        world.stage.options.workers = 2;
        world.stage.options.operation_deadline = FOREVER;
        let names: Vec<_> = (0..6).map(|n| format!("held-{n}")).collect();
        let text: String = names.iter().map(|name| claim(name, DRIVER, name, "", "")).collect();
        world.stage.manifest("held.yaml", &text);
        Ok(Self { world, names })
    }

    fn manifest_pod(&self) {
        let entry = |name: &String| format!("  - {{name: {name}, persistentVolumeClaim: {{claimName: {name}}}}}\n");
        self.world.stage.manifest("pod.yaml", &pod("u1", &self.names.iter().map(entry).collect::<String>()));
    }

    /// Sets up, uses, publishes again and takes down volumes of the other driver, and one that needs none. They would wait
    /// for ever if they waited for the first driver.
    fn live_beside(&self, other: &Process, shown: &str) {
        let stage = &self.world.stage;
        let before = done(other).len();
        stage.manifest("other.yaml", &(claim("pv", "other.test", "h1", "", "") + &pod_with("u2", "pv")));
        stage.manifest("mem.yaml", &pod("u3", "  - {name: e, emptyDir: {medium: Memory}}\n"));
        wait_for(&format!("{shown}: the other driver's volume"), || stage.is_mounted(&target("u2", "pv")));
        wait_for(shown, || stage.is_mounted("pods/u3/volumes/kubernetes.io~empty-dir/e"));
        stage.remove_manifest("other.yaml");
        stage.remove_manifest("mem.yaml");
        wait_for(&format!("{shown}: they are gone"), || {
            !stage.root("pods/u2").exists() && !stage.root("pods/u3").exists() && done(other).len() == before + 4
        });
        assert_eq!(done(other)[before..], ["Stage", "Publish", "Unpublish", "Unstage"], "{shown}: each once");
    }
}

/// Each call of one driver hangs, in as many volumes as it has; meanwhile the other's are made and undone.
fn volumes_wait_for_their_driver_and_no_other() -> Outcome {
    for call in ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeExpandVolume"]
    {
        let mut held = Held::new()?;
        let other = start(&held.world.stage, "other.test", |_| {});
        let mounts = call == "NodeStageVolume" || call == "NodePublishVolume";
        if !mounts {
            held.manifest_pod();
            held.world.stage.settle_well();
        }
        held.world.driver.faults().order(call, &Fault::always(Action::Hang)).unwrap();
        let running = held.world.stage.run();
        match call {
            "NodeExpandVolume" => {
                let text: String = held.names.iter().map(|name| claim(name, DRIVER, name, "", "")).collect();
                held.world.stage.manifest("held.yaml", &text.replace("storage: 16Mi", "storage: 17Mi"));
            }
            _ if mounts => held.manifest_pod(),
            _ => held.world.stage.remove_manifest("pod.yaml"),
        }
        wait_for(&format!("{call} hangs"), || held.world.begun(call) >= 2);
        held.live_beside(&other, call);
        let journal = held.world.driver.journal().unwrap();
        let ended = journal.iter().filter(|e| e.call == call && e.event != Event::Begin).count();
        assert_eq!(ended, 0, "{call}: all that time it hung");
        assert_eq!(held.world.begun(call), 2, "{call}: as many as there are workers");

        held.world.driver.faults().withdraw_all().unwrap();
        if call == "NodeExpandVolume" {
            // Whether a mounted file system can really be grown here is not what this is about.
            held.world.driver.faults().order(call, &Fault::always(Action::Lie)).unwrap();
        }
        held.world.driver.restart(|_| {}).unwrap();
        if mounts {
            for name in &held.names {
                wait_for(name, || held.world.stage.is_mounted(&target("u1", name)));
            }
        }
        running.stop();
        held.world.stage.settle_well();
        if held.world.stage.options.manifests.join("pod.yaml").exists() {
            held.world.stage.remove_manifest("pod.yaml");
        }
        held.world.stage.settle_well();
        held.world.assert_clean();
    }
    Ok(())
}

/// A process that is stopped answers nothing, not even who it is, and its sockets accept.
fn a_driver_that_is_stopped_holds_up_no_other() -> Outcome {
    let held = Held::new()?;
    let other = start(&held.world.stage, "other.test", |_| {});
    held.world.driver.freeze().unwrap();
    let running = held.world.stage.run();
    held.manifest_pod();
    held.live_beside(&other, "stopped before it registered");
    held.world.driver.thaw().unwrap();
    for name in &held.names {
        wait_for(name, || held.world.stage.is_mounted(&target("u1", name)));
    }
    held.world.driver.freeze().unwrap();
    held.world.stage.remove_manifest("pod.yaml");
    held.live_beside(&other, "stopped when it was registered");
    for name in &held.names {
        assert!(held.world.stage.is_mounted(&target("u1", name)), "nothing is undone without it");
    }
    held.world.driver.thaw().unwrap();
    wait_for("the end of its volumes", || held.world.stage.files("plugins").is_empty());
    running.stop();
    held.world.assert_clean();
    Ok(())
}

/// Each call of a registration hangs.
fn a_registration_that_hangs_holds_up_no_other() -> Outcome {
    for call in ["GetInfo", "GetPluginInfo", "NodeGetInfo"] {
        let mut held = Held::new()?;
        held.world.driver.faults().order(call, &Fault::always(Action::Hang)).unwrap();
        let running = held.world.stage.run();
        held.manifest_pod();
        wait_for(&format!("{call} hangs"), || held.world.begun(call) > 0);
        let other = start(&held.world.stage, "other.test", |_| {});
        held.live_beside(&other, call);
        assert_eq!(held.world.begun("NodeStageVolume"), 0, "{call}");
        held.world.driver.faults().withdraw_all().unwrap();
        held.world.driver.restart(|_| {}).unwrap();
        for name in &held.names {
            wait_for(name, || held.world.stage.is_mounted(&target("u1", name)));
        }
        running.stop();
        held.world.end(&["pod.yaml"]);
    }
    Ok(())
}
