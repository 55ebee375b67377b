//! Names of record files.

use sha2::{Digest as _, Sha256};

use crate::{DriverName, PluginName, PodUid, RecordKey, SpecName, UniqueVolumeName, VolumeMode};

/// How many bytes of each part a file name shows.
const SHOWN: usize = 64;
/// Stands between the parts; replaced where a part holds it.
const SEPARATOR: char = '+';
const SUFFIX: &str = ".json";

/// The file name for a record: readable in its parts, unique by a hash, at most 255 bytes whatever the names.
///
/// `<uid>+<escaped plugin>+<spec name>+<fs|block>+<hash>.json` for a pod's volume, `<unique name>+<hash>.json` for a
/// device, `<uid>+<hash>.json` for a checkpoint, `<name>+<hash>.json` for a driver. What is long is cut and what is unusual replaced; the hash (128
/// bits of SHA-256 over the whole key) keeps distinct keys apart.
pub fn file_name(key: &RecordKey) -> String {
    let mut name = String::with_capacity(192);
    for part in parts(key) {
        push_shown(&mut name, &part);
        name.push(SEPARATOR);
    }
    push_hash(&mut name, key);
    name.push_str(SUFFIX);
    name
}

/// The key that a file name tells: only if no part was cut or replaced, which the hash proves.
pub fn key_of_file_name(name: &str) -> Option<RecordKey> {
    let mut parts: Vec<&str> = name.strip_suffix(SUFFIX)?.split(SEPARATOR).collect();
    parts.pop()?;
    let candidates = match parts[..] {
        [one] => vec![
            UniqueVolumeName::new(one.replace('~', "/")).ok().map(RecordKey::DeviceMount),
            PodUid::new(one).ok().map(RecordKey::PodCheckpoint),
            DriverName::new(one).ok().map(RecordKey::Driver),
        ],
        [uid, plugin, spec, mode] => vec![pod_volume(uid, plugin, spec, mode)],
        _ => vec![],
    };
    candidates.into_iter().flatten().find(|key| file_name(key) == name)
}

fn pod_volume(uid: &str, plugin: &str, spec: &str, mode: &str) -> Option<RecordKey> {
    Some(RecordKey::PodVolume {
        pod: PodUid::new(uid).ok()?,
        plugin: PluginName::from_escaped(plugin).ok()?,
        spec_name: SpecName::new(spec).ok()?,
        mode: match mode {
            "fs" => VolumeMode::Filesystem,
            "block" => VolumeMode::Block,
            _ => return None,
        },
    })
}

fn mode_word(mode: VolumeMode) -> &'static str {
    match mode {
        VolumeMode::Filesystem => "fs",
        VolumeMode::Block => "block",
    }
}

/// The readable parts, escaped as folder names are.
fn parts(key: &RecordKey) -> Vec<String> {
    match key {
        RecordKey::DeviceMount(name) => vec![name.as_str().replace('/', "~")],
        RecordKey::PodVolume { pod, plugin, spec_name, mode } => {
            vec![pod.to_string(), plugin.escaped(), spec_name.to_string(), mode_word(*mode).to_owned()]
        }
        RecordKey::PodCheckpoint(pod) => vec![pod.to_string()],
        RecordKey::Driver(name) => vec![name.to_string()],
    }
}

fn push_shown(name: &mut String, part: &str) {
    // Plain characters only, so that the name is short in bytes and harmless in a shell or a terminal.
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | '-') { c } else { '_' };
    let start = name.len();
    name.extend(part.chars().take(SHOWN).map(plain));
    // A name that starts with a dot is hidden, and temporary files do.
    if start == 0 && name.starts_with('.') {
        name.replace_range(0..1, "_");
    }
}

fn push_hash(name: &mut String, key: &RecordKey) {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    add(key.kind().name());
    match key {
        RecordKey::DeviceMount(unique_name) => add(unique_name.as_str()),
        RecordKey::PodVolume { pod, plugin, spec_name, mode } => {
            add(pod.as_str());
            add(plugin.as_str());
            add(spec_name.as_str());
            add(mode_word(*mode));
        }
        RecordKey::PodCheckpoint(pod) => add(pod.as_str()),
        RecordKey::Driver(name) => add(name.as_str()),
    }
    for byte in &hash.finalize()[..16] {
        for digit in [byte >> 4, byte & 15] {
            name.push(char::from_digit(u32::from(digit), 16).expect("a nibble"));
        }
    }
}
