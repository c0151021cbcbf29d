//! Implements `agentctl apply` and `agentctl diff`: makes sessions as files request them, or shows the difference.
//!
//! All files are validated before anything is changed. Then each session is created or changed by itself. A change is
//! made for the generation that was compared, so a change by another client is never lost.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use agentd_api::session::{SessionSpec, SessionView};
use agentd_api::spec::{ChangedField, Effect};
use agentd_api::{Code, SessionName};
use serde_json::json;
use similar::{ChangeTag, TextDiff};
use tokio::time::{Instant, sleep};

use super::life::first;
use super::{Context, apply_schedules, print};
use crate::args::files::{ApplyArgs, DiffArgs, FilesArgs};
use crate::error::{Error, exit};
use crate::spec;
use agentd_client::Absence as _;
use agentd_client::Terms;
use agentd_client::patiently;
use agentd_screen::terminal::{Screen, TextStyle};
use agentd_specs::{Plan, WantedFiles, WantedSession, shown};

/// Time limit for one session while other clients change it.
const PATIENCE: Duration = Duration::from_secs(15);
/// First and longest pause before a changed session is compared again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Number of unchanged lines around a difference.
const CONTEXT: usize = 3;

/// The present sessions by their names.
type Present = BTreeMap<SessionName, SessionView>;

/// The state of a session after it was applied.
#[derive(Debug, Clone, PartialEq)]
enum Outcome {
    Created,
    Changed(Vec<ChangedField>),
    Unchanged,
}

impl Outcome {
    fn of(changes: Vec<ChangedField>) -> Self {
        if changes.is_empty() { Self::Unchanged } else { Self::Changed(changes) }
    }

    fn parts(&self) -> (&'static str, &[ChangedField]) {
        match self {
            Self::Created => ("created", &[]),
            Self::Changed(changes) => ("changed", changes),
            Self::Unchanged => ("unchanged", &[]),
        }
    }
}

/// Makes the sessions of files as the files request them. Returns the status of the first failure. A failure of one
/// session does not keep the others from being tried.
pub(super) async fn apply(context: &Context, args: ApplyArgs) -> Result<u8, Error> {
    let (WantedFiles { sessions: wanted, schedules }, present) = read(context, &args.files).await?;
    let mut status = 0;
    for one in &wanted {
        let known = present.get(&one.name).cloned();
        match patiently(|| applied(context, one, known.clone(), &args)).await {
            Ok(outcome) => tell_outcome(context, one, &outcome, args.dry_run)?,
            // The other sessions would fail in the same way, each after a long wait.
            Err(error) if error.is_absence() => return Err(of_session(one, error)),
            Err(error) => {
                let error = of_session(one, error);
                if context.json {
                    let text = agentd_api::chain(&error);
                    let line = json!({ "name": one.name, "file": one.file, "result": "failed", "error": text });
                    context.print_value(&line)?;
                }
                status = first(context, status, Err(error));
            }
        }
    }
    apply_schedules::apply(context, &schedules, args.dry_run, status).await
}

/// Shows the differences between the sessions and files. An error never has the status of a difference.
pub(super) async fn diff(context: &Context, args: DiffArgs) -> Result<u8, Error> {
    match differences(context, &args.files).await {
        Ok(differs) => Ok(u8::from(differs)),
        Err(error) => {
            error.report(context.json.then_some(context.form));
            Ok(error.exit_status().max(exit::USAGE))
        }
    }
}

