//! The agent beside a real kubelet that is killed again and again: pods at random, with faults at random; each pod is a round.
//!
//! `REFLOAT_AGENT_ROUNDS` says how many, `REFLOAT_AGENT_SEED` which; `cargo xtask agent-rounds` sets them. After each batch of
//! pods must hold: nothing of a deleted pod is left, no mount, folder or record; what belongs to the host, to a local or a CSI
//! volume has its canary; every mount of a pod that is wanted is the one that it was; and of each mount inside an emptyDir the
//! agent warned before the pod went.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use refloat_test_support::real_node::{Delete, RealNode, real_pod, tail};
use serde_json::{Value, json};

use crate::Test;
use crate::world::{csi_claim, local_claim, objects, records_of, start_agent, start_driver, text};

pub(crate) const TESTS: &[(&str, Test)] = &[("agent_rounds_beside_a_kubelet_that_is_killed", rounds)];

/// How many pods there are at once.
const AT_ONCE: u64 = 5;
/// What a canary says.
const CANARY: &str = "alive";
/// How the agent is run.
const AGENT: &[&str] = &["--clean", "--grace", "2s", "--delete-ephemeral"];

/// A small generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True in so many of a hundred cases.
    fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// One pod and what is done to it.
#[derive(Debug)]
struct Round {
    name: String,
    uid: String,
    /// The claim of its slot, if it uses it.
    csi: Option<String>,
    local: Option<PathBuf>,
    /// A folder of the host that is bound inside its emptyDir.
    bound: Option<PathBuf>,
    /// What becomes of the kubelet's file about its CSI volume.
    vol_data: Option<&'static str>,
    delete: Delete,
    /// Deleted while the kubelet is down.
    while_down: bool,
}

fn number(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text.parse().with_context(|| format!("{name} is {text:?}"))?)),
        Err(_) => Ok(None),
    }
}

fn rounds(node: &mut RealNode) -> Result<()> {
    let wanted = number("REFLOAT_AGENT_ROUNDS")?.unwrap_or(AT_ONCE * 2);
    let seed = number("REFLOAT_AGENT_SEED")?.unwrap_or_else(|| u64::from(std::process::id()));
    println!("agent rounds: {wanted}, seed {seed}");
    let mut random = Random(seed);
    objects(node)?;
    start_driver(node)?;
    let mut slots = vec![];
    for slot in 0..=AT_ONCE {
        csi_claim(node, &format!("c{slot}"))?;
        slots.push(local_claim(node, &format!("l{slot}"))?);
    }
    start_agent(node, AGENT)?;
    let keeper = Keeper::new(node, &slots)?;
    let mut done = 0;
    while done < wanted {
        let many = AT_ONCE.min(wanted - done);
        let batch = batch(node, &mut random, &slots, done, many)
            .and_then(|()| keeper.check(node))
            .with_context(|| format!("seed {seed}, rounds {done} to {}", done + many));
        if let Err(error) = batch {
            eprintln!("the end of the agent's log:\n{}", tail(&node.log("agent")));
            return Err(error);
        }
        done += many;
        println!("agent rounds: {done} of {wanted}");
    }
    let log = node.log("agent");
    let count = |word: &str| log.lines().filter(|line| line.contains(word)).count();
    println!(
        "agent rounds: the agent recorded {} volumes and devices, warned of {} mounts inside emptyDirs, and cleaned {} things",
        count(" recorded "),
        count("is mounted inside"),
        count(" cleaned "),
    );
    ensure!(node.end("agent", Some(15))? == 0, "the agent did not end well:\n{}", tail(&node.log("agent")));
    Ok(())
}

/// A pod that stays. Nothing of it may ever change.
struct Keeper {
    uid: String,
    mounts: BTreeMap<PathBuf, String>,
    canaries: Vec<PathBuf>,
}

impl Keeper {
    fn new(node: &mut RealNode, slots: &[PathBuf]) -> Result<Self> {
        let claim = |name: String| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        let volumes = [
            json!({"name": "scratch", "emptyDir": {}}),
            json!({"name": "mem", "emptyDir": {"medium": "Memory"}}),
            json!({"name": "cm", "configMap": {"name": "cm"}}),
            json!({"name": "sec", "secret": {"secretName": "sec"}}),
            claim(format!("c{AT_ONCE}")),
            claim(format!("l{AT_ONCE}")),
        ];
        node.create(&real_pod("keeper", &volumes, &[]))?;
        let uid = node.wait_running("keeper")?;
        let folder = node.root().join("pods").join(&uid).join("volumes");
        let mut canaries: Vec<PathBuf> = [
            "kubernetes.io~empty-dir/scratch".to_owned(),
            "kubernetes.io~empty-dir/mem".into(),
            format!("kubernetes.io~csi/pv-c{AT_ONCE}/mount"),
        ]
        .map(|place| folder.join(place).join("canary"))
        .into();
        canaries.extend(slots.last().map(|local| local.join("canary")));
        for canary in &canaries {
            std::fs::write(node.from_outside(canary), CANARY)?;
        }
        let mounts = mounts_of(node, &uid)?;
        ensure!(mounts.len() == 4, "the keeper's mounts are {mounts:?}");
        Ok(Self { uid, mounts, canaries })
    }

