//! Volumes of Amazon's Elastic Block Store.

use super::{Disk, Fields, Rules, Untranslatable, partition, text};

pub(super) static RULES: Rules = Rules {
    plugin: "kubernetes.io/aws-ebs",
    source: "awsElasticBlockStore",
    driver: "ebs.csi.aws.com",
    topology_key: "topology.ebs.csi.aws.com/zone",
    disk,
    inline_access: |_| "ReadWriteOnce",
    access_modes: <[String]>::to_vec,
    disk_of_source: volume_id,
    disk_of_handle: |id| Some(id),
};

fn disk(source: &Fields, _: &Fields) -> Result<Disk, Untranslatable> {
    let id = text(source, "volumeID")?;
    let handle = volume_id(id).ok_or_else(|| {
        Untranslatable::new(
            "volumeID",
            format!("is {id:?}, which is no volume (expected as in aws://us-east-1a/vol-0a1b)"),
        )
    })?;
    Ok(Disk { handle: handle.to_owned(), id: handle.to_owned(), partition: partition(source)?.to_string() })
}

/// Amazon's id of a volume, by what a source has: `vol-1`, `aws://<zone>/vol-1` or `aws:///vol-1`. Other texts without
/// `aws://` are taken as they are, which only the driver can judge.
///
/// # Source
/// `KubernetesVolumeIDToEBSVolumeID` of `aws_ebs.go`. It reads the text as a URL; one with a query, a fragment or escapes
/// names no volume, and is refused here.
fn volume_id(id: &str) -> Option<&str> {
    let Some(rest) = id.strip_prefix("aws://") else { return Some(id) };
    let (_, path) = rest.split_once('/')?;
    let path = path.trim_matches('/');
    (path.starts_with("vol-") && !path.contains(['/', '?', '#', '%'])).then_some(path)
}
