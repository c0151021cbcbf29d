//! `[[hooks]]`: events that agentd tells to a program, to a web address or to the desktop.
//!
//! This module validates. The crate `agentd-hooks` delivers.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::hook::{HookEvent, UnknownHookEvent};
use agentd_api::label::Selector;
use agentd_api::quantity::Time;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Flaws, TokenSource, flaw, seconds};

/// A hook: events and their receiver. It has exactly one of `command`, `url` and `desktop`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// Name of the hook, unique among all hooks: 1 to 64 of the characters `a-z`, `0-9` and `-`. Default: the file
    /// name of the command, the host of the address, or `desktop`.
    #[serde(default)]
    pub name: Option<String>,
    /// Events: `NeedsAttention`, `session.failed`, and kinds of events such as `turn.ended`. Required.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    #[serde(deserialize_with = "events")]
    pub on: Vec<HookEvent>,
    /// Labels of the sessions whose events are delivered, such as `team=web,!done`. Default: all sessions.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    #[serde(default, deserialize_with = "selector")]
    pub label: Option<Selector>,
    /// Agent of the sessions whose events are delivered. Default: all agents.
    #[serde(default)]
    pub agent: Option<String>,
    /// Directory of the sessions whose events are delivered. Sessions below it count too. Default: all directories.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Program and its arguments. The program's path is absolute or begins with `~/`. The event is on its stdin as
    /// JSON, and in the variables `AGENTD_HOOK_*`.
    #[serde(default)]
    pub command: Vec<String>,
    /// Address to which the event is posted. `http` is for this machine alone, and `https` needs `grant.network`
    /// for other machines.
    #[serde(default)]
    pub url: Option<String>,
    /// Permission to reach another machine.
    #[serde(default)]
    pub grant: HookGrant,
    /// Source of the secret that signs requests: `{ file = "/PATH" }` or `{ credential = "NAME" }`. Each line is a
    /// secret, as text or as `whsec_` and base64. Default: no signature.
    #[serde(default)]
    pub secret: Option<TokenSource>,
    /// Body of the requests to `url`: `event`, `slack`, `discord` or `text`. Default: `event`, the event as JSON.
    #[serde(default)]
    pub format: HookFormat,
    /// Whether the event is shown on the user's desktop. Default: `false`.
    #[serde(default)]
    pub desktop: bool,
    /// Time limit of one attempt, from 0.1 s to 60 s. Default: 10 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    #[serde(default = "ten_seconds")]
    pub timeout: Time,
    /// Pause before the second attempt. Each further pause is twice as long. Default: 1 s. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    #[serde(default = "a_second")]
    pub retry_first: Time,
    /// Longest pause between two attempts. Default: 5 minutes. Less than `retry_first` is refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    #[serde(default = "five_minutes")]
    pub retry_longest: Time,
    /// Age at which an event is dropped that could not be delivered. Default: 1 day. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    #[serde(default = "a_day")]
    pub max_age: Time,
}

/// Permissions of a hook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(default, deny_unknown_fields)]
pub struct HookGrant {
    /// Hosts with their ports that the hook may reach, such as `hooks.slack.com:443`. Default: none.
    pub network: Vec<String>,
}

/// Body of a hook's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum HookFormat {
    /// The event as JSON.
    #[default]
    Event,
    /// The text of the event for an incoming webhook of Slack or Mattermost.
    Slack,
    /// The text of the event for a webhook of Discord.
    Discord,
    /// The text of the event alone, as ntfy takes it.
    Text,
}

/// The parts of a hook's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookAddress {
    /// Whether the connection is encrypted (`https`).
    pub is_encrypted: bool,
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Path and query.
    pub path: String,
}

