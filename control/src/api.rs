//! The routes, and what all of them share.

mod metrics;
mod node;
mod params;
mod peers;
mod rails;
mod records;
mod settings;
mod stream;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use railhead_abi::Code;
use railhead_abi::segment::LANE_SEALED;
use serde_json::json;
use tokio::sync::{Semaphore, watch};

use crate::link::{Attachment, Link};
use crate::peers::Roster;
use crate::problem::Problem;
use crate::writer::Writer;

/// The largest body.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Event streams at once.
const STREAMS_MAX: usize = 64;

/// What the routes work on.
#[derive(Debug, Clone)]
pub struct Api {
    link: Arc<Link>,
    writer: Arc<Writer>,
    roster: Arc<Roster>,
    streams: Arc<Semaphore>,
    /// Becomes true when the server stops: event streams end then.
    stopping: watch::Receiver<bool>,
}

impl Api {
    /// The routes' state.
    #[must_use]
    pub fn new(
        link: Arc<Link>,
        writer: Arc<Writer>,
        roster: Arc<Roster>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        Self { link, writer, roster, streams: Arc::new(Semaphore::new(STREAMS_MAX)), stopping }
    }

    fn attached(&self) -> Result<Arc<Attachment>, Problem> {
        Ok(self.link.state()?)
    }

    /// The router. `host_check` refuses requests whose `Host` is not this machine: for TCP, where a web page could have
    /// a name of its own resolved to the loopback address.
    pub fn router(self, host_check: bool) -> Router {
        let router = Router::new()
            .route("/v1/settings", get(settings::show).patch(settings::change))
            .route("/v1/settings/history", get(settings::history))
            .route("/v1/settings/rollback", post(settings::rollback))
            .route("/v1/node", get(node::node))
            .route("/v1/lanes", get(node::lanes))
            .route("/v1/pools", get(node::pools))
            .route("/v1/peers", get(peers::list).post(peers::add))
            .route("/v1/peers/{name}", get(peers::one).delete(peers::remove))
            .route("/v1/transfers", get(records::transfers))
            .route("/v1/transfers/{ticket}", get(records::transfer))
            .route("/v1/events", get(records::events))
            .route("/metrics", get(metrics::metrics))
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .fallback(not_found)
            .method_not_allowed_fallback(method_not_allowed)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .layer(middleware::from_fn(no_store))
            .with_state(self);
        if host_check { router.layer(middleware::from_fn(local_host)) } else { router }
    }
}

async fn healthz() -> Response {
    axum::Json(json!({"healthy": true})).into_response()
}

/// Ready: a dataplane is attached and all its lanes run.
async fn readyz(State(api): State<Api>) -> Result<Response, Problem> {
    let attachment = api.attached()?;
    let segment = &attachment.segment;
    let waiting: Vec<usize> =
        (0..segment.lanes()).filter(|lane| segment.lane_status(*lane).state != LANE_SEALED).collect();
    if waiting.is_empty() {
        return Ok(axum::Json(json!({"ready": true})).into_response());
    }
    Err(Problem::new(Code::DataplaneAbsent, "not all lanes run").with("lanes", waiting))
}

async fn not_found(request: Request) -> Problem {
    Problem::new(Code::NotFound, format!("there is nothing at {}", request.uri().path())).field("path")
}

async fn method_not_allowed(request: Request) -> Problem {
    let (method, path) = (request.method(), request.uri().path());
    Problem::new(Code::MethodNotAllowed, format!("{path} does not take {method}")).field("method")
}

/// Everything here changes from one moment to the next.
async fn no_store(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn local_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if host.is_none_or(is_local) {
        return next.run(request).await;
    }
    let detail = format!("this server is for this machine only, not for {}", host.unwrap_or_default());
    Problem::new(Code::RequestMalformed, detail)
        .status(StatusCode::MISDIRECTED_REQUEST)
        .field("Host")
        .into_response()
}

/// Whether a `Host` header names the loopback interface.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_loopback_is_local() {
        for host in
            ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:7411", "127.9.9.9", "[::1]", "[::1]:7411"]
        {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "localhost.example.org",
            "10.0.0.1",
            "[::2]:1",
            "127.0.0.1.example.org",
            "0.0.0.0",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
