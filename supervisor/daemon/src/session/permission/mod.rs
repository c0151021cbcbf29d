//! Who answers a permission request: pure.
//!
//! The first rule of the configuration that fits, the session's own policy, and, where neither says, a client. A rule that denies
//! goes before the session's policy; one that allows goes behind it, so that a session can be stricter than the configuration and never
//! laxer than its denials.
//!
//! Rules look at what will run and not at what the agent calls it. A denial fits a command line if any part of it does, an approval only if
//! every part does. Where what the agent sent does not tell whether a denial fits, nothing is allowed without a client.
//!
//! Not responsible for what stands in a request ([`crate::acp`]), nor for what programs do: a script or a Makefile that was approved runs
//! whatever is in it.

mod glob;
mod paths;
mod programs;
mod request;
mod shell;
mod tables;
#[cfg(test)]
mod tests;
mod words;

use agentd_api::session::PermissionPolicy;
use serde::Deserialize;

use super::state::PermissionDraft;
use glob::Fits;
use request::Request;

/// One entry of `[[permissions]]`. A pattern that is left out fits everything; `*` is any text, `?` any character.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// The agent's name in the configuration.
    agent: Option<Pattern>,
    /// The tool's kind (ACP `ToolKind`): `execute`, `edit`, `read` ...
    kind: Option<Pattern>,
    /// The agent's name of the tool: `Bash`.
    tool: Option<Pattern>,
    /// What the agent calls it, or the command: `git status`, `Edit src/*`.
    title: Option<Pattern>,
    /// A command that would run: `git push*`.
    command: Option<Pattern>,
    /// A file that it names: `/etc/*`, `~/.ssh/*`, `secrets/*` in the session's directory.
    path: Option<Pattern>,
    pub(crate) answer: PermissionPolicy,
}

/// A pattern of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Pattern(String);

/// The longest pattern, in characters.
const LONGEST_PATTERN: usize = 512;

#[derive(Debug, thiserror::Error)]
#[error("a pattern has from 1 to {LONGEST_PATTERN} characters; leave the key out where everything fits")]
struct InvalidPattern;

impl TryFrom<String> for Pattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        let length = text.chars().count();
        if (1..=LONGEST_PATTERN).contains(&length) { Ok(Self(text)) } else { Err(InvalidPattern) }
    }
}

/// The session that asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker<'a> {
    /// The agent's name, as rules know it.
    pub(crate) agent: &'a str,
    pub(crate) directory: &'a std::path::Path,
    pub(crate) home: Option<&'a str>,
}

impl Rule {
    fn fits(&self, request: &Request<'_>) -> Fits {
        let strict = self.answer != PermissionPolicy::Allow;
        let of = |pattern: &Option<Pattern>, fits: &dyn Fn(&str) -> Fits| match pattern {
            Some(pattern) => fits(&pattern.0),
            None => Fits::Yes,
        };
        // The cheap ones first: what follows is looked at only where it can matter.
        let cheap = of(&self.agent, &|pattern| glob::fits(pattern, request.asker.agent))
            .min(of(&self.kind, &|pattern| request.kind(pattern, strict)))
            .min(of(&self.tool, &|pattern| request.tool(pattern, strict)));
        if cheap == Fits::No {
            return cheap;
        }
        cheap
            .min(of(&self.title, &|pattern| request.title(pattern, strict)))
            .min(of(&self.command, &|pattern| request.command(pattern, strict)))
            .min(of(&self.path, &|pattern| request.path(pattern, strict)))
    }
}

/// What the rules and the session's policy say of a request.
pub(crate) fn policy(
    rules: &[Rule],
    session: PermissionPolicy,
    asker: Asker<'_>,
    draft: &PermissionDraft,
) -> PermissionPolicy {
    use PermissionPolicy::{Allow, Ask, Deny};
    let request = Request::new(asker, draft);
    let (mut answer, mut doubt) = (None, false);
    for rule in rules {
        match (rule.fits(&request), rule.answer) {
            (Fits::Yes, of_rule) => {
                answer = Some(of_rule);
                break;
            }
            (Fits::Perhaps, Deny) => doubt = true,
            // A session that allows is not asked for what a rule would ask.
            (Fits::Perhaps, Ask) => doubt |= session == Ask,
            _ => {}
        }
    }
    let answer = match (answer, session) {
        (Some(Deny), _) => Deny,
        (_, Allow | Deny) => session,
        (Some(answer), Ask) => answer,
        (None, Ask) => Ask,
    };
    if answer == Allow && doubt { Ask } else { answer }
}
