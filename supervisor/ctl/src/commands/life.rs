//! Sessions come and go: new, cancel, stop, resume, rm.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::doctor::shell_word;
use agentd_api::environment::{EnvironmentSpec, Refresh, SnapshotSource};
use agentd_api::isolation::Isolation;
use agentd_api::quantity::Time;
use agentd_api::reason::is_progress;
use agentd_api::session::{
    ConditionType, PermissionPolicy, Phase, RestartPolicy, ResumeNote, SessionLimits, SessionSpec, SessionView,
};
use agentd_api::{Body, Code, Event};
use tokio::time::Instant;

use super::{Context, START_WAIT, STOP_WAIT, label, print, print_document, tell};
use crate::args::{EnvFrom, Level, NewArgs, Note, Permissions, RefreshPolicy, Restart, SpecArgs, TermsArgs};
use crate::client::{Document, Terms};
use crate::conversation::Conversation;
use crate::error::Error;
use crate::failure::Failure;
use crate::prerequisite::{Missing, awaited};
use crate::stream::{self, EventStream, Next, patiently};

/// The number of events that a failure is explained from: those of a whole launch, in all but a few cases.
const EXPLAINING: u64 = 500;

impl From<TermsArgs> for Terms {
    fn from(args: TermsArgs) -> Self {
        Self { wait: args.wait.map(|limit| limit.0), force: args.force }
    }
}

pub(super) async fn new(context: &Context, args: NewArgs) -> Result<u8, Error> {
    is_no_prompt(context, &args.spec).await?;
    // A week at most, so that the end of the wait can be counted.
    let wait = args.ready.map(|time| time.0.min(Duration::from_hours(24 * 7)));
    let begun = Instant::now();
    let document = super::snapshot::create(context, spec(args.spec)?, args.terms.into()).await?;
    // The id comes first: the session is there, whatever becomes of the wait.
    if !context.json {
        print(&format!("{}\n", document.value.id))?;
    }
    let made = document.raw.clone();
    let document = match wait {
        Some(wait) => settled(context, document, begun + wait).await,
        None => Ok(document),
    };
    if context.json {
        print_document(document.as_ref().map_or(&made, |document| &document.raw))?;
    }
    // Without a wait nothing is known yet.
    if wait.is_some() { ready(context, &document?.value, wait).await } else { Ok(0) }
}

pub(super) async fn cancel(context: &Context, session: &str) -> Result<u8, Error> {
    let id = context.client.find(session).await?.value.id;
    let document = context.client.cancel(id.as_str()).await?;
    if context.json {
        print_document(&document.raw)?;
    }
    Ok(0)
}

pub(super) async fn stop(context: &Context, sessions: &[String], no_wait: bool) -> Result<u8, Error> {
    let mut status = 0;
    for session in sessions {
        status = first(context, status, stop_one(context, session, no_wait).await);
    }
    Ok(status)
}

async fn stop_one(context: &Context, session: &str, no_wait: bool) -> Result<u8, Error> {
    let id = match context.client.find(session).await {
        Err(error) if error.code() == Some(Code::SessionUnreadable) => {
            return context.client.stop_set_aside(session).await.map(|()| 0);
        }
        found => found?.value.id,
    };
    let document = context.client.stop(id.as_str(), (!no_wait).then_some(STOP_WAIT)).await?;
    if context.json {
        print_document(&document.raw)?;
    }
    if no_wait || document.value.status.phase.is_over() {
        return Ok(0);
    }
    Err(Error::Session {
        detail: format!("session {session:?} did not stop within {} s", STOP_WAIT.as_secs()),
        hint: Some(format!("agentctl show {session}")),
    })
}

