//! Who answers a permission request: pure.
//!
//! The first rule of the configuration that fits, the session's own policy, and, where neither says, a client. A rule that denies
//! goes before the session's policy; one that allows goes behind it, so that a session can be stricter than the configuration and never
//! laxer than its denials.

use agentd_api::session::PermissionPolicy;
use agentd_plugins::glob;
use serde::Deserialize;

use super::state::PermissionDraft;

/// One entry of `[[permissions]]`. A pattern that is left out fits everything; `*` is any text, `?` any character.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// The agent's name in the configuration.
    pub(crate) agent: Option<String>,
    /// The tool's kind (ACP `ToolKind`): `execute`, `edit`, `read` ...
    pub(crate) kind: Option<String>,
    /// What the agent says it wants to do: `git status`, `Edit src/*`.
    pub(crate) title: Option<String>,
    pub(crate) answer: PermissionPolicy,
}

impl Rule {
    fn fits(&self, agent: &str, draft: &PermissionDraft) -> bool {
        let fits = |pattern: &Option<String>, text: &str| pattern.as_ref().is_none_or(|pattern| glob(pattern, text));
        fits(&self.agent, agent)
            && fits(&self.kind, draft.tool_kind.as_deref().unwrap_or_default())
            && fits(&self.title, &draft.title)
    }
}

/// What the rules and the session's policy say of a request.
pub(crate) fn policy(
    rules: &[Rule],
    session: PermissionPolicy,
    agent: &str,
    draft: &PermissionDraft,
) -> PermissionPolicy {
    let rule = rules.iter().find(|rule| rule.fits(agent, draft)).map(|rule| rule.answer);
    match (rule, session) {
        (Some(PermissionPolicy::Deny), _) => PermissionPolicy::Deny,
        (_, PermissionPolicy::Allow | PermissionPolicy::Deny) => session,
        (Some(answer), PermissionPolicy::Ask) => answer,
        (None, PermissionPolicy::Ask) => PermissionPolicy::Ask,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(kind: Option<&str>, title: Option<&str>, answer: PermissionPolicy) -> Rule {
        Rule { agent: None, kind: kind.map(str::to_owned), title: title.map(str::to_owned), answer }
    }

    #[test]
    fn the_first_rule_that_fits_answers_and_a_session_is_stricter_or_asks() {
        use PermissionPolicy::{Allow, Ask, Deny};
        let rules = [
            rule(Some("execute"), Some("git push*"), Deny),
            rule(Some("execute"), Some("git *"), Allow),
            rule(Some("read"), None, Allow),
        ];
        let draft = |kind: &str, title: &str| PermissionDraft {
            title: title.to_owned(),
            tool_kind: Some(kind.to_owned()),
            options: Vec::new(),
        };
        for (session, kind, title, expected) in [
            (Ask, "execute", "git push origin", Deny),
            (Ask, "execute", "git status", Allow),
            (Ask, "execute", "rm -rf /", Ask),
            (Ask, "read", "x", Allow),
            (Deny, "execute", "git status", Deny),
            (Allow, "execute", "git push", Deny),
            (Allow, "execute", "rm -rf /", Allow),
        ] {
            assert_eq!(policy(&rules, session, "a", &draft(kind, title)), expected, "{session:?} {kind} {title}");
        }
        let for_one = Rule { agent: Some("gem*".to_owned()), ..rule(None, None, Allow) };
        assert_eq!(policy(std::slice::from_ref(&for_one), Ask, "gemini", &draft("x", "x")), Allow);
        assert_eq!(policy(&[for_one], Ask, "opencode", &draft("x", "x")), Ask);
    }
}
