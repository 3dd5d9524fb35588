//! A small REST client for one control.

use std::time::Duration;

use serde_json::Value as Json;
use ureq::Agent;
use ureq::http::Response;

/// A request that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The REST of one control.
#[derive(Debug, Clone)]
pub struct Rest {
    agent: Agent,
    base: String,
}

/// What it answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `Content-Type`, without parameters.
    pub content_type: String,
    /// `ETag`, or empty.
    pub etag: String,
    /// `Allow`, or empty.
    pub allow: String,
    /// The body as it came.
    pub text: String,
    /// The body as JSON; null if it is none.
    pub json: Json,
}

impl Answer {
    fn of(mut response: Response<ureq::Body>) -> Self {
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let (content_type, etag, allow) = (header("content-type"), header("etag"), header("allow"));
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let json = serde_json::from_str(&text).unwrap_or(Json::Null);
        let content_type = content_type.split(';').next().unwrap_or_default().to_owned();
        Self { status, content_type, etag, allow, text, json }
    }

    /// Panics unless the status is `status`.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    #[must_use]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    /// The code of a problem body, which must be one.
    ///
    /// # Panics
    /// If it is none.
    #[track_caller]
    #[must_use]
    pub fn code(&self) -> &str {
        assert_eq!(self.content_type, "application/problem+json", "{}", self.text);
        self.json["code"].as_str().unwrap_or_else(|| panic!("no code: {}", self.text))
    }
}

impl Rest {
    /// For the control that listens on a port of 127.0.0.1.
    #[must_use]
    pub fn new(port: u16) -> Self {
        let config =
            Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).build();
        Self { agent: config.into(), base: format!("http://127.0.0.1:{port}") }
    }

    /// The address, `http://...`.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET; `None` if nobody answers.
    #[must_use]
    pub fn try_get(&self, path: &str) -> Option<Answer> {
        self.agent.get(format!("{}{path}", self.base)).call().ok().map(Answer::of)
    }

    /// GET.
    ///
    /// # Panics
    /// If nobody answers.
    #[track_caller]
    #[must_use]
    pub fn get(&self, path: &str) -> Answer {
        self.try_get(path).unwrap_or_else(|| panic!("no answer to GET {path}"))
    }

    /// PATCH of a JSON text, with headers; `None` if the answer does not come.
    #[must_use]
    pub fn try_patch_text(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Option<Answer> {
        let mut request = self.agent.patch(format!("{}{path}", self.base));
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            request = request.header("content-type", "application/merge-patch+json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send(body).ok().map(Answer::of)
    }

    /// PATCH of a JSON text, with headers.
    ///
    /// # Panics
    /// If the answer does not come.
    #[track_caller]
    #[must_use]
    pub fn patch_text(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        self.try_patch_text(path, body, headers).unwrap_or_else(|| panic!("no answer to PATCH {path} {body}"))
    }

    /// PATCH of the settings, which must be taken by every lane (200).
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn set(&self, patch: &Json) -> Answer {
        self.patch_text("/v1/settings", &patch.to_string(), &[]).expect(200)
    }

    /// POST of a JSON text.
    ///
    /// # Panics
    /// If nobody answers.
    #[track_caller]
    #[must_use]
    pub fn post(&self, path: &str, body: &str) -> Answer {
        let request =
            self.agent.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        match request.send(body) {
            Ok(response) => Answer::of(response),
            Err(error) => panic!("POST {path}: {error}"),
        }
    }

    /// DELETE.
    ///
    /// # Panics
    /// If nobody answers.
    #[track_caller]
    #[must_use]
    pub fn delete(&self, path: &str) -> Answer {
        match self.agent.delete(format!("{}{path}", self.base)).call() {
            Ok(response) => Answer::of(response),
            Err(error) => panic!("DELETE {path}: {error}"),
        }
    }

    /// The sum over all lanes of a counter of `/metrics`; the name without `railhead_`.
    ///
    /// # Panics
    /// If there is no such metric.
    #[track_caller]
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.get("/metrics").expect(200).text;
        let full = format!("railhead_{name}");
        let mut found = None;
        for line in text.lines().filter(|line| line.starts_with(&full)) {
            // `name{labels} value` or `name value`.
            let rest = &line[full.len()..];
            if rest.starts_with(['{', ' ']) {
                let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
                let value = value.unwrap_or_else(|| panic!("not a number: {line}"));
                *found.get_or_insert(0.0) += value;
            }
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counters are whole and small"
        )]
        let value = found.unwrap_or_else(|| panic!("no metric {full} in:\n{text}")) as u64;
        value
    }
}