pub(super) async fn resume(
    context: &Context,
    session: &str,
    no_wait: bool,
    fresh: bool,
    terms: Terms,
) -> Result<u8, Error> {
    let id = context.client.find(session).await?.value.id;
    let wait = (!no_wait).then_some(START_WAIT);
    // One that may wait for long is looked at, so that the person sees what for.
    let (at_once, begun) = (wait.filter(|_| terms.wait.is_none()), Instant::now());
    let wait = wait.map(|wait| wait + terms.wait.unwrap_or_default());
    let mut document = context.client.resume(id.as_str(), at_once, fresh, terms).await?;
    if let Some(wait) = wait {
        document = settled(context, document, begun + wait).await?;
    }
    if context.json {
        print_document(&document.raw)?;
    }
    ready(context, &document.value, wait).await
}

/// Follows the session until its launch has succeeded or failed, or until the deadline. Tells what it waits for, each time that
/// changes. The daemon may be replaced meanwhile: the wait is the session's.
async fn settled(
    context: &Context,
    mut document: Document<SessionView>,
    until: Instant,
) -> Result<Document<SessionView>, Error> {
    if document.value.status.phase.is_settled() || Instant::now() >= until {
        return Ok(document);
    }
    let (id, after) = (document.value.id.to_string(), document.value.status.last_seq);
    let mut told = None;
    waits(&mut told, super::list::missing(&document.value).filter(|_| document.value.status.phase == Phase::Waiting))?;
    waits(&mut told, super::list::progress(&document.value).map(str::to_owned))?;
    let mut events =
        EventStream::follow(context.client.clone(), id.clone(), stream::From::After(after), context.starter.clone());
    while !document.value.status.phase.is_settled() {
        let Ok(next) = tokio::time::timeout_at(until, events.next()).await else {
            return patiently(|| context.client.session(&id)).await;
        };
        match next {
            Some(Next::Record { line, .. }) => match Event::parse(&line)?.body {
                Body::Condition(condition) if is_progress(&condition.reason) => {
                    waits(&mut told, Some(condition.message))?;
                }
                Body::Condition(condition) if condition.kind == ConditionType::PrerequisitesMet => {}
                Body::ConversationOpened(_)
                | Body::Condition(_)
                | Body::LaunchFailed(_)
                | Body::AgentExited(_)
                | Body::StopRequested(_) => {
                    document = patiently(|| context.client.session(&id)).await?;
                }
                _ => {}
            },
            Some(Next::Away) => tell("agentd is away; this goes on as soon as it is back")?,
            Some(Next::Failed(error)) => return Err(error),
            Some(Next::Deleted) | None => {
                return Err(Error::Session { detail: format!("session {id:?} was removed"), hint: None });
            }
        }
    }
    Ok(document)
}

/// Tells what is waited for, where that is news: a line for each check.
fn waits(told: &mut Option<String>, missing: Option<String>) -> Result<(), Error> {
    if let Some(missing) = missing.filter(|missing| told.as_ref() != Some(missing)) {
        awaited(&missing).iter().try_for_each(|line| tell(line))?;
        *told = Some(missing);
    }
    Ok(())
}

pub(super) async fn rm(context: &Context, sessions: &[String], force: bool) -> Result<u8, Error> {
    let mut status = 0;
    for session in sessions {
        let removed = async {
            let id = match context.client.find(session).await {
                Err(error) if error.code() == Some(Code::SessionUnreadable) => session.clone(),
                found => found?.value.id.to_string(),
            };
            context.client.delete(&id, force).await
        };
        status = first(context, status, removed.await.map(|()| 0));
    }
    Ok(status)
}

/// Of several sessions each is tried; the status is that of the first that failed.
fn first(context: &Context, before: u8, result: Result<u8, Error>) -> u8 {
    let status = result.unwrap_or_else(|error| {
        error.report(context.json);
        error.exit_status()
    });
    if before == 0 { status } else { before }
}

