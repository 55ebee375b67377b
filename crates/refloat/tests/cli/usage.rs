//! Usage, configuration, exit codes, standard output and error.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::node::Node;
use crate::{Test, Verdict, pod};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("usage_mistakes_exit_with_2", mistakes),
    ("a_configuration_file_is_read_and_flags_win", configuration),
    ("a_configuration_that_is_no_file_is_refused", no_file),
    ("a_log_filter_that_is_none_is_refused", log_filter),
    ("names_cannot_move_the_cursor_or_turn_the_text", hidden_characters),
    ("a_closed_pipe_is_success", closed_pipe),
    ("colours_only_when_asked_for", colours),
    ("completion_and_version", completion),
    ("a_root_that_is_none_is_an_error", no_root),
];

fn mistakes(node: &mut Node) -> Result<Verdict> {
    for args in
        [&["scna"][..], &["scan", "--output", "xml"], &["explain"], &["node", "--workers", "0"], &["node"], &["record"]]
    {
        let ran = node.run(args)?.expect(2)?;
        ensure!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{args:?}: {ran:?}");
    }
    node.env.push(("REFLOAT_COLOR".into(), "blue".into()));
    node.run(&["version"])?.expect(2)?;
    Ok(Verdict::Passed)
}

fn configuration(node: &mut Node) -> Result<Verdict> {
    let file = node.folder().join("config.yaml");
    node.more = vec!["--config".into(), file.display().to_string()];
    std::fs::write(&file, "apiVersion: refloat.dev/v1\nkind: RefloatConfiguration\noutput: json\n")?;
    ensure!(node.run(&["scan"])?.expect(0)?.json()?["kind"] == "NodeVolumes");
    let ran = node.run(&["scan", "-o", "yaml"])?.expect(0)?;
    ensure!(ran.stdout.starts_with("apiVersion: refloat.dev/v1\n"), "flags win: {ran:?}");
    node.env.push(("REFLOAT_OUTPUT".into(), "yaml".into()));
    let ran = node.run(&["scan"])?.expect(0)?;
    ensure!(ran.stdout.starts_with("apiVersion: refloat.dev/v1\n"), "the environment wins: {ran:?}");
    for (text, part) in [
        ("apiVersion: refloat.dev/v1\nkind: RefloatConfiguration\nrootdir: /x\n", "rootdir"),
        ("apiVersion: refloat.dev/v2\nkind: RefloatConfiguration\n", "refloat.dev/v2"),
        ("apiVersion: refloat.dev/v1\nkind: Pod\n", "Pod"),
        ("{", "well-formed"),
    ] {
        std::fs::write(&file, text)?;
        let ran = node.run(&["scan"])?.expect(2)?;
        ensure!(ran.stderr.contains(part) && ran.stderr.contains("hint: "), "{text:?}: {ran:?}");
    }
    std::fs::remove_file(&file)?;
    node.run(&["scan"])?.expect(2)?;
    Ok(Verdict::Passed)
}

/// A FIFO has no writer and never will.
fn no_file(node: &mut Node) -> Result<Verdict> {
    let fifo = node.folder().join("fifo");
    crate::tool("mkfifo", &[fifo.as_ref()])?;
    for path in [fifo, node.folder().to_path_buf(), "/dev/zero".into()] {
        node.more = vec!["--config".into(), path.display().to_string()];
        let mut child = node.refloat(&["scan"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let end = Instant::now() + Duration::from_secs(10);
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
                None => {
                    child.kill()?;
                    child.wait()?;
                    anyhow::bail!("it hangs on {}", path.display());
                }
            }
        };
        let mut errors = String::new();
        child.stderr.take().expect("it was asked for").read_to_string(&mut errors)?;
        ensure!(status.code() == Some(2) && errors.contains("no regular file"), "{status:?}: {errors}");
    }
    Ok(Verdict::Passed)
}

