//! `record`: what it costs to write everything down first.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use refloat_record::{
    OuterSpecName, PluginName, PodRef, PodUid, PodVolume, Record, Store, Verbatim, VolumeMode, codec,
};
use serde_json::{Value, json};

use super::median;
use crate::node::{self, Node};
use crate::process::workspace;

/// Writers at once.
const AT_ONCE: usize = 64;

fn record(number: usize) -> Result<Record> {
    let pod = PodRef {
        uid: PodUid::new(format!("{number:08x}-0000-4000-8000-00000000beac"))?,
        namespace: "bench".into(),
        name: "p".into(),
    };
    let plugin = PluginName::new("kubernetes.io/secret")?;
    let spec_name = refloat_record::SpecName::new("token")?;
    Ok(Record::PodVolume(PodVolume {
        unique_name: refloat_volume::layout::unique_name_of_pod(&pod, &plugin, &spec_name),
        path: Some(refloat_volume::layout::volume_path(&pod.uid, &plugin, &spec_name)),
        pod,
        volume_names: vec![OuterSpecName::new("token")?],
        spec_name,
        plugin,
        mode: VolumeMode::Filesystem,
        read_only: false,
        mount_options: vec![],
        fs_group: None,
        selinux_label: None,
        volume: Verbatim::from_value(&json!({ "name": "token", "secret": { "secretName": "token" } })),
        persistent_volume: None,
        claim: None,
        host_path: None,
        device_mount_path: None,
        mount: None,
        block: None,
        sub_paths: vec![],
        confirmed: false,
        boot_id: refloat_node::evidence::boot_id()?,
        provider_info: None,
        providers: refloat_record::ProviderAnswers::new(),
        lost: vec![],
    }))
}

/// A folder on the disk that the workspace is on, removed when dropped.
pub(super) fn on_disk() -> Result<tempfile::TempDir> {
    let folder = workspace().join("target");
    std::fs::create_dir_all(&folder)?;
    tempfile::tempdir_in(&folder).context("cannot make a folder on the disk")
}

/// Measures durable writes, in writes a second.
pub(super) fn measure(count: usize) -> Result<Value> {
    let records: Vec<Record> = (0..count).map(record).collect::<Result<_>>()?;
    let mut rates: [Vec<f64>; 4] = Default::default();
    for _ in 0..3 {
        let folder = on_disk()?;
        let (state, plain) = (folder.path().join("state"), folder.path().join("plain"));
        std::fs::create_dir(&plain)?;
        let store = Store::open(&state)?;
        let rate = |start: Instant| count as f64 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        records.iter().try_for_each(|r| plain_write(&plain, r))?;
        rates[0].push(rate(start));
        let start = Instant::now();
        records.iter().try_for_each(|r| store.put(r))?;
        rates[1].push(rate(start));
        let start = Instant::now();
        at_once(&records, |r| plain_write(&plain, r))?;
        rates[2].push(rate(start));
        let start = Instant::now();
        at_once(&records, |r| Ok(store.put(r)?))?;
        rates[3].push(rate(start));
    }
    let [plain, store, plain_at_once, store_at_once] = rates.map(median);
    Ok(json!({ "plain": plain, "store": store, "plainAtOnce": plain_at_once, "storeAtOnce": store_at_once }))
}

/// The same bytes, written durably with the plainest calls.
fn plain_write(folder: &Path, record: &Record) -> Result<()> {
    let name = codec::file_name(&record.key());
    let bytes = codec::encode(record);
    let temporary = folder.join(format!(".tmp-{name}"));
    let mut file = File::create(&temporary)?;
    file.write_all(&bytes)?;
    file.sync_data()?;
    std::fs::rename(&temporary, folder.join(&name))?;
    Ok(File::open(folder)?.sync_all()?)
}

