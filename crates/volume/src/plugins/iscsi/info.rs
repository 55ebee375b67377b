//! What the record keeps: what was asked for, how its target is reached and by whose doing, and what was found.

use refloat_record::{BootId, DeviceMount, Verbatim};
use serde::{Deserialize, Serialize};

use super::target::{Portal, Target};
use crate::plugins::san::Found;

/// The record's `providerInfo`. It names no secret and holds none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Info {
    #[serde(flatten)]
    pub(super) target: Target,
    /// The initiator name, if the volume has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) initiator_name: Option<String>,
    /// How it is reached.
    #[serde(default)]
    pub(super) access: Access,
    /// What was found.
    #[serde(flatten)]
    pub(super) found: Found,
}

/// How a target is reached, in one boot: sessions do not outlive it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Access {
    /// The boot that the sessions are of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<BootId>,
    /// Whether the interface record was made for this volume.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) made_interface: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) logins: Vec<Login>,
}

/// One portal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Login {
    pub(super) portal: Portal,
    /// None of another boot.
    #[serde(flatten)]
    pub(super) state: Option<State>,
    /// The record of open-iscsi's database that was made for it: `10.0.0.5:3260,1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) made_node: Option<String>,
    /// Whether a record of a discovery was made, which is removed when that is over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) made_discovery: bool,
}

/// What is known of the session of a portal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum State {
    /// It is made now, or was being made when something failed: one that is there and none of these is of our making.
    LoggingIn(Vec<u32>),
    /// It was made for this volume, or for another one of this program's.
    Ours(u32),
    /// It was there before.
    Others(u32),
}

impl Login {
    /// Whether this session is of our making.
    pub(super) fn claims(&self, session: u32) -> bool {
        match &self.state {
            Some(State::LoggingIn(before)) => !before.contains(&session),
            Some(State::Ours(number)) => *number == session,
            Some(State::Others(_)) | None => false,
        }
    }
}

impl Access {
    pub(super) fn new(boot: &BootId) -> Self {
        Self { boot: Some(boot.clone()), ..Self::default() }
    }

    /// What is left of it in this boot: of another one's no session, but whatever was written to the disk.
    pub(super) fn in_boot(mut self, boot: &BootId) -> Self {
        if self.boot.as_ref() != Some(boot) {
            self.logins.retain(|login| login.made_node.is_some() || login.made_discovery);
            self.logins.iter_mut().for_each(|login| login.state = None);
            self.boot = Some(boot.clone());
        }
        self
    }

    pub(super) fn login(&self, portal: &Portal) -> Option<&Login> {
        self.logins.iter().find(|login| login.portal.is(portal))
    }
}

impl Info {
    /// What a record has; none if it has none that is ours.
    pub(super) fn recorded(device: &DeviceMount, boot: &BootId) -> Option<Self> {
        let mut info: Self = device.provider_info.as_ref()?.parse().ok()?;
        // The record may have been written again since, and its mount be another program's.
        if device.boot_id != *boot {
            info.access.boot = None;
        }
        info.access = info.access.in_boot(boot);
        Some(info)
    }

    pub(super) fn verbatim(&self) -> Verbatim {
        Verbatim::of(self).expect("texts and numbers")
    }

    /// What the other devices of this plugin have.
    pub(super) fn of_peers(devices: &[DeviceMount], own: &str, boot: &BootId) -> Vec<Self> {
        let others = devices
            .iter()
            .filter(|device| device.plugin.as_str() == super::NAME && device.device_mount_path.as_str() != own);
        others.filter_map(|device| Self::recorded(device, boot)).collect()
    }
}
