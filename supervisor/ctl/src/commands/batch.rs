//! Implements `agentctl run --batch`: runs a session to its result.

use std::io;

use agentd_api::completion::{Completion, Outcome};
use agentd_api::session::SessionView;
use agentd_api::{Body, Event};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::waiting::tell_obstacles;
use super::{Context, label, print, tell};
use crate::args::RunArgs;
use crate::args::run::ResultFormat;
use crate::content;
use crate::conversation::{Conversation, Item};
use crate::document::DocumentForm;
use crate::error::{Error, exit};
use crate::machine::Machine;
use crate::parent::completed;
use crate::render::answers;
use crate::spec::{create, is_no_prompt, spec};
use crate::start::Starter;
use agentd_client::StreamStart;
use agentd_client::{EventStream, Next};
use agentd_screen::terminal::Screen;

/// The result as JSON: that of the session, with its id and name.
#[derive(Serialize)]
struct BatchResult<'a> {
    session: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(flatten)]
    done: &'a Completion,
}

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<u8, Error> {
    let RunArgs { spec: words, terms, output, rm, quiet } = args;
    is_no_prompt(&context.client, &words).await?;
    let parts = content::parts(&words.files, &Machine::of(&context.client))?;
    let (spec, prompt) = completed(&context.client, spec(words, &Machine::of(&context.client))?, parts).await?;
    if spec.initial_prompt.is_none() && prompt.is_none() {
        let detail = "a batch session needs a prompt".to_owned();
        return Err(Error::Usage { detail, hint: "give a PROMPT, or `--prompt -` to read it".to_owned() });
    }
    let view = create(&context.client, spec, terms.into()).await?.value;
    let id = view.id.to_string();
    if let Some(prompt) = prompt {
        context.client.prompt(&id, &prompt).await?;
    }
    let Some(done) = follow(context, &view, quiet).await? else { return Ok(exit::CANCELLED) };
    let form = match output {
        Some(ResultFormat::Json) => Some(DocumentForm::Json),
        Some(ResultFormat::Yaml) => Some(DocumentForm::Yaml),
        Some(ResultFormat::Text) | None => context.json.then_some(context.form),
    };
    if let Some(form) = form {
        let name = view.spec.name.as_ref().map(agentd_api::SessionName::as_str);
        let result = BatchResult { session: &id, name, done: &done };
        form.print_value(&result)?;
    } else if let Some(answer) = &done.answer {
        print(&format!("{}\n", Screen::stdout().text(answer.trim_end_matches('\n'))))?;
    }
    report(&view, &done, quiet)?;
    if rm {
        context.client.delete(&id, true).await?;
    }
    Ok(done.exit_status)
}

/// Follows the session until its result is there. `None` if the user left the session.
async fn follow(context: &Context, view: &SessionView, quiet: bool) -> Result<Option<Completion>, Error> {
    let (id, label) = (view.id.to_string(), label(view));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Setup)?;
    let mut events = EventStream::follow(
        context.client.clone(),
        id.clone(),
        StreamStart::After(0),
        context.starter.clone().map(Starter::reviver),
    );
    let (mut conversation, mut is_stopped) = (Conversation::default(), false);
    if !quiet {
        tell_obstacles(view)?;
    }
    loop {
        let next = tokio::select! {
            next = events.next() => next,
            () = interrupted(&mut interrupt) => {
                if std::mem::replace(&mut is_stopped, true) {
                    tell(&format!("the session continues to end: agentctl show {label}"))?;
                    return Ok(None);
                }
                tell("stopping the session; Ctrl-C again leaves it to itself")?;
                context.client.stop(&id, None).await?;
                continue;
            }
        };
        match next {
            Some(Next::Record { line, .. }) => {
                let event = Event::parse(&line)?;
                for item in conversation.apply(&event) {
                    tell_item(context, &item, quiet)?;
                }
                match event.body {
                    Body::SessionCompleted(done) => return Ok(Some(*done)),
                    Body::PermissionRequested(asked) => {
                        let request = &asked.request;
                        let (title, answers) = (&request.title, answers(request));
                        tell(&format!("question {title:?}: agentctl answer {label} {} {answers}", request.id))?;
                    }
                    _ => {}
                }
            }
            Some(Next::Away) => tell("agentd is unreachable; agentctl reconnects when agentd is back")?,
            Some(Next::Failed(error)) => return Err(error.into()),
            Some(Next::Deleted) | None => {
                return Err(Error::Session { detail: format!("session {label:?} was removed"), hint: None });
            }
        }
    }
}

async fn interrupted(interrupt: &mut Signal) {
    if interrupt.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Prints what a user must know about a session at work.
fn tell_item(context: &Context, item: &Item, quiet: bool) -> Result<(), Error> {
    match item {
        Item::Warning(text) | Item::Progress(text) if !quiet => tell(text),
        Item::Detail(text) if context.verbose => tell(text),
        _ => Ok(()),
    }
}

/// Prints the outcome, unless all went well, and where the artifacts are.
fn report(view: &SessionView, done: &Completion, quiet: bool) -> Result<(), Error> {
    let label = label(view);
    if done.outcome != Outcome::Completed {
        let text =
            format!("error: the session {label:?} ended with outcome {}: {}", done.outcome.as_str(), done.reason);
        let screen = Screen::stderr();
        io::Write::write_all(&mut io::stderr(), format!("{}\n", screen.text(&text)).as_bytes())
            .map_err(Error::Output)?;
        tell(&format!("  hint: agentctl show {label}; agentctl attach {label} --from-start shows its conversation"))?;
    }
    if !quiet && !done.artifacts.is_empty() {
        tell(&format!("{} artifacts: agentctl show {label}", done.artifacts.len()))?;
    }
    Ok(())
}
