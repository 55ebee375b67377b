//! Providers outside the repository, which are real programs: the sample in `examples/`, and ones that do not do their part.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use refloat_test_support::{MOUNT_NFS, write_tool};
use serde_json::{Value, json};

use crate::clean::clean;
use crate::life::{Manager, wait};
use crate::node::{Node, Ran};
use crate::{Test, Verdict, pod};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("providers_the_sample_remembers_an_nfs_export", sample),
    ("providers_are_asked_once_and_told_the_end", life),
    ("providers_of_a_device", device),
    ("providers_that_fail_harm_no_volume", faults),
    ("providers_that_hang_are_killed_and_hold_up_nobody", hangs),
    ("providers_a_manager_killed_meanwhile_asks_again", killed),
    ("providers_secrets_are_not_kept", secrets),
    ("providers_come_and_go", comes),
];

fn folder(node: &Node) -> PathBuf {
    node.folder().join("providers")
}

/// A provider that writes down each request, and then does this.
fn install(node: &Node, name: &str, plugin: &str, more: &str, body: &str) -> Result<()> {
    std::fs::create_dir_all(folder(node))?;
    let log = node.folder().join(format!("{name}.requests"));
    let script = format!(
        "#!/bin/sh\nanswer() {{ printf '{{\"apiVersion\":\"provider.refloat.dev/v1\",\"status\":\"%s\"%s}}\\n' \"$1\" \"${{2:-}}\"; }}\n\
         request=$(cat); printf '%s\\n' \"$request\" >> {}\n{body}\n",
        log.display()
    );
    write_tool(&folder(node), (name, &script))?;
    manifest(node, name, plugin, more)
}

fn manifest(node: &Node, name: &str, plugin: &str, more: &str) -> Result<()> {
    let text = format!(
        r#"{{"kind":"Provider","apiVersions":["provider.refloat.dev/v1"],"exec":["./{name}"],"plugins":["{plugin}"]{more}}}"#
    );
    let new = folder(node).join(format!(".{name}.new"));
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(new, folder(node).join(format!("{name}.json")))?)
}

/// What a provider was asked since the last time: call and request.
fn requests(node: &Node, name: &str) -> Result<Vec<(String, Value)>> {
    let log = node.folder().join(format!("{name}.requests"));
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    std::fs::write(&log, "")?;
    let requests = text.lines().map(|line| {
        let request: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        Ok((request["call"].as_str().context("no call")?.to_owned(), request))
    });
    requests.collect()
}

fn called(requests: &[(String, Value)]) -> Vec<&str> {
    requests.iter().map(|(call, _)| call.as_str()).collect()
}

fn once(node: &Node) -> Result<Ran> {
    let (folder, pods) = (folder(node), node.pods());
    let (folder, pods) = (folder.to_str().context("no text")?, pods.to_str().context("no text")?);
    node.run(&["node", "--once", "-o", "json", "--workers", "1", "--manifests", pods, "--provider-dir", folder])
}

fn start(node: &Node, more: &[&str]) -> Result<Manager> {
    let folder = folder(node);
    Manager::start_with(node, &[&["--provider-dir", folder.to_str().context("no text")?], more].concat())
}

const EMPTY_DIR: &str = "  - {name: v, emptyDir: {medium: Memory}}\n";

fn apply(node: &Node, name: &str, volumes: &str) -> Result<()> {
    let text =
        pod(name, "[]", volumes).replace(&format!("{{name: {name}, "), &format!("{{name: {name}, uid: {name}, "));
    node.apply(&format!("{name}.yaml"), &text)
}

fn info(node: &Node, pod: &str, provider: &str) -> Result<Value> {
    let scan = node.scan()?.json()?;
    Ok(crate::volume(&scan, pod, "v")?["providers"][provider]["providerInfo"].clone())
}

fn code(ran: &Ran, code: &str) -> Result<()> {
    let shown = ran.json()?;
    let mut problems = shown["problems"].as_array().into_iter().flatten();
    ensure!(problems.any(|problem| problem["code"] == code), "{code} is not told: {ran:?}");
    Ok(())
}

