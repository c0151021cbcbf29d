//! Validates specifications, and changes the specification of a session.

use std::path::Component;
use std::sync::Arc;

use agentd_api::mcp::McpChoice;
use agentd_api::options;
use agentd_api::prerequisite::Requester;
use agentd_api::repository::{self, RepositorySpec};
use agentd_api::session::{RestartPolicy, SessionSpec, SessionView};
use agentd_api::spec::{ChangedField, RepositoryTerms, SpecChanged, SpecPatch, Workspace};
use agentd_api::workflow::WorkflowSpec;
use agentd_api::{Code, Problem};
use agentd_api::{hint, label};
use async_recursion::async_recursion as boxed;

use super::{Session, Sessions};
use crate::generation::Generation;
use crate::isolation;
use crate::mcp;
use crate::place;
use crate::repositories::{ARTIFACTS, keep_places};
use agentd_config::Scope;
use agentd_decide::rules::Command;
use agentd_decide::spec::{SpecRefusal, patched};
use agentd_environment::assigned_secrets;
use agentd_host::repository::issuer_of_token;
use agentd_host::workspace::{self, WorkspaceError};

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
    pub(super) fn check(&self, present: u64) -> Result<(), Problem> {
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
        check_directories(&generation, spec).await?;
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
        let terms = RepositoryTerms::default();
        self.change_spec_with(session, |_| Ok((patch, terms)), expected, requester).await
    }

    /// Changes the specification by the patch that `make` returns for the present state of the session.
    pub(super) async fn change_spec_with(
        &self,
        session: &Session,
        make: impl FnOnce(&SessionView) -> Result<(SpecPatch, RepositoryTerms), Problem> + Send,
        expected: ExpectedGeneration,
        requester: Requester,
    ) -> Result<Vec<ChangedField>, Problem> {
        self.whole().await;
        // One change at a time, so that a change without `If-Match` is not refused for another one.
        let _changing = session.changing.lock().await;
        let view = session.view();
        expected.check(view.generation)?;
        let (patch, repositories) = make(&view)?;
        let (spec, changes) = patched(&view.spec, &patch).map_err(|refusal| refusal.problem())?;
        if changes.is_empty() && repositories.forced.is_empty() {
            return Ok(changes);
        }
        let is_changed = |field: &str| changes.iter().any(|change| change.field == field);
        let generation = self.generations().now();
        validate(&generation, &spec, is_changed)?;
        if is_changed("directories") && !generation.is_elsewhere(&spec) {
            let checked = workspace::check_all(&generation.daemon.machine, &spec.directories).await;
            checked.map_err(|error| error.problem())?;
        }
        keep_places(&view.spec, &spec)?;
        self.keep_work(&view, &spec, &repositories).await?;
        let name = spec.name.as_ref().filter(|_| is_changed("name"));
        let _claim = name.map(|name| self.claim(name)).transpose()?;
        let generation = view.generation + 1;
        let (changes_made, requester) = (changes.clone(), Some(requester));
        let record = SpecChanged { generation, spec, changes: changes_made, repositories, requester };
        session.ask(Command::ChangeSpec(Box::new(record))).await?;
        // The name must be published before the claim ends.
        session.wait_until(|view| view.generation >= generation).await;
        Ok(changes)
    }
}

/// Refuses a relative directory on a place.
fn check_absolute(spec: &SessionSpec) -> Result<(), Problem> {
    match spec.all_directories().into_iter().find(|path| !path.is_absolute()) {
        None => Ok(()),
        Some(path) => Err(WorkspaceError::Relative { path }.problem()),
    }
}

/// Refuses directories that cannot be used. agentd makes a workspace itself.
pub(super) async fn check_directories(generation: &Generation, spec: &SessionSpec) -> Result<(), Problem> {
    if generation.is_elsewhere(spec) {
        // agentd-keeper enters the directory on the place, or the launch fails.
        return check_absolute(spec);
    }
    let all = if spec.workspace.is_none() { spec.all_directories() } else { spec.directories.clone() };
    let checked = workspace::check_all(&generation.daemon.machine, &all).await;
    checked.map_err(|error| error.problem())
}

/// Refuses repositories that are not valid, that contain a token, or whose secret is not declared.
fn check_repositories(generation: &Generation, spec: &SessionSpec) -> Result<(), Problem> {
    let invalid = |detail: String, hint: &str| Err(Problem::new(Code::InvalidRequest, detail).hint(hint.to_owned()));
    if let Some(Err(error)) = spec.workflow.as_ref().map(WorkflowSpec::check) {
        return invalid(error.to_string(), "docs/guide/workflows.md describes the fields of `workflow`");
    }
    let repositories: Vec<RepositorySpec> =
        spec.repos.iter().cloned().chain(spec.workflow.as_ref().and_then(WorkflowSpec::repository)).collect();
    if let Err(error) = repository::check(&repositories) {
        return invalid(error.to_string(), "docs/guide/repositories.md describes the fields of `repos`");
    }
    for repository in &repositories {
        let url = repository.url.as_deref().unwrap_or_default();
        if let Some(issuer) = issuer_of_token(url) {
            let detail = format!("the address of {:?} contains a token of {issuer}", repository.name());
            return invalid(detail, "declare it as [secrets.NAME] in agentd.toml, and set `secret` to the name");
        }
        let is_undeclared = |name: &&String| !generation.config.secrets.contains_key(*name);
        if let Some(name) = repository.secret.as_ref().filter(is_undeclared) {
            let detail =
                format!("the repository {:?} needs the secret {name:?}, which is not declared", repository.name());
            return invalid(detail, "declare it as [secrets.NAME] in agentd.toml");
        }
        if spec.workspace.is_some() && repository.place().starts_with(ARTIFACTS) {
            let detail = format!("the place of {:?} is for the artifacts of the session", repository.name());
            return invalid(detail, "give the repository another `name` or `path`");
        }
    }
    Ok(())
}

