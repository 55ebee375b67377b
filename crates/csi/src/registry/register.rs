//! Registers one driver and keeps it registered.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tonic::{Response, Status};

use super::Held;
use crate::connection::{Connection, MAX_MESSAGE, Seen, Wire, origin};
use crate::driver::ask_node_info;
use crate::hide::Hidden;
use crate::link::{Link, root_cause, timed};
use crate::proto::pluginregistration::registration_client::RegistrationClient;
use crate::proto::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use crate::table::{Shared, Trying};
use crate::{CallError, DriverChange};

/// How long `GetInfo` and `NotifyRegistrationStatus` may each take. Neither does any work.
///
/// # Source
/// The kubelet gives 1 s and 5 s; a busy node needs more than 1 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// The type of a plugin that is a CSI driver.
///
/// # Source
/// `CSIPlugin` in the kubelet's `pluginregistration/v1/constants.go`.
const CSI_PLUGIN: &str = "CSIPlugin";

/// How long a driver's name may be, in bytes.
///
/// # Source
/// `GetPluginInfoResponse.name` in `csi.proto`.
const MAX_NAME: usize = 63;

/// How often a socket may refuse before it is told: between `bind` and `listen` it does.
const QUIET_TRIES: u32 = 3;

/// What all registrations need.
pub(crate) struct Registrar {
    pub(crate) shared: Arc<Shared>,
    pub(crate) changed: Box<dyn Fn(DriverChange) + Send + Sync>,
    pub(crate) deadline: Duration,
}

/// Waiting times that double: 50 ms to 60 s. Short at first, because a socket that was just made is usually listened on
/// at once; the kubelet's 500 ms would be waited in vain.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    pub(super) fn next(&mut self) -> Duration {
        let wait = Duration::from_millis(50) * 2_u32.pow(self.tries.min(11));
        self.tries += 1;
        wait.min(Duration::from_secs(60))
    }
}

/// Why a socket's driver is not registered.
#[derive(Debug, PartialEq, Eq)]
enum NotRegistered {
    /// Nobody listens.
    NotConnected(String),
    /// Something went wrong that may go better.
    Failed(String),
    /// A newer registration of that name is there.
    Older { name: String },
    /// It is no CSI driver, so it is not ours to answer.
    NotOurs(String),
}

impl Registrar {
    pub(super) fn refused(&self, socket: &Path, why: String) {
        (self.changed)(DriverChange::Refused { socket: socket.to_owned(), why });
    }