/// Whether a session that was waited for became what it should.
async fn ready(context: &Context, view: &SessionView, wait: Option<Duration>) -> Result<u8, Error> {
    let label = label(view);
    match view.status.phase {
        Phase::Failed => {
            let mut failure = Failure::of(view);
            if super::list::missing(view).is_some() {
                failure.message = unmet(&failure.message);
            } else {
                explain(context, view.id.as_str(), &mut failure).await;
            }
            Err(Error::Failed { session: label, failure })
        }
        Phase::Idle | Phase::Busy => Ok(0),
        phase => match wait {
            Some(_) if phase == Phase::Stopped => Err(Error::Session {
                detail: format!("session {label:?} was stopped before it was ready"),
                hint: Some(format!("agentctl resume {label}")),
            }),
            Some(wait) => Err(Error::Session {
                detail: match &view.status.message {
                    Some(message) => {
                        format!("session {label:?} is still {} after {} s: {message}", phase.as_str(), wait.as_secs())
                    }
                    None => format!("session {label:?} is still {} after {} s", phase.as_str(), wait.as_secs()),
                },
                hint: Some(format!("agentctl show {label}")),
            }),
            None => Ok(0),
        },
    }
}

/// Adds what only the events have: the agent's stderr, and how it can be signed in.
async fn explain(context: &Context, id: &str, failure: &mut Failure) {
    let mut conversation = Conversation::default();
    // Where they cannot be had, the message is all there is to say.
    let Ok(events) = stream::recent(&context.client, id, EXPLAINING).await else { return };
    for event in &events {
        conversation.apply(event);
    }
    if let Some(found) = conversation.failure() {
        failure.stderr.clone_from(&found.stderr);
        failure.sign_in.clone_from(&found.sign_in);
        if found.message == failure.message {
            failure.reason.clone_from(&found.reason);
        }
    }
}

/// What a session failed for: of several checks each has its line.
fn unmet(message: &str) -> String {
    match Missing::of(message) {
        Missing { begins, lines } if lines.len() > 1 => {
            let begins = if begins.is_empty() { "its prerequisites are not met" } else { begins };
            format!("{begins}\n  {}", lines.join("\n  "))
        }
        _ => message.to_owned(),
    }
}

/// Refuses a single word as a prompt that is the name of an agent or of a directory: a flag was forgotten.
pub(super) async fn is_no_prompt(context: &Context, args: &SpecArgs) -> Result<(), Error> {
    let [word] = args.text.as_slice() else { return Ok(()) };
    let flag = if word.contains('/') && Path::new(word).is_dir() || word == "." || word == ".." {
        "--dir"
    } else if args.agent.is_none()
        && args.command.is_empty()
        && context.client.agents().await?.value.agents.iter().any(|agent| agent.name == *word)
    {
        "--agent"
    } else {
        return Ok(());
    };
    let what = if flag == "--dir" { "a directory" } else { "the name of an agent" };
    let quoted = shell_word(word);
    // A word that begins so would be another flag.
    let prompt = if word.starts_with('-') { format!("--prompt={quoted}") } else { format!("--prompt {quoted}") };
    Err(Error::Usage {
        detail: format!("{word:?} is {what}, and would be sent as a prompt"),
        hint: format!("give {flag} {quoted}, or {prompt} to send it"),
    })
}

