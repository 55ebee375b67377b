//! The manager is killed in the middle of a call.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use refloat_node::{Manager, ManagerOptions, VolumeState};
use refloat_test_csi_driver::{Action, Fault};
use refloat_test_support::Outcome;

use crate::stage::{PATIENCE, volume, wait_for};
use crate::world::{Kind, World, assert_mounted, one_volume_of};

refloat_test_support::tests!(in_any_call_and_started_again);

/// Says that this program is to be a manager, and on which folder.
const BE_MANAGER: &str = "REFLOAT_BE_TEST_MANAGER";

/// Becomes a manager if this program was started as one by [`Other`].
pub fn run_if_manager() {
    let Some(folder) = std::env::var_os(BE_MANAGER).map(PathBuf::from) else { return };
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let options = ManagerOptions {
        flex_volume_dir: std::path::PathBuf::new(),
        sys: refloat_volume::scsi::Sys::default(),
        provider_dir: None,
        root_dir: folder.join("kubelet"),
        state_dir: folder.join("state"),
        manifests: folder.join("manifests"),
        workers: 4,
        operation_deadline: PATIENCE,
        lazy_unmount: false,
        records: true,
    };
    let mut manager = Manager::start(options).unwrap();
    manager.run(std::io::stdin().as_fd()).unwrap();
    std::process::exit(0);
}

/// A manager in a process of its own.
struct Other(Child);

impl Other {
    fn start(world: &World) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        // Its standard input is what would stop it in order.
        command.env(BE_MANAGER, world.stage.path("")).stdin(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The driver never answers; what it does meanwhile, it does or does not. Then the wish is the same, or the opposite.
fn in_any_call_and_started_again() -> Outcome {
    for kind in Kind::BOTH {
        let world = one_volume_of(kind)?;
        world.end(&["pod.yaml"]);
        for call in ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"] {
            for action in [Action::Hang, Action::HangAfter] {
                for turned in [false, true] {
                    let shown = format!("{kind:?} {call} {action:?}, wish turned: {turned}");
                    let undoing = call.starts_with("NodeUn");
                    if undoing {
                        world.stage.manifest("pod.yaml", &kind.pod("u1"));
                        world.stage.settle_well();
                    }
                    let (staged, published) = (world.count("Stage"), world.count("Publish"));
                    let begun = world.begun(call);
                    world.driver.faults().order(call, &Fault::always(action.clone())).unwrap();
                    let manager = Other::start(&world);
                    if undoing {
                        world.stage.remove_manifest("pod.yaml");
                    } else {
                        world.stage.manifest("pod.yaml", &kind.pod("u1"));
                    }
                    wait_for(&shown, || world.begun(call) == begun + 1);
                    manager.kill();
                    world.driver.faults().withdraw_all().unwrap();

                    let found = Manager::start(world.stage.options.clone()).unwrap();
                    let state = if call.ends_with("tageVolume") {
                        found.actual().devices.iter().map(|d| d.state).collect::<Vec<_>>()
                    } else {
                        found.actual().volumes.iter().map(|v| v.state).collect()
                    };
                    assert_eq!(state, [VolumeState::Uncertain], "{shown}");
                    drop(found);

                    let wanted = undoing == turned;
                    match (wanted, turned) {
                        (true, true) => world.stage.manifest("pod.yaml", &kind.pod("u1")),
                        (false, true) => world.stage.remove_manifest("pod.yaml"),
                        _ => {}
                    }
                    let outcome = world.stage.settle();
                    assert_eq!(outcome.failures, [], "{shown}");
                    if wanted {
                        assert_mounted(volume(&outcome, "pv"));
                        assert_eq!(world.count("Publish"), published + 1, "{shown}: asked again");
                        assert_eq!(world.count("Stage") > staged, call.ends_with("tageVolume") || !undoing, "{shown}");
                        world.stage.remove_manifest("pod.yaml");
                        world.stage.settle_well();
                    }
                    world.assert_clean();
                }
            }
        }
    }
    Ok(())
}
