//! `reconstruct`: from process start to the complete actual state.

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{median, tree};
use crate::node::{self, Node};

/// Measures one size, in a namespace of its own.
pub(super) fn measure(volumes: usize, rounds: usize, binary: &Path) -> Result<Value> {
    refloat_mount::enter_private_namespace().context("there is no mount namespace to be had")?;
    node::finish_on_signals()?;
    let node = Node::new(binary)?;
    tree::build(&node.root, &node.state, &node.host(), volumes)?;
    let empty = node.folder().join("no-records");
    std::fs::create_dir(&empty)?;
    measure_tree(&node.root, &node.state, &empty, volumes, rounds)
}

/// Measures a tree of so many volumes; `empty`: a state folder without records.
pub(super) fn measure_tree(root: &Path, state: &Path, empty: &Path, volumes: usize, rounds: usize) -> Result<Value> {
    let child = |what: &str, state: Option<&Path>| {
        let mut command = Command::new(crate::process::THIS_PROGRAM);
        command.args(["bench", "--inside", what, "--binary", "-", "--root"]).arg(root);
        if let Some(state) = state {
            command.arg("--state").arg(state);
        }
        command
    };
    let mut times: [Vec<f64>; 5] = Default::default();
    let mut peak = [0, 0, 0];
    for _ in 0..rounds {
        // In turn, so that what else the machine does meets all alike.
        times[0].push(timed(child("floor", Some(state)))?.0);
        times[1].push(timed(child("floor", None))?.0);
        for (i, (what, state)) in [("restart", state), ("scan", state), ("scan", empty)].into_iter().enumerate() {
            let (time, value) = timed(child(what, Some(state)))?;
            let found = value["volumes"].as_u64().context("how many volumes?")?;
            ensure!(found as usize == volumes, "{found} volumes were found, not {volumes}");
            times[i + 2].push(time);
            peak[i] = peak[i].max(value["peakKiB"].as_u64().unwrap_or(0));
        }
    }
    let [floor, bare_floor, restart, records, bare] = times.map(median);
    Ok(json!({ "volumes": volumes, "floor": floor, "bareFloor": bare_floor, "restart": restart, "records": records,
        "bare": bare, "peakMiB": peak.map(|kib| kib / 1024) }))
}

/// Runs a command; answers how long it took to print its one line, in milliseconds, and the line. The end of the process
/// does not count: the kernel takes tens of milliseconds to close a watch on a folder, which a manager never does.
fn timed(mut command: Command) -> Result<(f64, Value)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    let mut line = String::new();
    let read = BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line);
    let time = start.elapsed().as_secs_f64() * 1000.0;
    let status = child.wait()?;
    read.context("cannot read the output")?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok((time, serde_json::from_str(&line).context("no JSON")?))
}

/// The report.
pub(super) fn report(sizes: &[Value]) -> String {
    let mut text = String::from(
        "## Reconstruct\n\n\
         From process start to the complete actual state, wall time in ms, median. Each pod has five volumes: emptyDir on \
         disk and in memory, secret, projected, local volume (a bind); four of them are mounts. *Floor*: a process that \
         reads and splits mountinfo once, lists the same folders once and reads the same record files once, on one \
         thread. *Restart*: `node`, until it could plan. *Scan*: `scan` with records, and without any.\n\n\
",
    );
    rows(&mut text, sizes);
    text.push_str("\nGoal: at most 1.5 times the floor at every size, linear growth, under 60 MiB at 10,000.\n\n");
    text
}

/// The report of a tree of CSI volumes.
pub(super) fn report_csi(text: &mut String, size: &Value) {
    text.push_str(
        "### Reconstruct CSI volumes\n\n\
         As above. Each pod has five volumes, each a mount, and each staged, which is another mount and another record. Without \
         records, what is known is in the kubelet's `vol_data.json`, which the floor then reads too; and it lists the same \
         folders of stages.\n\n",
    );
    rows(text, std::slice::from_ref(size));
    text.push_str("\nGoal: at most 1.5 times the floor.\n\n");
}

fn rows(text: &mut String, sizes: &[Value]) {
    text.push_str(
        "| volumes | floor | restart | ratio | scan | ratio | floor without records | scan without records | ratio | peak memory, MiB |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for size in sizes {
        let number = |name: &str| size[name].as_f64().unwrap_or(f64::NAN);
        let (floor, bare_floor) = (number("floor"), number("bareFloor"));
        let peak = size["peakMiB"].as_array().into_iter().flatten().filter_map(Value::as_u64).max().unwrap_or(0);
        let _ = writeln!(
            text,
            "| {} | {floor:.1} | {:.1} | {:.2} | {:.1} | {:.2} | {bare_floor:.1} | {:.1} | {:.2} | {peak} |",
            size["volumes"],
            number("restart"),
            number("restart") / floor,
            number("records"),
            number("records") / floor,
            number("bare"),
            number("bare") / bare_floor,
        );
    }
}
