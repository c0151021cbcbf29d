//! The preview of a note: what the session's agent would get with the next prompt. Sends and records nothing.
//!
//! The agent of a session with an agent gets the note that its state gives. For a session at rest, the preview looks
//! at what a resume would find now. It builds the environment as `environment?at=now` does, and starts no agent.

use std::path::Path;
use std::sync::Arc;

use agentd_api::Problem;
use agentd_api::environment::{EnvironmentView, Refresh};
use agentd_api::note::NoteView;
use agentd_api::session::{ResumeNote, SessionSpec};
use agentd_api::staleness::{StaleFinding, StaleKind, StalePolicy};
use agentd_decide::note::{NoteTerms, Present, note, variables};
use agentd_decide::staleness::{Present as PresentSurroundings, StalenessSettings, compare};
use agentd_decide::state::{Run, State};
use agentd_environment::{drift, restore_obstacle};
use agentd_host::workspace;
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::environment::{self, build_now, kept};
use crate::facts::{Purpose, read};
use crate::generation::Generation;
use crate::{Session, missing_files, staleness};

/// Returns the note that the next prompt would have. Without `may_build` no environment is built, since that runs
/// scripts.
#[boxed]
pub async fn preview(generation: &Arc<Generation>, session: &Session, may_build: bool) -> Result<NoteView, Problem> {
    let state = session.state().await?;
    let spec = state.workflow.in_force(&session.view().spec);
    let mode = generation.resume_note(&spec);
    let is_at_rest = matches!(state.run, Run::Ended(_));
    let mut undetermined = Vec::new();
    let state = if is_at_rest && mode != ResumeNote::Off {
        let mut look = Look { generation, session, spec: &spec, state: &state, undetermined: Vec::new() };
        let present = Box::pin(look.present(may_build)).await;
        undetermined = look.undetermined;
        present.resume(*state)
    } else {
        if matches!(state.run, Run::Preparing(_)) {
            undetermined.push("the launch is not complete; what it finds later can change the note".to_owned());
        }
        *state
    };
    let directory = state.workflow.directory(&spec);
    let terms = NoteTerms { directory, mode, template: &generation.template, now: Timestamp::now() };
    let shown = note(&state, &terms);
    Ok(NoteView {
        session: session.id().clone(),
        note: shown.text,
        mode,
        resumed_now: is_at_rest,
        template: generation.config.resume.note_template.as_ref().map(|template| template.file.clone()),
        error: shown.error,
        undetermined,
        variables: variables(&state, &terms),
    })
}

/// A look at what a resume of a session would find.
struct Look<'a> {
    generation: &'a Arc<Generation>,
    session: &'a Session,
    spec: &'a Arc<SessionSpec>,
    state: &'a State,
    undetermined: Vec<String>,
}

impl Look<'_> {
    async fn present(&mut self, may_build: bool) -> Present {
        let daemon = &self.generation.daemon;
        let mut present = Present {
            prerequisites: self.prerequisites().await,
            context_missing: missing_files(&daemon.machine, &self.state.context).await,
            ..Present::default()
        };
        if self.generation.is_elsewhere(self.spec) {
            self.undetermined.push("the place of the session is not looked at".to_owned());
            return present;
        }
        if let Err(error) = workspace::check_all(&daemon.machine, &self.spec.all_directories()).await {
            self.undetermined.push(format!("a resume would fail: {error}"));
            return present;
        }
        let settings = staleness::settings(&self.generation.config.staleness);
        let home = self.generation.config.environment.home_directory();
        let facts = read(daemon, home.as_deref(), &self.spec.directory, Purpose::Other).await;
        let scripts = match self.generation.pipeline().await {
            Ok(pipeline) => {
                let places = environment::places_under(
                    &daemon.directories,
                    self.session.id(),
                    (self.spec, self.state.workflow.active()),
                );
                Some(pipeline.script_digests(&places, &daemon.trust).await)
            }
            Err(error) => {
                self.undetermined.push(format!("the scripts were not compared: {error}"));
                None
            }
        };
        let directory: &Path = &self.spec.directory;
        let now = PresentSurroundings { directory, facts: &facts, scripts: scripts.as_ref(), time: Timestamp::now() };
        let compared = compare(&self.state.facts.baseline, &now, &settings);
        present.findings = compared.iter().filter_map(|one| one.finding(&settings)).collect();
        (present.facts, present.scripts) = (Some(facts), scripts);
        self.compare_environment(&mut present, &settings, may_build).await;
        let refused = present.findings.iter().filter(|finding| finding.policy == StalePolicy::Refuse);
        self.undetermined.extend(refused.map(|finding| format!("a resume would be refused: {}", finding.message)));
        self.undetermined.push("the agent's version is known only after its start".to_owned());
        present
    }

    /// Returns the last results of the session's prerequisites. Checks nothing.
    async fn prerequisites(&mut self) -> Vec<agentd_api::prerequisite::CheckReport> {
        let needed = self.generation.needed(self.spec);
        if needed.is_empty() {
            return Vec::new();
        }
        let Ok(prerequisites) = self.generation.prerequisites().await else {
            self.undetermined.push("the prerequisites cannot be checked".to_owned());
            return Vec::new();
        };
        let mut reports = Vec::new();
        for name in needed {
            match prerequisites.last(&name) {
                Some(report) => reports.push(report),
                None => self.undetermined.push(format!("the prerequisite {name:?} was not checked yet")),
            }
        }
        reports
    }

    /// Compares the environment of the last launch with the environment of a launch now.
    async fn compare_environment(&mut self, present: &mut Present, settings: &StalenessSettings, may_build: bool) {
        let id = self.session.id();
        let last = match kept(self.generation, id).await {
            Ok(Some(kept)) => kept.last,
            Ok(None) => return,
            Err(problem) => {
                self.undetermined.push(format!("the environment was not compared: {}", problem.detail));
                return;
            }
        };
        let refresh = self.generation.refresh_policy(self.spec);
        let is_restored = refresh != Refresh::Fresh
            && restore_obstacle(&last, &self.state.conversation_places, Timestamp::now()).is_none();
        if is_restored && refresh == Refresh::Stored {
            return;
        }
        if !may_build {
            let reason = "only the owner can build an environment, since that runs scripts";
            self.undetermined.push(format!("the environment was not compared: {reason}"));
            return;
        }
        match build_now(self.generation, id, (self.spec, self.state.workflow.active()), self.state.launches + 1).await {
            Ok(new) if is_restored => present.findings.extend(drifted(&last, &new, settings)),
            Ok(new) => present.changes = drift(&last, &new).names(),
            Err(problem) => self.undetermined.push(format!("a resume would fail: {}", problem.detail)),
        }
    }
}

/// Returns the finding about an environment that is restored although a new one would differ.
fn drifted(last: &EnvironmentView, new: &EnvironmentView, settings: &StalenessSettings) -> Option<StaleFinding> {
    let (kind, policy) = (StaleKind::Environment, settings.policy(StaleKind::Environment));
    let changes = drift(last, new).names();
    (!changes.is_empty() && policy != StalePolicy::Ignore).then(|| StaleFinding {
        kind,
        reason: agentd_api::reason::DRIFTED.to_owned(),
        message: format!("a new environment would differ: {}", agentd_api::changes::describe(&changes)),
        policy,
    })
}
