//! The manifests of providers: `<folder>/<name>.json`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use refloat_record::PluginName;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{API_VERSION, Provider, ProviderCall, Reached};
use crate::Problem;

const KIND: &str = "Provider";
const EXTENSION: &str = ".json";

/// The largest manifest, in bytes.
const MAX_MANIFEST: u64 = 64 << 10;

/// The longest name, in bytes.
const MAX_NAME: usize = 63;

/// Seconds that a call may take if the manifest does not say, and at most.
const DEADLINE: u64 = 5;
const MAX_DEADLINE: u64 = 60;

/// The fields of a manifest. Those that are not known are passed over: a later program may know them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    kind: String,
    api_versions: Vec<String>,
    #[serde(default)]
    exec: Vec<String>,
    #[serde(default)]
    socket: Option<PathBuf>,
    #[serde(default)]
    plugins: Vec<String>,
    #[serde(default)]
    calls: Option<Vec<String>>,
    #[serde(default)]
    deadline_seconds: Option<u64>,
}

/// All manifests of a folder, by name, and what is wrong with the others.
pub(super) fn read_all(folder: &Path) -> (Vec<Arc<Provider>>, Vec<Problem>) {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            let message = format!("the folder of providers {} cannot be read: {error}", folder.display());
            return (vec![], vec![bad(message)]);
        }
    };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let (mut list, mut problems) = (vec![], vec![]);
    for file in names {
        let Some(name) = file.to_str().and_then(|file| file.strip_suffix(EXTENSION)) else { continue };
        if name.starts_with('.') {
            continue;
        }
        match read(folder, name) {
            Ok(provider) => list.push(Arc::new(provider)),
            Err(Wrong::Version(found)) => problems.push(Problem::new(
                "ProviderVersionUnknown",
                format!("the provider {name:?} speaks {found}, and this program speaks {API_VERSION}"),
                "Use a provider that speaks this version. It is not asked until then, and no volume needs it.",
            )),
            Err(Wrong::Manifest(why)) => {
                problems.push(bad(format!("the manifest {} {why}", folder.join(&file).display())));
            }
        }
    }
    (list, problems)
}

fn bad(message: String) -> Problem {
    Problem::new(
        "ProviderManifestBad",
        message,
        "Correct it as docs/providers.md says. The provider is not asked until then, and no volume needs it.",
    )
}

/// Why a manifest cannot be used.
#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    Version(String),
    Manifest(String),
}

fn read(folder: &Path, name: &str) -> Result<Provider, Wrong> {
    let wrong = |why: String| Wrong::Manifest(why);
    if name.len() > MAX_NAME || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Err(wrong(format!("is not named by at most {MAX_NAME} letters, digits and .-_")));
    }
    let text =
        read_file(&folder.join(format!("{name}{EXTENSION}"))).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| wrong(format!("is not as it must be: {e}")))?;
    if manifest.kind != KIND {
        return Err(wrong(format!("has the kind {:?}, which must be {KIND:?}", manifest.kind)));
    }
    if !manifest.api_versions.iter().any(|version| version == API_VERSION) {
        return Err(Wrong::Version(format!("{:?}", manifest.api_versions)));
    }
    let seconds = manifest.deadline_seconds.unwrap_or(DEADLINE);
    if !(1..=MAX_DEADLINE).contains(&seconds) {
        return Err(wrong(format!("has a deadlineSeconds of {seconds}, which must be 1 to {MAX_DEADLINE}")));
    }
    if manifest.plugins.is_empty() {
        return Err(wrong("names no plugins; [\"*\"] is for all".into()));
    }
    let all = manifest.plugins.iter().any(|plugin| plugin == "*");
    if let Some(no_name) = manifest.plugins.iter().find(|plugin| *plugin != "*" && PluginName::new(*plugin).is_err()) {
        return Err(wrong(format!("has the plugin {no_name:?}, which is no plugin's name")));
    }
    let reached = match (manifest.exec.split_first(), manifest.socket) {
        (Some((program, first)), None) => Reached::Program(folder.join(program), first.to_vec()),
        (None, Some(socket)) => Reached::Socket(folder.join(socket)),
        _ => return Err(wrong("must have either exec or socket".into())),
    };
    let wanted =
        |call: &ProviderCall| manifest.calls.as_ref().is_none_or(|calls| calls.iter().any(|c| c == call.name()));
    let calls = ProviderCall::ALL.into_iter().filter(wanted).collect();
    let identity = identity(&text, &reached);
    let plugins = if all { BTreeSet::new() } else { manifest.plugins.into_iter().collect() };
    Ok(Provider { name: name.to_owned(), plugins, calls, deadline: Duration::from_secs(seconds), reached, identity })
}

