//! The kubelet's own list of its pods.
//!
//! # Source
//! `pkg/kubelet/server/server.go` (`getPods`): `/pods` is what the kubelet's pod manager has: pods from the API server and
//! static pods, no mirrors; a kubelet that has not heard from the API server yet lists static pods alone. With the
//! reflector under it, the API server's pods appear all at once. `pkg/kubelet/server/auth.go`: reading it takes `get` on
//! `nodes/pods` (from v1.33 on) or `nodes/proxy`.

use std::net::{SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Instant;

use http::{HeaderValue, StatusCode, Uri};
use jiff::Timestamp;
use kube::Config;
use kube::config::AuthInfo;
use refloat_node::{Answer, Covers, PodSource, SourceError, SourceKind};

use crate::{pods, web};

/// How the kubelet is asked.
#[derive(Debug, Clone, Default)]
pub struct KubeletOptions {
    /// Its address, such as `https://10.0.0.7:10250`.
    pub url: Uri,
    /// A file with a bearer token.
    pub token_file: Option<PathBuf>,
    /// A client certificate and its key, as PEM files.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The certificates that its own must be signed by, as a PEM file; else the system's.
    pub ca: Option<PathBuf>,
    /// The name that its certificate is for, if that is not the host of the address.
    pub server_name: Option<String>,
    /// Whether any certificate will do.
    pub insecure: bool,
}

/// A kubelet.
#[derive(Debug, Clone)]
pub struct Kubelet {
    options: KubeletOptions,
}

impl Kubelet {
    /// The kubelet that is asked in this way.
    pub fn new(options: KubeletOptions) -> Self {
        Self { options }
    }

    fn config(&self) -> Result<Config, SourceError> {
        let options = &self.options;
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let mut config = Config::new(options.url.clone());
        if let Some(ca) = &options.ca {
            let doing = || format!("reading the certificates in {}", ca.display());
            let found = std::fs::read(ca).map_err(|e| SourceError::failed(doing(), e))?;
            config.root_cert = Some(certificates(&found).map_err(|e| SourceError::failed(doing(), e))?);
        }
        config.accept_invalid_certs = options.insecure;
        config.tls_server_name.clone_from(&options.server_name);
        if let Some(file) = &options.token_file {
            config.headers.push((http::header::AUTHORIZATION, bearer(file)?));
        }
        config.auth_info = AuthInfo {
            client_certificate: options.certificate.as_ref().map(|(certificate, _)| text(certificate)),
            client_key: options.certificate.as_ref().map(|(_, key)| text(key)),
            ..AuthInfo::default()
        };
        Ok(config)
    }
}

impl Kubelet {
    /// What it answers when it is asked for its pods.
    async fn pods(&self) -> Result<Vec<u8>, SourceError> {
        let client = web::client(self.config()?, &self.name())?;
        web::get(&client, "/pods", hint).await
    }

    /// The list of its pods as it came.
    pub(crate) fn list(&self, deadline: Instant) -> Result<Vec<Vec<u8>>, SourceError> {
        is_here(&self.options.url)?;
        Ok(vec![web::wait(deadline, self.pods())?])
    }
}

impl PodSource for Kubelet {
    fn name(&self) -> String {
        format!("kubelet at {}", without_user(&self.options.url))
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Kubelet
    }

    fn ask(&self, deadline: Instant) -> Result<Answer, SourceError> {
        is_here(&self.options.url)?;
        let asked_at = Timestamp::now();
        let text = web::wait(deadline, self.pods())?;
        let (listed, next) = pods::read(&text)?;
        if next.is_some() {
            return Err(SourceError::incomplete("it says that there are more pods"));
        }
        let heard = listed.iter().any(|pod| pod.from_api);
        let mut answer = Answer::new(if heard { Covers::Every } else { Covers::Static }, asked_at);
        answer.extend(listed.into_iter().map(|listed| listed.pod));
        Ok(answer)
    }
}

fn hint(status: StatusCode) -> Option<&'static str> {
    match status {
        StatusCode::UNAUTHORIZED => {
            Some("it does not know who asks: name a token or a client certificate that it accepts")
        }
        StatusCode::FORBIDDEN => Some("whoever asks needs `get` on nodes/pods, before Kubernetes 1.33 on nodes/proxy"),
        StatusCode::NOT_FOUND => Some("is that a kubelet?"),
        _ => None,
    }
}

/// The header with the token in a file. An editor puts a newline at its end.
fn bearer(file: &Path) -> Result<HeaderValue, SourceError> {
    let doing = || format!("reading the token in {}", file.display());
    let text = std::fs::read_to_string(file).map_err(|e| SourceError::failed(doing(), e))?;
    let value = HeaderValue::try_from(format!("Bearer {}", text.trim()));
    // What is wrong with it would show a part of it.
    let mut value = value.map_err(|_| SourceError::failed(doing(), "it is no token"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The address without what may be a password.
fn without_user(url: &Uri) -> String {
    let host = url.host().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}", url.scheme_str().unwrap_or("https"))
}

/// An error unless the address is this machine's own: what another node's kubelet does not have is not gone here.
fn is_here(url: &Uri) -> Result<(), SourceError> {
    let host = url.host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found = (bare, 0).to_socket_addrs().map_err(|e| SourceError::failed(format!("looking up {host}"), e))?;
    let found: Vec<SocketAddr> = found.collect();
    // Only an address of one's own can be bound.
    match found.iter().find(|address| UdpSocket::bind(**address).is_err()) {
        None if !found.is_empty() => Ok(()),
        _ => Err(SourceError::incomplete(format!(
            "{host} is no address of this machine, so it may be another node's kubelet; ask from the node's own network"
        ))),
    }
}

/// The certificates in a PEM text, as DER.
fn certificates(text: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject as _;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|e| e.to_string())?;
    if found.is_empty() {
        return Err("there is none in it".into());
    }
    Ok(found.into_iter().map(|der| der.to_vec()).collect())
}
