//! The variables of a note, from the state of a session.

use std::collections::BTreeMap;

use agentd_api::changes::describe;
use agentd_api::context::{APPLET, FILES};
use agentd_api::degraded::MissingPart;
use agentd_api::event::{LaunchReason, VariableChange, VariableChangeKind};
use agentd_api::facts::{Repository, RepositoryFacts};
use agentd_api::note::{
    NoteContextSet, NoteFinding, NoteMissing, NotePrerequisite, NoteRepositoryChange, NoteScript, NoteToolCall,
    NoteVariableChange, NoteVariables,
};
use agentd_api::prerequisite::Outcome;
use agentd_api::reason;
use agentd_api::session::ResumeNote;
use agentd_api::staleness::{StaleFinding, StaleKind};
use agentd_note::text;

use super::{NoteTerms, ToolCallName};
use crate::state::State;

/// Number of characters of a commit's id in a note.
const ABBREVIATED: usize = 12;

/// Returns the content of the next note, or `None` if the agent needs no note.
pub fn variables(state: &State, terms: &NoteTerms<'_>) -> Option<NoteVariables> {
    let pending = &state.pending_note;
    let degraded = (pending.is_first && !state.degraded.is_empty()).then_some(LaunchReason::Create);
    let replaced = pending.replaced.or(degraded).filter(|_| terms.mode != ResumeNote::Off)?;
    let away = pending.rested.and_then(|since| u64::try_from(terms.now.duration_since(since).as_secs()).ok());
    let away = away.filter(|_| degraded.is_none());
    let is_found = |kind| state.staleness.findings.iter().any(|finding| finding.kind == kind);
    let prerequisites = prerequisites(state);
    let forced_by = state.forced_by.as_ref().filter(|_| !prerequisites.is_empty());
    let degraded_by = state.degraded_by.as_ref().filter(|_| !state.degraded.is_empty());
    Some(agentd_note::derive(NoteVariables {
        mode: terms.mode,
        resumed: replaced == LaunchReason::Resume,
        restarted: degraded.is_none() && replaced != LaunchReason::Resume,
        crash: pending.crash.as_deref().map(text::line),
        away: away.map(text::duration),
        away_seconds: away,
        new_conversation: pending.forgotten,
        directory: text::path(&terms.directory.to_string_lossy()),
        hint: state.hint.as_deref().map(text::hint),
        context: context(state),
        environment: pending.changes.values().map(of_variable).collect(),
        prerequisites,
        forced_by: forced_by.map(ToString::to_string),
        scripts: if is_found(StaleKind::Scripts) { scripts(state) } else { Vec::new() },
        tool_calls: pending.interrupted.iter().map(of_call).collect(),
        repository: state.staleness.findings.iter().filter_map(|finding| of_repository(state, finding)).collect(),
        findings: state.staleness.findings.iter().filter_map(|finding| other(state, finding)).collect(),
        missing: state.degraded.iter().map(of_part).collect(),
        degraded_by: degraded_by.map(ToString::to_string),
        ..NoteVariables::default()
    }))
}

/// Returns the unmet prerequisites by name. The summary of a check can contain text from an external program.
fn prerequisites(state: &State) -> Vec<NotePrerequisite> {
    let unmet = state.prerequisites.iter().filter(|report| report.outcome != Outcome::Pass);
    let named = unmet.map(|report| {
        let (name, outcome) = (text::name(&report.name), report.outcome.as_str());
        NotePrerequisite { text: format!("{name} ({outcome})"), name, outcome: outcome.to_owned() }
    });
    named.collect()
}

/// Returns the context sets without the files that do not exist.
fn context(state: &State) -> Vec<NoteContextSet> {
    let sets = state.context.sets.iter().map(|(name, items)| {
        let exists = |item: &&String| name != FILES || !state.context_missing.contains(item);
        let items: Vec<String> = items.iter().filter(exists).map(|item| text::path(item)).collect();
        let url = state.context.applet_url.as_ref().filter(|_| name == APPLET);
        let url = url.map(|url| format!(" ({})", text::path(url))).unwrap_or_default();
        let name = text::name(name);
        NoteContextSet { text: format!("{name}: {}{url}", items.join(", ")), name, items }
    });
    sets.filter(|set| !set.items.is_empty()).collect()
}

fn of_variable(change: &VariableChange) -> NoteVariableChange {
    let safe = |name: &Option<String>| name.as_deref().map(text::name);
    let (name, before, after) = (text::name(&change.name), safe(&change.before), safe(&change.after));
    let words = VariableChange { name: name.clone(), kind: change.kind, before: before.clone(), after: after.clone() };
    let kind = match change.kind {
        VariableChangeKind::Added => "added",
        VariableChangeKind::Removed => "removed",
        VariableChangeKind::Changed | VariableChangeKind::Unknown => "changed",
    };
    NoteVariableChange { text: describe(&[words]), name, change: kind.to_owned(), before, after }
}

