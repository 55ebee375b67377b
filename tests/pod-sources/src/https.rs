//! An HTTPS server with a certificate of its own making.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

/// How long a client may take to say something before it is left alone.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The path, with the query.
    pub path: String,
    /// The `Authorization` header.
    pub authorization: Option<String>,
    /// Whether the client showed a certificate of this server's CA.
    pub has_certificate: bool,
}

/// What is answered.
#[derive(Debug, Clone)]
pub enum Reply {
    /// This status and body.
    Answer(u16, String),
    /// The beginning of a body, then the connection is closed: of its length, of a chunk.
    Torn(String),
    /// The same in chunks.
    TornChunk(String),
    /// Nothing, for ever.
    Hang,
}

type Answers = dyn Fn(&Request) -> Reply + Send + Sync;

/// A server on a port of its own. It ends when this is dropped.
pub struct Https {
    address: SocketAddr,
    folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Https {
    /// Starts it. Its certificate is for `localhost` and 127.0.0.1.
    ///
    /// # Panics
    /// If no port or certificate can be had.
    pub fn start(answers: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut params = CertificateParams::new(vec![]).expect("a CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let ca = params.self_signed(&key).expect("a CA's certificate");
        let issuer = Issuer::new(params, key);
        let signed = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(names).expect("names");
            (params.signed_by(&key, &issuer).expect("a certificate"), key)
        };
        let (own, own_key) = signed(&["localhost", "127.0.0.1"]);
        let (client, client_key) = signed(&["client"]);
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).expect("a file");
        write("ca.crt", ca.pem());
        write("client.crt", client.pem());
        write("client.key", client_key.serialize_pem());
        write("token", "the-token\n".into());

        let provider = Arc::new(default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).expect("the CA");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = verifier.allow_unauthenticated().build().expect("a verifier");
        let chain: Vec<CertificateDer<'static>> = vec![own.der().clone()];
        let key = PrivateKeyDer::try_from(own_key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("protocols").with_client_cert_verifier(verifier).with_single_cert(chain, key);
        let config = Arc::new(config.expect("a configuration"));

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let answers: Arc<Answers> = Arc::new(answers);
        let thread = {
            let (asked, stop) = (Arc::clone(&asked), Arc::clone(&stop));
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    let Ok(stream) = stream else { continue };
                    let (config, asked, stop) = (Arc::clone(&config), Arc::clone(&asked), Arc::clone(&stop));
                    let answers = Arc::clone(&answers);
                    // How a client that does not trust this server leaves is its own affair.
                    std::thread::spawn(move || drop(serve(stream, config, &*answers, &asked, &stop)));
                }
            })
        };
        Self { address, folder, asked, stop, thread: Some(thread) }
    }

    /// Its address, such as `https://127.0.0.1:4711`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// A file that a client needs: `ca.crt`, `client.crt`, `client.key`, `token` (which holds `the-token`).
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a kubeconfig for it, with the client certificate.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn kubeconfig(&self) -> PathBuf {
        let file = |name| self.file(name).display().to_string();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- {{name: c, context: {{cluster: c, user: u}}}}\n\
             clusters:\n- {{name: c, cluster: {{server: \"{}\", certificate-authority: \"{}\"}}}}\n\
             users:\n- {{name: u, user: {{client-certificate: \"{}\", client-key: \"{}\"}}}}\n",
            self.url(),
            file("ca.crt"),
            file("client.crt"),
            file("client.key")
        );
        let path = self.file("kubeconfig");
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// What was asked so far.
    ///
    /// # Panics
    /// If a thread that noted it did.
    pub fn asked(&self) -> Vec<Request> {
        self.asked.lock().expect("nobody panics").clone()
    }
}

impl Drop for Https {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the one that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    answers: &Answers,
    asked: &Mutex<Vec<Request>>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let request = Request {
        path: head.split(' ').nth(1).unwrap_or_default().to_owned(),
        authorization: header("authorization"),
        has_certificate: stream.conn.peer_certificates().is_some(),
    };
    if let Ok(mut asked) = asked.lock() {
        asked.push(request.clone());
    }
    let plain = "content-type: application/json\r\nconnection: close\r\n";
    match answers(&request) {
        Reply::Answer(status, body) => {
            write!(stream, "HTTP/1.1 {status} X\r\n{plain}content-length: {}\r\n\r\n{body}", body.len())?;
        }
        Reply::Torn(body) => {
            write!(stream, "HTTP/1.1 200 OK\r\n{plain}content-length: {}\r\n\r\n{body}", body.len() + 100)?;
        }
        Reply::TornChunk(body) => {
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\n{plain}transfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n")?;
        }
        Reply::Hang => {
            while !stop.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    stream.conn.send_close_notify();
    stream.flush()
}
