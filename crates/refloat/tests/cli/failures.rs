//! Manifests that ask for what cannot be, and what the manager does about it: it says so and harms nothing.

use anyhow::{Result, ensure};

use crate::life::nothing_left;
use crate::node::{Node, Ran, files};
use crate::{Test, Verdict, config_map, path_of, pod, volume};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("an_unknown_volume_type_is_named", unknown_type),
    ("a_missing_config_map_is_waited_for", missing_config_map),
    ("a_claim_without_a_volume_is_waited_for", missing_claim),
    ("dots_in_names_lead_nowhere", dots),
    ("long_names_work", long_names),
    ("a_broken_manifest_takes_nothing_away", broken_manifest),
    ("a_missing_manifest_folder_takes_nothing_away", missing_folder),
];

/// A healthy pod beside the others: their trouble must not be its.
fn healthy(node: &Node) -> Result<()> {
    node.apply("healthy.yaml", &pod("healthy", "[]", "  - {name: ok, emptyDir: {medium: Memory}}\n"))
}

fn healthy_is_up(node: &Node) -> Result<()> {
    let scan = node.scan()?.json()?;
    let state = &volume(&scan, "healthy", "ok")?["state"];
    ensure!(state == "Mounted", "the healthy pod's volume is {state}");
    Ok(())
}

/// That a problem says this, with a hint.
fn says(ran: &Ran, parts: &[&str]) -> Result<()> {
    let seen = ran.json()?;
    let problems = seen["problems"].as_array().cloned().unwrap_or_default();
    let of_volumes =
        seen["volumes"].as_array().into_iter().flatten().filter_map(|v| v["problems"].as_array()).flatten();
    let all: Vec<_> = problems.iter().chain(of_volumes).collect();
    let found = all.iter().any(|p| {
        let text = p.to_string();
        parts.iter().all(|part| text.contains(part)) && p["hint"].as_str().is_some_and(|h| !h.is_empty())
    });
    ensure!(found, "no problem says {parts:?}: {all:#?}");
    Ok(())
}

fn unknown_type(node: &mut Node) -> Result<Verdict> {
    healthy(node)?;
    let volumes = "  - {name: far, rbd: {monitors: [m], image: i}}\n  - {name: near, emptyDir: {}}\n";
    node.apply("p.yaml", &pod("web", "[]", volumes))?;
    let ran = node.once()?.expect(3)?;
    says(&ran, &["far", "rbd"])?;
    healthy_is_up(node)?;
    let scan = node.scan()?.json()?;
    ensure!(volume(&scan, "web", "near")?["state"] == "Mounted", "the pod's other volume waits for nothing: {scan:#}");
    Ok(Verdict::Passed)
}

fn missing_config_map(node: &mut Node) -> Result<Verdict> {
    healthy(node)?;
    node.apply("p.yaml", &pod("web", "[]", "  - {name: b, configMap: {name: later}}\n"))?;
    says(&node.once()?.expect(3)?, &["later"])?;
    healthy_is_up(node)?;
    ensure!(node.mounts()?.len() == 1, "{:?}", node.mounts()?);
    node.apply("c.yaml", &config_map("later", "here"))?;
    node.once()?.expect(0)?;
    let scan = node.scan()?.expect(0)?.json()?;
    let key = path_of(&scan, "web", "b")?.join("key");
    ensure!(std::fs::read_to_string(&key)? == "here");
    // Gone again: what is there stays, and that is said.
    node.delete("c.yaml")?;
    says(&node.once()?.expect(3)?, &["later"])?;
    ensure!(std::fs::read_to_string(&key)? == "here");
    Ok(Verdict::Passed)
}

fn missing_claim(node: &mut Node) -> Result<Verdict> {
    healthy(node)?;
    node.apply("p.yaml", &pod("web", "[]", "  - {name: d, persistentVolumeClaim: {claimName: store}}\n"))?;
    says(&node.once()?.expect(3)?, &["store"])?;
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: store, namespace: test}\nspec:\n  \
                 accessModes: [ReadWriteOnce]\n  volumeName: pv-none\n  resources: {requests: {storage: 1Mi}}\n";
    node.apply("claim.yaml", claim)?;
    says(&node.once()?.expect(3)?, &["pv-none"])?;
    healthy_is_up(node)?;
    Ok(Verdict::Passed)
}

