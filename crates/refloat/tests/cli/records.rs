//! `record`, and records that were edited by hand.

use anyhow::{Context, Result, ensure};

use crate::node::{Node, files};
use crate::{Test, Verdict, pod, secret, volume};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("records_are_listed_and_shown", list_and_show),
    ("a_record_edited_by_hand_is_set_aside", edited),
    ("records_of_a_newer_version_stay", newer),
];

fn up(node: &Node) -> Result<()> {
    node.apply("s.yaml", &secret("s", "one"))?;
    let volumes = "  - {name: a, emptyDir: {}}\n  - {name: c, secret: {secretName: s}}\n";
    node.apply("p.yaml", &pod("web", "[]", volumes))?;
    node.once()?.expect(0)?;
    Ok(())
}

fn list_and_show(node: &mut Node) -> Result<Verdict> {
    let ran = node.run(&["record", "list"])?.expect(0)?;
    ensure!(ran.stdout.starts_with("No records"), "{ran:?}");
    up(node)?;
    let list = node.run(&["record", "list", "-o", "json"])?.expect(0)?.json()?;
    let records = list["records"].as_array().context("no list")?;
    let kinds: Vec<_> = records.iter().filter_map(|r| r["kind"].as_str()).collect();
    ensure!(kinds.len() == 3 && kinds.contains(&"PodCheckpoint") && kinds.contains(&"PodVolume"), "{list:#}");
    for record in records {
        let file = record["file"].as_str().context("no file")?;
        let shown = node.run(&["record", "show", file])?.expect(0)?.json()?;
        ensure!(shown["apiVersion"] == "volume.refloat.dev/v1" && shown["kind"] == record["kind"], "{shown:#}");
    }
    let uid = node.scan()?.json()?["volumes"][0]["pod"]["uid"].as_str().context("no uid")?.to_owned();
    let shown = node.run(&["record", "show", &format!("{uid}/c"), "-o", "yaml"])?.expect(0)?;
    ensure!(shown.stdout.contains("kind: PodVolume"), "{shown:?}");
    let ran = node.run(&["record", "show", "none"])?.expect(1)?;
    ensure!(ran.stderr.contains("\"none\"") && ran.stderr.contains("hint: "), "{ran:?}");
    ensure!(node.run(&["record", "verify"])?.expect(0)?.stdout.starts_with("3 good, 0 damaged"));
    Ok(Verdict::Passed)
}

/// Changes the file of the record of volume `c`.
fn edit(node: &Node, change: impl Fn(String) -> String) -> Result<std::path::PathBuf> {
    for file in files(&node.state)?.iter().filter(|f| f.components().count() == 2) {
        let path = node.state.join(file);
        let text = std::fs::read_to_string(&path)?;
        if text.contains("\"kind\":\"PodVolume\"") && text.contains("kubernetes.io/secret") {
            std::fs::write(&path, change(text))?;
            return Ok(path);
        }
    }
    anyhow::bail!("there is no record of the secret's volume")
}

fn edited(node: &mut Node) -> Result<Verdict> {
    up(node)?;
    let before = node.scan()?.json()?;
    // Still JSON, and no longer what was written.
    let path = edit(node, |text| text.replacen("\"web\"", "\"wob\"", 1))?;
    let bytes = std::fs::read(&path)?;
    let ran = node.run(&["record", "verify"])?.expect(3)?;
    ensure!(ran.stdout.contains("2 good, 1 damaged") && ran.stdout.contains("checksum"), "{ran:?}");
    let scan = node.scan()?.expect(3)?.json()?;
    let damaged: Vec<_> =
        scan["volumes"].as_array().into_iter().flatten().filter(|v| v["record"] == "Damaged").collect();
    ensure!(damaged.len() == 1 && damaged[0]["mounted"] == true, "{scan:#}");
    ensure!(std::fs::read(&path)? == bytes, "a scan changed it");
    let ran = node.once()?;
    ensure!(ran.code == 0 || ran.code == 3, "{ran:?}");
    let after = node.scan()?.json()?;
    let c = volume(&after, "web", "c")?;
    ensure!(c["mounted"] == true && c["mount"]["stack"] == 1, "{c:#}");
    ensure!(volume(&before, "web", "a")? == volume(&after, "web", "a")?, "another volume was touched");
    let kept = files(&node.state)?.iter().any(|f| std::fs::read(node.state.join(f)).is_ok_and(|b| b == bytes));
    ensure!(kept, "the damaged record was not kept as it was");
    node.delete_all()?;
    node.once()?;
    ensure!(node.mounts()?.is_empty() && files(&node.root.join("pods"))?.is_empty(), "{:?}", node.mounts()?);
    Ok(Verdict::Passed)
}

fn newer(node: &mut Node) -> Result<Verdict> {
    up(node)?;
    let path = edit(node, |text| text.replacen("volume.refloat.dev/v1", "volume.refloat.dev/v7", 1))?;
    // With the checksum that belongs to it, as a newer program would have written it.
    let ran = node.run(&["record", "verify"])?.expect(3)?;
    let (_, computed) = ran.stdout.split_once("its content has ").context("no checksum is told")?;
    let computed: String = computed.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == ':').collect();
    let text = std::fs::read_to_string(&path)?;
    let (content, _) = text.rsplit_once(",\"checksum\":").context("a record without a checksum")?;
    let good = format!("{content},\"checksum\":\"{computed}\"}}\n");
    std::fs::write(&path, &good)?;
    let scan = node.scan()?.expect(3)?.json()?;
    let newer =
        scan["volumes"].as_array().into_iter().flatten().any(|v| v["record"] == "Newer" && v["mounted"] == true);
    ensure!(newer, "{scan:#}");
    let ran = node.run(&["record", "verify"])?.expect(3)?;
    ensure!(ran.stdout.contains("RecordNewer") && ran.stdout.contains("v7"), "{ran:?}");
    // A manager keeps it as it is, wherever it puts it.
    node.once()?;
    let kept = files(&node.state)?.iter().any(|f| std::fs::read_to_string(node.state.join(f)).is_ok_and(|t| t == good));
    ensure!(kept, "the newer record was not kept as it was");
    Ok(Verdict::Passed)
}