fn at_once(records: &[Record], write: impl Fn(&Record) -> Result<()> + Sync) -> Result<()> {
    let write = &write;
    std::thread::scope(|scope| {
        let parts = records.chunks(records.len().div_ceil(AT_ONCE));
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || part.iter().try_for_each(write))).collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })
}

/// Measures the set-up of pods with and without records, in milliseconds, on the disk and in memory.
pub(super) fn measure_set_up(volumes: usize, rounds: usize, binary: &Path) -> Result<Value> {
    refloat_mount::enter_private_namespace().context("there is no mount namespace to be had")?;
    node::finish_on_signals()?;
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds.min(5) {
        let disk = on_disk()?;
        for (i, (state, more)) in
            [(None, &["--without-records"][..]), (None, &[]), (Some(disk.path().join("state")), &[])]
                .into_iter()
                .enumerate()
        {
            times[i].push(set_up(volumes, binary, state, more)?);
        }
    }
    let [without, memory, disk] = times.map(median);
    Ok(json!({ "volumes": volumes, "without": without, "memory": memory, "disk": disk }))
}

fn set_up(volumes: usize, binary: &Path, state: Option<PathBuf>, more: &[&str]) -> Result<f64> {
    let mut node = Node::new(binary)?;
    if let Some(state) = state {
        node.state = state;
    }
    node.apply(
        "objects.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: bench}\nstringData: {a: b}\n",
    )?;
    for pod in 0..volumes / 5 {
        node.apply(
            &format!("pod-{pod}.yaml"),
            &format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{pod}, namespace: bench}}\nspec:\n  containers: [{{name: c, image: i}}]\n  \
                 volumes:\n  - {{name: a, emptyDir: {{}}}}\n  - {{name: b, emptyDir: {{medium: Memory}}}}\n  \
                 - {{name: c, secret: {{secretName: s}}}}\n  - {{name: d, secret: {{secretName: s}}}}\n  \
                 - {{name: e, downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}}}\n"
            ),
        )?;
    }
    let pods = node.pods();
    let mut args = vec!["node", "--once", "-o", "json", "--manifests", pods.to_str().context("not UTF-8")?];
    args.extend(more);
    let start = Instant::now();
    let ran = node.run(&args)?;
    let time = start.elapsed().as_secs_f64() * 1000.0;
    let seen = ran.json()?;
    let mounted = seen["summary"]["state"]["Mounted"].as_u64().unwrap_or(0);
    ensure!(more.len() == 1 || mounted as usize == volumes / 5 * 5, "only {mounted} volumes were set up");
    Ok(time)
}

/// The report.
pub(super) fn report(writes: &Value, set_up: &Value) -> String {
    let rate = |name: &str| writes[name].as_f64().unwrap_or(f64::NAN);
    let ms = |name: &str| set_up[name].as_f64().unwrap_or(f64::NAN);
    let mut text = String::from("## Records\n\nDurable records a second, on this machine's disk.\n\n");
    text.push_str("| writers | plain write, sync, rename, folder sync | store | ratio |\n| --- | --- | --- | --- |\n");
    for (writers, plain, store) in [(1, "plain", "store"), (AT_ONCE, "plainAtOnce", "storeAtOnce")] {
        let (plain, store) = (rate(plain), rate(store));
        let _ = writeln!(text, "| {writers} | {plain:.0} | {store:.0} | {:.2} |", store / plain);
    }
    let _ = writeln!(
        text,
        "\nSetting up {} pod volumes (`node --once`, pods on a file system over memory), in ms.\n\n\
         | records | time | ratio |\n| --- | --- | --- |\n| none | {:.0} | 1 |\n| in memory | {:.0} | {:.2} |\n| on the disk | {:.0} | {:.2} |\n\n\
         Goal: at most 1.2 times as long as without.\n",
        set_up["volumes"],
        ms("without"),
        ms("memory"),
        ms("memory") / ms("without"),
        ms("disk"),
        ms("disk") / ms("without"),
    );
    text
}