    /// Registers the driver behind a registration socket, again after each failure, and again when a newer registration
    /// of the same name has gone. Ends only with a plugin that is no CSI driver. `first` is over after the first try.
    pub(super) async fn keep_registered(self: Arc<Self>, socket: Held, number: u64, first: Trying) {
        let mut first = Some(first);
        let mut backoff = Backoff::default();
        // The same reason is told once.
        let mut told = None;
        loop {
            let mut changes = self.shared.changes();
            let registered = self.register(&socket, number).await;
            drop(first.take());
            match registered {
                Ok(name) => {
                    backoff = Backoff::default();
                    told = None;
                    self.wait_until_free(&name, &mut changes).await;
                }
                Err(NotRegistered::Older { name }) => {
                    let why = format!("a newer registration of the driver {name} is there");
                    self.tell(&mut told, &socket, why);
                    self.wait_until_free(&name, &mut changes).await;
                }
                Err(NotRegistered::NotOurs(why)) => return self.tell(&mut told, &socket, why),
                Err(NotRegistered::NotConnected(why)) => {
                    if backoff.tries >= QUIET_TRIES {
                        self.tell(&mut told, &socket, why);
                    }
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(NotRegistered::Failed(why)) => {
                    self.tell(&mut told, &socket, why);
                    tokio::time::sleep(backoff.next()).await;
                }
            }
        }
    }

    /// Waits until no registration of this name holds.
    async fn wait_until_free(&self, name: &str, changes: &mut tokio::sync::watch::Receiver<()>) {
        while self.shared.holder(name).is_some() {
            // The table outlives the watch.
            let _ = changes.changed().await;
        }
    }

    fn tell(&self, told: &mut Option<String>, socket: &Held, why: String) {
        if told.as_ref() != Some(&why) {
            self.refused(socket.path(), why.clone());
            *told = Some(why);
        }
    }

    /// One try. The driver's name.
    async fn register(&self, socket: &Held, number: u64) -> Result<String, NotRegistered> {
        let connection = Connection::open(Arc::clone(socket))
            .await
            .map_err(|error| NotRegistered::NotConnected(format!("the socket does not answer: {error}")))?;
        let seen = Arc::new(Seen::default());
        let mut client =
            RegistrationClient::with_origin(connection.wire(&seen), origin()).max_decoding_message_size(MAX_MESSAGE);
        let info = within(PATIENCE, "GetInfo", client.get_info(timed(InfoRequest {}, PATIENCE))).await?;
        if info.r#type != CSI_PLUGIN {
            let kind = Hidden::default().clean(&info.r#type);
            return Err(NotRegistered::NotOurs(format!("it is a plugin of type {kind:?}, not {CSI_PLUGIN}")));
        }
        let endpoint = match check_info(&info, socket.path()) {
            Ok(endpoint) => endpoint,
            Err(why) => return Err(refuse(&mut client, why).await),
        };
        if self.shared.holder(&info.name).is_some_and(|held| held > number) {
            // Not told to the driver: its registrar would end, start again, and so become the newer one.
            return Err(NotRegistered::Older { name: info.name });
        }
        let link = Arc::new(Link::new(&info.name, &endpoint));
        let node = match ask_node_info(&link, self.deadline).await {
            Ok(node) => node,
            Err(error) => return Err(refuse(&mut client, whole(&error)).await),
        };
        if node.node_id.is_empty() {
            return Err(refuse(&mut client, "NodeGetInfo gave no node id".into()).await);
        }
        // As the kubelet does: usable when the driver hears of it.
        if !self.shared.register(number, link, node.clone()) {
            return Err(NotRegistered::Older { name: info.name });
        }
        if let Err(error) = notify(&mut client, String::new()).await {
            self.shared.unregister(number);
            return Err(error);
        }
        self.shared.complete(number);
        (self.changed)(DriverChange::Registered { name: info.name.clone(), endpoint, node });
        Ok(info.name)
    }
}

/// Checks what a driver says of itself, and answers its socket.
fn check_info(info: &PluginInfo, socket: &Path) -> Result<PathBuf, String> {
    let short = |text: &str| Hidden::default().clean(text).chars().take(80).collect::<String>();
    if !is_driver_name(&info.name) {
        return Err(format!(
            "{:?} is no name for a CSI driver: at most {MAX_NAME} letters, digits, dashes and dots, with a letter or \
             digit first and last",
            short(&info.name)
        ));
    }
    if !info.supported_versions.iter().any(|version| is_supported(version)) {
        let versions: Vec<_> = info.supported_versions.iter().take(8).map(|version| short(version)).collect();
        return Err(format!("the driver {} supports the versions {versions:?}, and none is 1.x", info.name));
    }
    if info.endpoint.is_empty() {
        return Ok(socket.to_owned());
    }
    let endpoint = PathBuf::from(info.endpoint.strip_prefix("unix://").unwrap_or(&info.endpoint));
    if !endpoint.is_absolute() || info.endpoint.contains('\0') {
        return Err(format!(
            "the endpoint {:?} of the driver {} is no absolute path",
            short(&info.endpoint),
            info.name
        ));
    }
    Ok(endpoint)
}

/// Whether this may be a driver's name.
///
/// # Source
/// `GetPluginInfoResponse.name` in `csi.proto`.
fn is_driver_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= MAX_NAME
        && ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

/// Whether this is a version 1.x: `1`, `1.2`, `v1.2.3`.
///
/// # Source
/// `HighestSupportedVersion` of the kubelet, which since 1.17 takes no 0.x and no 2.x.
fn is_supported(version: &str) -> bool {
    let version = version.strip_prefix('v').unwrap_or(version);
    let mut parts = version.split('.');
    parts.next() == Some("1") && parts.all(|part| part.bytes().next().is_some_and(|b| b.is_ascii_digit()))
}

/// Tells the driver why it is not registered.
async fn refuse(client: &mut RegistrationClient<Wire>, why: String) -> NotRegistered {
    // That it cannot even be told changes nothing.
    let _ = notify(client, why.clone()).await;
    NotRegistered::Failed(why)
}

/// Tells the driver whether it is registered: no error says that it is.
async fn notify(client: &mut RegistrationClient<Wire>, error: String) -> Result<(), NotRegistered> {
    let status = RegistrationStatus { plugin_registered: error.is_empty(), error };
    let call = client.notify_registration_status(timed(status, PATIENCE));
    within(PATIENCE, "NotifyRegistrationStatus", call).await.map(drop)
}

async fn within<T>(
    patience: Duration,
    call: &str,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, NotRegistered> {
    let why = match tokio::time::timeout(patience, answer).await {
        Ok(Ok(answer)) => return Ok(answer.into_inner()),
        Ok(Err(status)) => Hidden::default().clean(&root_cause(&status)),
        Err(_) => format!("no answer within {} s", patience.as_secs()),
    };
    Err(NotRegistered::Failed(format!("{call} failed: {why}")))
}

/// An error with its cause.
fn whole(error: &CallError) -> String {
    format!("{error}: {}", error.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let longest = "a".repeat(MAX_NAME);
        for name in ["a", "csi.example.com", "0.A-b", &longest] {
            assert!(is_driver_name(name), "{name}");
        }
        let too_long = "a".repeat(MAX_NAME + 1);
        for name in ["", ".", "-a", "a-", "a.", "a/b", "../x", "a b", "ä", "a\0", "a_b", &too_long] {
            assert!(!is_driver_name(name), "{name}");
        }
    }

    #[test]
    fn versions() {
        for version in ["1.0.0", "v1.0.0", "1.13", "1", "1.0.0-rc1"] {
            assert!(is_supported(version), "{version}");
        }
        for version in ["", "0.3.0", "2.0.0", "11.0", "v", "one", "1.", "1.x"] {
            assert!(!is_supported(version), "{version}");
        }
    }

    #[test]
    fn what_a_driver_says_is_checked() {
        let socket = Path::new("/r/plugins_registry/x-reg.sock");
        let info = |name: &str, endpoint: &str, version: &str| PluginInfo {
            r#type: CSI_PLUGIN.into(),
            name: name.into(),
            endpoint: endpoint.into(),
            supported_versions: vec!["0.2.0".into(), version.into()],
        };
        assert_eq!(check_info(&info("a.b", "", "1.0.0"), socket), Ok(socket.to_owned()));
        assert_eq!(check_info(&info("a.b", "/r/csi.sock", "1.0.0"), socket), Ok("/r/csi.sock".into()));
        assert_eq!(check_info(&info("a.b", "unix:///r/csi.sock", "1.0.0"), socket), Ok("/r/csi.sock".into()));
        for (name, endpoint, version) in [("a/b", "", "1.0"), ("a", "csi.sock", "1.0"), ("a", "/x", "0.9")] {
            assert!(check_info(&info(name, endpoint, version), socket).is_err());
        }
        let none = PluginInfo { supported_versions: vec![], ..info("a", "", "") };
        assert!(check_info(&none, socket).is_err());
    }

    #[test]
    fn waiting_doubles_up_to_a_minute() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = std::iter::repeat_with(|| backoff.next().as_millis()).take(14).collect();
        assert_eq!(waits[..3], [50, 100, 200]);
        assert_eq!(waits[13], 60_000);
    }
}
