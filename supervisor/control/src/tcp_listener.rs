//! The TCP listener of the control endpoint and its tokens: opened at the start, and updated at a reload.
//!
//! An unreadable token or a port in use does not stop the daemon: the socket serves, and the error gives the
//! reason. The former listener stays open then. [`crate::tcp`] decides about requests.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agentd_api::TokenName;
use agentd_api::configuration::{Consequence, Mistake};
use agentd_api::route::Scope;
use async_recursion::async_recursion as boxed;
use ctutils::CtEq as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::grant::{Grant, GrantSource};
use agentd_api::chain;
use agentd_config::{Config, Origins, TokenSource};
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
    #[error("cannot read the token that {place} names: {detail}")]
    Token { place: TokenPlace, detail: String },
    #[error(
        "the token that {place} names is invalid: use at least 16 characters of A-Z a-z 0-9 - . _ ~ + / =; \
         `openssl rand -hex 32` generates a token"
    )]
    NoToken { place: TokenPlace },
    #[error(
        "{place} and {other} name equal tokens, so a request cannot be told from a request with the other; generate \
         another token for {place}: openssl rand -hex 32"
    )]
    Same { place: TokenPlace, other: TokenPlace },
}

/// Key of the configuration that names a token: `control.token`, or a name in `control.tokens`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPlace(Option<TokenName>);

impl fmt::Display for TokenPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => formatter.write_str("control.token"),
            Some(name) => write!(formatter, "control.tokens.{name}"),
        }
    }
}

impl TcpError {
    /// Returns the error as a mistake of the configuration. `open` is the address that stays open from the former
    /// configuration.
    pub fn mistake(&self, read: &Origins, open: Option<SocketAddr>) -> Mistake {
        let key = match self {
            Self::Listen { .. } => vec!["control", "tcp"],
            Self::Token { place, .. } | Self::NoToken { place } | Self::Same { place, .. } => match &place.0 {
                None => vec!["control", "token"],
                Some(name) => vec!["control", "tokens", name.as_str()],
            },
        };
        let consequence = if open.is_some() { Consequence::FormerInForce } else { Consequence::LeftOut };
        read.mistake(&key, self.to_string(), consequence)
    }
}

/// Reason why a text is no token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotAToken;

/// A token that requests over TCP can carry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(Zeroizing<Vec<u8>>);

impl Token {
    /// Validates a token by RFC 6750 section 2.1, so that it is valid in a header.
    pub(crate) fn new(token: Vec<u8>) -> Result<Self, NotAToken> {
        let may_stand = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
        if token.len() < SHORTEST || !token.iter().all(may_stand) {
            return Err(NotAToken);
        }
        Ok(Self(token.into()))
    }

