//! Decides who answers a permission request, without I/O.
//!
//! The order is: the first matching rule of the configuration, the session's own policy, then a client. A rule that
//! denies takes precedence over the session's policy. The session's policy takes precedence over a rule that allows.
//! A session can thus be stricter than the configuration, and never laxer than its denials.
//!
//! Rules examine the command that will run, and not the agent's description. A denial matches a command line if
//! any part matches, an approval only if every part does. If the request does not show whether a denial matches, only
//! a client can allow it.
//!
//! This module does not parse requests (the session's ACP module), and it does not examine programs. A script or a
//! Makefile that was approved can run any command.

mod paths;
mod programs;
mod request;
#[cfg(feature = "schema")]
mod schema;
mod shell;
mod tables;
#[cfg(test)]
mod tests;
mod words;

use agentd_api::permission::ToolDetails;
use agentd_api::session::{PermissionOption, PermissionPolicy};
use serde::{Deserialize, Serialize};

use agentd_glob::{Fits, fits};
use request::Request;

/// A rule of `[[permissions]]`. It matches if all its patterns match, and a missing pattern matches everything. `*`
/// matches any text, `?` any character. A pattern has 1 to 512 characters.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Pattern for the agent's name in the configuration. Default: every agent.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Pattern>"))]
    agent: Option<Pattern>,
    /// Pattern for the tool's kind (ACP `ToolKind`), such as `execute`, `edit` or `read`. Default: every kind.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Pattern>"))]
    kind: Option<Pattern>,
    /// Pattern for the agent's name of the tool, such as `Bash`. Default: every tool.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Pattern>"))]
    tool: Option<Pattern>,
    /// Pattern for the title of the request or the command, such as `git status` or `Edit src/*`. Default: every
    /// title.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Pattern>"))]
    title: Option<Pattern>,
    /// Pattern for a command that would run, such as `git push*`. Default: every request.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Pattern>"))]
    command: Option<Pattern>,
    /// Pattern for a file of the request: `/etc/*`, `~/.ssh/*`, or `secrets/*` in the session's directory. Symbolic
    /// links are not followed. Default: every request.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Pattern>"))]
    path: Option<Pattern>,
    /// Answer to a matching request: `allow`, `deny` or `ask`. Required.
    pub answer: PermissionPolicy,
}

/// An agent's permission request, before agentd assigns an id to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionDraft {
    /// Title of the request.
    pub title: String,
    /// Kind of the tool (ACP `ToolKind`).
    pub tool_kind: Option<String>,
    /// Details of the tool call from this request and earlier messages. Folds of older releases have no details.
    #[serde(default)]
    pub details: ToolDetails,
    /// Answers that the agent offers.
    pub options: Vec<PermissionOption>,
}

/// A pattern in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Pattern(String);

/// Maximum length of a pattern in characters.
const MAX_PATTERN: usize = 512;

#[derive(Debug, thiserror::Error)]
#[error("a pattern must have 1 to {MAX_PATTERN} characters; remove the key to match everything")]
struct InvalidPattern;

impl TryFrom<String> for Pattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        let length = text.chars().count();
        if (1..=MAX_PATTERN).contains(&length) { Ok(Self(text)) } else { Err(InvalidPattern) }
    }
}

/// The session that sends the request.
#[derive(Debug, Clone, Copy)]
pub struct RequestingSession<'a> {
    /// Name of the agent in the configuration.
    pub agent: &'a str,
    /// Directory of the session, to which relative patterns refer.
    pub directory: &'a std::path::Path,
    /// Directory in which the agent works, to which its relative paths refer. `None` if that is not certain.
    pub works_in: Option<&'a std::path::Path>,
    /// Home directory of the user.
    pub home: Option<&'a str>,
}

impl Rule {
    fn fits(&self, request: &Request<'_>) -> Fits {
        let strict = self.answer != PermissionPolicy::Allow;
        let of = |pattern: &Option<Pattern>, fits: &dyn Fn(&str) -> Fits| match pattern {
            Some(pattern) => fits(&pattern.0),
            None => Fits::Yes,
        };
        // Cheap patterns are compared first. The others are compared only if the result depends on them.
        let cheap = of(&self.agent, &|pattern| fits(pattern, request.asker.agent))
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

/// Returns the decision of the rules and the session's policy about a request.
pub fn policy(
    rules: &[Rule],
    session: PermissionPolicy,
    asker: RequestingSession<'_>,
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
            // A session that allows everything does not ask a client for an uncertain `ask` rule.
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