impl HookAddress {
    /// Parses an address.
    ///
    /// # Errors
    ///
    /// A text for people, without the address, which may contain a token.
    pub fn parse(text: &str) -> Result<Self, String> {
        let uri: http::Uri = text.parse().map_err(|error| format!("is not an address: {error}"))?;
        let is_encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("does not begin with https:// or http://".to_owned()),
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("has a user name or password; sign the requests with `secret`".to_owned());
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        if host.is_empty() {
            return Err("has no host".to_owned());
        }
        let port = uri.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        Ok(Self { is_encrypted, host, port, path: if path.is_empty() { "/" } else { path }.to_owned() })
    }

    /// Reports whether the host is this machine by its name alone.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// Returns the host and the port, as `grant.network` and the header `Host` have them.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Returns the address without its path, which may contain a token.
    pub fn shown(&self) -> String {
        format!("{}://{}", if self.is_encrypted { "https" } else { "http" }, self.authority())
    }
}

/// Longest time limit of one attempt.
const LONGEST_TIMEOUT: Duration = Duration::from_mins(1);
/// Shortest time limit of one attempt.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest name in characters.
const LONGEST_NAME: usize = 64;
/// Maximum number of hooks.
const MOST: usize = 32;
/// Number of suggested names for an unknown event.
const SUGGESTED: usize = 3;

impl Hook {
    /// Returns the name, or a name made from the receiver.
    pub fn name(&self) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let address = self.url.as_ref().and_then(|url| HookAddress::parse(url).ok());
        let program = self.command.first().map(|program| program.rsplit('/').next().unwrap_or_default().to_owned());
        let text = program.or(address.map(|address| address.host)).unwrap_or_else(|| "desktop".to_owned());
        let plain = text.to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        plain.chars().take(LONGEST_NAME).collect::<String>().trim_matches('-').to_owned()
    }

    /// Returns the mistake of the hook.
    fn mistake(&self) -> Option<String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let name = self.name();
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) {
            return Some(format!("has the invalid name {name:?}; use 1 to {LONGEST_NAME} of a-z, 0-9 and -"));
        }
        if self.on.is_empty() {
            return Some("has no event in `on`; add one, such as \"NeedsAttention\"".to_owned());
        }
        let receivers =
            usize::from(!self.command.is_empty()) + usize::from(self.url.is_some()) + usize::from(self.desktop);
        if receivers != 1 {
            return Some("needs exactly one of `command`, `url` and `desktop = true`".to_owned());
        }
        if let Some(program) = self.command.first()
            && !program.starts_with('/')
            && !program.starts_with("~/")
        {
            return Some(format!("has the program {program:?}; give its path from / or ~/"));
        }
        if self.command.iter().any(|word| word.contains('\0')) {
            return Some("has a NUL character in `command`".to_owned());
        }
        if self.directory.as_ref().is_some_and(|directory| !directory.is_absolute()) {
            return Some("has a `directory` that is not absolute".to_owned());
        }
        self.mistake_of_address().or_else(|| self.mistake_of_times())
    }

    fn mistake_of_address(&self) -> Option<String> {
        let Some(url) = &self.url else {
            let is_of_url = self.secret.is_some() || self.format != HookFormat::Event || !self.grant.network.is_empty();
            return is_of_url.then(|| "has `secret`, `format` or `grant`, which are for `url` alone".to_owned());
        };
        let address = match HookAddress::parse(url) {
            Ok(address) => address,
            Err(wrong) => return Some(format!("has a `url` that {wrong}")),
        };
        let authority = address.authority();
        if !address.is_encrypted && !address.is_loopback() {
            return Some(format!("would send events to {authority} without encryption; use https"));
        }
        if !address.is_loopback() && !self.grant.network.contains(&authority) {
            return Some(format!("may not reach {authority}; add grant.network = [{authority:?}] to it"));
        }
        match &self.secret {
            Some(TokenSource::File(path)) if !path.is_absolute() && !path.starts_with("~") => {
                Some("has a file in `secret` that is not absolute".to_owned())
            }
            Some(TokenSource::Credential(name)) if name.is_empty() || name.contains('/') || name.starts_with('.') => {
                Some("has an invalid credential name in `secret`".to_owned())
            }
            _ => None,
        }
    }

    fn mistake_of_times(&self) -> Option<String> {
        if self.timeout.0 < SHORTEST_TIMEOUT || self.timeout.0 > LONGEST_TIMEOUT {
            return Some("has a `timeout` outside of 0.1 s to 60 s".to_owned());
        }
        if self.retry_first.0.is_zero() || self.retry_longest.0 < self.retry_first.0 {
            return Some("has a `retry_first` of 0, or one above `retry_longest`".to_owned());
        }
        self.max_age.0.is_zero().then(|| "has a `max_age` of 0; set a value above 0".to_owned())
    }
}

