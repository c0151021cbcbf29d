//! Validates specifications, and changes the specification of a session.

use std::sync::Arc;

use agentd_api::hint;
use agentd_api::prerequisite::Requester;
use agentd_api::session::SessionSpec;
use agentd_api::spec::{ChangedField, SpecChanged, SpecPatch};
use agentd_api::{Code, Problem};
use async_recursion::async_recursion as boxed;

use super::{Session, Sessions};
use crate::generation::Generation;
use crate::isolation;
use agentd_config::Scope;
use agentd_decide::rules::Command;
use agentd_decide::spec::{SpecRefusal, patched};
use agentd_environment::assigned_secrets;
use agentd_host::workspace;

/// The generations of a specification for which a client makes a change: the header `If-Match` (RFC 9110 section
/// 13.1.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedGeneration {
    /// Any: the header is missing, or is `*`.
    Any,
    /// One of these. Tags that are no generation match none.
    OneOf(Vec<Option<u64>>),
}

impl ExpectedGeneration {
    fn check(&self, present: u64) -> Result<(), Problem> {
        let Self::OneOf(generations) = self else { return Ok(()) };
        if generations.contains(&Some(present)) {
            return Ok(());
        }
        let name = |generation: &Option<u64>| generation.map_or("another state".to_owned(), |one| one.to_string());
        let expected = generations.iter().map(name).collect::<Vec<_>>().join(" or ");
        Err(SpecRefusal::Generation { present, expected }.problem())
    }
}

impl Sessions {
    /// Validates a specification before anything is created.
    pub(super) async fn check(&self, spec: &SessionSpec) -> Result<(), Problem> {
        let generation = self.generations().now();
        validate(&generation, spec, |_| true)?;
        workspace::check(&generation.daemon.machine, &spec.directory).await.map_err(|error| error.problem())?;
        self.check_name(spec.name.as_ref())
    }

    /// Changes the specification of a session by a merge patch. Returns the changed fields; without any, nothing was
    /// written. Only the changed fields are validated, so that a session in a directory that is gone can be renamed.
    #[boxed]
    pub async fn change_spec(
        &self,
        session: &Session,
        patch: SpecPatch,
        expected: ExpectedGeneration,
        requester: Requester,
    ) -> Result<Vec<ChangedField>, Problem> {
        self.whole().await;
        // One change at a time, so that a change without `If-Match` is not refused for another one.
        let _changing = session.changing.lock().await;
        let view = session.view();
        expected.check(view.generation)?;
        let (spec, changes) = patched(&view.spec, &patch).map_err(|refusal| refusal.problem())?;
        if changes.is_empty() {
            return Ok(changes);
        }
        let is_changed = |field: &str| changes.iter().any(|change| change.field == field);
        validate(&self.generations().now(), &spec, is_changed)?;
        let name = spec.name.as_ref().filter(|_| is_changed("name"));
        let _claim = name.map(|name| self.claim(name)).transpose()?;
        let generation = view.generation + 1;
        let record = SpecChanged { generation, spec, changes: changes.clone(), requester: Some(requester) };
        session.ask(Command::ChangeSpec(Box::new(record))).await?;
        // The name must be published before the claim ends.
        session.wait_until(|view| view.generation >= generation).await;
        Ok(changes)
    }
}

/// Validates the fields of a specification that `is_checked` accepts by their names.
fn validate(
    generation: &Arc<Generation>,
    spec: &SessionSpec,
    is_checked: impl Fn(&str) -> bool,
) -> Result<(), Problem> {
    let invalid = |detail: &str, hint: &str| Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
    let command = spec.command.as_deref().filter(|_| is_checked("command"));
    if command.is_some() && spec.agent.is_some() {
        return invalid("the request names both an agent and a command", "remove one of the two");
    }
    if command.is_some_and(|command| command.first().is_none_or(String::is_empty)) {
        return invalid("the session's command is empty", "name the program and its arguments");
    }
    let prompt = spec.initial_prompt.as_ref().filter(|_| is_checked("initial_prompt"));
    if prompt.is_some_and(|prompt| prompt.trim().is_empty()) {
        return invalid("the initial prompt is empty", "remove it, or give it some text");
    }
    if is_checked("environment")
        && let Some((_, error)) = Scope::of_session(&spec.environment).check().into_iter().next()
    {
        return Err(error.problem());
    }
    let script = spec.env_setup.as_deref().filter(|_| is_checked("env_setup")).unwrap_or_default();
    if let Some(name) = assigned_secrets(script.as_bytes()).first().map(|found| &found.name) {
        let detail =
            format!("the session's script contains the value of the secret {name}, which would be stored in clear");
        let hint = format!(
            "declare the secret as [secrets.{name}] in agentd.toml, or have the script read it: \
             {name}=\"$(cat FILE)\""
        );
        return invalid(&detail, &hint);
    }
    let words = command.unwrap_or_default().iter().map(|word| ("command", word.as_str()));
    for (what, text) in words.chain([("script", script)]) {
        if let Some((_, issuer)) = agentd_keeper::tokens::find(text.as_bytes()).next() {
            let detail = format!("the session's {what} contains a token of {issuer}, which would be stored in clear");
            let hint = "declare the token as [secrets.NAME] in agentd.toml, and let the program read the variable";
            return invalid(&detail, hint);
        }
    }
    let is_undeclared = |name: &&String| !generation.config.prerequisites.contains_key(*name);
    if is_checked("requires")
        && let Some(name) = spec.requires.iter().find(is_undeclared)
    {
        let problem = Problem::new(
            Code::NoSuchPrerequisite,
            format!("the session requires {name:?}, which is not declared as a prerequisite"),
        );
        return Err(problem.hint(hint::LIST_PREREQUISITES));
    }
    if is_checked("command") {
        generation.agent_command(spec)?;
    }
    if is_checked("isolation") {
        isolation::check(generation, spec)?;
    }
    if is_checked("environment") {
        generation.check_source(spec)?;
    }
    Ok(())
}
