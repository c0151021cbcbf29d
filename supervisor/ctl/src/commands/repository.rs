//! Implements `agentctl repo`: the git repositories of a session.

use std::path::Path;
use std::time::Duration;

use agentd_api::repository::{RepositoryList, RepositorySpec, RepositoryState, RepositoryView};
use agentd_api::session::{Phase, SessionView};

use super::{Context, label, tell};
use crate::args::repository::{AddArgs, MomentArgs, RepositoryCommand};
use crate::error::Error;
use crate::machine::Machine;
use crate::repository::{address, head};
use agentd_client::Document;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

/// Time limit of the wait for a repository: the longest that the daemon allows.
const WAIT: Duration = Duration::from_mins(10);

pub(super) async fn repository(context: &Context, command: RepositoryCommand) -> Result<u8, Error> {
    match command {
        RepositoryCommand::Ls { session } => {
            let id = context.client.find(&session).await?.value.id;
            let list = context.client.repositories(id.as_str()).await?;
            if context.json {
                context.print_document(&list.raw)?;
            } else {
                Context::table(&table(&list.value, Screen::stdout()))?;
            }
            Ok(0)
        }
        RepositoryCommand::Add(args) => add(context, args).await,
        RepositoryCommand::Rm { session, name, force, moment } => {
            let found = context.client.find(&session).await?.value;
            let wait = wait(&found, moment);
            let list = context.client.remove_repository(found.id.as_str(), &name, (force, moment.now), wait).await?;
            report(context, &found, &list, (&name, true))
        }
    }
}

async fn add(context: &Context, args: AddArgs) -> Result<u8, Error> {
    let found = context.client.find(&args.session).await?.value;
    let machine = Machine::of(&context.client);
    let AddArgs { source, branch, name, path, depth, secret, worktree, moment, .. } = args;
    let repository = if worktree {
        RepositorySpec { branch, name, ..RepositorySpec::worktree_of(machine.absolute(Path::new(&source))?) }
    } else {
        RepositorySpec { branch, name, path, depth, secret, ..RepositorySpec::clone_of(address(&source, &machine)?) }
    };
    let wait = wait(&found, moment);
    let list = context.client.add_repository(found.id.as_str(), &repository, moment.now, wait).await?;
    report(context, &found, &list, (&repository.name(), false))
}

/// Returns the time to wait for a change, unless it is made after the running turn or at the next launch.
fn wait(session: &SessionView, moment: MomentArgs) -> Option<Duration> {
    let is_later = session.status.phase.is_over() || (session.status.phase == Phase::Busy && !moment.now);
    (!moment.no_wait && !is_later).then_some(WAIT)
}

/// Reports the state of the changed repository. Exit status 1 if the change failed.
fn report(
    context: &Context,
    session: &SessionView,
    list: &Document<RepositoryList>,
    (name, is_removal): (&str, bool),
) -> Result<u8, Error> {
    if context.json {
        context.print_document(&list.raw)?;
    }
    let done = if is_removal { "removed" } else { "there" };
    let Some(view) = list.value.repos.iter().find(|view| view.name == name) else {
        // The files of a repository that the session did not make stay.
        let before = session.status.repos.iter().find(|view| view.name == name);
        let stays = before.filter(|view| view.state == RepositoryState::Ready && view.cloned_at.is_none());
        tell(&match stays {
            Some(view) => format!("{name} is removed from the session; its files stay at {}", view.place.display()),
            None => format!("{name} is removed"),
        })?;
        return Ok(0);
    };
    let place = view.place.display();
    let message = view.message.as_deref().unwrap_or_default();
    match view.state {
        RepositoryState::Failed | RepositoryState::Retained => {
            return Err(Error::Session {
                detail: format!("the repository {name:?} is {}: {message}", view.state.as_str()),
                hint: Some(format!("agentctl repo ls {}", label(session))),
            });
        }
        RepositoryState::Ready if !is_removal => {
            let note = if message.is_empty() { String::new() } else { format!("; {message}") };
            tell(&format!("{name} is at {place}, {}{note}", head(view)))?;
        }
        _ if session.status.phase.is_over() => tell(&format!("{name} is {done} with the next launch"))?,
        _ if session.status.phase == Phase::Busy => tell(&format!("{name} is {done} after the running turn"))?,
        state => tell(&format!("{name} is {}", state.as_str()))?,
    }
    Ok(0)
}

fn table(list: &RepositoryList, screen: Screen) -> Table {
    let columns = [
        ("NAME", Cut::Never),
        ("STATE", Cut::Never),
        ("HEAD", Cut::End),
        ("AHEAD", Cut::Never),
        ("DIRTY", Cut::Never),
        ("PLACE", Cut::Start),
        ("SOURCE", Cut::Start),
        ("MESSAGE", Cut::End),
    ];
    let mut table = Table::new(&columns);
    for view in &list.repos {
        let local = view.worktree_of.as_ref().map(|path| format!("worktree of {}", path.display()));
        let source = view.url.clone().or(local).unwrap_or_default();
        let dirty = view.dirty.map_or("", |is_dirty| if is_dirty { "yes" } else { "no" });
        table.row([
            screen.line(&view.name),
            view.state.as_str().to_owned(),
            screen.line(&head(view)),
            view.ahead.map(|ahead| ahead.to_string()).unwrap_or_default(),
            dirty.to_owned(),
            screen.line(&view.place.display().to_string()),
            screen.line(&source),
            screen.line(view.message.as_deref().unwrap_or_default()),
        ]);
    }
    table
}

/// Returns the directories that a removal of the session keeps, because their repositories have unsaved work.
pub(super) async fn with_work(context: &Context, session: &SessionView) -> Vec<String> {
    if session.status.repos.is_empty() {
        return Vec::new();
    }
    let Ok(list) = context.client.repositories(session.id.as_str()).await else { return Vec::new() };
    let may_go = |view: &&RepositoryView| view.worktree_of.is_some() || session.spec.workspace.is_some();
    let kept = |view: &RepositoryView| Some(format!("{}, which has {}", view.place.display(), view.unsaved.as_ref()?));
    list.value.repos.iter().filter(may_go).filter_map(kept).collect()
}
