//! `cargo xtask bench peer`: `scan` beside the kubelet's own reconstruction and the floor, on one tree and in one run.
//! Prints the results and writes them to `docs/performance-kubelet.md`.

mod hung;
mod tear_down;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{machine, median};
use crate::peer::{Peer, Programs, Tree};
use crate::process::{build_refloat, workspace};

/// Volumes of a pod, with and without the local one.
const A_POD: [usize; 2] = [10, 9];

/// Arguments of `bench peer`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many volumes, where the kubelet runs too
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 5_000, 10_000])]
    sizes: Vec<usize>,
    /// How many volumes, where it does not
    #[arg(long, value_delimiter = ',', default_values_t = [50_000])]
    alone: Vec<usize>,
    /// How many mounts that have nothing to do with the node root, beside 1000 volumes
    #[arg(long, default_value_t = 75_000)]
    unrelated: usize,
    /// How often `scan` and the floor are measured; the median counts
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How often the kubelet is measured; once from 5000 volumes on, where it takes minutes
    #[arg(long, default_value_t = 3)]
    kubelet_rounds: usize,
    /// How many volumes are torn down
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    tear_down_sizes: Vec<usize>,
    /// Do not write `docs/performance-kubelet.md`
    #[arg(long)]
    dry: bool,
    /// Measure in the tree at this root (what `make-tree` starts)
    #[arg(long, hide = true, requires_all = ["refloat", "programs"])]
    inside: Option<PathBuf>,
    /// Tear everything down in it
    #[arg(long, hide = true, requires = "inside")]
    tear_down: Option<tear_down::Who>,
    /// Scan it with a file system that hangs
    #[arg(long, hide = true, requires = "inside")]
    hung: bool,
    /// The binary
    #[arg(long, hide = true)]
    refloat: Option<PathBuf>,
    /// Where the peer's programs are
    #[arg(long, hide = true)]
    programs: Option<PathBuf>,
}