/// The very files of `examples/`. Where the kernel has no NFS, what it would tell of an export is in a file.
fn sample(node: &mut Node) -> Result<Verdict> {
    let tools = node.folder().join("tools");
    std::fs::create_dir(&tools)?;
    write_tool(&tools, MOUNT_NFS)?;
    let export = node.host().join("export");
    std::fs::create_dir(&export)?;
    let source = format!("files.example:{}", export.display());
    rustix::mount::mount(&source, &export, "tmpfs", rustix::mount::MountFlags::empty(), None)?;
    let seen = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(&export)?);
    let device = format!("{}:{}", rustix::fs::major(seen), rustix::fs::minor(seen));
    let kernel = node.folder().join("nfsfs");
    let export_is = |fsid: &str| {
        let head = "NV SERVER   PORT DEV          FSID                              FSC\n";
        std::fs::write(&kernel, format!("{head}v4 0a000009  801 0:1 other:0 no\nv4 7f000001  801 {device} {fsid} no\n"))
    };
    let path = std::env::var("PATH").unwrap_or_default();
    node.env = vec![
        ("PATH".into(), format!("{}:{path}", tools.display())),
        ("NFS_EXPORT_VOLUMES".into(), kernel.display().to_string()),
    ];
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/providers");
    std::fs::create_dir(folder(node))?;
    for file in ["nfs-export", "nfs-export.json"] {
        std::fs::copy(examples.join(file), folder(node).join(file))?;
    }
    export_is("1d3c:0")?;
    apply(node, "u1", &format!("  - {{name: v, nfs: {{server: files.example, path: {}}}}}\n", export.display()))?;
    once(node)?.expect(0)?;
    let remembered = json!({ "server": "7f000001", "fsid": "1d3c:0" });
    ensure!(info(node, "u1", "nfs-export")? == remembered, "{:#}", node.scan()?.json()?);
    let explained = node.run(&["explain", "u1/v"])?.stdout;
    ensure!(explained.contains(r#"provider nfs-export: {"server":"7f000001","fsid":"1d3c:0"}"#), "{explained}");
    let record = node.run(&["record", "show", "u1/v"])?.json()?;
    ensure!(record["providers"]["nfs-export"]["providerInfo"] == remembered, "{record:#}");

    // The same file system after a restart, and another one.
    once(node)?.expect(0)?;
    export_is("ffff:0")?;
    let ran = once(node)?.expect(3)?;
    code(&ran, "ProviderRefused")?;
    ensure!(ran.stdout.contains("ffff:0, and it was 1d3c:0"), "{ran:?}");
    ensure!(info(node, "u1", "nfs-export")? == remembered && node.mounts()?.len() == 1);
    // What the kernel knows nothing of is none of its.
    std::fs::write(&kernel, "")?;
    apply(node, "u2", &format!("  - {{name: v, nfs: {{server: files.example, path: {}}}}}\n", export.display()))?;
    once(node)?;
    ensure!(info(node, "u2", "nfs-export")?.is_null() && node.mounts()?.len() == 2);
    node.delete_all()?;
    once(node)?.expect(0)?;
    ensure!(node.mounts()?.is_empty());
    Ok(Verdict::Passed)
}

const REMEMBERS: &str = r#"case $1 in
setUp|mountDevice) answer Success ',"providerInfo":{"id":"i1","n":[1.0,null]}';;
*) answer Success;; esac"#;

