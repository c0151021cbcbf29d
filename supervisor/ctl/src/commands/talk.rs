//! Implements `agentctl run`, `attach`, `prompt` and `answer`: conversations with an agent.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use agentd_api::hint;
use agentd_api::reason::AUTHENTICATION_REQUIRED;
use agentd_api::session::{PermissionAnswer, Phase, PromptRequest, SessionView};

use super::waiting::tell_obstacles;
use super::{Context, agent, batch, label, print, tell};
use crate::args::RunArgs;
use crate::args::run::{AnswerArgs, PromptArgs};
use crate::attach::{self, Attachment, AttachmentResult, End, Goal};
use crate::content;
use crate::conversation::Down;
use crate::error::{Error, exit};
use crate::failure::Failure;
use crate::form;
use crate::machine::Machine;
use crate::parent::completed;
use crate::session;
use crate::spec::{create, is_no_prompt, prompt_text, read_schema, spec};
use agentd_screen::terminal::Screen;

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<u8, Error> {
    if args.spec.batch.batch {
        return batch::run(context, args).await;
    }
    let (rm, quiet, terms) = (args.rm, args.quiet, args.terms.into());
    is_no_prompt(&context.client, &args.spec).await?;
    agent::offer(context, &args.spec).await?;
    let parts = content::parts(&args.spec.files, &Machine::of(&context.client))?;
    let (spec, prompt) = completed(&context.client, spec(args.spec, &Machine::of(&context.client))?, parts).await?;
    let mut goal = if spec.initial_prompt.is_some() { Goal::Turn(None) } else { Goal::Talk };
    let view = create(&context.client, spec, terms).await?.value;
    let (id, label) = (view.id.to_string(), label(&view));
    if let Some(prompt) = prompt {
        goal = Goal::Turn(Some(context.client.prompt(&id, &prompt).await?.value.turn));
    }
    let agent = if goal == Goal::Talk { agent_name(context, &view).await } else { String::new() };
    if goal == Goal::Talk && !quiet {
        greet(context, &view, &agent, &label)?;
    }
    let (directory, is_here) = (context.directory_of(&view), Machine::of(&context.client) == Machine::This);
    let attachment = Attachment {
        agent,
        directory,
        goal,
        count_dropped: !quiet && !rm && is_here,
        ..context.attachment(&id, &label)
    };
    let outcome = attach::attach(&context.client, attachment).await;
    let end = outcome.as_ref().ok().map(|outcome| outcome.end);
    let keep = !rm || end == Some(End::Left);
    let removed = match end {
        Some(End::Deleted) => Ok(()),
        _ if keep => Ok(()),
        _ => context.client.delete(&id, true).await,
    };
    let outcome = outcome?; // the first error is the one to report
    removed?;
    if keep && (!quiet || outcome.failure.is_some()) {
        farewell(context, &outcome, &id, &label).await?;
    }
    Ok(status(&outcome))
}

pub(super) async fn attach(context: &Context, session: Option<&str>, last: Option<u64>) -> Result<u8, Error> {
    let view = match session {
        Some(session) => context.client.find(session).await?.value,
        None => last_session(context).await?,
    };
    let (id, label) = (view.id.to_string(), label(&view));
    let after = last.map_or(0, |last| view.status.last_seq.saturating_sub(last));
    if Screen::stderr().terminal {
        context.client.observed(&id).await;
    }
    let agent = agent_name(context, &view).await;
    greet(context, &view, &agent, &label)?;
    let directory = context.directory_of(&view);
    let attachment = Attachment { after, agent, directory, view: Some(view), ..context.attachment(&id, &label) };
    let outcome = attach::attach(&context.client, attachment).await?;
    farewell(context, &outcome, &id, &label).await?;
    Ok(status(&outcome))
}

/// Finds the session that a person looked at last, or created after that.
async fn last_session(context: &Context) -> Result<SessionView, Error> {
    let sessions = context.client.sessions(&["status.last_observed_at"]).await?;
    let used = |view: &SessionView| {
        // No person created a session that belongs to an agent's session.
        let created = view.parent.is_none().then_some(view.created);
        created.max(view.status.last_observed_at)
    };
    let open = sessions.into_iter().filter(|view| !view.status.phase.is_over());
    let last = open.filter(|view| used(view).is_some()).max_by_key(used).ok_or_else(|| Error::Session {
        detail: "there is no session to attach to".to_owned(),
        hint: Some("agentctl run starts one; agentctl ls -a lists stopped ones too".to_owned()),
    })?;
    Ok(context.client.session(last.id.as_str()).await?.value)
}

pub(super) async fn prompt(context: &Context, args: PromptArgs) -> Result<u8, Error> {
    let PromptArgs { session, text, files, schema, no_wait } = args;
    let request = PromptRequest {
        prompt: prompt_text(&text.join(" "))?,
        parts: content::parts(&files, &Machine::of(&context.client))?,
        schema: schema.as_deref().map(read_schema).transpose()?,
    };
    let view = context.client.find(&session).await?.value;
    let (id, label) = (view.id.to_string(), label(&view));
    let document = context.client.prompt(&id, &request).await?;
    let accepted = document.value;
    if no_wait {
        if context.json {
            context.print_document(&document.raw)?;
        } else {
            print(&format!("{}\n", accepted.turn))?;
        }
        return Ok(0);
    }
    if !context.json {
        // The records of these are older than the prompt.
        tell_obstacles(&view)?;
        if let Some(limit) = session::limit(&view) {
            tell(limit)?;
        }
    }
    let goal = Goal::Turn(Some(accepted.turn));
    let attachment = Attachment { after: accepted.after_seq, goal, ..context.attachment(&id, &label) };
    let outcome = attach::attach(&context.client, attachment).await?;
    if outcome.end != End::Turn(0) {
        farewell(context, &outcome, &id, &label).await?;
    }
    Ok(status(&outcome))
}