    fn check(&self, node: &mut RealNode) -> Result<()> {
        let mounts = mounts_of(node, &self.uid)?;
        ensure!(mounts == self.mounts, "a wanted pod's mounts changed:\n{:#?}\n{mounts:#?}", self.mounts);
        for canary in &self.canaries {
            check_canary(node, canary)?;
        }
        let records = records_of(node, &self.uid)?;
        ensure!(records.len() == 6, "the wanted pod has other records: {records:#?}");
        Ok(())
    }
}

/// The mounts below a pod's folder, each with its number in the kernel's table.
fn mounts_of(node: &RealNode, uid: &str) -> Result<BTreeMap<PathBuf, String>> {
    let folder = node.root().join("pods").join(uid);
    let table = std::fs::read_to_string(node.mount_table())?;
    let lines = table.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), PathBuf::from(words.nth(3)?)))
    });
    Ok(lines.filter(|(_, point)| point.starts_with(&folder)).map(|(id, point)| (point, id)).collect())
}

fn check_canary(node: &RealNode, canary: &Path) -> Result<()> {
    let found = std::fs::read_to_string(node.from_outside(canary));
    ensure!(found.as_deref().ok() == Some(CANARY), "the canary {} is {found:?}", canary.display());
    Ok(())
}

fn batch(node: &mut RealNode, random: &mut Random, slots: &[PathBuf], first: u64, many: u64) -> Result<()> {
    let mut all = vec![];
    for slot in 0..many {
        all.push(create(node, random, slots, first + slot, slot)?);
    }
    for round in &mut all {
        round.uid = node.wait_running(&round.name)?;
    }
    for round in &all {
        fill(node, round)?;
    }
    let recorded = node.wait_for(Duration::from_secs(30), |node| {
        for round in &all {
            let expected = 4 + usize::from(round.csi.is_some()) + usize::from(round.local.is_some());
            if records_of(node, &round.uid)?.len() != expected {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    ensure!(recorded, "not every volume has a record: {all:#?}");
    for round in all.iter().filter(|round| round.bound.is_some()) {
        let line = format!("mounted inside the emptyDir scratch of pod {}", round.uid);
        let warned = node.wait_for(Duration::from_secs(10), |node| Ok(node.log("agent").contains(&line)))?;
        ensure!(warned, "the agent does not warn of a mount inside an emptyDir: {round:#?}");
    }

    let kills = random.percent(70);
    for round in all.iter().filter(|round| !round.while_down || !kills) {
        node.delete("Pod", &round.name, round.delete)?;
    }
    if kills {
        node.kill_kubelet()?;
        for round in all.iter().filter(|round| round.while_down) {
            node.delete("Pod", &round.name, Delete::AtOnce)?;
            spoil(node, round)?;
        }
        if random.percent(30) {
            // The agent dies too, and is back before or after the kubelet.
            node.end("agent", Some(9))?;
            if random.percent(50) {
                start_agent(node, AGENT)?;
                node.start_kubelet()?;
            } else {
                node.start_kubelet()?;
                start_agent(node, AGENT)?;
            }
        } else {
            node.start_kubelet()?;
        }
    }
    let pods = node.root().join("pods");
    let mut left = vec![];
    let settled = node.wait_for(Duration::from_secs(120), |node| {
        left.clear();
        for round in &all {
            let folder = pods.join(&round.uid);
            let there = std::fs::symlink_metadata(node.from_outside(&folder)).is_ok();
            let (mounts, records) = (node.mounts_under(&folder)?, records_of(node, &round.uid)?);
            if there || !mounts.is_empty() || !records.is_empty() {
                left.push(format!("{round:?}: folder {there}, mounts {mounts:?}, {} records", records.len()));
            }
        }
        Ok(left.is_empty())
    })?;
    ensure!(settled, "something is left of deleted pods (kubelet killed: {kills}):\n{}", left.join("\n"));
    for round in &all {
        if let Some(folder) = &round.local {
            check_canary(node, &folder.join("canary"))?;
        }
        // What is bound where the kubelet deletes is lost by the kubelet, of which the agent warned; what lies beside it is not.
        if let Some(folder) = &round.bound {
            check_canary(node, &folder.with_extension("beside"))?;
        }
    }
    Ok(())
}

fn create(node: &mut RealNode, random: &mut Random, slots: &[PathBuf], number: u64, slot: u64) -> Result<Round> {
    let name = format!("p{number}");
    let mut volumes = vec![
        json!({"name": "scratch", "emptyDir": {}}),
        json!({"name": "mem", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "cm", "configMap": {"name": "cm"}}),
        json!({"name": "sec", "secret": {"secretName": "sec"}}),
    ];
    let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let mut mounts: Vec<Value> = vec![];
    let csi = random.percent(70).then(|| format!("c{slot}"));
    volumes.extend(csi.iter().map(|name| claim(name)));
    let local = random.percent(50).then(|| slots[slot as usize].clone());
    if local.is_some() {
        volumes.push(claim(&format!("l{slot}")));
        if random.percent(50) {
            mounts.push(json!({"name": format!("l{slot}"), "mountPath": "/sub", "subPath": "sub"}));
        }
    }
    node.create(&real_pod(&name, &volumes, &mounts))?;
    let bound = if random.percent(30) {
        let folder = node.dir().join("bound").join(&name);
        std::fs::create_dir_all(node.from_outside(&folder))?;
        std::fs::write(node.from_outside(&folder.join("file")), CANARY)?;
        std::fs::write(node.from_outside(&folder.with_extension("beside")), CANARY)?;
        Some(folder)
    } else {
        None
    };
    let vol_data = match random.next() % 4 {
        0 => Some("removed"),
        1 => Some("torn"),
        2 => Some("empty"),
        _ => None,
    };
    let delete = if random.percent(50) { Delete::InOrder } else { Delete::AtOnce };
    let while_down = random.percent(70);
    Ok(Round { name, uid: String::new(), csi, local, bound, vol_data, delete, while_down })
}

/// Puts canaries into the pod's volumes, checks those of earlier pods in the same ones, and binds what is to be bound.
fn fill(node: &mut RealNode, round: &Round) -> Result<()> {
    let volumes = node.root().join("pods").join(&round.uid).join("volumes");
    let mut places: Vec<PathBuf> = round.local.iter().cloned().collect();
    if let Some(csi) = &round.csi {
        places.push(volumes.join(format!("kubernetes.io~csi/pv-{csi}/mount")));
    }
    for place in places {
        let marker = node.dir().join("seen").join(place.to_string_lossy().replace(['/', '~'], "-"));
        let marker = match &round.csi {
            Some(csi) if place.ends_with("mount") => node.dir().join("seen").join(csi),
            _ => marker,
        };
        let (canary, marker) = (place.join("canary"), node.from_outside(&marker));
        if std::fs::symlink_metadata(&marker).is_ok() {
            check_canary(node, &canary).context("of an earlier pod in the same volume")?;
        } else {
            std::fs::write(node.from_outside(&canary), CANARY)?;
            std::fs::create_dir_all(marker.parent().context("a marker's folder")?)?;
            std::fs::write(marker, "")?;
        }
    }
    let scratch = volumes.join("kubernetes.io~empty-dir/scratch");
    std::fs::write(node.from_outside(&scratch.join("own")), "the pod's")?;
    if let Some(folder) = &round.bound {
        let inside = scratch.join("inside");
        std::fs::create_dir(node.from_outside(&inside))?;
        let (from, to) = (text(folder)?.to_owned(), text(&inside)?.to_owned());
        node.run(&["mount", "--bind", &from, &to])?.expect(&[0])?;
    }
    Ok(())
}

/// Does to the kubelet's file about the CSI volume what is to be done to it.
fn spoil(node: &RealNode, round: &Round) -> Result<()> {
    let (Some(csi), Some(how)) = (&round.csi, round.vol_data) else { return Ok(()) };
    let folder = node.root().join("pods").join(&round.uid).join("volumes/kubernetes.io~csi").join(format!("pv-{csi}"));
    let file = node.from_outside(&folder.join("vol_data.json"));
    match how {
        "removed" => std::fs::remove_file(&file)?,
        "torn" => {
            let content = std::fs::read(&file)?;
            std::fs::write(&file, &content[..content.len() / 2])?;
        }
        "empty" => std::fs::write(&file, "")?,
        other => bail!("what is {other}?"),
    }
    Ok(())
}
