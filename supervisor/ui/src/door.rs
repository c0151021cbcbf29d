//! The token that opens the page once, and the two secrets that follow. Rules only: the time comes in as data.
//!
//! A browser sends the cookie to every port of the loopback, so to other servers too. The key is kept by the page,
//! whose storage belongs to one port. Its requests need both.

use std::fmt;
use std::time::Duration;

use ctutils::CtEq as _;
use jiff::{SignedDuration, Timestamp};

use crate::refusal::Refusal;

/// Length of a secret in bytes: 256 bits.
const LENGTH: usize = 32;

/// Random text that no program can guess.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; LENGTH];
        getrandom::fill(&mut bytes)?;
        Ok(Self(hex::encode(bytes)))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares in constant time, so that the duration does not reveal the first difference.
    fn is(&self, other: &[u8]) -> bool {
        bool::from(other.ct_eq(self.0.as_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Secret").finish_non_exhaustive()
    }
}

/// The valid sign-in.
#[derive(Debug, Clone)]
pub(crate) struct SignIn {
    /// Value of the cookie, which scripts cannot read.
    pub(crate) cookie: Secret,
    /// Value of the header that only the page's own scripts send.
    pub(crate) key: Secret,
    /// Time from which both are refused.
    pub(crate) ends: Timestamp,
}

/// State of the page's only token.
#[derive(Debug)]
enum Token {
    Unused { ends: Timestamp },
    Used(SignIn),
}

/// Admits one browser.
#[derive(Debug)]
pub(crate) struct Door {
    secret: Secret,
    token: Token,
    life: Duration,
}

impl Door {
    /// Makes a door whose token can be used until `ends`. A sign-in has this life.
    pub(crate) fn new(secret: Secret, ends: Timestamp, life: Duration) -> Self {
        Self { secret, token: Token::Unused { ends }, life }
    }

    /// Returns the token.
    pub(crate) fn token(&self) -> &str {
        self.secret.as_str()
    }

    /// Exchanges the token for `cookie` and `key`.
    pub(crate) fn sign_in(
        &mut self,
        given: &[u8],
        [cookie, key]: [Secret; 2],
        now: Timestamp,
    ) -> Result<SignIn, Refusal> {
        if !self.secret.is(given) {
            return Err(Refusal::WrongToken);
        }
        match &self.token {
            Token::Used(_) => Err(Refusal::UsedToken),
            Token::Unused { ends } if now >= *ends => Err(Refusal::ExpiredToken),
            Token::Unused { .. } => {
                let sign_in = SignIn { cookie, key, ends: after(now, self.life) };
                self.token = Token::Used(sign_in.clone());
                Ok(sign_in)
            }
        }
    }

    /// Returns the end of the sign-in to which one of these cookies and this key belong.
    pub(crate) fn admit<'a>(
        &self,
        cookies: impl Iterator<Item = &'a [u8]>,
        key: &[u8],
        now: Timestamp,
    ) -> Option<Timestamp> {
        let Token::Used(sign_in) = &self.token else { return None };
        let is_known = cookies.fold(false, |known, given| known | sign_in.cookie.is(given));
        (is_known & sign_in.key.is(key) && now < sign_in.ends).then_some(sign_in.ends)
    }

    /// Returns the time at which the present state ends.
    pub(crate) fn ends(&self) -> Timestamp {
        match &self.token {
            Token::Unused { ends } | Token::Used(SignIn { ends, .. }) => *ends,
        }
    }
}

/// Returns the time after a duration, at most the last one that can be written.
pub(crate) fn after(now: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    now.checked_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A door whose token ends at 300, and whose sign-in lives for 1,000 s.
    fn door() -> Door {
        Door::new(Secret("t".repeat(64)), at(300), Duration::from_secs(1000))
    }

    /// The cookie and the key.
    fn secrets() -> [Secret; 2] {
        ["c", "k"].map(|letter| Secret(letter.repeat(64)))
    }

    #[test]
    fn the_token_works_once_and_in_its_time() {
        let token = "t".repeat(64);
        let mut door = door();
        let [cookie, key] = secrets();
        let admitted = door.admit([cookie.as_str().as_bytes()].into_iter(), key.as_str().as_bytes(), at(0));
        assert_eq!(admitted, None);
        for wrong in ["", "t", &"u".repeat(64), &format!("{token}t")] {
            assert_eq!(door.sign_in(wrong.as_bytes(), secrets(), at(1)).unwrap_err(), Refusal::WrongToken);
        }
        let sign_in = door.sign_in(token.as_bytes(), secrets(), at(299)).unwrap();
        assert_eq!(sign_in.ends, at(1299));
        assert_eq!(door.sign_in(token.as_bytes(), secrets(), at(299)).unwrap_err(), Refusal::UsedToken);
        assert_eq!(door.sign_in(b"u", secrets(), at(299)).unwrap_err(), Refusal::WrongToken);
        assert_eq!(self::door().sign_in(token.as_bytes(), secrets(), at(300)).unwrap_err(), Refusal::ExpiredToken);
    }

    #[test]
    fn the_cookie_and_the_key_admit_together_until_the_end_of_the_sign_in() {
        let mut door = door();
        door.sign_in("t".repeat(64).as_bytes(), secrets(), at(0)).unwrap();
        let (good, key) = ("c".repeat(64), "k".repeat(64));
        let admit_with = |cookies: &[&str], key: &str, now| {
            door.admit(cookies.iter().map(|cookie| cookie.as_bytes()), key.as_bytes(), at(now))
        };
        let admit = |cookies: &[&str], now| admit_with(cookies, &key, now);
        assert_eq!(admit(&[&good], 999), Some(at(1000)));
        // A server at another port can set a cookie of the same name.
        assert_eq!(admit(&["other", &good], 1), Some(at(1000)));
        assert_eq!(admit(&[&good], 1000), None);
        assert_eq!(admit(&["other", &"c".repeat(63)], 1), None);
        assert_eq!(admit(&[], 1), None);
        for wrong in ["", &good, &"k".repeat(63)] {
            assert_eq!(admit_with(&[&good], wrong, 1), None, "{wrong}");
        }
    }

    #[test]
    fn secrets_differ_and_do_not_show_themselves() {
        let (one, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert!(one != other && one.as_str().len() == 2 * LENGTH);
        assert!(!format!("{one:?}").contains(one.as_str()));
    }

    #[test]
    fn a_life_that_is_too_long_ends_at_the_last_time() {
        assert_eq!(after(at(0), Duration::MAX), Timestamp::MAX);
    }
}
