//! Where the control endpoint listens besides its socket, and with which token: opened at the start, and opened anew at a reload.
//!
//! A token that cannot be read and a port that is in use keep the daemon from nothing: the socket serves, and the error says
//! why TCP does not. What was open before stays so. Not its job: who is let in (`control`).

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agentd_api::configuration::{Consequence, Mistake};
use ctutils::CtEq as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::config::{Config, Control, Read, TokenSource};
use crate::env::{Seed, chain, secret_credential, secret_file};
use crate::world::credentials;

/// A token that can be guessed is none.
const SHORTEST: usize = 16;
/// How long the place of the token may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Why TCP is not opened as the configuration says.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TcpError {
    #[error("cannot listen on {address}, which control.tcp says: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the token that control.token names cannot be had: {0}")]
    Token(String),
    #[error(
        "what control.token names is no token: that has at least 16 characters of A-Z a-z 0-9 - . _ ~ + / =; `openssl rand -hex 32` makes one"
    )]
    NoToken,
}

impl TcpError {
    /// The mistake in the configuration that it is; `open`: where TCP is open all the same, as the former configuration says.
    pub(crate) fn mistake(&self, read: &Read, open: Option<SocketAddr>) -> Mistake {
        let key = match self {
            Self::Listen { .. } => "tcp",
            Self::Token(_) | Self::NoToken => "token",
        };
        let consequence = if open.is_some() { Consequence::FormerInForce } else { Consequence::LeftOut };
        read.mistake(&["control", key], self.to_string(), consequence)
    }
}

/// What each request over TCP has to carry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(Zeroizing<Vec<u8>>);

impl Token {
    /// A token as RFC 6750 section 2.1 has it, so that it can stand in a header.
    pub(crate) fn new(token: Vec<u8>) -> Result<Self, TcpError> {
        let may_stand = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
        if token.len() < SHORTEST || !token.iter().all(may_stand) {
            return Err(TcpError::NoToken);
        }
        Ok(Self(token.into()))
    }

    /// The same on a thread of its own and within [`ANSWER`]: the file may be on a server that is silent.
    async fn read_aside(source: &TokenSource, config: &Config) -> Result<Self, TcpError> {
        let (source, config) = (source.clone(), config.clone());
        let reading = tokio::task::spawn_blocking(move || Self::read(&source, &config));
        match tokio::time::timeout(ANSWER, reading).await {
            Ok(read) => read.unwrap_or_else(|error| Err(TcpError::Token(chain(&error)))),
            Err(_) => Err(TcpError::Token(format!("it did not answer within {} s", ANSWER.as_secs()))),
        }
    }

    /// Reads it from where the configuration says.
    fn read(source: &TokenSource, config: &Config) -> Result<Self, TcpError> {
        let environment = &config.environment;
        let token = match source {
            TokenSource::File(path) => {
                secret_file(path, Seed::find(environment.home.as_deref(), environment.shell.as_deref()))
            }
            TokenSource::Credential(name) => secret_credential(name, credentials().as_deref()),
        };
        Self::new(token.map_err(|error| TcpError::Token(chain(&error)))?)
    }

    /// In a time that says nothing of where the two differ.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        bool::from(given.ct_eq(self.0.as_slice()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Token").finish_non_exhaustive()
    }
}

/// The listener and the token in force. Shared.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    listener: watch::Sender<Option<Arc<TcpListener>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the configuration in force asked for: port 0 is another port each time.
    asked: Option<SocketAddr>,
    token: Option<Token>,
}

impl Listening {
    /// Opens, changes or closes TCP as this configuration says; after an error everything stays as it was.
    pub(crate) async fn apply(&self, config: &Config) -> Result<(), TcpError> {
        let Control { tcp: Some(address), token: Some(source), .. } = &config.control else {
            *self.state() = State::default();
            self.listener.send_replace(None);
            return Ok(());
        };
        let token = Token::read_aside(source, config).await?;
        if self.state().asked != Some(*address) {
            let listener = listen(*address).await?;
            self.listener.send_replace(Some(Arc::new(listener)));
        }
        let mut state = self.state();
        (state.asked, state.token) = (Some(*address), Some(token));
        Ok(())
    }

    /// What [`Self::apply`] would find, without any change.
    pub(crate) async fn check(&self, config: &Config) -> Result<(), TcpError> {
        let Control { tcp: Some(address), token: Some(source), .. } = &config.control else { return Ok(()) };
        Token::read_aside(source, config).await?;
        if self.state().asked != Some(*address) {
            listen(*address).await?;
        }
        Ok(())
    }

    /// Where it listens, if it does.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.borrow().as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Whether this is the token in force.
    pub(crate) fn admits(&self, given: &[u8]) -> bool {
        self.state().token.as_ref().is_some_and(|token| token.is(given))
    }

    /// The listener, and each that takes its place.
    pub(crate) fn listener(&self) -> watch::Receiver<Option<Arc<TcpListener>>> {
        self.listener.subscribe()
    }

    #[cfg(test)]
    pub(crate) fn with_token(token: &str) -> Self {
        let listening = Self::default();
        listening.state().token = Some(Token::new(token.as_bytes().to_vec()).expect("the test has a token"));
        listening
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, TcpError> {
    TcpListener::bind(address).await.map_err(|source| TcpError::Listen { address, source })
}

/// Looks for the token alone, where no daemon runs.
pub(crate) fn check_token(config: &Config) -> Result<(), TcpError> {
    match &config.control {
        Control { tcp: Some(_), token: Some(source), .. } => Token::read(source, config).map(drop),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_can_be_guessed_or_cannot_stand_in_a_header_is_none() {
        for token in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdef\n0", "0123456789abcdéf"] {
            assert!(matches!(Token::new(token.as_bytes().to_vec()), Err(TcpError::NoToken)), "{token:?}");
        }
    }
}
