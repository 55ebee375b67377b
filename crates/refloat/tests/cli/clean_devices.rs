//! `refloat clean` and devices that are mounted for pods, of which there is none: whose word lets them go.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use refloat_test_pod_sources::{Https, Reply, RuntimeServer, State, pod as listed, pod_list};

use crate::clean::{all_done, codes, kept, source, steps};
use crate::node::{Node, Ran, mount_tmpfs};
use crate::sources::{HERE, flags};
use crate::{Test, Verdict, pod};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("clean_b08_a_device_by_the_operators_word", by_word),
    ("clean_b08_a_device_that_a_source_may_want", may_be_wanted),
    ("clean_b08_a_csi_device_by_its_unique_name", by_unique_name),
];

const HASH: &str = "33112ee14ee469c3eb52fe90322ec81dd404a0093d565a6d71ce77cbc8124e3b";
const GLOBAL: &str = "plugins/kubernetes.io/local-volume/mounts/pv";

/// A device that is mounted, with a file, and no pod on it.
fn device(node: &Node) -> Result<PathBuf> {
    let global = node.root.join(GLOBAL);
    std::fs::create_dir_all(&global)?;
    crate::clean::bind(&source(node, "disk")?, &global)?;
    Ok(global)
}

fn clean(node: &Node, more: &[&str]) -> Result<Ran> {
    node.run(&[&["clean", "--yes", "-o", "json"], more].concat())
}

/// The device stays whatever is asked; the text says why.
fn stays(node: &Node, more: &[&str], code: &str, says: &str) -> Result<()> {
    let plan = clean(node, more)?.expect(3)?.json()?;
    let global = node.root.join(GLOBAL);
    ensure!(steps(&plan).is_empty() && codes(&plan, &global) == [code], "{plan:#}");
    let reason = plan["kept"][0]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains(says), "{says:?} is not in {reason:?}");
    ensure!(node.mounts()?.contains(&global), "it was unmounted");
    kept(&global)
}

fn by_word(node: &mut Node) -> Result<Verdict> {
    let global = device(node)?;
    let absolute = global.to_str().context("not UTF-8")?;
    // Nobody can be asked, or only who knows what runs.
    stays(node, &[], "NotKnown", "--assume-gone")?;
    stays(node, &["--sources", "cgroups"], "NotKnown", "--assume-gone")?;
    stays(node, &["--assume-gone", "plugins/kubernetes.io/local-volume/mounts/another"], "NotKnown", "")?;
    stays(node, &["--assume-gone", "plugins"], "NotKnown", "")?;
    // A dry run plans it, and does nothing.
    let dry = node.run(&["clean", "-o", "json", "--assume-gone", GLOBAL])?.expect(0)?.json()?;
    ensure!(
        steps(&dry).iter().any(|(action, ..)| action == "UnmountDevice") && node.mounts()?.contains(&global),
        "{dry:#}"
    );
    all_done(&clean(node, &["--assume-gone", GLOBAL])?.expect(0)?)?;
    ensure!(node.mounts()?.is_empty());
    kept(&node.host().join("disk"))?;
    // The same by its whole path, with nobody but cgroups, and with a kubelet that does not answer.
    let dead = Https::start(|_| Reply::Hang);
    let mut dead: Vec<String> = flags(&dead);
    dead.extend(["--source-timeout".into(), "300ms".into()]);
    let dead: Vec<&str> = dead.iter().map(String::as_str).collect();
    for who in [["--sources", "cgroups"].as_slice(), &dead] {
        device(node)?;
        stays(node, who, "NotKnown", "")?;
        all_done(&clean(node, &[who, &["--assume-gone", absolute]].concat())?.expect(0)?)?;
        ensure!(node.mounts()?.is_empty());
        kept(&node.host().join("disk"))?;
    }
    // An agent would keep the word longer than it is true.
    node.run(&["agent", "--once", "--clean", "--assume-gone", GLOBAL])?.expect(2)?;
    Ok(Verdict::Passed)
}

