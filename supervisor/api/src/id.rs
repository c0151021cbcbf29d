//! Ids and names. A value exists only by parsing, so every value is safe in a path, a URL and a unit's name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, de};

/// Error for a text that is not a valid id or name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// The text is empty.
    #[error("{what} is empty")]
    Empty { what: &'static str },
    /// The text is too long. `len` and `max` are in bytes.
    #[error("{what} has {len} bytes; {max} are allowed")]
    TooLong { what: &'static str, len: usize, max: usize },
    /// The text has a character that is not allowed, or `-` at its beginning or end.
    #[error("{what} {text:?} has a character other than a-z, 0-9 and `-`, or begins or ends with `-`")]
    Character { what: &'static str, text: String },
}

/// Checks that a text is an id or name of at most `max` bytes: `a-z 0-9 -`, without `-` at the beginning or
/// end.
fn check(what: &'static str, text: &str, max: usize) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty { what });
    }
    if text.len() > max {
        return Err(InvalidId::TooLong { what, len: text.len(), max });
    }
    let label = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !label || text.starts_with('-') || text.ends_with('-') {
        return Err(InvalidId::Character { what, text: text.to_owned() });
    }
    Ok(())
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[cfg_attr(feature = "schema", schemars(extend("pattern" = crate::schema::LABEL, "maxLength" = $max)))]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                check($what, text, $max)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

label!(
    /// A session's id: 1 to 32 of `a-z 0-9 -`. agentd generates ids of twelve letters and digits that begin
    /// with a letter.
    SessionId, "the session id", 32
);
label!(
    /// A session's name, chosen by a person: 1 to 63 of `a-z 0-9 -` (a label of RFC 1123). Unique among all
    /// sessions.
    SessionName, "the session name", 63
);
label!(
    /// An agent's name in the configuration: 1 to 63 of `a-z 0-9 -`.
    AgentName, "the agent name", 63
);
label!(
    /// A schedule's name, chosen by a person: 1 to 63 of `a-z 0-9 -`. Unique among all schedules.
    ScheduleName, "the schedule name", 63
);
label!(
    /// A place's name in the configuration: 1 to 63 of `a-z 0-9 -`.
    PlaceName, "the place name", 63
);
label!(
    /// A token's name in the configuration: 1 to 63 of `a-z 0-9 -`.
    TokenName, "the token name", 63
);
label!(
    /// A turn's id, unique in its session: `t1`, `t2` and so on.
    TurnId, "the turn id", 32
);
label!(
    /// A permission request's id, unique in its session: `p1`, `p2` and so on.
    PermissionId, "the permission id", 32
);

/// Crockford's base32 alphabet (<https://www.crockford.com/base32.html>) in lower case. It has no characters
/// that people confuse.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

impl SessionId {
    /// Generates an id with 59 random bits. Two sessions of one machine practically never get equal ids.
    ///
    /// # Panics
    /// Panics if the operating system provides no random numbers. No supported system fails to after boot.
    pub fn random() -> Self {
        let mut bytes = [0_u8; 12];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        let mut text: String = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect();
        let first = char::from(ALPHABET[10 + usize::from(bytes[0] % 22)]);
        text.replace_range(0..1, &first.to_string());
        Self(text)
    }
}

impl TurnId {
    /// Makes the id of the session's `n`th turn, counted from 1.
    pub fn numbered(n: u64) -> Self {
        Self(format!("t{n}"))
    }
}

impl PermissionId {
    /// Makes the id of the session's `n`th permission request, counted from 1.
    pub fn numbered(n: u64) -> Self {
        Self(format!("p{n}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_could_leave_its_directory_does_not_parse() {
        for bad in ["", "..", "../x", "a/b", "a\0b", "A", "%2e", "é", "-a", "a-", "a b", "а", &"a".repeat(33)] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?} parsed");
        }
        for good in ["a", "s-1", "k3m9x2p7qa4z"] {
            assert_eq!(good.parse::<SessionId>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn random_ids_parse_and_begin_with_a_letter() {
        for _ in 0..200 {
            let id = SessionId::random();
            assert_eq!(id.as_str().parse::<SessionId>().unwrap(), id);
            assert!(id.as_str().starts_with(|c: char| c.is_ascii_lowercase()));
        }
    }
}
