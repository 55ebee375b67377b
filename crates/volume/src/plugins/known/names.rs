//! What global paths and mount sources tell. Pure; each answers none where it would have to guess.

/// An iSCSI volume, as its global path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Iscsi {
    /// With a port: the path always has one.
    pub(crate) portal: String,
    pub(crate) iqn: String,
    pub(crate) lun: i32,
    /// None if it was made for one volume, for an initiator name that the path does not have.
    pub(crate) interface: Option<String>,
}

/// `iface-<interface>/<portal>-<iqn>-lun-<lun>`.
///
/// A host name may hold dashes, and an IQN anything. The portal ends in its port, which the kubelet adds where the spec
/// has none, so the name begins behind the first dash that has a portal before it and a kind of name behind it. The
/// number is the last thing there.
///
/// # Source
/// `makePDNameInternal` and `portalMounter` of `pkg/volume/iscsi`; RFC 3721, section 1.1, for the kinds of names.
pub(crate) fn iscsi(rest: &str) -> Option<Iscsi> {
    let (interface, name) = rest.strip_prefix("iface-")?.split_once('/')?;
    let (target, lun) = name.rsplit_once("-lun-")?;
    let lun = number(lun)?;
    let dash = target.match_indices('-').map(|(at, _)| at).find(|&at| {
        let behind = &target[at + 1..];
        is_portal(&target[..at]) && ["iqn.", "eui.", "naa."].iter().any(|kind| behind.starts_with(kind))
    })?;
    let (portal, iqn) = (&target[..dash], &target[dash + 1..]);
    let own = interface.strip_prefix(portal).is_some_and(|rest| rest.starts_with(':'));
    Some(Iscsi {
        portal: portal.to_owned(),
        iqn: iqn.to_owned(),
        lun,
        interface: (!own && !interface.is_empty()).then(|| interface.to_owned()),
    })
}

/// `host:port`, `[IPv6]:port`, or an IPv6 address alone, whose colons the kubelet takes for a port's.
fn is_portal(text: &str) -> bool {
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(host, port)| {
            !host.is_empty() && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
        });
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => !host.is_empty() && is_port(port),
        Some(_) => text.parse::<std::net::Ipv6Addr>().is_ok(),
        None => false,
    }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// A decimal number as Go prints an int32 that is not negative.
fn number(text: &str) -> Option<i32> {
    let number: i32 = text.parse().ok()?;
    (number >= 0 && number.to_string() == text).then_some(number)
}

/// A Fibre Channel volume, as its global path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fc {
    /// Target names and a LUN.
    Targets { wwns: Vec<String>, lun: i32 },
    /// World wide identifiers.
    Wwids(Vec<String>),
}

/// `<wwn>-<wwn>-lun-<lun>` or `<wwid>-<wwid>`.
///
/// World wide names are hexadecimal. An identifier may be anything: one that is not hexadecimal and holds a dash cannot
/// be told from two. One that was written with blanks has underscores here, as the disk itself has: both mean it.
///
/// # Source
/// `makePDNameInternal` of `pkg/volume/fc`.
pub(crate) fn fc(name: &str) -> Option<Fc> {
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit() || b == b':') && text.len() >= 16;
    let list = |text: &str| text.split('-').map(str::to_owned).collect::<Vec<_>>();
    if let Some((wwns, lun)) = name.rsplit_once("-lun-")
        && let Some(lun) = number(lun)
    {
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b':');
        return wwns.split('-').all(plain).then(|| Fc::Targets { wwns: list(wwns), lun });
    }
    let told = if name.contains('-') { name.split('-').all(hex) } else { is_one_wwid(name) };
    told.then(|| Fc::Wwids(list(name)))
}

fn is_one_wwid(name: &str) -> bool {
    name.bytes().any(|b| b.is_ascii_alphanumeric())
}

impl Fc {
    /// The plugin's own name for the volume.
    ///
    /// # Source
    /// `GetVolumeName` of `pkg/volume/fc`: a list as Go prints it.
    pub(crate) fn volume_name(&self) -> String {
        match self {
            Self::Targets { wwns, lun } => format!("[{}]:{lun}", wwns.join(" ")),
            Self::Wwids(wwids) => format!("[{}]", wwids.join(" ")),
        }
    }
}