fn may_be_wanted(node: &mut Node) -> Result<Verdict> {
    let global = device(node)?;
    let claim = "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n";
    let pods = node.pods();
    let manifests = ["--manifests", pods.to_str().context("not UTF-8")?, "--assume-gone", GLOBAL];
    // Its claim is not there yet: the volume may be any.
    node.apply("web.yaml", &pod("web", "[]", claim))?;
    stays(node, &manifests, "NotKnown", "waits")?;
    // Any pod may be in a file that cannot be read.
    node.apply("web.yaml", "kind: [")?;
    stays(node, &manifests, "NotKnown", "")?;
    // A pod that wants it, by an inline volume's folder of the same name.
    let disk = node.host().join("disk");
    let volume = format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv}}\nspec:\n  capacity: {{storage: 1Gi}}\n  \
         accessModes: [ReadWriteOnce]\n  local: {{path: {}}}\n  claimRef: {{namespace: test, name: pv}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: pv, namespace: test}}\nspec: {{volumeName: pv, \
         accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}\n",
        disk.display()
    );
    node.apply("web.yaml", &format!("{}---\n{volume}", pod("web", "[]", claim)))?;
    let plan = clean(node, &manifests)?.expect(3)?.json()?;
    ensure!(node.mounts()?.contains(&global) && steps(&plan).is_empty(), "{plan:#}");

    // A kubelet that has a pod which does not run yet.
    let kubelet = Https::start(|_| Reply::Answer(200, pod_list(&[listed(HERE, "shop", "web", "n1")])));
    let runtime = RuntimeServer::start(&node.folder().join("cri.sock"), State::default());
    let mut asked = flags(&kubelet);
    asked.extend(["--cri".into(), runtime.socket().display().to_string()]);
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let word = [asked.as_slice(), &["--assume-gone", GLOBAL]].concat();
    stays(node, &word, "NotKnown", "does not run yet")?;
    // It runs, so it has all that is its. Without the word, the device's folder is too young.
    runtime.set(State::default().with_pod(HERE, "web", true, true));
    stays(node, &asked, "TooRecent", "")?;
    all_done(&clean(node, &word)?.expect(0)?)?;
    ensure!(node.mounts()?.is_empty());
    kept(&disk)?;
    Ok(Verdict::Passed)
}

fn by_unique_name(node: &mut Node) -> Result<Verdict> {
    // The handle's SHA-256, as a kubelet names the folder.
    let folder = node.root.join("plugins/kubernetes.io/csi/no.such.driver").join(HASH);
    let global = folder.join("globalmount");
    std::fs::create_dir_all(&global)?;
    std::fs::write(
        folder.join("vol_data.json"),
        r#"{"driverName":"no.such.driver","volumeHandle":"h1","specVolID":"pv1"}"#,
    )?;
    mount_tmpfs(&global, "64k")?;
    std::fs::write(global.join("keep.txt"), "keep")?;
    let scan = node.scan()?.json()?;
    let name = scan["devices"][0]["uniqueName"].as_str().context("no unique name")?.to_owned();
    let plan = clean(node, &["--without-driver"])?.expect(3)?.json()?;
    ensure!(codes(&plan, &global) == ["NotKnown"] && node.mounts()?.contains(&global), "{plan:#}");
    kept(&global)?;
    // The word says that no pod wants it, not that its driver need not be asked.
    let plan = clean(node, &["--assume-gone", &name])?.expect(3)?.json()?;
    ensure!(codes(&plan, &global) == ["DriverMissing"] && node.mounts()?.contains(&global), "{plan:#}");
    let plan = clean(node, &["--assume-gone", &name, "--without-driver"])?.expect(3)?.json()?;
    ensure!(codes(&plan, &global) == ["NotUnstaged"] && node.mounts()?.is_empty(), "{plan:#}");
    Ok(Verdict::Passed)
}
