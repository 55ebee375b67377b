//! The story of the demo, told while it happens. Each step checks what it claims.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use anyhow::Context;
use refloat_mount::{Kernel, TableReader, loopdev};
use refloat_node::{ActualVolume, PlanInput, VolumeState, Wanted, plan};
use refloat_record::Store;
use refloat_volume::Plugins;

use super::manifests;
use super::stage::{Stage, write};
use crate::cli::{FindSources, SavedArgs, SourceArgs};
use crate::exit::Failure;
use crate::look::{View, look};
use crate::output::node_volumes::NodeVolumes;
use crate::output::scan_table;
use crate::output::table::Look;

/// What the demo's pods wrote into their volumes.
const CACHED: &str = "written by the web pod\n";
const ORDERS: &str = "1 boat\n2 oars\n";

/// The story.
pub(super) struct Story {
    stage: Stage,
    look: Look,
    begin: Instant,
}

/// Mounts and folders of volumes that must not be touched, by pod and volume.
type Kept = BTreeMap<String, (Option<u64>, Option<PathBuf>)>;

impl Story {
    pub(super) fn new(stage: Stage, look: Look) -> Self {
        Self { stage, look, begin: Instant::now() }
    }

    pub(super) fn into_stage(self) -> Stage {
        self.stage
    }

    /// Tells it.
    pub(super) fn tell(&mut self) -> Result<(), Failure> {
        self.opening()?;
        self.pods_come_up()?;
        self.data_is_written()?;
        let kept = self.killed_in_the_middle()?;
        self.world_moves_on()?;
        self.nobody_runs()?;
        self.restart(&kept)?;
        self.everything_goes()?;
        let seconds = self.begin.elapsed().as_secs_f32();
        say(&format!("\nThat was all, in {seconds:.1} seconds. Nothing is left behind."))
    }

    fn opening(&mut self) -> Result<(), Failure> {
        say("This is a node without a cluster: folders over memory in a mount namespace of their own.\n\
             Nothing here can be seen from outside, and nothing stays.")?;
        for skipped in self.stage.skipped.clone() {
            say(&format!("Not shown here: {skipped}."))?;
        }
        Ok(())
    }

    fn pods_come_up(&mut self) -> Result<(), Failure> {
        self.chapter("Pods get their volumes")?;
        let host = self.stage.host();
        self.stage.apply(&manifests::settings("hello"))?;
        self.stage.apply(&manifests::storage(&self.stage.means, &host))?;
        let pods = manifests::pods(&self.stage.means, &host);
        for pod in &pods {
            self.stage.apply(pod)?;
        }
        self.stage.start_manager()?;
        self.stage
            .wait_until("all volumes being there", Duration::from_millis(50), |stage| Ok(all_up(&see(stage)?)))?;
        let view = see(&self.stage)?;
        say(&format!(
            "{} manifests were put into a folder; `refloat node` made {} volumes for {} pods:\n",
            pods.len() + 2,
            view.actual.volumes.len(),
            pods.len()
        ))?;
        self.show(&view)
    }

    fn data_is_written(&mut self) -> Result<(), Failure> {
        self.chapter("The pods work")?;
        let view = see(&self.stage)?;
        write(&self.path_of(&view, "web", "scratch")?.join("cache/page.html"), CACHED)?;
        write(&self.path_of(&view, "batch", "work")?.join("part-1"), "half a result\n")?;
        let mut wrote = "The web pod writes a file through its subPath, the batch pod half a result".to_owned();
        if self.stage.means.disk.is_some() {
            write(&self.path_of(&view, "orders", "data")?.join("orders.txt"), ORDERS)?;
            let read = read(&self.path_of(&view, "orders-reader", "data")?.join("orders.txt"))?;
            self.check(read == ORDERS, "the second pod of the disk reads what the first one wrote")?;
            wrote.push_str(", the orders pod two orders (orders-reader, on the same disk, reads them)");
        }
        say(&format!("{wrote}."))
    }