fn life(node: &mut Node) -> Result<Verdict> {
    let plugin = "kubernetes.io/empty-dir";
    install(node, "one", plugin, "", REMEMBERS)?;
    // Another provider's words are its own, and who has no use for the volume is not asked again.
    install(node, "quiet", "*", "", "answer 'Not supported'")?;
    install(node, "other", "kubernetes.io/nfs", "", REMEMBERS)?;
    apply(node, "u1", EMPTY_DIR)?;
    once(node)?.expect(0)?;
    let asked = requests(node, "one")?;
    ensure!(called(&asked) == ["setUp"], "{asked:?}");
    let request = &asked[0].1;
    let path = node.root.join("pods/u1/volumes/kubernetes.io~empty-dir/v");
    ensure!(request["path"] == path.to_str().context("no text")?, "{request:#}");
    ensure!(request["record"]["mount"]["mountID"].is_u64() || request["record"]["mount"].is_object(), "{request:#}");
    ensure!(request["record"]["volume"]["emptyDir"]["medium"] == "Memory" && request["providerInfo"].is_null());
    let remembered = json!({ "id": "i1", "n": [1.0, null] });
    ensure!(info(node, "u1", "one")? == remembered && info(node, "u1", "quiet")?.is_null());
    ensure!(requests(node, "other")?.is_empty() && called(&requests(node, "quiet")?) == ["setUp"]);

    // After a restart it is asked once, with what it said and nothing of another's.
    once(node)?.expect(0)?;
    let asked = requests(node, "one")?;
    ensure!(called(&asked) == ["reconnect"] && asked[0].1["providerInfo"] == remembered, "{asked:?}");
    ensure!(asked[0].1["record"].get("providers").is_none() && requests(node, "quiet")?.is_empty());
    // A volume that had to be set up anew is another mount.
    crate::tool("umount", &[path.as_os_str()])?;
    once(node)?.expect(0)?;
    let asked = requests(node, "one")?;
    ensure!(called(&asked) == ["setUp"] && asked[0].1["providerInfo"] == remembered, "{asked:?}");
    node.delete("u1.yaml")?;
    once(node)?.expect(0)?;
    let asked = requests(node, "one")?;
    ensure!(called(&asked).last() == Some(&"tearDown"), "{asked:?}");
    ensure!(asked.last().is_some_and(|(_, request)| request["providerInfo"] == remembered));
    // Also by `clean`.
    apply(node, "u1", EMPTY_DIR)?;
    once(node)?.expect(0)?;
    requests(node, "one")?;
    node.delete("u1.yaml")?;
    let providers = folder(node);
    let providers = providers.to_str().context("no text")?;
    let ran = clean(node, &["--yes", "--delete-ephemeral", "--provider-dir", providers])?;
    ensure!(called(&requests(node, "one")?) == ["tearDown"], "{ran:?}");
    ensure!(node.mounts()?.is_empty());
    Ok(Verdict::Passed)
}

/// A device is asked about beside its pods' volumes.
fn device(node: &mut Node) -> Result<Verdict> {
    if !crate::is_real_root() || std::fs::metadata("/dev/loop-control").is_err() {
        return Ok(Verdict::Skipped("loop devices need root in the machine's own user namespace".into()));
    }
    let image = node.host().join("disk");
    std::fs::File::create(&image)?.set_len(8 << 20)?;
    crate::tool("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image.as_os_str()])?;
    let device = node.attach_loop(&image)?;
    install(node, "one", "kubernetes.io/local-volume", "", REMEMBERS)?;
    node.apply(
        "pv.yaml",
        &format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv}}\nspec:\n  capacity: {{storage: 8Mi}}\n  \
             accessModes: [ReadWriteOnce]\n  claimRef: {{namespace: test, name: pv}}\n  local: {{path: {}, fsType: ext4}}\n---\n\
             apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: pv, namespace: test}}\nspec:\n  \
             accessModes: [ReadWriteOnce]\n  volumeName: pv\n  resources: {{requests: {{storage: 8Mi}}}}\n",
            device.display()
        ),
    )?;
    let claim = "  - {name: v, persistentVolumeClaim: {claimName: pv}}\n";
    apply(node, "u1", claim)?;
    apply(node, "u2", claim)?;
    once(node)?.expect(0)?;
    let asked = requests(node, "one")?;
    let mut calls = called(&asked);
    calls.sort_unstable();
    ensure!(calls == ["mountDevice", "setUp", "setUp"], "{asked:?}");
    let scan = node.scan()?.json()?;
    ensure!(scan["devices"][0]["providers"]["one"]["providerInfo"]["id"] == "i1", "{scan:#}");
    once(node)?.expect(0)?;
    ensure!(called(&requests(node, "one")?) == ["reconnect"; 3]);
    node.delete("u1.yaml")?;
    once(node)?.expect(0)?;
    let asked = requests(node, "one")?;
    ensure!(called(&asked).iter().filter(|call| **call == "tearDown").count() == 1, "{asked:?}");
    node.delete("u2.yaml")?;
    once(node)?.expect(0)?;
    let asked = requests(node, "one")?;
    // It is asked about the device, which is left for a moment, after each start.
    let calls = called(&asked);
    ensure!(calls.last() == Some(&"unmountDevice") && calls.contains(&"tearDown"), "{calls:?}");
    ensure!(node.mounts()?.is_empty());
    Ok(Verdict::Passed)
}