/// Returns the mistakes of the hooks.
pub(super) fn check(hooks: &[Hook]) -> Flaws {
    let mut names = BTreeSet::new();
    for hook in hooks {
        let name = hook.name();
        let mistake = hook.mistake().or_else(|| {
            let is_taken = !names.insert(name.clone());
            is_taken.then(|| "is declared twice; give each hook its own `name`".to_owned())
        });
        if let Some(mistake) = mistake {
            return vec![flaw(&["hooks"], format!("the hook {name:?} {mistake}"))];
        }
    }
    if hooks.len() > MOST {
        return vec![flaw(&["hooks"], format!("there are {} hooks; at most {MOST} are possible", hooks.len()))];
    }
    Flaws::new()
}

/// Parses the names of events. The error has the closest names.
fn events<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<HookEvent>, D::Error> {
    struct Events;
    impl<'de> Visitor<'de> for Events {
        type Value = Vec<HookEvent>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of names of events")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Vec<HookEvent>, A::Error> {
            let mut events = Vec::new();
            while let Some(name) = names.next_element::<String>()? {
                events.push(name.parse().map_err(|error| A::Error::custom(explained(&error)))?);
            }
            Ok(events)
        }
    }
    deserializer.deserialize_seq(Events)
}

/// Describes an unknown event with the closest names.
fn explained(error: &UnknownHookEvent) -> String {
    let UnknownHookEvent::Unknown(name) = error else { return error.to_string() };
    let rate = |known: &str| strsim::jaro_winkler(&name.to_lowercase(), &known.to_lowercase());
    let mut known: Vec<&str> = HookEvent::all().map(HookEvent::as_str).collect();
    known.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    known.truncate(SUGGESTED);
    format!("{error}; the closest names are {}", known.join(", "))
}

fn selector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Selector>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse::<Selector>().map(Some).map_err(|error| D::Error::custom(format!("{error}; {}", error.hint())))
}

fn ten_seconds() -> Time {
    seconds(10)
}

fn a_second() -> Time {
    seconds(1)
}

fn five_minutes() -> Time {
    seconds(300)
}

fn a_day() -> Time {
    seconds(86_400)
}

#[cfg(test)]
mod tests {
    use super::super::assemble::of_texts;
    use super::*;

    fn hooks(text: &str) -> Result<Vec<Hook>, String> {
        of_texts(&[text], &[]).map(|loaded| loaded.config.hooks)
    }

    #[test]
    fn a_hook_has_its_defaults_and_a_name_from_its_receiver() {
        let text = "[[hooks]]\non = [\"NeedsAttention\", \"turn.ended\"]\ncommand = [\"~/bin/Tell_me.sh\", \"x\"]\n\
                    [[hooks]]\non = [\"session.failed\"]\nurl = \"https://hooks.slack.com/services/T0\"\n\
                    grant.network = [\"hooks.slack.com:443\"]\nlabel = \"team=web,!done\"\n\
                    [[hooks]]\non = [\"turn.ended\"]\ndesktop = true\n";
        let hooks = hooks(text).unwrap();
        assert_eq!(hooks.iter().map(Hook::name).collect::<Vec<_>>(), ["tell-me-sh", "hooks-slack-com", "desktop"]);
        assert_eq!((hooks[0].timeout, hooks[0].max_age), (seconds(10), seconds(86_400)));
        assert!(hooks[1].label.is_some());
    }