/// One tree that is measured.
#[derive(Debug, Clone, Copy)]
struct Case {
    volumes: usize,
    local: bool,
    unrelated: usize,
    kubelet_rounds: usize,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let (Some(root), Some(refloat), Some(programs)) = (&args.inside, &args.refloat, &args.programs) {
        match args.tear_down {
            Some(who) => println!("{}", tear_down::inside(root, refloat, programs, who)?),
            None if args.hung => println!("{}", hung::inside(root, refloat, args.rounds)?),
            None => println!("{}", measure(root, refloat, programs, args)?),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let refloat = build_refloat(true)?;
    let peer = match Peer::build(Programs::All, refloat.ancestors().nth(2).context("where is the build folder?")?)? {
        Ok(peer) => peer,
        Err(why) => {
            println!("skipped: the comparison with the kubelet: {why}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let mut text = machine::describe("Beside the kubelet", "cargo xtask bench peer");
    let kubelet_rounds = |volumes| if volumes < 5000 { args.kubelet_rounds } else { args.kubelet_rounds.min(1) };
    let measure = |local: bool| -> Result<Vec<Value>> {
        let cases = args.sizes.iter().map(|&volumes| Case {
            volumes,
            local,
            unrelated: 0,
            kubelet_rounds: kubelet_rounds(volumes),
        });
        cases.map(|case| in_tree(&peer, &refloat, case, args.rounds)).collect()
    };
    let (mixed, no_local) = (measure(true)?, measure(false)?);
    let mut alone = Vec::new();
    for &volumes in &args.alone {
        let case = Case { volumes, local: true, unrelated: 0, kubelet_rounds: 0 };
        alone.push(in_tree(&peer, &refloat, case, args.rounds)?);
    }
    if args.unrelated > 0 {
        let case = Case { volumes: 1000, local: true, unrelated: args.unrelated, kubelet_rounds: 0 };
        alone.push(in_tree(&peer, &refloat, case, args.rounds)?);
    }
    let hung = args.sizes.iter().map(|&volumes| hung::in_tree(&peer, &refloat, volumes, args.rounds));
    let hung = hung.collect::<Result<Vec<_>>>()?;
    let tear_downs = args.tear_down_sizes.iter().map(|&volumes| {
        tear_down::all(&peer, &refloat, volumes, if volumes < 5000 { 5 } else { 3 }, kubelet_rounds(volumes))
    });
    let tear_downs = tear_downs.collect::<Result<Vec<_>>>()?;
    report(&mut text, &mixed, &no_local, &alone);
    beside_hung(&mut text, &hung);
    torn_down(&mut text, &tear_downs);
    println!("{text}");
    if !args.dry {
        let path = workspace().join("docs/performance-kubelet.md");
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("written to {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a tree and measures in it.
fn in_tree(peer: &Peer, refloat: &Path, case: Case, rounds: usize) -> Result<Value> {
    let Case { volumes, local, unrelated, kubelet_rounds } = case;
    eprintln!("{volumes} volumes, local volumes: {local}, unrelated mounts: {unrelated}");
    let tree = Tree::new()?;
    let pods = (volumes / 10).max(1).to_string();
    let flags = ["-pods", &pods, &format!("-local={local}"), "-unrelated", &unrelated.to_string()];
    let mut command = by_make_tree(peer, refloat, &tree);
    command.args(["--rounds", &rounds.to_string(), "--kubelet-rounds", &kubelet_rounds.to_string()]);
    let printed = tree.run(peer, &flags, &command, &[0])?;
    let mut value: Value = serde_json::from_slice(&printed).context("cannot read what was measured")?;
    let expected = pods.parse::<usize>()? * A_POD[usize::from(!local)];
    ensure!(value["volumes"] == expected, "{} volumes were found, not {expected}", value["volumes"]);
    value["unrelated"] = unrelated.into();
    Ok(value)
}

/// This program once more, as `make-tree` starts it in a tree: its own /proc/self/exe is another.
fn by_make_tree(peer: &Peer, refloat: &Path, tree: &Tree) -> Command {
    let mut command = Command::new(format!("/proc/{}/exe", std::process::id()));
    command.args(["bench", "peer", "--inside"]).arg(tree.root()).arg("--refloat").arg(refloat);
    command.arg("--programs").arg(peer.program(""));
    command
}

/// Measures in a tree that is mounted.
fn measure(root: &Path, refloat: &Path, programs: &Path, args: &Args) -> Result<Value> {
    let floor = || {
        let mut command = Command::new(programs.join("probe"));
        command.arg(root).arg("once");
        command
    };
    let scan = || scan(refloat, root);
    let (mut floors, mut scans, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    // Once unmeasured, so that no round reads what is not in memory yet; then in turn, so that what else the machine
    // does meets both alike.
    for round in 0..=args.rounds {
        let (floor_time, _) = timed(floor(), &[0])?;
        let (scan_time, printed) = timed(scan(), &[0, 3])?;
        if round > 0 {
            floors.push(floor_time);
            scans.push(scan_time);
        }
        seen = printed;
    }
    let peak = peak_of(scan())?;
    let seen: Value = serde_json::from_slice(&seen).context("cannot read what scan printed")?;
    let (mut kubelet, mut failed) = (Vec::new(), Value::Null);
    for _ in 0..args.kubelet_rounds {
        let mut command = Command::new(programs.join("kubelet-reconstruct"));
        // At the kubelet's own verbosity; its log goes where nobody has to wait for a disk.
        command.args(["-v=2", "-root"]).arg(root).stderr(Stdio::null());
        let (_, printed) = timed(command, &[0])?;
        let phase: Value = serde_json::from_slice(&printed).context("cannot read what the kubelet printed")?;
        kubelet.push(phase["scan_ms"].as_f64().context("the kubelet did not say how long it took")?);
        failed = phase["failed"].clone();
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?.lines().count();
    Ok(json!({ "volumes": seen["summary"]["volumes"], "mounts": mounts, "floor": median(floors), "scan": median(scans),
        "peakMiB": peak / 1024, "kubelet": if kubelet.is_empty() { Value::Null } else { median(kubelet).into() },
        "failed": failed }))
}

/// `scan` of this tree, without records.
fn scan(refloat: &Path, root: &Path) -> Command {
    let mut command = Command::new(refloat);
    command.args(["scan", "-o", "json", "--root-dir"]).arg(root).arg("--state-dir").arg(root.join("no-records"));
    command.env_clear();
    command
}

/// Runs a command to its end; answers how long that took, in milliseconds, and what it printed.
fn timed(mut command: Command, codes: &[i32]) -> Result<(f64, Vec<u8>)> {
    command.stdin(Stdio::null());
    let start = Instant::now();
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let time = start.elapsed().as_secs_f64() * 1000.0;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code().is_some_and(|c| codes.contains(&c)), "{command:?}: {}\n{text}", output.status);
    Ok((time, output.stdout))
}

/// The most memory that a command takes, in KiB: as much as the kernel counted before the end of its output was read.
fn peak_of(mut command: Command) -> Result<u64> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut pipe = child.stdout.take().context("there is no pipe")?;
    let status = format!("/proc/{}/status", child.id());
    let (mut peak, mut buffer) = (0, vec![0; 1 << 16]);
    loop {
        let read = std::io::Read::read(&mut pipe, &mut buffer)?;
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        peak = peak.max(line.and_then(|l| l.trim().split(' ').next()).and_then(|n| n.parse().ok()).unwrap_or(0));
        if read == 0 {
            break;
        }
    }
    child.wait()?;
    Ok(peak)
}

fn report(text: &mut String, mixed: &[Value], no_local: &[Value], alone: &[Value]) {
    text.push_str(
        "`scan -o json` without records, from the start of the process to the end of its output, wall time in ms, median. \
         *Floor*: a C program that reads and splits mountinfo once, walks the pods' folders with one `statx` a volume, and \
         reads each `vol_data.json` once, on one thread, from process start too. *Kubelet*: the kubelet's own reconstruction \
         (v1.36.3, its packages as a library), without the start of its process. All three on the same tree in the same run. \
         See [its README](../bench/peer/README.md).\n\n",
    );
    let head = "| volumes | mounts | floor | scan | ratio | kubelet | times as fast | kubelet fails | peak memory, MiB |\n\
                | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    let tables = [("Ten volumes a pod", mixed), ("The same without local volumes", no_local), ("Scan alone", alone)];
    for (title, rows) in tables.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        let _ = write!(text, "## {title}\n\n{head}");
        for row in rows {
            line(text, row);
        }
        text.push('\n');
    }
    text.push_str(
        "The kubelet reads the whole mount table again for each local, iSCSI and FC volume, so it is quadratic with them, \
         and fails to reconstruct a local volume that is a folder.\n\n",
    );
    goals(text, mixed, no_local, alone);
}

/// A row of a table.
fn line(text: &mut String, row: &Value) {
    let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    let (floor, scan, kubelet) = (number("floor"), number("scan"), number("kubelet"));
    let (volumes, mounts, peak) = (&row["volumes"], &row["mounts"], &row["peakMiB"]);
    let _ = write!(text, "| {volumes} | {mounts} | {floor:.1} | {scan:.1} | {:.2} ", scan / floor);
    if kubelet.is_nan() {
        text.push_str("| - | - | - ");
    } else {
        let _ = write!(text, "| {kubelet:.0} | {:.1} | {} ", kubelet / scan, row["failed"]);
    }
    let _ = writeln!(text, "| {peak} |");
}

/// The goals, and at how many sizes each is met.
fn goals(text: &mut String, mixed: &[Value], no_local: &[Value], alone: &[Value]) {
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    let times = |row: &Value| number(row, "kubelet") / number(row, "scan");
    let all: Vec<_> = mixed.iter().chain(no_local).chain(alone).collect();
    let near = all.iter().filter(|row| number(row, "scan") <= 1.5 * number(row, "floor")).count();
    let _ = write!(text, "Goals:\n\n- at most 1.5 times the floor: met at {near} of {} sizes\n", all.len());
    for (volumes, goal) in [(1_000, 50.0), (5_000, 300.0), (10_000, 500.0)] {
        for row in mixed.iter().filter(|row| row["volumes"] == volumes) {
            let met = if times(row) >= goal { "met" } else { "not met" };
            let floor = number(row, "kubelet") / number(row, "floor");
            let _ = writeln!(
                text,
                "- {goal} times as fast as the kubelet at {volumes} mixed volumes: {met} (the floor itself: {floor:.0} times)"
            );
        }
    }
    let four = no_local.iter().filter(|row| times(row) >= 4.0).count();
    let _ = writeln!(text, "- 4 times as fast without local volumes: met at {four} of {} sizes", no_local.len());
    text.push_str(
        "\nWhere they are not met: the floor opens 11 folders a pod and asks one `statx` a volume. Scan opens every folder without \
         following a link or crossing a mount, lists those of subPaths and of what the kubelet keeps of a pod, looks for the \
         markers that tell a volume that is complete from one that was begun, and then writes what it knows of each volume, \
         1.5 KB as JSON. Two thirds of its processor time are the kernel's. Without local volumes the kubelet itself takes less \
         than four times as long as the floor.\n",
    );
}

/// What `scan` takes beside a file system that hangs.
fn beside_hung(text: &mut String, rows: &[Value]) {
    let rows: Vec<_> = rows.iter().filter(|row| !row.is_null()).collect();
    if rows.is_empty() {
        return;
    }
    text.push_str(
        "\n## Beside a file system that hangs\n\n`scan -o json` as above, of a tree with one FUSE file system among the volumes, whose \
         daemon answers, or is stopped. In turn on one tree, median, in ms.\n\n\
         | volumes | it answers | it hangs | ratio |\n| --- | --- | --- | --- |\n",
    );
    for row in &rows {
        let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        let (answers, hangs) = (number("answers"), number("hangs"));
        let _ = writeln!(text, "| {} | {answers:.1} | {hangs:.1} | {:.2} |", row["volumes"], hangs / answers);
    }
    text.push_str("\nGoal: no difference that can be told from that of two rounds.\n");
}

/// What tearing everything down takes.
fn torn_down(text: &mut String, rows: &[Value]) {
    if rows.is_empty() {
        return;
    }
    text.push_str(
        "\n## Tear-down of everything\n\nWall time in ms, each on a tree of its own. *Floor*: the same C program reads the mount table, \
         unmounts what is below the root, the latest first, and removes the folders. *Release*: `refloat release --yes \
         --including-running --delete-ephemeral`, with a CSI driver that unmounts what it is told, from the start of the process to \
         the proof that nothing is left. *Kubelet*: from the moment that its pods are known to be gone, without its reconstruction.\n\n\
         | volumes | floor | release | ratio | kubelet | times as fast |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    for row in rows {
        let (floor, release, kubelet) = (number(row, "floor"), number(row, "release"), number(row, "kubelet"));
        let _ = write!(text, "| {} | {floor:.0} | {release:.0} | {:.2} ", row["volumes"], release / floor);
        if kubelet.is_nan() {
            text.push_str("| - | - |\n");
        } else {
            let _ = writeln!(text, "| {kubelet:.0} | {:.1} |", kubelet / release);
        }
    }
    let near = rows.iter().filter(|row| number(row, "release") <= 2.0 * number(row, "floor")).count();
    let _ = writeln!(text, "\nGoal: at most 2 times the floor: met at {near} of {} sizes.", rows.len());
}