fn log_filter(node: &mut Node) -> Result<Verdict> {
    for (filter, code) in [("%%%", 2), ("warn,refloat=loud", 2), ("", 0), ("debug", 0), ("warn,refloat_node=debug", 0)]
    {
        node.env = vec![("REFLOAT_LOG".into(), filter.into())];
        let ran = node.run(&["scan"])?.expect(code)?;
        ensure!((code == 2) == ran.stderr.contains("REFLOAT_LOG"), "{filter:?}: {ran:?}");
    }
    Ok(Verdict::Passed)
}

fn hidden_characters(node: &mut Node) -> Result<Verdict> {
    let uid = "u\u{202e}1\u{1b}[31m\u{200b}";
    let volume = node.root.join("pods").join(uid).join("volumes/kubernetes.io~nfs/v");
    std::fs::create_dir_all(&volume)?;
    std::fs::write(volume.join("file"), "x")?;
    let missing = format!("missing{uid}");
    for args in [
        &["scan"][..],
        &["scan", "-o", "wide"],
        &["explain", uid],
        &["explain", &missing],
        &["clean", uid],
        &["clean", &missing],
        &["clean", "--assume-gone", &missing],
        &["clean", "--assume-gone", uid, "--yes"],
        &["release"],
    ] {
        let ran = node.run(args)?;
        for text in [&ran.stdout, &ran.stderr] {
            ensure!(!text.contains(['\u{202e}', '\u{1b}', '\u{200b}']), "{args:?}: {ran:?}");
        }
        ensure!(format!("{}{}", ran.stdout, ran.stderr).contains("\\u{202e}"), "{args:?}: {ran:?}");
    }
    Ok(Verdict::Passed)
}

fn closed_pipe(node: &mut Node) -> Result<Verdict> {
    for args in [&["scan", "-o", "json"][..], &["completion", "bash"], &["doctor"], &["record", "list"], &["--help"]] {
        let mut child = node.refloat(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        drop(child.stdout.take());
        let mut errors = String::new();
        child.stderr.take().expect("it was asked for").read_to_string(&mut errors)?;
        let code = child.wait()?.code();
        // `doctor` may also find something missing before it is done.
        ensure!(code == Some(0) && errors.is_empty(), "{args:?}: {code:?}: {errors}");
    }
    Ok(Verdict::Passed)
}

fn colours(node: &mut Node) -> Result<Verdict> {
    node.apply("p.yaml", &pod("web", "[]", "  - {name: a, emptyDir: {}}\n"))?;
    node.once()?.expect(0)?;
    let plain = node.run(&["scan"])?.expect(0)?;
    ensure!(!plain.stdout.contains('\x1b') && plain.stdout.contains("test/web"), "{plain:?}");
    let colored = node.run(&["scan", "--color", "always"])?.expect(0)?;
    ensure!(colored.stdout.contains("\x1b[32mMounted"), "{colored:?}");
    let wide = node.run(&["scan", "-o", "wide"])?.expect(0)?;
    ensure!(wide.stdout.contains("PATH") && wide.stdout.contains("kubernetes.io~empty-dir/a"), "{wide:?}");
    Ok(Verdict::Passed)
}

fn completion(node: &mut Node) -> Result<Verdict> {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = node.run(&["completion", shell])?.expect(0)?;
        ensure!(ran.stdout.contains("explain"), "{shell}: {ran:?}");
    }
    let version = node.run(&["version", "-o", "json"])?.expect(0)?.json()?;
    ensure!(version["version"] == env!("CARGO_PKG_VERSION"), "{version}");
    ensure!(version["recordVersions"] == serde_json::json!(["volume.refloat.dev/v1"]), "{version}");
    Ok(Verdict::Passed)
}

fn no_root(node: &mut Node) -> Result<Verdict> {
    let pods = node.pods().display().to_string();
    node.root = node.folder().join("none");
    std::fs::write(node.folder().join("file"), "")?;
    for _ in 0..2 {
        for args in [&["scan"][..], &["explain", "x"], &["node", "--once", "--manifests", &pods]] {
            let ran = node.run(args)?.expect(1)?;
            let named = ran.stderr.contains(&node.root.display().to_string());
            ensure!(named && ran.stderr.contains("hint: ") && ran.stdout.is_empty(), "{args:?}: {ran:?}");
        }
        node.root = node.folder().join("file");
    }
    Ok(Verdict::Passed)
}