    #[test]
    fn what_a_hook_cannot_be_is_refused() {
        let turn = "[[hooks]]\non = [\"turn.ended\"]\n";
        let command = "command = [\"/bin/true\"]\n";
        for (text, expected) in [
            ("[[hooks]]\ndesktop = true".to_owned(), "missing field `on`"),
            ("[[hooks]]\non = []\ndesktop = true".to_owned(), "has no event"),
            ("[[hooks]]\non = [\"turn.end\"]\ndesktop = true".to_owned(), "the closest names are turn.ended"),
            ("[[hooks]]\non = [\"needsattention\"]\ndesktop = true".to_owned(), "NeedsAttention"),
            ("[[hooks]]\non = [\"agent.out\"]\ndesktop = true".to_owned(), "not for hooks"),
            ("[[hooks]]\non = [\"audit.recorded\"]\ndesktop = true".to_owned(), "not for hooks"),
            (turn.to_owned(), "exactly one of"),
            (format!("{turn}{command}desktop = true"), "exactly one of"),
            (format!("{turn}command = [\"tell\"]"), "give its path"),
            (format!("{turn}{command}secret = {{ file = \"/s\" }}"), "for `url` alone"),
            (format!("{turn}{command}name = \"A b\""), "invalid name"),
            (format!("{turn}{command}label = \"=\""), "label"),
            (format!("{turn}{command}directory = \"src\""), "not absolute"),
            (format!("{turn}{command}timeout = 0"), "`timeout`"),
            (format!("{turn}{command}timeout = \"2m\""), "`timeout`"),
            (format!("{turn}{command}max_age = 0"), "`max_age`"),
            (format!("{turn}{command}retry_first = \"10m\""), "`retry_first`"),
            (format!("{turn}{command}{turn}{command}"), "declared twice"),
            (format!("{turn}url = \"ftp://x/\""), "https://"),
            (format!("{turn}url = \"http://example.com/\""), "without encryption"),
            (format!("{turn}url = \"https://example.com/\""), "grant.network = [\"example.com:443\"]"),
            (format!("{turn}url = \"https://kim:pw@example.com/\""), "user name or password"),
            (format!("{turn}url = \"http://[::1]:80/\"\nsecret = {{ file = \"s\" }}"), "not absolute"),
        ] {
            let error = hooks(&text).expect_err(&text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn this_machine_needs_no_grant_and_an_address_has_its_parts() {
        for url in ["http://localhost:1/", "http://127.0.0.2/x?y", "http://[::1]:9", "https://localhost/"] {
            assert!(hooks(&format!("[[hooks]]\non = [\"turn.ended\"]\nurl = \"{url}\"")).is_ok(), "{url}");
        }
        let address = HookAddress::parse("https://Example.com/a/b?c=d").unwrap();
        assert_eq!((address.authority().as_str(), address.path.as_str()), ("example.com:443", "/a/b?c=d"));
        let address = HookAddress::parse("http://[::1]:9").unwrap();
        assert_eq!((address.authority().as_str(), address.path.as_str()), ("[::1]:9", "/"));
        assert_eq!(address.shown(), "http://[::1]:9");
    }

    #[test]
    fn the_path_of_an_address_is_shown_nowhere() {
        let text = "[[hooks]]\non = [\"turn.ended\"]\nurl = \"http://localhost/services/hunter2\"\n";
        let values = of_texts(&[text], &[]).unwrap().read.values();
        let shown = values.iter().find(|value| value.key == "hooks").unwrap();
        assert!(!shown.value.contains("hunter2") && shown.value.contains("http://localhost/***"), "{}", shown.value);
        let error = hooks(&format!("{text}timeout = 0")).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