fn dots(node: &mut Node) -> Result<Verdict> {
    healthy(node)?;
    std::fs::write(node.host().join("keep"), "")?;
    let cases = [
        pod("web", "[]", "  - {name: .., emptyDir: {}}\n"),
        pod("web", "[]", "  - {name: ../../../../host, emptyDir: {}}\n"),
        pod("web", "[]", "  - {name: a/b, emptyDir: {}}\n"),
        pod("../../host", "[]", "  - {name: a, emptyDir: {}}\n"),
        pod("web", "[]", "  - {name: a, emptyDir: {}}\n").replace("{name: web,", "{name: web, uid: ../../host,"),
        pod("web", "[]", "  - {name: a, emptyDir: {}}\n").replace("{name: web,", "{name: web, uid: .., "),
        pod("web", "[{name: a, mountPath: /a, subPath: ../../../../../../../host}]", "  - {name: a, emptyDir: {}}\n"),
        pod("web", "[{name: a, mountPath: /a, subPath: /etc}]", "  - {name: a, emptyDir: {}}\n"),
        pod("web", "[]", "  - {name: l, persistentVolumeClaim: {claimName: ../x}}\n"),
    ];
    for case in cases {
        node.apply("p.yaml", &case)?;
        let ran = node.once()?;
        ensure!(ran.code == 3 || ran.code == 0, "{case}\n{ran:?}");
        // The names of pods and claims are only looked up; where one is part of a path, it is refused.
        ensure!(ran.code == 3 || case.contains("../../host, namespace"), "{case}\n{ran:?}");
        for point in node.mounts()? {
            ensure!(point.starts_with(node.root.join("pods")), "{} is mounted: {case}", point.display());
        }
        ensure!(files(&node.host())? == [std::path::PathBuf::from("keep")], "something was made outside: {case}");
        let stray = files(&node.root)?.into_iter().find(|f| !f.starts_with("pods") && !f.starts_with("plugins"));
        ensure!(stray.is_none(), "{stray:?}: {case}");
        healthy_is_up(node)?;
    }
    node.delete_all()?;
    node.once()?.expect(0)?;
    nothing_left(node)?;
    Ok(Verdict::Passed)
}

fn long_names(node: &mut Node) -> Result<Verdict> {
    let long = "n".repeat(253);
    node.apply("c.yaml", &config_map(&long, "x"))?;
    let volumes =
        format!("  - {{name: {long}, emptyDir: {{medium: Memory}}}}\n  - {{name: c, configMap: {{name: {long}}}}}\n");
    node.apply(
        "p.yaml",
        &pod(&"p".repeat(253), &format!("[{{name: {long}, mountPath: /a, subPath: {long}}}]"), &volumes),
    )?;
    node.once()?.expect(0)?;
    let scan = node.scan()?.expect(0)?.json()?;
    ensure!(scan["summary"]["state"]["Mounted"] == 2, "{scan:#}");
    node.once()?.expect(0)?;
    node.delete_all()?;
    node.once()?.expect(0)?;
    nothing_left(node)?;
    Ok(Verdict::Passed)
}

fn broken_manifest(node: &mut Node) -> Result<Verdict> {
    healthy(node)?;
    node.once()?.expect(0)?;
    let before = node.scan()?.expect(0)?.json()?;
    node.apply("healthy.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: [healthy\n")?;
    let ran = node.once()?.expect(3)?;
    says(&ran, &["healthy.yaml", "line "])?;
    let after = node.scan()?.expect(3)?.json()?;
    ensure!(before["volumes"][0]["mount"] == after["volumes"][0]["mount"], "it was touched: {after:#}");
    ensure!(after["volumes"][0]["wanted"] == "Unknown", "{after:#}");
    node.delete("healthy.yaml")?;
    node.once()?.expect(0)?;
    nothing_left(node)?;
    Ok(Verdict::Passed)
}

fn missing_folder(node: &mut Node) -> Result<Verdict> {
    healthy(node)?;
    node.once()?.expect(0)?;
    let before = node.mounts()?;
    let aside = node.folder().join("aside");
    std::fs::rename(node.pods(), &aside)?;
    let ran = node.once()?;
    ensure!(ran.code == 3 || ran.code == 1, "{ran:?}");
    ensure!(node.mounts()? == before, "it was taken away");
    let named = ran.stdout.contains("manifests") || ran.stderr.contains("manifests");
    ensure!(named, "{ran:?}");
    std::fs::rename(&aside, node.pods())?;
    node.once()?.expect(0)?;
    ensure!(node.mounts()? == before);
    Ok(Verdict::Passed)
}
