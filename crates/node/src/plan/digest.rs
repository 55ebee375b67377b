//! A short form of what a volume is to be, to see that it changed.

use refloat_volume::SubPathSpec;
use sha2::{Digest, Sha256};

use crate::DesiredVolume;

/// The first 64 bits of a SHA-256 over everything of the volume that SetUp makes true: its content, group, names, options,
/// subPaths and the objects themselves. Equal for equal wishes; different for different ones but for a chance of one in
/// 2⁶⁴. It is kept in memory only, so that no content can be guessed from what is written down.
pub fn digest(volume: &DesiredVolume) -> u64 {
    let mut hash = Sha256::new();
    // Each part is preceded by its length, so that no two lists run together into the same bytes.
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for name in &volume.outer_names {
        part(name.as_str().as_bytes());
    }
    part(b"group");
    if let Some(group) = &volume.fs_group {
        part(format!("{group:?}").as_bytes());
    }
    part(b"spec");
    part(volume.spec.source.volume().raw.get().as_bytes());
    if let Some(persistent) = volume.spec.source.persistent_volume() {
        part(persistent.raw.get().as_bytes());
    }
    part(&[u8::from(volume.spec.read_only)]);
    for option in &volume.spec.mount_options {
        part(option.as_bytes());
    }
    part(b"subPaths");
    for SubPathSpec { container, index, sub_path, read_only } in &volume.sub_paths {
        part(container.as_bytes());
        part(&index.to_le_bytes());
        part(sub_path.as_bytes());
        part(&[u8::from(*read_only)]);
    }
    part(b"content");
    for (path, file) in volume.content.iter().flat_map(|c| &c.files) {
        part(path.as_bytes());
        part(&file.mode.to_le_bytes());
        part(&file.data);
    }
    part(b"mountPoints");
    for path in volume.content.iter().flat_map(|c| &c.mount_points) {
        part(path.as_bytes());
    }
    let hash = hash.finalize();
    u64::from_le_bytes(hash[..8].try_into().expect("a SHA-256 has 32 bytes"))
}