    fn killed_in_the_middle(&mut self) -> Result<Kept, Failure> {
        self.chapter("The manager is killed in the middle of its work")?;
        let kept = kept(&see(&self.stage)?);
        let late = manifests::late_pod();
        let before = self.stage.count_records();
        self.stage.apply(&late)?;
        // One record more is the sign that the manager is at work on the new pod.
        self.stage.wait_until("the manager starting on the new pod", Duration::ZERO, |stage| {
            Ok(stage.count_records() > before)
        })?;
        self.stage.kill_manager()?;
        let made = see(&self.stage)?;
        let of_late = |v: &&ActualVolume| v.pod_name.as_ref().is_some_and(|(_, name)| name == "late");
        let done = made.actual.volumes.iter().filter(of_late).filter(|v| v.state == VolumeState::Mounted).count();
        say(&format!(
            "A pod with 18 volumes came; SIGKILL hit the manager when {done} of them were finished. No clean-up, no goodbye."
        ))?;
        Ok(kept)
    }

    fn world_moves_on(&mut self) -> Result<(), Failure> {
        self.chapter("Meanwhile, the world moves on")?;
        self.stage.delete("batch.yaml")?;
        self.stage.apply(&manifests::settings("ahoy"))?;
        say("With no manager there, the batch pod is deleted, and the configMap's greeting changes from hello to ahoy.")
    }

    fn nobody_runs(&mut self) -> Result<(), Failure> {
        self.chapter("What is on the node, says `refloat scan`")?;
        let view = see(&self.stage)?;
        self.show(&view)?;
        let plan = plan(view.authority.desired(), &view.actual, &PlanInput::new(&Plugins::builtin()));
        let mut decisions: BTreeMap<&str, usize> = BTreeMap::new();
        say("\nWhat a restart will do, and why:")?;
        for report in &plan.report {
            let count = decisions.entry(report.decision).or_default();
            *count += 1;
            if *count <= 4 {
                let decision = self.look.paint(Style::new().bold(), report.decision);
                say(&format!("  {decision} {}: {}", report.subject, report.reason))?;
            }
        }
        let counts: Vec<_> = decisions.iter().map(|(decision, n)| format!("{n} {decision}")).collect();
        say(&format!("  ({} in all: {})", plan.report.len(), counts.join(", ")))
    }

    fn restart(&mut self, kept: &Kept) -> Result<(), Failure> {
        self.chapter("A restart finds out, finishes and cleans up")?;
        self.stage.check_stop()?;
        let before = Instant::now();
        let output = self.stage.run_manager_once()?;
        let took = before.elapsed();
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(self.stage.failed(format!("`refloat node --once` ended with {}: {errors}", output.status)));
        }
        let view = see(&self.stage)?;
        self.check(all_up(&view), "every wanted volume is there")?;
        let gone = !view.actual.volumes.iter().any(|v| name_of(v).contains("/batch/"));
        self.check(
            gone && !records(&self.stage)?.iter().any(|pod| pod == "batch"),
            "nothing of the batch pod is left",
        )?;
        let now = self::kept(&view);
        let untouched = kept.iter().filter(|(name, _)| !name.contains("/batch/"));
        let changed: Vec<_> =
            untouched.clone().filter(|(name, was)| now.get(*name) != Some(was)).map(|(n, _)| n).collect();
        self.check(changed.is_empty(), &format!("volumes in use were not touched {changed:?}"))?;
        let stacked = view.actual.volumes.iter().filter(|v| v.mount.as_ref().is_some_and(|m| m.stack != 1)).count();
        self.check(stacked == 0, "every volume is mounted exactly once")?;
        let scratch = self.path_of(&view, "web", "scratch")?;
        self.check(read(&scratch.join("cache/page.html"))? == CACHED, "the web pod's file is intact")?;
        let greeting = self.path_of(&view, "web", "config")?.join("greeting");
        self.check(read(&greeting)?.trim() == "ahoy", "the configMap's volume has the new greeting")?;
        if self.stage.means.disk.is_some() {
            let orders = self.path_of(&view, "orders", "data")?.join("orders.txt");
            self.check(read(&orders)? == ORDERS, "the orders are intact")?;
        }
        say(&format!(
            "In {} ms, from what is on the node alone: {} volumes in use kept with the very same mounts, the late pod's \
             volumes finished, the batch pod's torn down, the greeting updated. All data is intact; every volume is \
             mounted exactly once.",
            took.as_millis(),
            untouched.count(),
        ))
    }

    fn everything_goes(&mut self) -> Result<(), Failure> {
        self.chapter("All pods go")?;
        for name in ["web", "login", "report", "orders", "orders-reader", "late"] {
            let file = format!("{name}.yaml");
            if self.stage.means.disk.is_some() || !file.starts_with("orders") {
                self.stage.delete(&file)?;
            }
        }
        let output = self.stage.run_manager_once()?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(self.stage.failed(format!("`refloat node --once` ended with {}: {errors}", output.status)));
        }
        let view = see(&self.stage)?;
        let table = TableReader::new(Kernel::detect()).read().context("cannot read the mount table")?;
        let mounts = table.under(&view.root).count();
        self.check(mounts == 0, &format!("no mount is left ({mounts} are)"))?;
        let seen = NodeVolumes::new(&view, &[]);
        self.check(
            seen.volumes.is_empty() && seen.devices.is_empty() && seen.leftovers.is_empty(),
            "no volume or folder is left",
        )?;
        let loaded = Store::read(&self.stage.settings.state_dir).context("cannot read the records")?;
        self.check(loaded.records.is_empty() && loaded.unreadable.is_empty(), "no record is left")?;
        let files = read(&self.stage.host().join("files/customers.txt"))?;
        self.check(files == "customers of the shop\n", "the host's own files are intact")?;
        let mut told = "No mount, no folder, no record is left; the host's own files are untouched".to_owned();
        if self.stage.means.disk.is_some() {
            let disks = loopdev::find(&self.stage.disk()).context("cannot look for loop devices")?;
            self.check(disks.len() == 1, "the disk is attached just once")?;
            told.push_str(", and the disk can be taken out");
        }
        say(&format!("{told}."))
    }

    // telling

    fn chapter(&mut self, title: &str) -> Result<(), Failure> {
        self.stage.check_stop()?;
        let style = Style::new().bold().fg_color(Some(AnsiColor::Cyan.into()));
        say(&format!("\n{}", self.look.paint(style, title)))
    }

    fn show(&self, view: &View) -> Result<(), Failure> {
        scan_table::scan(&mut std::io::stdout().lock(), self.look, &NodeVolumes::new(view, &[]), false)
    }

    fn check(&self, is_so: bool, what: &str) -> Result<(), Failure> {
        if is_so { Ok(()) } else { Err(self.stage.failed(format!("the demo expected that {what}, and it is not so"))) }
    }

    fn path_of(&self, view: &View, pod: &str, volume: &str) -> Result<PathBuf, Failure> {
        let name = format!("shop/{pod}/{volume}");
        let found = view.actual.volumes.iter().find(|v| name_of(v) == name).and_then(|v| v.path.clone());
        found.ok_or_else(|| self.stage.failed(format!("the demo expected a volume {name}, and there is none")))
    }
}

