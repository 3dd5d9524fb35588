//! What REST answers when it refuses: RFC 9457 problem bodies with the stable codes of `railhead-abi`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use railhead_abi::Code;
use railhead_config::setting::Refused;
use serde_json::{Map, Value as Json, json};

use crate::link::Detached;

/// A refusal.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The stable code; it decides the status.
    pub code: Code,
    /// The status.
    pub status: StatusCode,
    /// The part of the request to blame, if one is.
    pub field: Option<String>,
    /// What is wrong this time.
    pub detail: String,
    /// More members of the body.
    pub extra: Map<String, Json>,
}

impl Problem {
    /// A problem with the status that belongs to the code.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, status: status_of(code), field: None, detail: detail.into(), extra: Map::new() }
    }

    /// Names the part of the request to blame.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Replaces the status.
    #[must_use]
    pub const fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Adds a member to the body.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Json>) -> Self {
        self.extra.insert(name.to_owned(), value.into());
        self
    }
}

impl From<Detached> for Problem {
    fn from(detached: Detached) -> Self {
        Self::new(detached.code, detached.what).status(StatusCode::SERVICE_UNAVAILABLE)
    }
}

impl From<Refused> for Problem {
    fn from(Refused { code, field, what }: Refused) -> Self {
        Self::new(code, what).field(field)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": format!("urn:railhead:code:{}", self.code.name()),
            "title": self.code.text(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code.name(),
            "number": self.code.number(),
            "field": self.field,
            "remedy": self.code.remedy(),
        });
        if let Some(members) = body.as_object_mut() {
            members.extend(self.extra);
        }
        let mut response = (self.status, axum::Json(body)).into_response();
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}

fn status_of(code: Code) -> StatusCode {
    match code {
        Code::RequestMalformed => StatusCode::BAD_REQUEST,
        Code::NotFound | Code::TransferUnknown | Code::PeerUnknown => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::EtagMismatch => StatusCode::PRECONDITION_FAILED,
        // What this node has not is a conflict with its state, whoever notices it: the dataplane says the same.
        Code::GenerationOld
        | Code::SettingBlockBytes
        | Code::SettingCoreAbsent
        | Code::SettingLaneAbsent
        | Code::SettingNodeAbsent
        | Code::SettingMemoryStuck
        | Code::ConfigContradiction
        | Code::NameTaken
        | Code::PeersFull => StatusCode::CONFLICT,
        Code::DataplaneAbsent | Code::SettingsPending => StatusCode::SERVICE_UNAVAILABLE,
        Code::SettingUnknown
        | Code::SettingType
        | Code::SettingRange
        | Code::SettingRestartOnly
        | Code::SettingContradiction
        | Code::ConfigField
        | Code::NameInvalid => StatusCode::UNPROCESSABLE_ENTITY,
        Code::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
