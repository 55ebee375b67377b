//! What a spec says.

use super::target::{DEFAULT_INTERFACE, Portal, Target, with_port};
use crate::{SpecError, SpecSource, VolumeSpec};

/// The largest number of a logical unit that a spec may have.
///
/// # Source
/// `validateISCSIVolumeSource` of Kubernetes.
const MAX_LUN: i32 = 255;

/// The longest name of an interface record.
///
/// # Source
/// `ISCSI_MAX_IFACE_LEN` of open-iscsi, less one for the end of the text.
const MAX_INTERFACE: usize = 64;

/// The source, whichever form it has.
#[derive(Debug)]
pub(super) struct Source<'a> {
    /// The first portal as names and paths have it.
    pub(super) portal: String,
    pub(super) target: Target,
    /// The interface that the spec names: the volume's own is made like it, if it has an initiator name.
    pub(super) interface: &'a str,
    pub(super) initiator: Option<&'a str>,
    pub(super) fs_type: Option<&'a str>,
    pub(super) read_only: bool,
    pub(super) chap_session: bool,
    pub(super) chap_discovery: bool,
    /// Namespace, if it is named, and name.
    secret: Option<(Option<&'a str>, &'a str)>,
}

/// The fields that both forms have.
struct Fields<'a> {
    portal: &'a str,
    portals: Option<&'a Vec<String>>,
    iqn: &'a str,
    lun: i32,
    interface: Option<&'a String>,
    initiator: Option<&'a String>,
    fs_type: Option<&'a String>,
    read_only: Option<bool>,
    chap_session: Option<bool>,
    chap_discovery: Option<bool>,
    secret: Option<(Option<&'a str>, &'a str)>,
}

macro_rules! fields {
    ($source:expr, $secret:expr) => {
        Fields {
            portal: &$source.target_portal,
            portals: $source.portals.as_ref(),
            iqn: &$source.iqn,
            lun: $source.lun,
            interface: $source.iscsi_interface.as_ref(),
            initiator: $source.initiator_name.as_ref(),
            fs_type: $source.fs_type.as_ref(),
            read_only: $source.read_only,
            chap_session: $source.chap_auth_session,
            chap_discovery: $source.chap_auth_discovery,
            secret: $secret,
        }
    };
}

fn fields(source: &SpecSource) -> Option<Fields<'_>> {
    Some(match source {
        SpecSource::Inline { volume } => {
            let source = volume.typed.iscsi.as_ref()?;
            fields!(source, source.secret_ref.as_ref().map(|secret| (None, secret.name.as_str())))
        }
        SpecSource::Persistent { persistent_volume, .. } => {
            let source = persistent_volume.typed.spec.as_ref()?.iscsi.as_ref()?;
            let secret = source.secret_ref.as_ref().map(|secret| {
                let namespace = secret.namespace.as_deref().filter(|namespace| !namespace.is_empty());
                (namespace, secret.name.as_deref().unwrap_or_default())
            });
            fields!(source, secret)
        }
    })
}

/// Whether it can be a target's or an initiator's name, and a part of a path and an argument.
///
/// # Source
/// RFC 7143, 4.2.7; `validateISCSIVolumeSource` of Kubernetes.
fn is_name(text: &str) -> bool {
    ["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind) && text.len() > kind.len())
        && text.len() <= 223
        && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-:_".contains(c))
}

impl<'a> Source<'a> {
    pub(super) fn is_in(source: &SpecSource) -> bool {
        fields(source).is_some()
    }

    /// What the spec asks for, if it can be had.
    ///
    /// # Source
    /// `validateISCSIVolumeSource` of Kubernetes; `createPersistentVolumeMounter` and `getISCSIInfo` of `pkg/volume/iscsi`.
    pub(super) fn of(spec: &'a VolumeSpec) -> Result<Self, SpecError> {
        let fields = fields(&spec.source).ok_or_else(|| spec.wrong("iscsi", "is missing"))?;
        let portal = |field: &'static str, text: &str| {
            Portal::parse(text).ok_or_else(|| spec.wrong(field, format!("has {text:?}, which is no host with a port")))
        };
        if fields.portal.is_empty() {
            return Err(spec.wrong("iscsi.targetPortal", "is missing"));
        }
        let mut portals = vec![portal("iscsi.targetPortal", fields.portal)?];
        for text in fields.portals.into_iter().flatten() {
            let portal = portal("iscsi.portals", text)?;
            if !portals.iter().any(|its| its.is(&portal)) {
                portals.push(portal);
            }
        }
        if !is_name(fields.iqn) {
            return Err(spec.wrong("iscsi.iqn", format!("is {:?}, which is no target's name", fields.iqn)));
        }
        if !(0..=MAX_LUN).contains(&fields.lun) {
            return Err(spec.wrong("iscsi.lun", format!("is {}, which is not from 0 to {MAX_LUN}", fields.lun)));
        }
        let some = |text: Option<&'a String>| text.map(String::as_str).filter(|text| !text.is_empty());
        let interface = some(fields.interface).unwrap_or(DEFAULT_INTERFACE);
        let initiator = some(fields.initiator);
        if let Some(name) = initiator.filter(|name| !is_name(name)) {
            return Err(spec.wrong("iscsi.initiatorName", format!("is {name:?}, which is no initiator's name")));
        }
        let first = with_port(fields.portal);
        let own = initiator.map(|_| format!("{first}:{}", spec.spec_name.as_str()));
        let used = own.unwrap_or_else(|| interface.to_owned());
        let is_interface = |text: &str| {
            !text.starts_with(['.', '-'])
                && !text.contains(|c: char| c == '/' || c.is_control() || c.is_whitespace())
                && text.len() <= MAX_INTERFACE
        };
        if !is_interface(interface) {
            return Err(spec.wrong("iscsi.iscsiInterface", format!("is {interface:?}, which is no interface's name")));
        }
        if !is_interface(&used) {
            let why = format!(
                "is given, and the interface {used:?} that would be made for it has a name of more than {MAX_INTERFACE} \
                 characters"
            );
            return Err(spec.wrong("iscsi.initiatorName", why));
        }
        let (chap_session, chap_discovery) = (fields.chap_session == Some(true), fields.chap_discovery == Some(true));
        let secret = fields.secret.filter(|(_, name)| !name.is_empty());
        if (chap_session || chap_discovery) && secret.is_none() {
            return Err(spec.wrong("iscsi.secretRef", "is missing, and CHAP is asked for"));
        }
        super::super::check_fs_type(spec, "iscsi.fsType", fields.fs_type.map(String::as_str))?;
        let target = Target { portals, iqn: fields.iqn.to_owned(), lun: fields.lun, interface: used };
        Ok(Self {
            portal: first,
            target,
            interface,
            initiator,
            fs_type: some(fields.fs_type),
            read_only: fields.read_only == Some(true),
            chap_session,
            chap_discovery,
            secret,
        })
    }

    /// The Secret, if it is used.
    pub(super) fn secret(&self) -> Option<(Option<&'a str>, &'a str)> {
        self.secret.filter(|_| self.chap_session || self.chap_discovery)
    }
}
