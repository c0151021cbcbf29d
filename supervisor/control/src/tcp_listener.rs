//! The TCP listener of the control endpoint and its token: opened at the start, and updated at a reload.
//!
//! An unreadable token or a port in use does not stop the daemon: the socket serves, and the error gives the
//! reason. The former listener stays open then. [`crate::tcp`] decides about requests.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agentd_api::configuration::{Consequence, Mistake};
use async_recursion::async_recursion as boxed;
use ctutils::CtEq as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use zeroize::Zeroizing;

use agentd_api::chain;
use agentd_config::{Config, Control, Origins, TokenSource};
use agentd_environment::{Seed, secret_credential, secret_file};
use agentd_session::generation::credentials;

/// Minimum length of a token. A shorter one could be guessed.
const SHORTEST: usize = 16;
/// Time limit for reading the token.
const ANSWER: Duration = Duration::from_secs(10);

/// Reason why TCP is not open as configured.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    #[error("cannot listen on the address {address} of control.tcp: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot read the token that control.token names: {0}")]
    Token(String),
    #[error(
        "the token that control.token names is invalid: use at least 16 characters of A-Z a-z 0-9 - . _ ~ + / =; \
         `openssl rand -hex 32` generates a token"
    )]
    NoToken,
}

impl TcpError {
    /// Returns the error as a mistake of the configuration. `open` is the address that stays open from the former
    /// configuration.
    pub fn mistake(&self, read: &Origins, open: Option<SocketAddr>) -> Mistake {
        let key = match self {
            Self::Listen { .. } => "tcp",
            Self::Token(_) | Self::NoToken => "token",
        };
        let consequence = if open.is_some() { Consequence::FormerInForce } else { Consequence::LeftOut };
        read.mistake(&["control", key], self.to_string(), consequence)
    }
}

/// The token that each request over TCP must carry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(Zeroizing<Vec<u8>>);

impl Token {
    /// Validates a token by RFC 6750 section 2.1, so that it is valid in a header.
    pub(crate) fn new(token: Vec<u8>) -> Result<Self, TcpError> {
        let may_stand = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
        if token.len() < SHORTEST || !token.iter().all(may_stand) {
            return Err(TcpError::NoToken);
        }
        Ok(Self(token.into()))
    }

    /// Reads the token on a blocking thread and within [`ANSWER`]: the file may be on a server that does not
    /// respond.
    async fn read_aside(source: &TokenSource, config: &Config) -> Result<Self, TcpError> {
        let (source, config) = (source.clone(), config.clone());
        let reading = agentd_host::work::blocking(move || Self::read(&source, &config));
        match tokio::time::timeout(ANSWER, reading).await {
            Ok(read) => read.unwrap_or_else(|error| Err(TcpError::Token(chain(&error)))),
            Err(_) => Err(TcpError::Token(format!("it did not answer within {} s", ANSWER.as_secs()))),
        }
    }

    /// Reads the token from the configured place.
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

    /// Compares in constant time, so that the duration does not reveal the first difference.
    pub(crate) fn is(&self, other: &[u8]) -> bool {
        bool::from(other.ct_eq(self.0.as_slice()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Token").finish_non_exhaustive()
    }
}

/// The listener and the token in force. Shared.
#[derive(Debug, Default)]
pub struct TcpEndpoint {
    listener: watch::Sender<Option<Arc<TcpListener>>>,
    state: Mutex<ListenerState>,
}

#[derive(Debug, Default)]
struct ListenerState {
    /// The address that the configuration in force asked for: port 0 becomes another port each time.
    asked: Option<SocketAddr>,
    token: Option<Token>,
}

impl TcpEndpoint {
    /// Opens, changes or closes the listener as configured. After an error everything stays unchanged.
    #[boxed]
    pub async fn apply(&self, config: &Config) -> Result<(), TcpError> {
        let Control { tcp: Some(address), token: Some(source), .. } = &config.control else {
            *self.state() = ListenerState::default();
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

    /// Returns the error that [`Self::apply`] would return, and changes nothing.
    #[boxed]
    pub async fn check(&self, config: &Config) -> Result<(), TcpError> {
        let Control { tcp: Some(address), token: Some(source), .. } = &config.control else { return Ok(()) };
        Token::read_aside(source, config).await?;
        if self.state().asked != Some(*address) {
            listen(*address).await?;
        }
        Ok(())
    }

    /// Returns the address of the listener, if it is open.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.borrow().as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Reports whether this is the token in force.
    pub fn admits(&self, token: &[u8]) -> bool {
        self.state().token.as_ref().is_some_and(|known| known.is(token))
    }

    /// Returns a receiver of the listener and of each later one.
    pub fn listener(&self) -> watch::Receiver<Option<Arc<TcpListener>>> {
        self.listener.subscribe()
    }

    #[cfg(test)]
    pub fn with_token(token: &str) -> Self {
        let listening = Self::default();
        listening.state().token = Some(Token::new(token.as_bytes().to_vec()).expect("the test has a token"));
        listening
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, TcpError> {
    TcpListener::bind(address).await.map_err(|source| TcpError::Listen { address, source })
}

/// Tests the token without a daemon.
pub fn check_token(config: &Config) -> Result<(), TcpError> {
    match &config.control {
        Control { tcp: Some(_), token: Some(source), .. } => Token::read(source, config).map(drop),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_can_be_guessed_or_cannot_stand_in_a_header_is_refused() {
        for token in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdef\n0", "0123456789abcdéf"] {
            assert!(matches!(Token::new(token.as_bytes().to_vec()), Err(TcpError::NoToken)), "{token:?}");
        }
    }
}
