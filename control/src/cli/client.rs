//! HTTP to control, over loopback TCP or a Unix socket.

use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value as Json;
use tokio::net::{TcpStream, UnixStream};

use crate::output::Failure;

/// Connecting on the same machine takes no time, or fails.
const CONNECT: Duration = Duration::from_secs(3);
/// Longer than any change may take.
const ANSWER: Duration = Duration::from_secs(75);

/// Where control listens.
#[derive(Debug)]
pub(crate) struct Client {
    url: String,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Tcp(String),
    Unix(PathBuf),
}

impl Client {
    pub(crate) fn new(url: &str) -> Result<Self, Failure> {
        let place = if let Some(path) = url.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            Place::Unix(PathBuf::from(path.strip_prefix("//").unwrap_or(path)))
        } else {
            let authority = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
            match authority {
                Some(authority) if !authority.is_empty() && !authority.contains('/') => {
                    let has_port =
                        authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                    Place::Tcp(if has_port { authority.to_owned() } else { format!("{authority}:80") })
                }
                _ => {
                    return Err(Failure::usage(
                        format!("\"{url}\" is no address of a control"),
                        "write --url http://127.0.0.1:PORT or --url unix:/PATH (or set RAILHEAD_URL)",
                    ));
                }
            }
        };
        Ok(Self { url: url.to_owned(), place })
    }

    pub(crate) async fn get(&self, path: &str, json: bool) -> Result<Json, Failure> {
        let (_, body) = self.send(Method::GET, path, &[], None, json).await?;
        Ok(body)
    }

    /// Sends a request and reads the answer: its status and body, or the problem as a failure.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Json>,
        json: bool,
    ) -> Result<(u16, Json), Failure> {
        let answer = async {
            let response = self.open(method, path, headers, body).await?;
            let status = response.status();
            let content = response.into_body().collect().await.map_err(|error| self.lost(&error))?.to_bytes();
            Ok((status, content))
        };
        let (status, content) = tokio::time::timeout(ANSWER, answer).await.map_err(|_| {
            Failure::unreachable(
                format!("{} did not answer within {ANSWER:?}", self.url),
                "look at the log of railhead-control",
            )
        })??;
        let body: Json = serde_json::from_slice(&content).map_err(|_| self.stranger())?;
        if status.is_success() { Ok((status.as_u16(), body)) } else { Err(Failure::refused(body, json)) }
    }

    /// Sends a request; the body of the answer is still to be read.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Json>,
    ) -> Result<Response<Incoming>, Failure> {
        let host = match &self.place {
            Place::Tcp(authority) => authority.as_str(),
            Place::Unix(_) => "localhost",
        };
        let mut request = Request::builder().method(method).uri(path).header(HOST, host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let content = body.map(Json::to_string).unwrap_or_default();
        let request = request
            .body(Full::new(Bytes::from(content)))
            .map_err(|error| Failure::usage(error.to_string(), "use printable characters only"))?;
        let mut sender = self.connect().await?;
        sender.send_request(request).await.map_err(|error| self.lost(&error))
    }

    async fn connect(&self) -> Result<http1::SendRequest<Full<Bytes>>, Failure> {
        let connecting = async {
            match &self.place {
                Place::Tcp(authority) => {
                    let stream = TcpStream::connect(authority).await.map_err(|error| self.absent(&error))?;
                    self.handshake(stream).await
                }
                Place::Unix(path) => {
                    let stream = UnixStream::connect(path).await.map_err(|error| self.absent(&error))?;
                    self.handshake(stream).await
                }
            }
        };
        let late = || self.absent(&std::io::Error::from(std::io::ErrorKind::TimedOut));
        tokio::time::timeout(CONNECT, connecting).await.unwrap_or_else(|_| Err(late()))
    }

    async fn handshake<S>(&self, stream: S) -> Result<http1::SendRequest<Full<Bytes>>, Failure>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.lost(&error))?;
        // Its error shows up at the sender, too.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn absent(&self, error: &std::io::Error) -> Failure {
        Failure::unreachable(
            format!("no control can be reached at {}: {error}", self.url),
            "start `railhead-control --config FILE`, or name another address with --url or RAILHEAD_URL (control.listen of the configuration)",
        )
    }

    /// The connection broke.
    pub(crate) fn lost(&self, error: &hyper::Error) -> Failure {
        Failure::unreachable(
            format!("the connection to {} broke: {error}", self.url),
            "look whether railhead-control still runs there",
        )
    }

    fn stranger(&self) -> Failure {
        Failure::unreachable(
            format!("what answers at {} is no railhead-control", self.url),
            "name the address of control.listen with --url or RAILHEAD_URL",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in [
            "http://127.0.0.1:7411",
            "http://[::1]:7411/",
            "http://localhost",
            "unix:/run/x.sock",
            "unix:x",
            "unix:///x",
        ] {
            assert!(Client::new(good).is_ok(), "{good}");
        }
        for bad in ["", "127.0.0.1:7411", "https://127.0.0.1", "http://", "http://a/b", "unix:", "ftp://x"] {
            assert!(Client::new(bad).is_err(), "{bad}");
        }
    }
}