async fn differences(context: &Context, files: &FilesArgs) -> Result<bool, Error> {
    let (WantedFiles { sessions: wanted, schedules }, present) = read(context, files).await?;
    let mut differs = false;
    for one in &wanted {
        let known = present.get(&one.name);
        let plan = known.map(|view| plan(&one.spec, view)).transpose()?;
        let outcome = plan.as_ref().map_or(Outcome::Created, |plan| Outcome::of(plan.changes.clone()));
        if outcome == Outcome::Unchanged {
            continue;
        }
        differs = true;
        if context.json {
            tell_outcome(context, one, &outcome, true)?;
            continue;
        }
        let write = |spec| {
            one.format.write(spec).map_err(|reason| {
                let detail = format!("cannot write session \"{}\" as {}: {reason}", one.name, shown(&one.file));
                Error::Usage { detail, hint: "use YAML for this file".to_owned() }
            })
        };
        let (title, before) = match known {
            Some(view) => (format!("{} (generation {})", one.name, view.generation), write(&view.spec)?),
            None => ("/dev/null".to_owned(), String::new()),
        };
        let after = write(plan.as_ref().map_or(&one.spec, |plan| &plan.wanted))?;
        let titles = [title, format!("{} ({})", one.name, shown(&one.file))];
        print(&unified(&before, &after, &titles, Screen::stdout()))?;
    }
    Ok(apply_schedules::differences(context, &schedules).await? || differs)
}