/// The volume id of an AWS disk from its global path: `vol-1`, `aws/<zone>/vol-1` for `aws://<zone>/vol-1`, and
/// `aws/vol-1` for `aws:///vol-1`.
///
/// # Source
/// `makeGlobalPDPath` of `pkg/volume/awsebs`: `://` becomes `/`, and the path is cleaned.
pub(crate) fn aws(rest: &str) -> Option<String> {
    match *rest.split('/').collect::<Vec<_>>().as_slice() {
        [id] if id != "aws" => Some(id.to_owned()),
        ["aws" | "aws:", id] => Some(format!("aws:///{id}")),
        ["aws" | "aws:", zone, id] => Some(format!("aws://{zone}/{id}")),
        _ => None,
    }
}

/// Pool and image of `<pool>-image-<image>`, if there is one way to take it apart.
///
/// # Source
/// `MakeGlobalPDName` of `pkg/volume/rbd`.
pub(crate) fn rbd(name: &str) -> Option<(&str, &str)> {
    let (pool, image) = name.split_once("-image-")?;
    // Overlapping ones count too: `a-image-image-b` can be cut at two places.
    let places = (0..name.len()).filter(|&at| name.as_bytes()[at..].starts_with(b"-image-")).count();
    (places == 1 && !pool.is_empty() && !image.is_empty()).then_some((pool, image))
}

/// The parts of `<spec name>.<namespace>.<volume>`: neither of the last two can hold a dot.
///
/// # Source
/// `makeGlobalPDName` of `pkg/volume/storageos`.
pub(crate) fn storageos(name: &str) -> Option<(&str, &str, &str)> {
    let (above, volume) = name.rsplit_once('.')?;
    let (spec, namespace) = above.rsplit_once('.')?;
    [spec, namespace, volume].iter().all(|part| !part.is_empty()).then_some((spec, namespace, volume))
}

/// Server and path of an NFS source: `server:path`, `[IPv6]:path`.
///
/// # Source
/// `SetUpAt` of `pkg/volume/nfs`; `nfs(5)`.
pub(crate) fn nfs(source: &str) -> Option<(&str, &str)> {
    let (server, path) = match source.strip_prefix('[') {
        Some(rest) => {
            let (server, path) = rest.split_once("]:")?;
            server.parse::<std::net::Ipv6Addr>().is_ok().then_some((server, path))?
        }
        None => source.split_once(':')?,
    };
    (!server.is_empty() && !path.is_empty() && !server.contains('/')).then_some((server, path))
}

/// Monitors and path of a `CephFS` source: `host:port,host:port:/path`.
///
/// # Source
/// `execMount` of `pkg/volume/cephfs`; `mount.ceph(8)`.
pub(crate) fn cephfs(source: &str) -> Option<(Vec<&str>, &str)> {
    let at = source.find(":/")?;
    let monitors: Vec<&str> = source[..at].split(',').collect();
    // The newer form `user@fsid.name=/path` has no monitors in it.
    let plain = |m: &&str| !m.is_empty() && !m.contains(['=', '@']);
    monitors.iter().all(plain).then_some((monitors, &source[at + 1..]))
}

/// The user that a `CephFS` mount has among its options.
pub(crate) fn ceph_user(options: &str) -> Option<&str> {
    options.split(',').find_map(|option| option.strip_prefix("name=")).filter(|user| !user.is_empty())
}

/// Host and volume of a `GlusterFS` source, `host:volume`.
///
/// # Source
/// `setUpAtInternal` of `pkg/volume/glusterfs`.
pub(crate) fn glusterfs(source: &str) -> Option<(&str, &str)> {
    let (host, volume) = source.rsplit_once(':')?;
    (!host.is_empty() && !volume.is_empty()).then(|| (host, volume.strip_prefix('/').unwrap_or(volume)))
}

/// The share of an Azure file source, `//<account>.file.<suffix>/<share>`.
///
/// # Source
/// `SetUpAt` of `pkg/volume/azure_file`.
pub(crate) fn azure_file(source: &str) -> Option<&str> {
    let (_, share) = source.strip_prefix("//")?.split_once(".file.")?.1.split_once('/')?;
    (!share.is_empty() && !share.contains('/')).then_some(share)
}

/// Whether a volume of this name can only be a `PersistentVolume`: a pod's own names are labels, and what an external
/// provisioner makes is called `pvc-<uid of the claim>`.
///
/// # Source
/// `ValidateVolumes` and `ValidatePersistentVolume` of Kubernetes: `IsDNS1123Label`, `NameIsDNSSubdomain`;
/// `--volume-name-prefix` of `external-provisioner`.
pub(crate) fn is_of_persistent_volume(name: &str) -> bool {
    let uid = |text: &str| {
        let lengths = text.split('-').map(str::len);
        text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') && lengths.eq([8, 4, 4, 4, 12])
    };
    name.len() > 63 || name.contains('.') || name.strip_prefix("pvc-").is_some_and(uid)
}

#[cfg(test)]
mod tests;