/// Returns the texts of the fields for options of the agent, each with its field.
fn option_texts(spec: &SessionSpec) -> impl Iterator<Item = (&'static str, &str)> {
    let mode = spec.mode.iter().map(|text| ("mode", text.as_str()));
    let model = spec.model.iter().map(|text| ("model", text.as_str()));
    let others = spec.options.iter().flat_map(|(id, value)| [("options", id.as_str()), ("options", value.as_str())]);
    mode.chain(model).chain(others)
}

/// Checks what the session wants of its agent: MCP servers and options.
fn check_wishes(
    generation: &Generation,
    spec: &SessionSpec,
    is_checked: &impl Fn(&str) -> bool,
) -> Result<(), Problem> {
    let invalid = |detail: String, hint: &str| Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
    if is_checked("mcp")
        && let Err(detail) = mcp::check(&generation.config, spec)
    {
        return invalid(detail, "docs/guide/mcp-servers.md describes MCP servers");
    }
    for (field, text) in option_texts(spec).filter(|(field, _)| is_checked(field)) {
        if let Err(detail) = options::check(text) {
            return invalid(format!("`{field}` {detail}"), "`agentctl options SESSION` lists what an agent offers");
        }
    }
    Ok(())
}

/// Validates the fields of a specification that `is_checked` accepts by their names.
pub(super) fn validate(
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
    if is_checked("directory") {
        let is_below = spec.directory.components().all(|part| matches!(part, Component::Normal(_)));
        match spec.workspace {
            None if spec.directory.as_os_str().is_empty() => {
                return invalid("the session has no directory", "name a `directory`, or request `workspace: \"new\"`");
            }
            Some(Workspace::New) if !is_below => {
                let detail = "the directory of a session with its own workspace must be relative and lead below it";
                return invalid(detail, "leave `directory` out, or name the place of a repository");
            }
            _ => {}
        }
    }
    if is_checked("repos") || is_checked("workflow") {
        check_repositories(generation, spec)?;
    }
    let prompt = spec.initial_prompt.as_ref().filter(|_| is_checked("initial_prompt"));
    if prompt.is_some_and(|prompt| prompt.trim().is_empty()) {
        return invalid("the initial prompt is empty", "remove it, or give it some text");
    }
    if spec.answer_schema.is_some() && spec.initial_prompt.is_none() && is_checked("answer_schema") {
        return invalid("the schema of the answer has no prompt", "give an `initial_prompt`, or send it with a prompt");
    }
    if !spec.interactive && spec.restart == Some(RestartPolicy::OnFailure) && is_checked("restart") {
        let detail = "a session that is not interactive is not restarted after a crash";
        return invalid(detail, "remove `restart`, or `interactive`");
    }
    if is_checked("environment")
        && let Some((_, error)) = Scope::of_session(&spec.environment).check().into_iter().next()
    {
        return Err(error.problem());
    }
    let labels = Some(&spec.labels).filter(|_| is_checked("labels")).into_iter().flatten();
    for (key, value) in labels.clone() {
        if let Err(error) = label::check(key, value) {
            return invalid(&error.to_string(), error.hint());
        }
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
    let servers = spec.mcp.values().filter(|_| is_checked("mcp")).filter_map(|choice| match choice {
        McpChoice::Configured(_) => None,
        McpChoice::Own(server) => Some(serde_json::to_string(server).unwrap_or_default()),
    });
    let servers: Vec<String> = servers.collect();
    let words = command.unwrap_or_default().iter().map(|word| ("command", word.as_str()));
    let values = labels.flat_map(|(key, value)| [("label", key.as_str()), ("label", value.as_str())]);
    let servers = servers.iter().map(|text| ("MCP server", text.as_str()));
    for (what, text) in words.chain(values).chain(servers).chain([("script", script)]) {
        if let Some((_, issuer)) = agentd_keeper::tokens::find(text.as_bytes()).next() {
            let detail = format!("the session's {what} contains a token of {issuer}, which would be stored in clear");
            let hint = "declare the token as [secrets.NAME] in agentd.toml, and let the program read the variable";
            return invalid(&detail, hint);
        }
    }
    check_wishes(generation, spec, &is_checked)?;
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
    place::terms::check(generation, spec, &is_checked)?;
    if is_checked("environment") {
        generation.check_source(spec)?;
    }
    Ok(())
}
