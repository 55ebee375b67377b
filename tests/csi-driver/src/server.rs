//! Answers at the sockets until a signal comes.

use std::io;
use std::path::Path;
use std::sync::Arc;

use refloat_csi::proto::csi::controller_server::ControllerServer;
use refloat_csi::proto::csi::identity_server::IdentityServer;
use refloat_csi::proto::csi::node_server::NodeServer;
use refloat_csi::proto::pluginregistration::registration_server::RegistrationServer;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::answer::Driver;
use crate::controller::ControllerService;
use crate::disk::gone;
use crate::identity::IdentityService;
use crate::journal::{Entry, Event};
use crate::node::NodeService;
use crate::options::Options;
use crate::registration::RegistrationService;

/// Runs the driver until SIGTERM or SIGINT. Then it removes its sockets, as drivers and registrars do; what is mounted
/// stays.
pub fn run(options: Options) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(options))
}

async fn serve(options: Options) -> io::Result<()> {
    let driver = Arc::new(Driver::new(options)?);
    let (end, ended) = watch::channel(());
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        drop(end);
    });

    let services = Server::builder()
        .add_service(IdentityServer::new(IdentityService(Arc::clone(&driver))))
        .add_service(NodeServer::new(NodeService(Arc::clone(&driver))))
        .add_service(ControllerServer::new(ControllerService(Arc::clone(&driver))));
    let endpoint = driver.options.endpoint.clone();
    let counting = Arc::clone(&driver);
    let incoming = listen(&endpoint)?.map(move |connection| {
        counting.journal.write(&Entry {
            pid: std::process::id(),
            number: counting.journal.number(),
            call: "Connection".into(),
            event: Event::Begin,
            volume: String::new(),
            path: String::new(),
            secrets: Vec::new(),
        });
        connection
    });
    let main = services.serve_with_incoming_shutdown(incoming, until(ended.clone()));

    // After the driver's own socket, as a registrar waits for that.
    let registration = driver.options.registration.clone();
    if let Some(path) = &registration {
        // The driver's own services too, for a registration without an endpoint.
        let server = Server::builder()
            .add_service(RegistrationServer::new(RegistrationService(Arc::clone(&driver))))
            .add_service(IdentityServer::new(IdentityService(Arc::clone(&driver))))
            .add_service(NodeServer::new(NodeService(Arc::clone(&driver))));
        tokio::spawn(server.serve_with_incoming_shutdown(listen(path)?, until(ended.clone())));
    }
    // A client that keeps its connection does not keep the driver.
    tokio::select! {
        result = main => result.map_err(io::Error::other)?,
        () = until(ended) => {}
    }
    for path in registration.iter().chain([&endpoint]) {
        gone(std::fs::remove_file(path))?;
    }
    Ok(())
}

async fn until(mut ended: watch::Receiver<()>) {
    // An error says that the sender is gone.
    while ended.changed().await.is_ok() {}
}

/// A socket in place of whatever a driver before left.
fn listen(path: &Path) -> io::Result<UnixListenerStream> {
    gone(std::fs::remove_file(path))?;
    Ok(UnixListenerStream::new(UnixListener::bind(path)?))
}
