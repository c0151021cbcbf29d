//! Implements `agentctl workflow`: the workflow of a session.

use std::fmt::Write as _;
use std::time::Duration;

use agentd_api::session::{Phase, SessionView};
use agentd_api::spec::SpecPatch;
use agentd_api::workflow::{ActiveWorkflow, WorkflowFailed, WorkflowSpec};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::environment::allow_file;
use super::{Context, label, print, tell};
use crate::args::workflow::{UseArgs, WorkflowCommand};
use crate::error::Error;
use crate::machine::Machine;
use crate::workflow::of_source;
use agentd_screen::terminal::Screen;

/// Longest wait for a change.
const WAIT: Duration = Duration::from_mins(10);
/// Pause between two looks at the session.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn workflow(context: &Context, command: WorkflowCommand) -> Result<u8, Error> {
    match command {
        WorkflowCommand::Use(UseArgs { session, source, path, secret, no_wait }) => {
            let wanted = of_source(&source, path, secret, &Machine::of(&context.client))?;
            change(context, &session, Some(wanted), no_wait).await
        }
        WorkflowCommand::Clear { session, no_wait } => change(context, &session, None, no_wait).await,
        WorkflowCommand::Show { session } => show(context, &session).await,
        WorkflowCommand::Allow { session, yes } => allow(context, &session, yes).await,
    }
}

/// Returns the patch that replaces the workflow. A merge patch keeps each field that it does not name.
fn patch_of(wanted: Option<&WorkflowSpec>) -> SpecPatch {
    let value = wanted.map_or(Value::Null, |wanted| {
        let WorkflowSpec { url, directory, branch, path, secret } = wanted;
        json!({ "url": url, "directory": directory, "branch": branch, "path": path, "secret": secret })
    });
    SpecPatch(Map::from_iter([("workflow".to_owned(), value)]))
}

async fn change(context: &Context, session: &str, wanted: Option<WorkflowSpec>, no_wait: bool) -> Result<u8, Error> {
    let before = context.client.find(session).await?.value;
    let id = before.id.to_string();
    let changed = context.client.change_spec(&id, &patch_of(wanted.as_ref()), None).await?;
    if context.json {
        context.print_document(&changed.raw)?;
    }
    let view = changed.value.session;
    let what = wanted.as_ref().map_or_else(|| "no workflow".to_owned(), ToString::to_string);
    if view.status.phase.is_over() {
        tell(&format!("{what} is in force with the next launch: agentctl resume {}", label(&view)))?;
        return Ok(0);
    }
    if before.status.phase == Phase::Busy {
        tell(&format!("{what} is in force after the running turn"))?;
        return Ok(0);
    }
    if no_wait {
        return Ok(0);
    }
    settled(context, &id, wanted.as_ref()).await
}

