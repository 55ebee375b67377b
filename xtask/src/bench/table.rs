//! `table`: look-ups in a large mount table.

use std::fmt::Write;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use refloat_mount::MountTable;
use serde_json::{Value, json};

/// Measures look-ups in a table of this many mounts, in nanoseconds each.
pub(super) fn measure(mounts: usize) -> Result<Value> {
    let mut text = String::from("1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n");
    let point = |n: usize| format!("/var/lib/kubelet/pods/{:08x}/volumes/kubernetes.io~secret/v{}", n / 5, n % 5);
    for n in 1..mounts {
        let _ = writeln!(text, "{} 1 0:{} / {} rw,relatime - tmpfs tmpfs rw", n + 1, n + 30, point(n));
    }
    let start = Instant::now();
    let (table, bad) = MountTable::from_mountinfo(text.as_bytes());
    let parse = start.elapsed().as_secs_f64() * 1e9 / mounts as f64;
    ensure!(bad.is_empty() && table.len() == mounts, "the table was not understood");
    // Paths all over the table, in an order that no cache foresees.
    let some: Vec<usize> = (0..1000).map(|i| 1 + (i * 7919) % (mounts - 1)).collect();
    let paths: Vec<PathBuf> = some.iter().map(|&n| point(n).into()).collect();
    let below: Vec<PathBuf> = paths.iter().map(|p| p.join("a/b")).collect();
    let pods: Vec<&Path> = paths.iter().filter_map(|p| p.ancestors().nth(3)).collect();
    let missing: Vec<PathBuf> = paths.iter().map(|p| p.with_file_name("none")).collect();
    Ok(json!({
        "mounts": mounts,
        "parse": parse,
        "at": each(&paths, |p| table.at(p).is_some()),
        "none": each(&missing, |p| table.at(p).is_none()),
        "covering": each(&below, |p| table.covering(p).is_some()),
        "under": each(&pods, |p| table.under(p).count() > 0),
        "sameRoot": each(&paths, |p| table.at(p).is_some_and(|m| table.same_root(m.device(), m.root()).len() == 1)),
    }))
}

fn each<P: AsRef<Path>>(paths: &[P], look_up: impl Fn(&Path) -> bool) -> f64 {
    let rounds = 20;
    let start = Instant::now();
    for _ in 0..rounds {
        for path in paths {
            assert!(black_box(look_up(black_box(path.as_ref()))), "a look-up gave the wrong answer");
        }
    }
    start.elapsed().as_secs_f64() * 1e9 / (rounds * paths.len()) as f64
}

/// The report.
pub(super) fn report(tables: &[Value]) -> String {
    let mut text = String::from(
        "## Mount table\n\nTime of one look-up, in µs.\n\n\
         | mounts | at a path | at a path, none there | nearest above a path | all below a pod's folder | same file system and root | parsing, per mount |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for table in tables {
        let us = |name: &str| table[name].as_f64().unwrap_or(f64::NAN) / 1000.0;
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            table["mounts"],
            us("at"),
            us("none"),
            us("covering"),
            us("under"),
            us("sameRoot"),
            us("parse")
        );
    }
    text.push_str("\nGoal: microseconds, independent of the table's size.\n");
    text
}
