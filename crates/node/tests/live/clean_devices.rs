//! A device that is to be cleaned, and sources of pods that say another thing right before.

use std::path::{Path, PathBuf};
use std::time::Duration;

use refloat_mount::{Kernel, TableReader};
use refloat_node::clean::{Authority, CleanOptions, Cleaner, CleanerOptions, StepResult, Target, Verdict};
use refloat_record::{PodUid, UniqueVolumeName};
use rustix::mount::{MountFlags, UnmountFlags};

refloat_test_support::tests![a_device_stays_when_the_sources_change_their_word];

const GLOBAL: &str = "plugins/kubernetes.io/local-volume/mounts/pv";

/// What is said of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Say {
    Wanted,
    Gone,
    /// Nobody can tell.
    Nothing,
    /// Nobody can tell, and one who answered may want it.
    Objects,
}

/// Says one thing when it is asked first, and another from then on.
struct Turns {
    asked: usize,
    first: Say,
    then: Say,
}

impl Turns {
    fn now(&self) -> Say {
        if self.asked <= 1 { self.first } else { self.then }
    }
}

impl Authority for Turns {
    fn refresh(&mut self) {
        self.asked += 1;
    }

    fn verdict(&self, _: &PodUid) -> Verdict {
        Verdict::Gone { by: "the test".into(), since: None }
    }

    fn verdict_of_unused(&self, _: Option<&UniqueVolumeName>, path: &Path) -> Verdict {
        assert_eq!(path, Path::new(GLOBAL));
        match self.now() {
            Say::Wanted => Verdict::Wanted { by: "the test".into() },
            Say::Gone => Verdict::Gone { by: "the test".into(), since: None },
            Say::Nothing | Say::Objects => Verdict::Unknown { why: "the test does not say".into() },
        }
    }

    fn objection_to_unused(&self, _: Option<&UniqueVolumeName>, _: &Path) -> Option<String> {
        matches!(self.now(), Say::Wanted | Say::Objects).then(|| "the test may want it".into())
    }
}

/// A mount that goes with the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// The device has no record, so it is unmounted as any mount.
fn a_device_stays_when_the_sources_change_their_word() {
    use Say::{Gone, Nothing, Objects, Wanted};
    // What is said when it is planned and right before it is done, whether the operator names it, and whether it goes.
    for (first, then, named, goes) in [
        (Gone, Gone, false, true),
        (Gone, Wanted, false, false),
        (Gone, Nothing, false, false),
        (Gone, Objects, false, false),
        (Nothing, Nothing, true, true),
        (Nothing, Gone, true, true),
        (Nothing, Objects, true, false),
        (Nothing, Wanted, true, false),
        (Gone, Nothing, true, true),
        (Gone, Objects, true, false),
    ] {
        let base = tempfile::tempdir_in(refloat_test_support::base()).unwrap();
        let root = base.path().join("kubelet");
        let global = root.join(GLOBAL);
        std::fs::create_dir_all(&global).unwrap();
        rustix::mount::mount("canary", &global, "tmpfs", MountFlags::empty(), Some(c"size=64k")).unwrap();
        let _mounted = Mounted(global.clone());
        let options = CleanOptions {
            grace: Duration::ZERO,
            assume_unused: named.then(|| Target(GLOBAL.into())).into_iter().collect(),
            ..CleanOptions::default()
        };
        let how = CleanerOptions {
            root_dir: root,
            state_dir: base.path().join("state"),
            write: true,
            workers: 1,
            operation_deadline: Duration::from_secs(20),
            timeout: Duration::from_secs(20),
            flex_volume_dir: std::path::PathBuf::new(),
            sys: refloat_volume::scsi::Sys::default(),
            provider_dir: None,
        };
        let mut cleaner = Cleaner::open(how, Box::new(Turns { asked: 0, first, then })).unwrap();
        let (plan, _) = cleaner.plan(&options).unwrap();
        let what = format!("{first:?}, then {then:?}, named: {named}");
        assert_eq!(plan.units.len(), 1, "{what}: {plan:#?}");
        // So that the sources are asked once more.
        std::thread::sleep(Duration::from_millis(1100));
        let report = cleaner.execute(plan, &options).unwrap();
        let table = TableReader::new(Kernel::detect()).read().unwrap();
        assert_eq!(table.at(&global).is_none(), goes, "{what}: {report:#?}");
        assert_eq!(report.stopped.is_none(), goes, "{what}: {report:#?}");
        let done = report.plan.steps().all(|step| step.result == StepResult::Done);
        assert_eq!(done, goes, "{what}: {report:#?}");
    }
}