/// Whatever a provider does, the volume is there, goes, and the problem is told with its name.
fn faults(node: &mut Node) -> Result<Verdict> {
    let large = r#"answer Success ",\"providerInfo\":{\"a\":\"$(head -c 20000 /dev/zero | tr '\0' x)\"}""#;
    for (body, word) in [
        ("echo nothing of use", "ProviderFailed"),
        ("head -c 5000000 /dev/zero | tr '\\0' x", "ProviderFailed"),
        ("exit 0", "ProviderFailed"),
        ("kill -9 $$", "ProviderFailed"),
        ("answer Success; exit 3", "ProviderFailed"),
        (large, "ProviderFailed"),
        (r#"echo '{"apiVersion":"provider.refloat.dev/v7","status":"Success"}'"#, "ProviderVersionUnknown"),
        (r#"answer Failure ',"message":"the portal is away"'"#, "ProviderRefused"),
    ] {
        install(node, "bad", "kubernetes.io/empty-dir", "", body)?;
        install(node, "good", "kubernetes.io/empty-dir", "", REMEMBERS)?;
        apply(node, "u1", EMPTY_DIR)?;
        let ran = once(node)?.expect(3).with_context(|| body.to_owned())?;
        code(&ran, word).with_context(|| body.to_owned())?;
        ensure!(ran.stdout.contains("bad") && ran.stdout.len() < 20_000, "{body}: {ran:?}");
        ensure!(node.mounts()?.len() == 1 && info(node, "u1", "good")?["id"] == "i1", "{body}: {ran:?}");
        ensure!(info(node, "u1", "bad")?.is_null());
        node.delete("u1.yaml")?;
        once(node)?.expect(0).with_context(|| body.to_owned())?;
        ensure!(node.mounts()?.is_empty(), "{body}");
    }
    // Manifests that cannot be used, and programs that are not there.
    manifest(node, "bad", "kubernetes.io/empty-dir", r#","exec":["./nowhere"]"#)?;
    std::fs::write(folder(node).join("worse.json"), "{\"kind\":")?;
    std::fs::write(
        folder(node).join("newer.json"),
        r#"{"kind":"Provider","apiVersions":["provider.refloat.dev/v7"],"exec":["x"],"plugins":["*"]}"#,
    )?;
    std::fs::remove_file(folder(node).join("bad"))?;
    manifest(node, "bad", "kubernetes.io/empty-dir", "")?;
    apply(node, "u1", EMPTY_DIR)?;
    let ran = once(node)?.expect(3)?;
    for word in ["ProviderMissing", "ProviderManifestBad", "ProviderVersionUnknown"] {
        code(&ran, word)?;
    }
    ensure!(node.mounts()?.len() == 1 && info(node, "u1", "good")?["id"] == "i1", "{ran:?}");
    // Its words stay when it vanishes, and the volume goes without it.
    std::fs::rename(folder(node), folder(node).with_file_name("taken-away"))?;
    let ran = once(node)?.expect(3)?;
    code(&ran, "ProviderManifestBad")?;
    ensure!(info(node, "u1", "good")?["id"] == "i1");
    node.delete("u1.yaml")?;
    once(node)?;
    ensure!(node.mounts()?.is_empty());
    Ok(Verdict::Passed)
}

/// With children. Other volumes are set up and torn down meanwhile, and so is its own.
fn hangs(node: &mut Node) -> Result<Verdict> {
    let pids = node.folder().join("pids");
    let hang = format!("sleep 1000 & echo $$ $! >> {}; wait", pids.display());
    install(node, "slow", "kubernetes.io/empty-dir", r#","deadlineSeconds":2"#, &hang)?;
    install(node, "good", "kubernetes.io/empty-dir", "", REMEMBERS)?;
    let running = start(node, &[])?;
    let begun = Instant::now();
    for name in ["u1", "u2", "u3"] {
        apply(node, name, EMPTY_DIR)?;
    }
    wait("all volumes", || Ok(node.mounts()?.len() == 3))?;
    ensure!(begun.elapsed() < Duration::from_secs(2), "they waited: {:?}", begun.elapsed());
    wait("the other provider", || {
        let all = ["u1", "u2", "u3"].map(|name| info(node, name, "good").is_ok_and(|info| info["id"] == "i1"));
        Ok(all == [true; 3])
    })?;
    wait("the hanging one", || Ok(pids.try_exists()?))?;
    node.delete_all()?;
    wait("the end", || Ok(node.mounts()?.is_empty()))?;
    // It was told nothing, since it hung; and nothing of it is left.
    let all = std::fs::read_to_string(&pids)?;
    let lives = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.rsplit(')').next().is_some_and(|s| s.trim_start().starts_with(['Z', 'X']))
    };
    wait("the end of its children", || Ok(!all.split_whitespace().any(lives)))?;
    ensure!(running.stop(rustix::process::Signal::TERM)? == Some(0));
    Ok(Verdict::Passed)
}

/// What is not in the record was not heard: it is asked again.
fn killed(node: &mut Node) -> Result<Verdict> {
    let (at, go) = (node.folder().join("at"), node.folder().join("go"));
    let waits = format!("[ -e {} ] || {{ : > {}; sleep 1; }}\n{REMEMBERS}", go.display(), at.display());
    install(node, "one", "kubernetes.io/empty-dir", "", &waits)?;
    let running = start(node, &[])?;
    apply(node, "u1", EMPTY_DIR)?;
    wait("the provider", || Ok(at.try_exists()?))?;
    ensure!(node.mounts()?.len() == 1, "the volume is there before anybody is asked");
    running.stop(rustix::process::Signal::KILL)?;
    std::fs::write(&go, "")?;
    std::thread::sleep(Duration::from_millis(1200));
    ensure!(info(node, "u1", "one")?.is_null());
    once(node)?.expect(0)?;
    let asked = requests(node, "one")?;
    ensure!(called(&asked) == ["setUp", "setUp"], "{asked:?}");
    ensure!(info(node, "u1", "one")?["id"] == "i1");
    node.delete("u1.yaml")?;
    once(node)?.expect(0)?;
    Ok(Verdict::Passed)
}

fn secrets(node: &mut Node) -> Result<Verdict> {
    // It reads the secret that it was not told.
    let leak = r#"path=${request#*\"path\":\"}; path=${path%%\"*}; value=$(cat "$path/key")
if [ -e "$0.refuse" ]; then answer Failure ",\"message\":\"no $value here\""
else answer Success ",\"providerInfo\":{\"a\":[\"x $value\"]}"; fi"#;
    install(node, "leak", "kubernetes.io/secret", "", leak)?;
    node.apply("s.yaml", &crate::secret("s", "hunter2-secret"))?;
    node.env = vec![("REFLOAT_LOG".into(), "trace".into())];
    apply(node, "u1", "  - {name: v, secret: {secretName: s}}\n")?;
    let ran = once(node)?.expect(0)?;
    let mut said = ran.stdout + &ran.stderr;
    ensure!(said.contains("ProviderInfoDropped"), "{said}");
    ensure!(info(node, "u1", "leak")?.is_null());
    std::fs::write(folder(node).join("leak.refuse"), "")?;
    apply(node, "u2", "  - {name: v, secret: {secretName: s}}\n")?;
    let ran = once(node)?.expect(3)?;
    ensure!(ran.stdout.contains("no *** here"), "{ran:?}");
    said += &(ran.stdout + &ran.stderr);
    for entry in ["volumes", "pods"] {
        for file in std::fs::read_dir(node.state.join(entry))? {
            said += &std::fs::read_to_string(file?.path())?;
        }
    }
    said += &node.scan()?.stdout;
    let told = requests(node, "leak")?;
    said.extend(told.iter().map(|(_, request)| request.to_string()));
    ensure!(!said.contains("hunter2"), "a secret is shown");
    Ok(Verdict::Passed)
}

/// A provider that comes to a running manager is asked about what is there already; one that is another program than before
/// is asked to reconnect.
fn comes(node: &mut Node) -> Result<Verdict> {
    apply(node, "u1", EMPTY_DIR)?;
    let running = start(node, &[])?;
    wait("the volume", || Ok(node.mounts()?.len() == 1))?;
    install(node, "one", "kubernetes.io/empty-dir", "", REMEMBERS)?;
    let is_told = || Ok(info(node, "u1", "one").is_ok_and(|info| info["id"] == "i1"));
    wait("its words", is_told)?;
    ensure!(called(&requests(node, "one")?) == ["setUp"]);
    install(node, "one", "kubernetes.io/empty-dir", r#","deadlineSeconds":9"#, REMEMBERS)?;
    let mut asked = vec![];
    wait("another look", || {
        asked.extend(requests(node, "one")?);
        Ok(called(&asked).contains(&"reconnect"))
    })?;
    std::fs::remove_file(folder(node).join("one.json"))?;
    node.delete("u1.yaml")?;
    wait("the end", || Ok(node.mounts()?.is_empty()))?;
    ensure!(running.stop(rustix::process::Signal::TERM)? == Some(0));
    ensure!(!called(&requests(node, "one")?).contains(&"tearDown"));
    Ok(Verdict::Passed)
}