/// What is on the demo's node.
fn see(stage: &Stage) -> Result<View, Failure> {
    let sources =
        SourceArgs { manifests: Some(stage.pods()), sources: vec![FindSources::None], ..SourceArgs::default() };
    look(&stage.settings, &sources, &SavedArgs::default(), refloat_node::reconstruct_explained)
}

/// Whether every wanted volume is there, and nothing else.
fn all_up(view: &View) -> bool {
    let wanted: usize = view.authority.desired().pods.values().map(|pod| pod.volumes.len() + pod.waiting.len()).sum();
    let mounted = |v: &&ActualVolume| {
        let wanted = matches!(view.authority.wanted_volume(&v.key), Wanted::Yes { .. });
        wanted && v.state == VolumeState::Mounted && v.sub_paths.iter().all(|s| s.mounted)
    };
    let up = view.actual.volumes.iter().filter(mounted).count();
    up == wanted && view.actual.volumes.len() == up
}

/// `namespace/pod/volume`.
fn name_of(volume: &ActualVolume) -> String {
    let (namespace, name) = volume.pod_name.clone().unwrap_or_default();
    let outer = volume.outer_names.first().map_or(volume.key.spec_name.as_str(), |n| n.as_str());
    format!("{namespace}/{name}/{outer}")
}

/// The mounts of all volumes.
fn kept(view: &View) -> Kept {
    let entry =
        |v: &ActualVolume| (name_of(v), (v.mount.as_ref().and_then(|m| m.id).map(|id| id.0.get()), v.path.clone()));
    view.actual.volumes.iter().map(entry).collect()
}

/// The names of the pods that have records of volumes.
fn records(stage: &Stage) -> Result<Vec<String>, Failure> {
    let loaded = Store::read(&stage.settings.state_dir).context("cannot read the records")?;
    let volumes = loaded.records.iter().filter_map(|record| match record {
        refloat_record::Record::PodVolume(volume) => Some(volume.pod.name.clone()),
        _ => None,
    });
    Ok(volumes.collect())
}

fn say(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

fn read(path: &Path) -> Result<String, Failure> {
    Ok(std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?)
}