/// The spec that the arguments ask for. What only the daemon can know, it refuses.
pub(super) fn spec(args: SpecArgs) -> Result<SessionSpec, Error> {
    let env_setup = args
        .env_setup
        .map(|path| std::fs::read_to_string(&path).map_err(|source| Error::File { path, source }))
        .transpose()?;
    let prompt = args.prompt.or_else(|| (!args.text.is_empty()).then(|| args.text.join(" ")));
    Ok(SessionSpec {
        name: args.name,
        agent: args.agent,
        command: Some(args.command).filter(|command| !command.is_empty()),
        initial_prompt: prompt.map(|prompt| super::talk::prompt_text(&prompt)).transpose()?,
        env_setup,
        permissions: match args.permissions {
            Permissions::Ask => PermissionPolicy::Ask,
            Permissions::Allow => PermissionPolicy::Allow,
            Permissions::Deny => PermissionPolicy::Deny,
        },
        restart: args.restart.map(|restart| match restart {
            Restart::Never => RestartPolicy::Never,
            Restart::OnFailure => RestartPolicy::OnFailure,
        }),
        environment: EnvironmentSpec {
            source: args.env_from.map(|from| match from {
                EnvFrom::LoginShell => SnapshotSource::LoginShell,
                EnvFrom::Terminal => SnapshotSource::Terminal,
                EnvFrom::Stored => SnapshotSource::Stored,
            }),
            refresh: args.refresh.map(|refresh| match refresh {
                RefreshPolicy::Fresh => Refresh::Fresh,
                RefreshPolicy::Stored => Refresh::Stored,
                RefreshPolicy::Warn => Refresh::Warn,
            }),
            env: given(args.env)?,
            allow: args.allow,
            drop: args.drop,
            ..EnvironmentSpec::default()
        },
        resume_note: args.resume_note.map(|note| match note {
            Note::Off => ResumeNote::Off,
            Note::Brief => ResumeNote::Brief,
            Note::Full => ResumeNote::Full,
        }),
        limits: SessionLimits {
            memory: args.memory.map(|size| size.0),
            tasks: args.tasks,
            cpu_weight: args.cpu_weight,
            idle_seconds: args.idle.map(Time::seconds),
            turn_seconds: args.turn_limit.map(Time::seconds),
            permission_seconds: args.permission_limit.map(Time::seconds),
            ..SessionLimits::default()
        },
        requires: args.require,
        tags: args.tag,
        isolation: args.isolation.map(|level| match level {
            Level::None => Isolation::None,
            Level::Guard => Isolation::Guard,
        }),
        ..SessionSpec::new(absolute(args.dir.as_deref().unwrap_or(Path::new(".")))?)
    })
}

/// Parses the variables of `--env NAME=VALUE`. The last value of a name counts. The daemon validates them.
fn given(words: Vec<String>) -> Result<BTreeMap<String, String>, Error> {
    let pair = |word: String| match word.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        // Without a `=` the whole word may be a secret's value.
        None => Err(Error::Usage {
            detail: "--env is given a word without a `=`".to_owned(),
            hint: "give --env NAME=VALUE; --allow NAME keeps a variable that the login shell has".to_owned(),
        }),
    };
    words.into_iter().map(pair).collect()
}

/// Makes a path absolute, because the daemon's working directory is another. Only the daemon refuses one that does not exist.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let absolute = path.canonicalize().or_else(|_| std::path::absolute(path)).map_err(|source| {
        if source.kind() == std::io::ErrorKind::NotFound {
            let detail = "the current directory was removed".to_owned();
            return Error::Usage { detail, hint: "change to a directory that exists, or name one by --dir".to_owned() };
        }
        Error::File { path: path.to_owned(), source }
    })?;
    if absolute.to_str().is_none() {
        let shown = absolute.as_os_str().as_encoded_bytes().escape_ascii();
        let detail = format!("the name of the directory \"{shown}\" is not UTF-8");
        return Err(Error::Usage { detail, hint: "rename it, or choose another directory".to_owned() });
    }
    Ok(absolute)
}

#[cfg(test)]
mod tests {
    use agentd_api::Problem;

    use super::*;
    use crate::error::exit;

    #[test]
    fn what_a_session_failed_for_has_a_line_for_each_check() {
        let over = "the wait is over, and still missing is board (fail): silent; mend it; vpn (unknown): lost";
        let told = "the wait is over, and still missing is\n  board (fail): silent; mend it\n  vpn (unknown): lost";
        assert_eq!(unmet(over), told);
        let told = "its prerequisites are not met\n  a (fail): x\n  b (fail): y";
        assert_eq!(unmet("a (fail): x; b (fail): y"), told);
        assert_eq!(unmet("a (fail): x"), "a (fail): x");
    }

    #[test]
    fn of_several_the_first_failure_is_the_status() {
        let client = crate::client::Client::new("/nowhere".into());
        let context = Context { client, starter: None, json: false, verbose: false };
        let refused = || Err(Problem::new(Code::WrongPhase, "it runs").into());
        assert_eq!(first(&context, 0, refused()), exit::REFUSED);
        assert_eq!(first(&context, exit::FAILED, refused()), exit::FAILED);
        assert_eq!(first(&context, exit::REFUSED, Ok(0)), exit::REFUSED);
    }
}