    /// Reads the token from the configured place.
    fn read(source: &TokenSource, place: &TokenPlace, config: &Config) -> Result<Self, TcpError> {
        let environment = &config.environment;
        let token = match source {
            TokenSource::File(path) => {
                secret_file(path, Seed::find(environment.home.as_deref(), environment.shell.as_deref()))
            }
            TokenSource::Credential(name) => secret_credential(name, credentials().as_deref()),
        };
        let token = token.map_err(|error| TcpError::Token { place: place.clone(), detail: chain(&error) })?;
        Self::new(token).map_err(|NotAToken| TcpError::NoToken { place: place.clone() })
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

/// A token in force.
#[derive(Debug, Clone)]
struct KnownToken {
    place: TokenPlace,
    token: Token,
    scope: Scope,
    /// Cancelled when the token is no longer in force.
    revoked: CancellationToken,
}

impl KnownToken {
    /// Reports whether a request that the other token admitted is admitted in the same way by this one.
    fn continues(&self, other: &Self) -> bool {
        (&self.place, &self.token, self.scope) == (&other.place, &other.token, other.scope)
    }

    fn grant(&self) -> Grant {
        let source = match &self.place.0 {
            None => GrantSource::OwnToken,
            Some(name) => GrantSource::Token(name.clone()),
        };
        Grant { scope: self.scope, source, revoked: self.revoked.clone() }
    }

    /// Reads all tokens of the configuration on a blocking thread and within [`ANSWER`]: a file may be on a server that
    /// does not respond.
    async fn read_aside(config: &Config) -> Result<Vec<Self>, TcpError> {
        let first = sources(config).into_iter().next().map_or(TokenPlace(None), |(place, ..)| place);
        let failed = |detail: String| TcpError::Token { place: first, detail };
        let config = config.clone();
        let reading = agentd_host::work::blocking(move || Self::read_all(&config));
        match tokio::time::timeout(ANSWER, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => Err(failed(chain(&error))),
            Err(_) => Err(failed(format!("the tokens could not be read within {} s", ANSWER.as_secs()))),
        }
    }

    /// Reads all tokens of the configuration. Two equal ones are an error.
    fn read_all(config: &Config) -> Result<Vec<Self>, TcpError> {
        let mut known = Vec::<Self>::new();
        for (place, source, scope) in sources(config) {
            let token = Token::read(&source, &place, config)?;
            if let Some(other) = known.iter().find(|other| other.token.is(&token.0)) {
                return Err(TcpError::Same { place, other: other.place.clone() });
            }
            known.push(Self { place, token, scope, revoked: CancellationToken::new() });
        }
        Ok(known)
    }
}

/// Returns the places of all tokens in the configuration, with their scopes.
fn sources(config: &Config) -> Vec<(TokenPlace, TokenSource, Scope)> {
    let own = config.control.token.iter().map(|source| (TokenPlace(None), source.clone(), Scope::Own));
    let named = config.control.tokens.iter().filter_map(|(name, token)| {
        // A table without one source is a mistake of the configuration, and such a configuration is not in force.
        Some((TokenPlace(Some(name.clone())), token.source()?, token.scope))
    });
    own.chain(named).collect()
}

/// The listener and the tokens in force. Shared.
#[derive(Debug, Default)]
pub struct TcpEndpoint {
    listener: watch::Sender<Option<Arc<TcpListener>>>,
    state: Mutex<ListenerState>,
}

#[derive(Debug, Default)]
struct ListenerState {
    /// The address that the configuration in force asked for: port 0 becomes another port each time.
    asked: Option<SocketAddr>,
    tokens: Vec<KnownToken>,
}

impl ListenerState {
    /// Puts tokens in force. Those that are in force already keep their requests, and the requests of others end.
    fn replace(&mut self, asked: Option<SocketAddr>, mut tokens: Vec<KnownToken>) {
        for former in std::mem::take(&mut self.tokens) {
            match tokens.iter_mut().find(|token| token.continues(&former)) {
                Some(token) => token.revoked = former.revoked,
                None => former.revoked.cancel(),
            }
        }
        (self.asked, self.tokens) = (asked, tokens);
    }
}

impl TcpEndpoint {
    /// Opens, changes or closes the listener as configured. After an error everything stays unchanged.
    ///
    /// Streams and waiting requests of tokens that are no longer in force end before this returns.
    #[boxed]
    pub async fn apply(&self, config: &Config) -> Result<(), TcpError> {
        let Some(address) = config.control.tcp else {
            self.state().replace(None, Vec::new());
            self.listener.send_replace(None);
            return Ok(());
        };
        let tokens = KnownToken::read_aside(config).await?;
        if self.state().asked != Some(address) {
            let listener = listen(address).await?;
            self.listener.send_replace(Some(Arc::new(listener)));
        }
        self.state().replace(Some(address), tokens);
        Ok(())
    }

    /// Returns the error that [`Self::apply`] would return, and changes nothing.
    #[boxed]
    pub async fn check(&self, config: &Config) -> Result<(), TcpError> {
        let Some(address) = config.control.tcp else { return Ok(()) };
        KnownToken::read_aside(config).await?;
        if self.state().asked != Some(address) {
            listen(address).await?;
        }
        Ok(())
    }

    /// Returns the address of the listener, if it is open.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.borrow().as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Returns what this token permits, if it is in force.
    ///
    /// The token is compared with each token in constant time, whether or not an earlier one is equal.
    pub(crate) fn admit(&self, token: &[u8]) -> Option<Grant> {
        let state = self.state();
        let found =
            state.tokens.iter().fold(None, |found, known| if known.token.is(token) { Some(known) } else { found });
        found.map(KnownToken::grant)
    }

    /// Returns a receiver of the listener and of each later one.
    pub fn listener(&self) -> watch::Receiver<Option<Arc<TcpListener>>> {
        self.listener.subscribe()
    }

    #[cfg(test)]
    pub(crate) fn with_token(token: &str) -> Self {
        let listening = Self::default();
        let token = Token::new(token.as_bytes().to_vec()).expect("the test has a token");
        let known = KnownToken { place: TokenPlace(None), token, scope: Scope::Own, revoked: CancellationToken::new() };
        listening.state().replace(None, vec![known]);
        listening
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, TcpError> {
    TcpListener::bind(address).await.map_err(|source| TcpError::Listen { address, source })
}

/// Tests the tokens without a daemon.
pub fn check_token(config: &Config) -> Result<(), TcpError> {
    match config.control.tcp {
        Some(_) => KnownToken::read_all(config).map(drop),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [&str; 3] = ["0123456789abcdef0", "0123456789abcdef1", "0123456789abcdef2"];

    fn known(name: Option<&str>, value: &str, scope: Scope) -> KnownToken {
        let place = TokenPlace(name.map(|name| name.parse().unwrap()));
        let token = Token::new(value.as_bytes().to_vec()).unwrap();
        KnownToken { place, token, scope, revoked: CancellationToken::new() }
    }

    #[test]
    fn a_token_that_can_be_guessed_or_cannot_stand_in_a_header_is_refused() {
        for token in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdef\n0", "0123456789abcdéf"] {
            assert!(matches!(Token::new(token.as_bytes().to_vec()), Err(NotAToken)), "{token:?}");
        }
    }

    #[test]
    fn each_token_permits_its_own_scope_and_no_other_value_permits_anything() {
        let endpoint = TcpEndpoint::default();
        let [own, read, operate] = VALUES;
        let all = vec![
            known(None, own, Scope::Own),
            known(Some("r"), read, Scope::Read),
            known(Some("o"), operate, Scope::Operate),
        ];
        endpoint.state().replace(None, all);
        for (value, scope) in [(own, Scope::Own), (read, Scope::Read), (operate, Scope::Operate)] {
            assert_eq!(endpoint.admit(value.as_bytes()).map(|grant| grant.scope), Some(scope), "{value}");
        }
        for wrong in ["", "0123456789abcdef", "0123456789abcdef00", "0123456789ABCDEF0", " 0123456789abcdef0"] {
            assert!(endpoint.admit(wrong.as_bytes()).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_grant_ends_when_its_token_is_removed_replaced_or_gets_another_scope() {
        let [first, second, third] = VALUES;
        let endpoint = TcpEndpoint::default();
        let with = |tokens: Vec<KnownToken>| endpoint.state().replace(None, tokens);
        with(vec![known(Some("a"), first, Scope::Read), known(Some("b"), second, Scope::Own)]);
        let (kept, changed) = (endpoint.admit(first.as_bytes()).unwrap(), endpoint.admit(second.as_bytes()).unwrap());
        with(vec![known(Some("a"), first, Scope::Read), known(Some("b"), second, Scope::Read)]);
        assert!(!kept.revoked.is_cancelled() && changed.revoked.is_cancelled());
        with(vec![known(Some("a"), third, Scope::Read)]);
        assert!(kept.revoked.is_cancelled());
        let last = endpoint.admit(third.as_bytes()).unwrap();
        with(Vec::new());
        assert!(last.revoked.is_cancelled() && endpoint.admit(third.as_bytes()).is_none());
    }
}
