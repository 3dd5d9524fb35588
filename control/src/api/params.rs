//! Query parameters, each checked by name and value.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use railhead_abi::Code;

use crate::problem::Problem;

/// The extractor that handlers take.
pub(crate) type Raw = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// The parameters of one request.
#[derive(Debug)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    /// Refuses parameters that the resource does not have and those given twice.
    pub(crate) fn new(raw: Raw, known: &[&str]) -> Result<Self, Problem> {
        let Query(pairs) = raw.map_err(|error| malformed("query", error.body_text()))?;
        for (at, (name, _)) in pairs.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let what = match known {
                    [] => "this resource takes no parameters".to_owned(),
                    known => format!("no such parameter; there are: {}", known.join(", ")),
                };
                return Err(malformed(name, what));
            }
            if pairs[..at].iter().any(|(other, _)| other == name) {
                return Err(malformed(name, "given twice"));
            }
        }
        Ok(Self(pairs))
    }

    /// The text of a parameter.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// A whole number within bounds.
    pub(crate) fn number(&self, name: &str, default: u64, min: u64, max: u64) -> Result<u64, Problem> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| malformed(name, format!("\"{text}\" is not a whole number from {min} to {max}")))
    }

    /// `true` or `false`; an empty value is true.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(text) => Err(malformed(name, format!("\"{text}\" is neither true nor false"))),
        }
    }
}

/// A part of the request that is not valid.
pub(crate) fn malformed(field: &str, what: impl Into<String>) -> Problem {
    Problem::new(Code::RequestMalformed, what).field(field)
}