/// Formats the difference of two texts as `diff -u` does.
pub(super) fn unified(before: &str, after: &str, [from, to]: &[String; 2], screen: Screen) -> String {
    let diff = TextDiff::from_lines(before, after);
    let title = |title: String| screen.paint(TextStyle::Bold, &screen.line(&title)) + "\n";
    let mut text = title(format!("--- {from}")) + &title(format!("+++ {to}"));
    for hunk in diff.unified_diff().context_radius(CONTEXT).iter_hunks() {
        let _ = writeln!(text, "{}", screen.paint(TextStyle::Dim, &hunk.header().to_string()));
        for change in hunk.iter_changes() {
            let line = screen.text(change.value().trim_end_matches('\n')).into_owned();
            let line = match change.tag() {
                ChangeTag::Equal => format!(" {line}"),
                ChangeTag::Delete => screen.paint(TextStyle::Bad, &format!("-{line}")),
                ChangeTag::Insert => screen.paint(TextStyle::Good, &format!("+{line}")),
            };
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// Reads the files and the present sessions. The names of parents become ids, as the sessions have them.
async fn read(context: &Context, files: &FilesArgs) -> Result<(WantedFiles, Present), Error> {
    let mut wanted = agentd_specs::read(&files.files).map_err(|mistakes| Error::Files { mistakes })?;
    let present = present(context).await?;
    for one in &mut wanted.sessions {
        let parent = one.spec.parent.as_ref().and_then(|parent| present.get(parent));
        if let Some(id) = parent.and_then(|parent| parent.id.as_str().parse().ok()) {
            one.spec.parent = Some(id);
        }
    }
    Ok((wanted, present))
}

async fn present(context: &Context) -> Result<Present, Error> {
    let sessions = patiently(|| context.client.sessions(&["spec"])).await?;
    let named = sessions.into_iter().filter_map(|view| Some((view.spec.name.clone()?, view)));
    Ok(named.collect())
}

fn plan(file: &SessionSpec, view: &SessionView) -> Result<Plan, Error> {
    Plan::new(file, &view.spec, &view.id).map_err(Error::Request)
}

/// Creates or changes one session. `known` is its state at the beginning.
///
/// After a broken connection the call is repeated. A creation or change that had taken effect is then found to be
/// made already.
async fn applied(
    context: &Context,
    wanted: &WantedSession,
    mut known: Option<SessionView>,
    args: &ApplyArgs,
) -> Result<Outcome, Error> {
    let client = &context.client;
    let (since, (mut pause, longest)) = (Instant::now(), PAUSES);
    let mut file = wanted.spec.clone();
    loop {
        let refused = match &known {
            None if args.dry_run => return Ok(Outcome::Created),
            None => match spec::create(client, file.clone(), Terms::from(args.terms)).await {
                Ok(_) => return Ok(Outcome::Created),
                Err(error) => error,
            },
            Some(view) => {
                let plan = plan(&file, view)?;
                if let Some(fixed) = plan.fixed() {
                    return Err(never_changes(fixed));
                }
                if plan.changes.is_empty() || args.dry_run {
                    return Ok(Outcome::of(plan.changes));
                }
                match client.change_spec(view.id.as_str(), &plan.patch, Some(view.generation)).await {
                    Ok(changed) => return Ok(Outcome::of(changed.value.changes)),
                    // From now on the session begins with this terminal's environment.
                    Err(error)
                        if error.problem_code() == Some(Code::SnapshotNeeded)
                            && file.environment.snapshot.is_none() =>
                    {
                        file.environment.snapshot = Some(spec::send_terminal(client).await?);
                        continue;
                    }
                    Err(error) => error.into(),
                }
            }
        };
        // Another client created, changed or removed the session, or an earlier attempt did.
        let is_stale =
            matches!(refused.problem_code(), Some(Code::NameTaken | Code::GenerationChanged | Code::NoSuchSession));
        let before = known.is_some();
        if !is_stale || since.elapsed() > PATIENCE {
            return Err(refused);
        }
        sleep(pause).await;
        pause = (pause * 2).min(longest);
        known = named(context, &wanted.name).await?;
        if !before && known.is_none() {
            // The name is the id of another session.
            return Err(refused);
        }
    }
}

/// Returns the session that has this name.
async fn named(context: &Context, name: &SessionName) -> Result<Option<SessionView>, Error> {
    match context.client.session(name.as_str()).await {
        Ok(found) => Ok(Some(found.value).filter(|view| view.spec.name.as_ref() == Some(name))),
        Err(error) if error.problem_code() == Some(Code::NoSuchSession) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn never_changes(fixed: &ChangedField) -> Error {
    let mut hint = "restore the field in the file, or use another name for a new session".to_owned();
    if fixed.field == "directory"
        && let Some(directory) = fixed.from.as_str()
    {
        let _ = write!(hint, "; the session's directory is {directory}");
    }
    Error::Session { detail: format!("the field {:?} of a session never changes", fixed.field), hint: Some(hint) }
}

fn of_session(wanted: &WantedSession, source: Error) -> Error {
    let what = format!("cannot apply session \"{}\" of {}", wanted.name, shown(&wanted.file));
    Error::Part { what, source: Box::new(source) }
}

/// Prints the outcome for one session, with the fields that take effect later.
fn tell_outcome(context: &Context, wanted: &WantedSession, outcome: &Outcome, dry_run: bool) -> Result<(), Error> {
    let (result, changes) = outcome.parts();
    let name = &wanted.name;
    if context.json {
        let line =
            json!({ "name": name, "file": wanted.file, "result": result, "changes": changes, "dry_run": dry_run });
        return context.print_value(&line);
    }
    let names: Vec<&str> = changes.iter().map(|change| change.field.as_str()).collect();
    let mut text = format!("{name} {result}");
    if !names.is_empty() {
        let _ = write!(text, " ({})", names.join(", "));
    }
    text.push_str(if dry_run { " (dry run)\n" } else { "\n" });
    for change in changes.iter().filter(|change| change.effect != Effect::Live) {
        let _ = writeln!(text, "  {} takes effect {}", change.field, change.effect.describe());
    }
    print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_shown_as_diff_does() {
        let titles = ["a (generation 1)".to_owned(), "a (x.yaml)".to_owned()];
        let screen = Screen { terminal: false, colour: false };
        let text = unified("name: a\ntags:\n- x\n", "name: a\ntags:\n- y\n- z\n", &titles, screen);
        let wanted = "--- a (generation 1)\n+++ a (x.yaml)\n@@ -1,3 +1,4 @@\n name: a\n tags:\n-- x\n+- y\n+- z\n";
        assert_eq!(text, wanted);
        let new = unified("", "name: a\n", &["/dev/null".to_owned(), "a".to_owned()], screen);
        assert_eq!(new, "--- /dev/null\n+++ a\n@@ -0,0 +1 @@\n+name: a\n");
    }
}