fn of_call(call: &ToolCallName) -> NoteToolCall {
    let title = text::quoted(call.title.as_deref().unwrap_or(&call.id));
    let kind = call.kind.as_deref().map(text::name);
    let words = kind.as_ref().map_or_else(|| title.clone(), |kind| format!("{title} ({kind})"));
    NoteToolCall { title, kind, text: words }
}

/// Returns a missing part without its reason, which can quote a script or a check.
fn of_part(part: &MissingPart) -> NoteMissing {
    let (kind, name) = (part.kind.as_str(), text::path(&part.name));
    NoteMissing { text: format!("the {kind} {name}"), kind: kind.to_owned(), name }
}

/// Returns the scripts that differ from those with which the agent last worked.
fn scripts(state: &State) -> Vec<NoteScript> {
    let nothing = BTreeMap::new();
    let before = state.facts.baseline.scripts.as_deref().unwrap_or(&nothing);
    let now = state.facts.scripts.as_deref().unwrap_or(&nothing);
    let changed = now.iter().filter_map(|(path, digest)| match before.get(path) {
        None => Some((path, "new")),
        Some(known) if known != digest => Some((path, "changed")),
        Some(_) => None,
    });
    let gone = before.keys().filter(|path| !now.contains_key(*path)).map(|path| (path, "gone"));
    let of_script = |(path, change): (&String, &str)| {
        let path = text::path(path);
        NoteScript { text: format!("{path} ({change})"), path, change: change.to_owned() }
    };
    changed.chain(gone).map(of_script).collect()
}

/// Returns the finding as a change of the repository, if it is one. The texts are built here, because messages of
/// findings contain unescaped names.
fn of_repository(state: &State, finding: &StaleFinding) -> Option<NoteRepositoryChange> {
    let repository = |facts: Option<&Repository>| facts.and_then(Repository::found).cloned();
    let before = repository(state.facts.baseline.facts.as_ref().map(|facts| &facts.repository));
    let now = repository(state.facts.last.as_ref().map(|facts| &facts.repository));
    let of =
        |facts: &Option<RepositoryFacts>, part: fn(&RepositoryFacts) -> Option<String>| facts.as_ref().and_then(part);
    let both = |part| (of(&before, part), of(&now, part));
    let root = |facts: &RepositoryFacts| Some(text::path(&facts.root.to_string_lossy()));
    let branch = |facts: &RepositoryFacts| facts.branch.as_deref().map(text::name);
    let head = |facts: &RepositoryFacts| {
        let id = facts.head.as_ref().map(|head| head.chars().take(ABBREVIATED).collect::<String>());
        id.as_deref().map(text::name)
    };
    let ((before, now), what) = match finding.kind {
        StaleKind::Directory => ((None, None), "directory"),
        StaleKind::Repository if finding.reason == reason::REMOTES_CHANGED => ((None, None), "remotes"),
        StaleKind::Repository => (both(root), "repository"),
        StaleKind::Branch => (both(branch), "branch"),
        StaleKind::Head => (both(head), "head"),
        _ => return None,
    };
    let words = match (what, &before, &now) {
        ("directory", ..) => "another directory is at the path of the working directory".to_owned(),
        ("remotes", ..) => "its remotes are others".to_owned(),
        ("repository", Some(before), None) => format!("the repository {before} is gone"),
        ("repository", None, Some(now)) => format!("the working directory is now in the repository {now}"),
        ("branch", ..) => {
            let name = |branch: &Option<String>| branch.clone().unwrap_or_else(|| "no branch".to_owned());
            format!("the branch was {} and is {}", name(&before), name(&now))
        }
        ("head", ..) => {
            let commit = |head: &Option<String>| head.clone().unwrap_or_else(|| "no commit".to_owned());
            format!("the head was at {} and is at {}", commit(&before), commit(&now))
        }
        (what, before, now) => {
            let known = |state: &Option<String>| state.clone().unwrap_or_else(|| "unknown".to_owned());
            format!("the {what} was {} and is {}", known(before), known(now))
        }
    };
    Some(NoteRepositoryChange { what: what.to_owned(), before, now, text: words })
}

/// Returns a finding that no other variable contains.
fn other(state: &State, finding: &StaleFinding) -> Option<NoteFinding> {
    let is_listed = match finding.kind {
        StaleKind::Directory | StaleKind::Repository | StaleKind::Branch | StaleKind::Head | StaleKind::Scripts => true,
        StaleKind::Environment => !state.pending_note.changes.is_empty(),
        StaleKind::Unused | StaleKind::AgentVersion | StaleKind::Unknown => false,
    };
    let kind = finding.kind.as_str().to_owned();
    (!is_listed).then(|| NoteFinding { kind, text: text::line(&finding.message) })
}