pub(super) async fn answer(context: &Context, args: AnswerArgs) -> Result<u8, Error> {
    let AnswerArgs { session, permission, answer, fields } = args;
    let view = context.client.find(&session).await?.value;
    let answer = match answer.as_deref() {
        Some("allow") => PermissionAnswer::Allow,
        Some("deny") => PermissionAnswer::Deny,
        Some(option) => PermissionAnswer::Option(option.to_owned()),
        None => {
            let request = view.status.permissions.iter().find(|request| request.id == permission);
            let values = form::values(request, &fields);
            let hint = hint::FORM.to_owned();
            PermissionAnswer::Form(values.map_err(|error| Error::Usage { detail: error.to_string(), hint })?)
        }
    };
    let document = context.client.answer(view.id.as_str(), &permission, &answer).await?;
    if context.json {
        context.print_document(&document.raw)?;
    }
    Ok(0)
}

impl Context {
    /// Returns the session's directory, if it is on this machine.
    fn directory_of(&self, view: &SessionView) -> Option<PathBuf> {
        (Machine::of(&self.client) == Machine::This).then(|| view.spec.directory.clone())
    }

    fn attachment(&self, id: &str, label: &str) -> Attachment {
        Attachment {
            id: id.to_owned(),
            label: label.to_owned(),
            after: 0,
            view: None,
            agent: String::new(),
            directory: None,
            goal: Goal::Talk,
            json: self.json,
            verbose: self.verbose,
            count_dropped: false,
            starter: self.starter.clone(),
        }
    }
}

/// Reports whether a person types at a terminal.
fn is_at_terminal(context: &Context) -> bool {
    !context.json && Screen::stderr().terminal && io::stdin().is_terminal()
}

/// Returns the name of the session's agent, for a person at a terminal.
async fn agent_name(context: &Context, view: &SessionView) -> String {
    if !is_at_terminal(context) {
        return String::new();
    }
    let agent = match (&view.spec.agent, &view.spec.command) {
        // Only the configuration names the default agent. Without an answer the greeting leaves the name out.
        (None, None) => {
            let agents = context.client.agents().await.map(|document| document.value.agents).unwrap_or_default();
            agents.into_iter().find(|agent| agent.default).map(|agent| agent.name)
        }
        _ => None,
    };
    agent.unwrap_or_else(|| session::agent(view))
}

/// Prints the session and its agent on a terminal, and the keys that leave it.
fn greet(context: &Context, view: &SessionView, agent: &str, label: &str) -> Result<(), Error> {
    if !is_at_terminal(context) {
        return Ok(());
    }
    let screen = Screen::stderr();
    let (agent, directory) = (screen.line(agent), screen.line(&view.spec.directory.to_string_lossy()));
    let name = view.spec.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    tell(&format!("session {}{name}: agent {agent} in {directory}", view.id))?;
    tell(&format!(
        "Ctrl-C cancels a turn; Ctrl-D leaves, and the session continues: agentctl attach {label}, agentctl \
             stop {label}"
    ))
}

/// Prints the state of the session and, after a failure, the remedy.
async fn farewell(context: &Context, outcome: &AttachmentResult, id: &str, label: &str) -> Result<(), Error> {
    if outcome.unsent {
        tell("a part of standard input was not sent: the session accepts no more prompts")?;
    }
    let phase = match outcome.end {
        // An agent that ended during the turn may be started again.
        End::Turn(status) if status != 0 => {
            context.client.session(id).await.map_or(Phase::Unknown, |document| document.value.status.phase)
        }
        End::Down(Down::Failed) => Phase::Failed,
        _ => Phase::Unknown,
    };
    let refused = |failure: &Failure| matches!(outcome.end, End::Turn(_)) && failure.reason == AUTHENTICATION_REQUIRED;
    if let Some(failure) = outcome.failure.as_ref().filter(|failure| phase == Phase::Failed || refused(failure)) {
        return tell(&format!("  hint: {}", failure.remedy(label, phase.is_active())));
    }
    match outcome.end {
        End::Turn(_) if phase == Phase::Failed => tell(&format!("the session has failed: agentctl show {label}")),
        End::Turn(_) => tell(&format!("the session stays: agentctl attach {label}")),
        End::InputEnded(_) | End::Left | End::Signalled(_) => {
            tell(&format!("the session continues: agentctl attach {label}"))
        }
        End::Down(Down::Stopped) => tell(&format!("the session is stopped: agentctl resume {label}")),
        End::Down(Down::Completed) => tell(&format!("the session has completed: agentctl show {label}")),
        End::Down(Down::Failed) => tell(&format!("the session has failed: agentctl show {label}")),
        End::Deleted => Ok(()),
    }
}

fn status(outcome: &AttachmentResult) -> u8 {
    match outcome.end {
        End::Down(Down::Stopped | Down::Completed) if outcome.unsent => exit::REFUSED,
        End::Turn(status) | End::InputEnded(status) => status,
        End::Down(Down::Stopped | Down::Completed) => 0,
        End::Left | End::Signalled(_) => exit::CANCELLED,
        End::Down(Down::Failed) | End::Deleted => exit::FAILED,
    }
}
