//! Talking to an agent: run, attach, prompt, answer.

use std::io::{self, Read};

use agentd_api::PermissionId;
use agentd_api::session::PermissionAnswer;

use super::life::spec;
use super::{Context, label, print, print_document, tell};
use crate::args::RunArgs;
use crate::attach::{self, Attachment, End, Goal};
use crate::conversation::Down;
use crate::error::{Error, exit};

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<u8, Error> {
    let (rm, terms) = (args.rm, args.terms.into());
    let spec = spec(args.spec)?;
    let goal = if spec.initial_prompt.is_some() { Goal::Turn(None) } else { Goal::Talk };
    let view = super::snapshot::create(context, spec, None, terms).await?.value;
    let (id, label) = (view.id.to_string(), label(&view));
    let attachment = Attachment { after: 0, view: None, goal, ..context.attachment(&id, &label) };
    let end = attach::attach(&context.client, attachment).await;
    let keep = !rm || matches!(end, Ok(End::Left));
    let removed = match end {
        Ok(End::Deleted) => Ok(()),
        _ if keep => Ok(()),
        _ => context.client.delete(&id, true).await,
    };
    let end = end?; // what went wrong first is what matters
    removed?;
    if keep {
        farewell(end, &label)?;
    }
    Ok(status(end))
}

pub(super) async fn attach(context: &Context, session: &str, last: Option<u64>) -> Result<u8, Error> {
    let view = context.client.find(session).await?.value;
    let (id, label) = (view.id.to_string(), label(&view));
    let after = last.map_or(0, |last| view.status.last_seq.saturating_sub(last));
    let attachment = Attachment { after, view: Some(view), ..context.attachment(&id, &label) };
    let end = attach::attach(&context.client, attachment).await?;
    farewell(end, &label)?;
    Ok(status(end))
}

pub(super) async fn prompt(context: &Context, session: &str, text: &str, no_wait: bool) -> Result<u8, Error> {
    let text = prompt_text(text)?;
    let view = context.client.find(session).await?.value;
    let (id, label) = (view.id.to_string(), label(&view));
    let document = context.client.prompt(&id, &text).await?;
    let accepted = document.value;
    if no_wait {
        if context.json {
            print_document(&document.raw)?;
        } else {
            print(&format!("{}\n", accepted.turn))?;
        }
        return Ok(0);
    }
    let goal = Goal::Turn(Some(accepted.turn));
    let attachment = Attachment { after: accepted.after_seq, goal, ..context.attachment(&id, &label) };
    let end = attach::attach(&context.client, attachment).await?;
    if end == End::Left {
        farewell(end, &label)?;
    }
    Ok(status(end))
}

pub(super) async fn answer(
    context: &Context,
    session: &str,
    permission: &PermissionId,
    answer: String,
) -> Result<u8, Error> {
    let answer = match answer.as_str() {
        "allow" => PermissionAnswer::Allow,
        "deny" => PermissionAnswer::Deny,
        _ => PermissionAnswer::Option(answer),
    };
    let id = context.client.find(session).await?.value.id;
    let document = context.client.answer(id.as_str(), permission, &answer).await?;
    if context.json {
        print_document(&document.raw)?;
    }
    Ok(0)
}

impl Context {
    fn attachment(&self, id: &str, label: &str) -> Attachment {
        Attachment {
            id: id.to_owned(),
            label: label.to_owned(),
            after: 0,
            view: None,
            goal: Goal::Talk,
            json: self.json,
            verbose: self.verbose,
            starter: self.starter.clone(),
        }
    }
}

/// A prompt from the command line, where `-` stands for standard input.
pub(super) fn prompt_text(given: &str) -> Result<String, Error> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(Error::Input)?;
    Ok(text)
}

/// One line that says what becomes of the session.
fn farewell(end: End, label: &str) -> Result<(), Error> {
    match end {
        End::Turn(_) => tell(&format!("the session stays: agentctl attach {label}")),
        End::InputEnded | End::Left => tell(&format!("the session goes on without you: agentctl attach {label}")),
        End::Down(Down::Stopped) => tell(&format!("the session is stopped: agentctl resume {label}")),
        End::Down(Down::Failed) => tell(&format!("the session has failed: agentctl show {label}")),
        End::Deleted => Ok(()),
    }
}

fn status(end: End) -> u8 {
    match end {
        End::Turn(status) => status,
        End::InputEnded | End::Down(Down::Stopped) => 0,
        End::Left => exit::CANCELLED,
        End::Down(Down::Failed) | End::Deleted => exit::FAILED,
    }
}