/// The bytes of a regular file. Anything else may have no end, or wait for a writer.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_MANIFEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_MANIFEST {
        return Err(std::io::Error::other(format!("it has more than {MAX_MANIFEST} bytes")));
    }
    Ok(bytes)
}

/// A short form of the manifest, and of which file the program or socket is.
fn identity(manifest: &[u8], reached: &Reached) -> u64 {
    let mut hash = Sha256::new();
    hash.update(manifest);
    let (Reached::Program(path, _) | Reached::Socket(path)) = reached;
    if let Ok(seen) = std::fs::metadata(path) {
        for part in [seen.dev(), seen.ino(), seen.ctime().cast_unsigned(), seen.ctime_nsec().cast_unsigned()] {
            hash.update(part.to_le_bytes());
        }
    }
    let hash = hash.finalize();
    u64::from_le_bytes(hash[..8].try_into().expect("a SHA-256 has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Result<Provider, Wrong> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("one.json"), text).unwrap();
        read(folder.path(), "one")
    }

    #[test]
    fn a_manifest_says_whom_to_ask_about_what() {
        let provider = told(
            r#"{"kind": "Provider", "apiVersions": ["provider.refloat.dev/v9", "provider.refloat.dev/v1"], "later": 1,
                "exec": ["./one", "x"], "plugins": ["kubernetes.io/nfs"], "calls": ["setUp", "tomorrow"], "deadlineSeconds": 7}"#,
        )
        .unwrap();
        let plugin = |name: &str| PluginName::new(name).unwrap();
        assert!(provider.is_for(&plugin("kubernetes.io/nfs")) && !provider.is_for(&plugin("kubernetes.io/csi")));
        assert!(provider.has(ProviderCall::SetUp) && !provider.has(ProviderCall::Check));
        assert_eq!(provider.deadline, Duration::from_secs(7));
        let all = told(
            r#"{"kind": "Provider", "apiVersions": ["provider.refloat.dev/v1"], "socket": "/s", "plugins": ["*"]}"#,
        );
        let all = all.unwrap();
        assert!(all.is_for(&plugin("acme/x")) && ProviderCall::ALL.into_iter().all(|call| all.has(call)));
        assert_eq!((all.reached, all.deadline), (Reached::Socket("/s".into()), Duration::from_secs(DEADLINE)));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let whole =
            r#"{"kind": "Provider", "apiVersions": ["provider.refloat.dev/v1"], "exec": ["x"], "plugins": ["*"]}"#;
        told(whole).unwrap();
        for (from, to, part) in [
            ("\"Provider\"", "\"Other\"", "kind"),
            ("\"exec\": [\"x\"]", "\"exec\": []", "exec or socket"),
            ("\"exec\": [\"x\"]", "\"exec\": [\"x\"], \"socket\": \"y\"", "exec or socket"),
            ("[\"*\"]", "[]", "no plugins"),
            ("[\"*\"]", "[\"a\\u0000\"]", "no plugin's name"),
            ("\"exec\"", "\"deadlineSeconds\": 0, \"exec\"", "deadlineSeconds"),
            ("\"exec\"", "\"deadlineSeconds\": 61, \"exec\"", "deadlineSeconds"),
            ("{", "[", "as it must be"),
        ] {
            match told(&whole.replacen(from, to, 1)) {
                Err(Wrong::Manifest(why)) => assert!(why.contains(part), "{to}: {why}"),
                other => panic!("{to}: {other:?}"),
            }
        }
        let newer = told(&whole.replace("/v1", "/v2")).unwrap_err();
        assert_eq!(newer, Wrong::Version(r#"["provider.refloat.dev/v2"]"#.into()));
    }

    #[test]
    fn only_regular_files_of_that_name_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a program"), "x").unwrap();
        std::fs::write(path(".hidden.json"), "x").unwrap();
        std::fs::create_dir(path("folder.json")).unwrap();
        std::fs::write(path("no name.json"), "{}").unwrap();
        std::fs::write(path("big.json"), vec![b' '; 70_000]).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe.json"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        let (list, problems) = read_all(folder.path());
        assert!(list.is_empty());
        let codes: Vec<_> = problems.iter().map(|problem| problem.code).collect();
        assert_eq!(codes, ["ProviderManifestBad"; 4], "{problems:?}");
        let (_, problems) = read_all(&path("nowhere"));
        assert_eq!(problems[0].code, "ProviderManifestBad");
    }
}
