//! Listening and serving: loopback TCP or a Unix socket, until told to stop.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use railhead_abi::Code;
use railhead_config::{Config, Listen};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use crate::api::Api;
use crate::link::Link;
use crate::peers::Roster;
use crate::writer::Writer;

/// How long requests in progress may take after the server was told to stop.
const DRAIN: Duration = Duration::from_secs(3);

/// Why control could not start.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {what}\n  code:   {}\n  remedy: {}", code.name(), code.remedy())]
pub struct StartError {
    /// The stable code.
    pub code: Code,
    /// The field of the configuration to blame.
    pub field: &'static str,
    /// What happened.
    pub what: String,
}

/// A listener that is bound.
#[derive(Debug)]
pub enum Bound {
    /// On a loopback address.
    Tcp(TcpListener),
    /// On a socket in the file system, removed at the end.
    Unix(UnixListener, PathBuf),
}

impl Bound {
    /// Binds. Call it on a runtime.
    ///
    /// # Errors
    /// [`Code::ListenRefused`], [`Code::PortTaken`] or [`Code::PathDenied`].
    pub async fn bind(listen: &Listen) -> Result<Self, StartError> {
        match listen {
            Listen::Tcp(address) => Self::bind_tcp(*address).await,
            Listen::Unix(path) => Self::bind_unix(path),
        }
    }

    async fn bind_tcp(address: SocketAddr) -> Result<Self, StartError> {
        let failed = |code, what| StartError { code, field: "control.listen", what };
        // Checked once more: whoever can reach this port can change the node.
        if !address.ip().is_loopback() {
            return Err(failed(Code::ListenRefused, format!("{address} can be reached from other machines")));
        }
        let listener = TcpListener::bind(address).await;
        listener.map(Self::Tcp).map_err(|error| failed(code_of(&error), format!("{address}: {error}")))
    }

    fn bind_unix(path: &Path) -> Result<Self, StartError> {
        let failed = |code, what| StartError { code, field: "control.listen", what };
        let told = |error: io::Error| failed(code_of(&error), format!("{}: {error}", path.display()));
        if std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
            // A dead server leaves its socket behind; a live one answers.
            match std::os::unix::net::UnixStream::connect(path) {
                Ok(_) => {
                    return Err(failed(
                        Code::PortTaken,
                        format!("{}: a server answers there", path.display()),
                    ));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(told)?
                }
                Err(error) => return Err(told(error)),
            }
        }
        let listener = UnixListener::bind(path).map_err(told)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(told)?;
        Ok(Self::Unix(listener, path.to_owned()))
    }

    /// The URL of the server, with the port that was really bound.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "http://?".to_owned(), |address| format!("http://{address}")),
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }
}

fn code_of(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::AddrInUse => Code::PortTaken,
        _ => Code::PathDenied,
    }
}

/// A control that is not serving yet: the link to the dataplane and the routes.
#[derive(Debug)]
pub struct Control {
    link: Arc<Link>,
    writer: Arc<Writer>,
    roster: Arc<Roster>,
}

impl Control {
    /// Starts to attach to the dataplane.
    ///
    /// # Errors
    /// [`Code::PathDenied`] when the state directory cannot be made or no thread can be started.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let failed = |what| StartError { code: Code::PathDenied, field: "node.state_dir", what };
        config.make_state_dir().map_err(|error| failed(error.what))?;
        let writer = Arc::new(Writer::new(config.node.state_dir.clone(), config.settings));
        let link = Link::start(&config.dataplane.admin_socket, Arc::clone(&writer))
            .map_err(|error| failed(format!("no thread for the link: {error}")))?;
        let roster = Arc::new(Roster::new(config.node.state_dir.clone()));
        Ok(Self { link: Arc::new(link), writer, roster })
    }

    /// Waits for the outcome of the first attempt to attach. A dataplane that is not there yet is fine; one that another
    /// control holds, or that speaks another version, is not.
    ///
    /// # Errors
    /// [`Code::ControlHeld`], [`Code::VersionMismatch`] and other refusals.
    pub async fn first_attempt(&self, limit: Duration) -> Result<(), StartError> {
        let mut state = self.link.watch();
        // Not answered in time is like absent: the link goes on trying.
        let _ = tokio::time::timeout(limit, state.changed()).await;
        match self.link.state() {
            Err(detached) if detached.code != Code::DataplaneAbsent => {
                Err(StartError { code: detached.code, field: "dataplane.admin_socket", what: detached.what })
            }
            _ => Ok(()),
        }
    }

    /// The link to the dataplane.
    #[must_use]
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// The routes. `stopping` ends event streams when it becomes true.
    pub fn router(&self, stopping: watch::Receiver<bool>, host_check: bool) -> axum::Router {
        let (link, writer, roster) = (&self.link, &self.writer, &self.roster);
        Api::new(Arc::clone(link), Arc::clone(writer), Arc::clone(roster), stopping).router(host_check)
    }

    /// Serves until `stop` is done, then lets requests in progress end for a short while.
    ///
    /// # Errors
    /// Those of the listener.
    pub async fn serve(
        self,
        bound: Bound,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let (told, stopping) = watch::channel(false);
        let signal = {
            let mut stopping = stopping.clone();
            async move {
                let _ = stopping.wait_for(|stopping| *stopping).await;
            }
        };
        let router = self.router(stopping, matches!(bound, Bound::Tcp(_)));
        let (mut serving, path) = match bound {
            Bound::Tcp(listener) => {
                let serve = axum::serve(listener, router).with_graceful_shutdown(signal);
                (tokio::spawn(async move { serve.await }), None)
            }
            Bound::Unix(listener, path) => {
                let serve = axum::serve(listener, router).with_graceful_shutdown(signal);
                (tokio::spawn(async move { serve.await }), Some(path))
            }
        };
        let ended = tokio::select! {
            ended = &mut serving => Some(ended),
            () = stop => None,
        };
        let _ = told.send(true);
        let ended = match ended {
            Some(ended) => ended,
            None => tokio::time::timeout(DRAIN, serving).await.unwrap_or(Ok(Ok(()))),
        };
        if let Some(path) = path {
            let _ = std::fs::remove_file(path);
        }
        ended.map_err(io::Error::other)?
    }
}
