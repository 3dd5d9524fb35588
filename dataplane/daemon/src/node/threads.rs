//! The threads that a node starts, and the accepting on its local sockets.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use railhead_abi::Code;
use railhead_abi::observe::EventCode;
use railhead_ring::Word;

use crate::acceptor::Acceptor;
use crate::admin::AdminDesk;
use crate::endpoint::Endpoint;
use crate::error::StartError;
use crate::events::Event;
use crate::notices::Notices;
use crate::plan::Plan;
use crate::registrar::Registrar;
use crate::session::Connection;

/// Processes that may look through the admin socket at once.
const ADMINS_MAX: usize = 16;
/// Connections beyond the sessions: clients that have not said hello, or whose session is being taken back.
const SESSIONS_SPARE: usize = 16;

/// Lets control processes in.
pub(super) fn accept_admins(
    endpoint: &Endpoint,
    desk: AdminDesk,
) -> Result<(Arc<Acceptor>, JoinHandle<()>), StartError> {
    let own = rustix::process::geteuid().as_raw();
    let acceptor = Arc::new(Acceptor::new("railhead-admin", vec![own, 0], ADMINS_MAX));
    let (listener, admins, desk) = (duplicate(endpoint)?, Arc::clone(&acceptor), Arc::new(desk));
    let thread = spawn("railhead-admins", move || {
        let serve = move |connection: Arc<OwnedFd>, _| AdminDesk::serve(&desk, &connection);
        admins.run(&listener, serve, |code, client| {
            tracing::warn!(code = code.name(), uid = client.uid, "refused on the admin socket");
        });
    })?;
    Ok((acceptor, thread))
}

/// Lets clients in.
pub(super) fn accept_sessions(
    endpoint: &Endpoint,
    plan: &Plan,
    registrar: &Arc<Registrar>,
) -> Result<(Arc<Acceptor>, JoinHandle<()>), StartError> {
    let most = plan.config.session.max + SESSIONS_SPARE;
    let acceptor = Arc::new(Acceptor::new("railhead-client", plan.uids.clone(), most));
    let (listener, sessions) = (duplicate(endpoint)?, Arc::clone(&acceptor));
    let (registrar, refusing) = (Arc::clone(registrar), Arc::clone(registrar));
    let thread = spawn("railhead-clients", move || {
        let serve =
            move |connection, client| Connection::new(Arc::clone(&registrar), connection, client).serve();
        sessions.run(&listener, serve, |code, client| {
            let event = Event::new(EventCode::SessionRefused).reason(code).text(code.text());
            let pid = u64::from(client.pid.unwrap_or(0));
            refusing.events.emit(event.figures(u64::from(client.uid), pid));
        });
    })?;
    Ok((acceptor, thread))
}

fn duplicate(endpoint: &Endpoint) -> Result<OwnedFd, StartError> {
    let duplicated = endpoint.listener.try_clone();
    duplicated.map_err(|error| StartError::new(Code::DeviceError, "listening socket", error))
}

/// Reads what lanes give back until `stop` is not zero.
pub(super) fn read_notices(
    notices: Notices,
    registrar: &Arc<Registrar>,
    stop: &Arc<Word>,
) -> Result<JoinHandle<()>, StartError> {
    let (registrar, stop) = (Arc::clone(registrar), Arc::clone(stop));
    spawn("railhead-notice", move || notices.run(&registrar, &stop))
}

/// A thread with a name.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| StartError::new(Code::DeviceError, format!("thread {name}"), error))
}