/// Waits until the workflow is in force, and reports what hinders it.
async fn settled(context: &Context, id: &str, wanted: Option<&WorkflowSpec>) -> Result<u8, Error> {
    let until = Instant::now() + WAIT;
    loop {
        let view = context.client.session(id).await?.value;
        let is_in_force = view.active_workflow().map(|active| &active.spec) == wanted;
        if is_in_force && view.status.phase.is_ready() {
            tell(&match view.active_workflow() {
                Some(active) => format!("{} works in {}", label(&view), active.directory.display()),
                None => format!("{} works in {}, without a workflow", label(&view), view.spec.directory.display()),
            })?;
            return Ok(0);
        }
        let name = label(&view);
        if let Some(failure) = failure(&view).filter(|failure| Some(&failure.spec) == wanted) {
            let detail = format!("the workflow is not in force: {}", failure.message);
            let hint = if failure.to_approve.is_empty() {
                format!("the session goes on without it, and agentd tries again; agentctl workflow clear {name}")
            } else {
                format!("read and approve it: agentctl workflow allow {name}")
            };
            return Err(Error::Session { detail, hint: Some(hint) });
        }
        if view.status.phase.is_over() || Instant::now() >= until {
            let message = view.status.message.as_deref().unwrap_or("the change takes longer than expected");
            let detail = format!("the session {name} is {}: {message}", view.status.phase.as_str());
            return Err(Error::Session { detail, hint: Some(format!("agentctl show {name}")) });
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn failure(view: &SessionView) -> Option<&WorkflowFailed> {
    view.status.workflow.as_ref()?.failure.as_ref()
}

async fn show(context: &Context, session: &str) -> Result<u8, Error> {
    let found = context.client.find(session).await?;
    if context.json {
        let status = found.value.status.workflow.as_deref();
        let shown = json!({ "requested": found.value.spec.workflow, "status": status });
        context.print_value(&shown)?;
        return Ok(0);
    }
    print(&describe(&found.value, Screen::stdout()))?;
    Ok(0)
}

fn describe(view: &SessionView, screen: Screen) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        let _ = writeln!(text, "{:<16}{}", format!("{name}:"), screen.line(value));
    };
    field("requested", &view.spec.workflow.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string));
    if let Some(failure) = failure(view) {
        field("not in force", &failure.message);
    }
    let Some(active) = view.active_workflow() else {
        field("in force", "none");
        return text;
    };
    field("in force", &active.description.name);
    field("directory", &active.directory.display().to_string());
    field("file", &active.file.display().to_string());
    field("approved", &active.digest);
    let script = active.script();
    if let Some(script) = &script {
        field("script", &script.display().to_string());
    }
    for path in &active.description.paths {
        field("path", &active.directory.join(path).display().to_string());
    }
    if !active.description.requires.is_empty() {
        field("requires", &active.description.requires.join(", "));
    }
    text.push_str(&prompts(active, screen));
    text
}

/// Formats the prompts of a workflow.
fn prompts(active: &ActiveWorkflow, screen: Screen) -> String {
    let description = &active.description;
    let all = [("system prompt", &description.system_prompt), ("startup prompt", &description.startup_prompt)];
    let mut text = String::new();
    for (name, prompt) in all {
        for (number, line) in prompt.iter().flat_map(|prompt| prompt.lines()).enumerate() {
            let name = if number == 0 { format!("{name}:") } else { String::new() };
            let _ = writeln!(text, "{name:<16}{}", screen.line(line));
        }
    }
    text
}

/// Shows and approves what the session's workflow needs.
async fn allow(context: &Context, session: &str, yes: bool) -> Result<u8, Error> {
    let view = context.client.find(session).await?.value;
    let Some(failure) = failure(&view).filter(|failure| !failure.to_approve.is_empty()) else {
        let detail = match &view.spec.workflow {
            Some(_) => "no file of the session's workflow waits for an approval".to_owned(),
            None => "the session has no workflow".to_owned(),
        };
        return Err(Error::Session { detail, hint: Some(format!("agentctl workflow show {}", label(&view))) });
    };
    for file in &failure.to_approve {
        let status = allow_file(context, file, yes).await?;
        if status != 0 {
            return Ok(status);
        }
    }
    if view.status.phase.is_over() {
        tell(&format!("the workflow is in force with the next launch: agentctl resume {}", label(&view)))?;
        return Ok(0);
    }
    // A new version of the description of the workflow in force comes into force with the next launch.
    if view.active_workflow().map(|active| &active.spec) == Some(&failure.spec) || view.status.phase == Phase::Busy {
        tell("the approval is stored")?;
        return Ok(0);
    }
    settled_after_approval(context, &view, failure).await
}

/// Waits until the daemon has noticed the approval.
async fn settled_after_approval(context: &Context, view: &SessionView, known: &WorkflowFailed) -> Result<u8, Error> {
    let id = view.id.to_string();
    let until = Instant::now() + WAIT;
    while Instant::now() < until {
        let now = context.client.session(&id).await?.value;
        if failure(&now) != Some(known) || now.status.phase.is_over() {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    settled(context, &id, view.spec.workflow.as_ref()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_replaces_each_field_of_the_workflow() {
        let wanted = WorkflowSpec { url: Some("/r".to_owned()), ..WorkflowSpec::default() };
        let SpecPatch(patch) = patch_of(Some(&wanted));
        let nulls = json!({ "url": "/r", "directory": null, "branch": null, "path": null, "secret": null });
        assert_eq!(patch["workflow"], nulls);
        assert_eq!(patch_of(None).0["workflow"], Value::Null);
    }
}
