//! The binary as a user and a script see it, on real mounts.
//!
//! Each test runs in a process of its own, in a private mount namespace: this program starts itself again for it.
//! A test that cannot run here says `skipped: NAME: REASON` and passes.

mod agent;
mod browser;
mod clean;
mod clean_csi;
mod clean_devices;
mod clean_flex;
mod failures;
mod foreign;
mod foreign_csi;
mod gone_plugins;
mod hung;
mod kit;
mod layouts;
mod life;
mod looking;
mod migrated;
mod node;
mod node_flex;
mod node_flex_grow;
mod page;
mod places;
mod providers;
mod records;
mod saved;
mod sources;
mod usage;

use std::path::Path;
use std::process::ExitCode;

use kit::{path_of, pod, tool, volume};
use node::Node;
use refloat_test_support::Verdict;

type Test = fn(&mut Node) -> anyhow::Result<Verdict>;

fn tests() -> Vec<(&'static str, Test)> {
    [
        agent::TESTS,
        usage::TESTS,
        looking::TESTS,
        life::TESTS,
        clean::TESTS,
        clean_csi::TESTS,
        clean_devices::TESTS,
        clean_flex::TESTS,
        failures::TESTS,
        foreign::TESTS,
        foreign_csi::TESTS,
        gone_plugins::TESTS,
        hung::TESTS,
        layouts::TESTS,
        migrated::TESTS,
        node_flex::TESTS,
        node_flex_grow::TESTS,
        page::TESTS,
        places::TESTS,
        providers::TESTS,
        records::TESTS,
        saved::TESTS,
        sources::TESTS,
    ]
    .concat()
}

fn main() -> ExitCode {
    refloat_test_csi_driver::run_if_driver();
    let names: Vec<&str> = tests().into_iter().map(|(name, _)| name).collect();
    refloat_test_support::in_one_process_each(&names, |name| {
        let (_, test) =
            tests().into_iter().find(|(n, _)| *n == name).ok_or_else(|| anyhow::anyhow!("there is no {name}"))?;
        node::finish_on_signals()?;
        test(&mut Node::new(Path::new(env!("CARGO_BIN_EXE_refloat")))?)
    })
}

/// A configMap with one key.
fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: test}}\ndata: {{key: {value}}}\n")
}

/// A secret with one key.
fn secret(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: test}}\nstringData: {{key: {value}}}\n")
}

/// Whether this is root in the machine's own user namespace.
fn is_real_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}
