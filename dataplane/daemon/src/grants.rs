//! Who may open a region: the one pattern that its owner gave.

use core::fmt;

use railhead_abi::Code;
use railhead_abi::frame::is_name;

/// Who may open a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Nobody but its own session.
    Nobody,
    /// Sessions of any name on one node.
    Node(String),
    /// Sessions of one name on one node.
    Session {
        /// The node.
        node: String,
        /// The session's name.
        session: String,
    },
    /// Every session of every node that holds the cluster key.
    Everybody,
}

impl Grant {
    /// Reads `NODE/NAME`, `NODE/*`, `*` or nothing.
    ///
    /// # Errors
    /// [`Code::NameInvalid`].
    pub(crate) fn parse(text: &str) -> Result<Self, Code> {
        match text.split_once('/') {
            None if text.is_empty() => Ok(Self::Nobody),
            None if text == "*" => Ok(Self::Everybody),
            Some((node, "*")) if is_name(node) => Ok(Self::Node(node.to_owned())),
            Some((node, session)) if is_name(node) && is_name(session) => {
                Ok(Self::Session { node: node.to_owned(), session: session.to_owned() })
            }
            _ => Err(Code::NameInvalid),
        }
    }

    /// Whether a session of that name on that node may open the region.
    pub(crate) fn allows(&self, node: &str, session: &str) -> bool {
        match self {
            Self::Nobody => false,
            Self::Node(granted) => granted == node,
            Self::Session { node: granted, session: name } => granted == node && name == session,
            Self::Everybody => true,
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => Ok(()),
            Self::Node(node) => write!(formatter, "{node}/*"),
            Self::Session { node, session } => write!(formatter, "{node}/{session}"),
            Self::Everybody => formatter.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_allows_what_it_says_and_no_more() {
        let cases = [
            ("", [false, false, false]),
            ("*", [true, true, true]),
            ("a/*", [true, true, false]),
            ("a/x", [true, false, false]),
        ];
        for (text, expected) in cases {
            let grant = Grant::parse(text).unwrap();
            let allowed =
                [("a", "x"), ("a", "y"), ("b", "x")].map(|(node, session)| grant.allows(node, session));
            assert_eq!(allowed, expected, "{text}");
            assert_eq!(grant.to_string(), text);
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in ["a", "/x", "a/", "*/x", "*/*", "a/x/y", "a /x", "a/**", " *", "a/x,b/y"] {
            assert_eq!(Grant::parse(text), Err(Code::NameInvalid), "{text}");
        }
        assert_eq!(Grant::parse(&format!("{}/x", "n".repeat(64))), Err(Code::NameInvalid));
    }
}
