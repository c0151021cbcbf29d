//! The prerequisites of a launch: checks them before and after the environment is built. Missing ones refuse the
//! launch, are waited for, or are ignored on request. A degraded launch waits if requested, and then leaves them out.
//!
//! Waiting holds no launch permit, so a session that waits for a VPN does not keep others from starting. The end
//! of a wait is a time in the journal, so it holds for the next daemon as well.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::degraded::{MissingKind, MissingPart};
use agentd_api::hint;
use agentd_api::prerequisite::{CheckReport, Moment, PrerequisiteView, PrerequisitesChecked, PrerequisitesForced};
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec, SessionView};
use agentd_api::{Body, Code, Problem};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bringup::{Failure, Progress};
use super::{Session, environment};
use crate::generation::Generation;
use crate::launch_plan::LaunchPlan;
use agentd_api::chain;
use agentd_decide::verdict::{TIMED_OUT, WAITING, lines, supersede, verdict};
use agentd_environment::Environment;
use agentd_plugin_set::SETTLED;
use agentd_prerequisite::{CheckedSession, Freshness, Prerequisites, RequestedCheck};

/// Minimum interval between two checks of missing prerequisites during a wait.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of concurrent rounds of checks in one wait.
const MAX_ROUNDS: u32 = 6;

/// The prerequisites of one launch, from the first check to the last.
pub(super) struct LaunchPrerequisites<'a> {
    plan: &'a LaunchPlan,
    report: &'a mpsc::Sender<Progress>,
    /// The reports of this launch so far.
    reports: Vec<CheckReport>,
    /// Unmet prerequisites that the degraded launch leaves out.
    left_out: Vec<MissingPart>,
}

impl<'a> LaunchPrerequisites<'a> {
    pub(super) fn new(plan: &'a LaunchPlan, report: &'a mpsc::Sender<Progress>) -> Self {
        Self { plan, report, reports: Vec::new(), left_out: Vec::new() }
    }

    /// Returns the unmet prerequisites that the degraded launch left out.
    pub(super) fn left_out(self) -> Vec<MissingPart> {
        self.left_out
    }

    /// Checks the prerequisites that need no environment.
    pub(super) async fn before(&mut self) -> Result<(), Failure> {
        if self.plan.needed.is_empty() {
            self.say(verdict(&[], None)).await;
            return Ok(());
        }
        let prerequisites = prerequisites(self.plan).await?;
        let names = of_moment(prerequisites, &self.plan.needed, Moment::BeforeEnvironment);
        let left = self.plan.needed.len() - names.len();
        self.meet(prerequisites, names, Moment::BeforeEnvironment, None).await?;
        if left == 0 {
            self.say(verdict(&self.reports, self.plan.forced())).await;
        } else {
            let message = format!("{left} of its prerequisites are checked after its environment is built");
            self.say((ConditionStatus::Unknown, reason::AFTER_ENVIRONMENT, message)).await;
        }
        Ok(())
    }

    /// Checks the prerequisites that need the environment.
    pub(super) async fn after(&mut self, environment: &Environment) -> Result<(), Failure> {
        if self.plan.needed.is_empty() {
            return Ok(());
        }
        let prerequisites = prerequisites(self.plan).await?;
        let names = of_moment(prerequisites, &self.plan.needed, Moment::AfterEnvironment);
        if names.is_empty() {
            return Ok(());
        }
        let subject = subject(self.plan, environment);
        self.meet(prerequisites, names, Moment::AfterEnvironment, Some(&Arc::new(subject))).await?;
        self.say(verdict(&self.reports, self.plan.forced())).await;
        Ok(())
    }

    /// Checks the named prerequisites until none is missing, the launch is forced, or the wait is over.
    async fn meet(
        &mut self,
        prerequisites: &Arc<Prerequisites>,
        names: Vec<String>,
        moment: Moment,
        subject: Option<&Arc<CheckedSession>>,
    ) -> Result<(), Failure> {
        if names.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let wanted = names.iter().map(|name| RequestedCheck { name: name.clone(), fresh: Freshness::Cached }).collect();
        let mut found = prerequisites.round(wanted, subject).await;
        let until = self.plan.wait_until.filter(|until| left(*until, Timestamp::now()).is_some());
        if let Some(until) = until
            && self.plan.forced_by.is_none()
            && found.iter().any(CheckReport::is_obstacle)
        {
            self.record(Body::PrerequisitesChecked(self.checked(moment, &found))).await;
            found = self.wait(prerequisites, &names, subject, (found, begun), until).await;
        }
        self.record(Body::PrerequisitesChecked(self.checked(moment, &found))).await;
        self.decide(&found).await
    }

    /// Waits for missing prerequisites, and returns the reports of the last round.
    ///
    /// A check may run into its time limit on a connection that was lost before the problem was solved. So no
    /// round waits for the previous round, and the first round without a missing prerequisite ends the wait.
    async fn wait(
        &self,
        prerequisites: &Arc<Prerequisites>,
        names: &[String],
        subject: Option<&Arc<CheckedSession>>,
        (mut found, begun): (Vec<CheckReport>, Instant),
        until: Timestamp,
    ) -> Vec<CheckReport> {
        let mut under_way = JoinSet::new();
        let (mut number, mut known, mut last) = (0_u64, 0, None);
        let (mut begun, mut said) = (begun, String::new());
        loop {
            let missing = lines(&found, CheckReport::is_obstacle);
            if said != missing {
                let message = format!("{missing}; waiting until {}", until.strftime("%Y-%m-%dT%H:%M:%SZ"));
                self.say((ConditionStatus::False, WAITING, message)).await;
                said = missing;
            }
            let pause = pause(prerequisites, &found);
            let left_now = left(until, Timestamp::now()).unwrap_or_default();
            tokio::select! {
                // At the limit, one last round is begun.
                () = tokio::time::sleep_until((begun + pause).min(Instant::now() + left_now)), if last.is_none() => {
                    (begun, number) = (Instant::now(), number + 1);
                    last = left(until, Timestamp::now()).is_none().then_some(number);
                    let (wanted, of) = (further(names, &found, pause), number);
                    let (prerequisites, subject) = (Arc::clone(prerequisites), subject.cloned());
                    under_way.spawn(async move { (of, prerequisites.round(wanted, subject.as_ref()).await) });
                }
                Some(ended) = under_way.join_next() => match ended {
                    Ok((of, reports)) if Some(of) == last || !reports.iter().any(CheckReport::is_obstacle) => {
                        return reports;
                    }
                    Ok((of, reports)) if of > known => (known, found) = (of, reports),
                    // The task panicked and logged the panic. If that was the last round, no further result
                    // follows.
                    Err(_) if last.is_some() && under_way.is_empty() => return found,
                    _ => {}
                }
            }
        }
    }

    /// Decides from the last reports whether the launch continues.
    async fn decide(&mut self, found: &[CheckReport]) -> Result<(), Failure> {
        supersede(&mut self.reports, found);
        let missing: Vec<String> =
            found.iter().filter(|report| report.is_obstacle()).map(|report| report.name.clone()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(by) = self.plan.forced().cloned() {
            if self.plan.degraded_by.is_some() {
                self.left_out.extend(found.iter().filter(|report| report.is_obstacle()).map(missing_part));
            }
            tracing::warn!(
                ?missing, %by,
                "launching a session despite missing prerequisites, as requested"
            );
            self.record(Body::PrerequisitesForced(PrerequisitesForced { launch: self.plan.launch, by, missing })).await;
            return Ok(());
        }
        let (_, reason, message) = verdict(&self.reports, None);
        let (reason, message) = match self.plan.wait_until {
            Some(_) => (TIMED_OUT, format!("the wait is over, and still missing is {message}")),
            None => (reason, message),
        };
        Err(Failure { kind: ConditionType::PrerequisitesMet, reason, message })
    }

    fn checked(&self, moment: Moment, reports: &[CheckReport]) -> PrerequisitesChecked {
        PrerequisitesChecked { launch: self.plan.launch, moment, reports: reports.to_vec() }
    }

    async fn record(&self, body: Body) {
        let _ = self.report.send(Progress::Record(Box::new(body))).await;
    }

    async fn say(&self, (status, reason, message): agentd_decide::verdict::ConditionUpdate) {
        let kind = ConditionType::PrerequisitesMet;
        let _ = self.report.send(Progress::Condition { kind, status, reason: reason.to_owned(), message }).await;
    }
}

/// Describes an unmet prerequisite as a part that a degraded launch left out.
fn missing_part(report: &CheckReport) -> MissingPart {
    let remedy = report.remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
    let message = format!("{}{remedy}", report.summary);
    MissingPart { kind: MissingKind::Prerequisite, name: report.name.clone(), message }
}

/// Returns the pause between the beginnings of two rounds. At most [`MAX_ROUNDS`] rounds run at once, however long a
/// check takes.
fn pause(prerequisites: &Prerequisites, found: &[CheckReport]) -> Duration {
    let missing = found.iter().filter(|report| report.is_obstacle());
    let longest = missing.filter_map(|report| prerequisites.time(&report.name)).max().unwrap_or_default();
    (longest / MAX_ROUNDS).max(MIN_PAUSE)
}

/// Returns the checks of a further round. A check that another waiting launch began since the last round is
/// shared.
fn further(names: &[String], found: &[CheckReport], pause: Duration) -> Vec<RequestedCheck> {
    let is_missing = |name: &String| found.iter().any(|report| report.is_obstacle() && report.name == *name);
    let fresh = |name| if is_missing(name) { Freshness::Begun(pause * 9 / 10) } else { Freshness::Cached };
    names.iter().map(|name| RequestedCheck { name: name.clone(), fresh: fresh(name) }).collect()
}

/// Returns the time left until `until`, or `None` after it.
fn left(until: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(until.duration_since(now)).ok().filter(|left| !left.is_zero())
}

async fn prerequisites(plan: &LaunchPlan) -> Result<&Arc<Prerequisites>, Failure> {
    let kind = ConditionType::PrerequisitesMet;
    let failed = |error| Failure { kind, reason: reason::PLUGINS_UNUSABLE, message: chain(&error) };
    plan.prerequisites().await.map_err(failed)
}

fn of_moment(prerequisites: &Prerequisites, names: &BTreeSet<String>, moment: Moment) -> Vec<String> {
    names.iter().filter(|name| prerequisites.moment(name) == moment).cloned().collect()
}

/// Returns the launched session as the subject of checks, with its built environment.
fn subject(plan: &LaunchPlan, environment: &Environment) -> CheckedSession {
    let name = plan.spec.name.as_ref().map(ToString::to_string);
    let session = (plan.id.clone(), name, plan.agent.clone(), plan.launch);
    CheckedSession::new(session, plan.places.clone(), environment)
}

/// Returns the session as the subject of checks, with the environment of its last launch. `None` if it had no
/// launch.
pub(super) async fn kept_subject(
    generation: &Generation,
    session: &Session,
) -> Result<Option<Arc<CheckedSession>>, Problem> {
    let (id, view) = (session.id(), session.view());
    let Some(kept) = environment::kept(generation, id).await? else { return Ok(None) };
    let mut built = Environment::from_view(&kept.last);
    built.restore(&generation.environments.secrets(id));
    let name = view.spec.name.as_ref().map(ToString::to_string);
    let session = (id.clone(), name, generation.agent_label(&view.spec), view.status.launches);
    let places = environment::places_under(&generation.daemon.directories, id, (&view.spec, view.active_workflow()));
    Ok(Some(Arc::new(CheckedSession::new(session, places, &built))))
}

/// Returns the refusal of a launch, by the checks that need no environment.
pub(super) async fn refusal(generation: &Generation, view: &SessionView) -> Option<Problem> {
    let SessionView { spec, status, .. } = view;
    let names = generation.needed_by(view);
    if names.is_empty() {
        return None;
    }
    // Leave plugin errors to the launch: it waits for plugins that are being compiled, and loads failed ones
    // again.
    let plugins = generation.plugins_of(spec).await.ok()?;
    if plugins.iter().any(|plugin| plugin.loaded().is_none()) {
        return None;
    }
    let prerequisites = generation.prerequisites().await.ok()?;
    unmet(prerequisites, &names, status.hint.as_ref()).await
}

/// Returns the obstacles of a session that is about to be created. Waits for plugins of its prerequisites that are
/// being compiled.
pub(super) async fn obstacles(generation: &Generation, spec: &SessionSpec) -> Option<Problem> {
    let names = generation.needed(spec);
    if names.is_empty() {
        return None;
    }
    let prerequisites = generation.prerequisites_for(&names).await.ok()?;
    unmet(prerequisites, &names, None).await
}

/// Checks the prerequisites that need no environment. Returns a problem with those that are not met.
async fn unmet(prerequisites: &Prerequisites, names: &BTreeSet<String>, hint: Option<&String>) -> Option<Problem> {
    let names = of_moment(prerequisites, names, Moment::BeforeEnvironment);
    let wanted = names.into_iter().map(|name| RequestedCheck { name, fresh: Freshness::Cached }).collect();
    let mut reports = prerequisites.round(wanted, None).await;
    reports.retain(CheckReport::is_obstacle);
    (!reports.is_empty()).then(|| {
        let remedy = hint::RESUME_WITH_WAIT.to_owned();
        let remedy = hint.map(|hint| hint::of_session(&remedy, hint)).unwrap_or(remedy);
        let mut problem = Problem::new(Code::PrerequisitesNotMet, lines(&reports, |_| true)).hint(remedy);
        problem.prerequisites = reports;
        problem
    })
}

/// Runs one check now and returns its report. A check of an environment needs a session.
pub(crate) async fn check_now(
    generation: &Generation,
    name: &str,
    session: Option<&Session>,
) -> Result<CheckReport, Problem> {
    let prerequisites = loaded(generation, [&name.to_owned()]).await?;
    if !prerequisites.holds(name) {
        let problem = Problem::new(Code::NoSuchPrerequisite, format!("there is no prerequisite {name:?}"));
        return Err(problem
            .hint(format!("`agentctl check` lists the prerequisites; add [prerequisites.{name}] to agentd.toml")));
    }
    let subject = match (prerequisites.moment(name), session) {
        (Moment::AfterEnvironment, Some(session)) => {
            let subject = kept_subject(generation, session).await?;
            let none =
                || Problem::new(Code::WrongPhase, format!("the session \"{}\" has no environment yet", session.id()));
            Some(subject.ok_or_else(none)?)
        }
        (Moment::AfterEnvironment, None) => {
            let detail = format!("{name:?} checks a session's environment, but the request names no session");
            return Err(Problem::new(Code::InvalidRequest, detail).hint(hint::NAME_SESSION));
        }
        _ => None,
    };
    // A check of a session's paths that hangs is not begun a second time.
    let fresh = if subject.is_some() { Freshness::Found(Duration::ZERO) } else { Freshness::Begun(Duration::ZERO) };
    let wanted = vec![RequestedCheck { name: name.to_owned(), fresh }];
    let mut reports = prerequisites.round(wanted, subject.as_ref()).await;
    reports.pop().ok_or_else(|| {
        Problem::new(Code::Internal, "internal error: the check returned no report (please report, with agentd.log)")
    })
}

/// Time for which the result of a check serves further requests for a session. A process inside a session may make
/// such requests as fast as it can.
const ASKED_AGAIN: Duration = Duration::from_secs(2);

/// Checks all prerequisites of a session now, and returns them with their reports. A check of the environment gets the
/// environment of the last launch, and is left out before the first launch.
pub(crate) async fn check_all(generation: &Generation, session: &Session) -> Result<Vec<PrerequisiteView>, Problem> {
    let names = generation.needed_by(&session.view());
    let prerequisites = loaded(generation, &names).await?;
    let subject = kept_subject(generation, session).await?;
    let is_checked = |name: &&String| {
        prerequisites.holds(name) && (subject.is_some() || prerequisites.moment(name) == Moment::BeforeEnvironment)
    };
    let fresh = Freshness::Begun(ASKED_AGAIN);
    let wanted = names.iter().filter(is_checked).map(|name| RequestedCheck { name: name.clone(), fresh }).collect();
    let reports = prerequisites.round(wanted, subject.as_ref()).await;
    let mut views = views(generation, std::slice::from_ref(session), Some(session)).await?;
    for report in reports {
        if let Some(view) = views.iter_mut().find(|view| view.name == report.name) {
            view.report = Some(report);
        }
    }
    Ok(views)
}

/// Returns the prerequisites with the active sessions that need them. With a session, only those of that session.
pub(crate) async fn views(
    generation: &Generation,
    sessions: &[Session],
    of: Option<&Session>,
) -> Result<Vec<PrerequisiteView>, Problem> {
    let prerequisites = loaded(generation, []).await?;
    // Plugins that are not settled in time are shown with their present state.
    let _ = tokio::time::timeout(SETTLED, loaded(generation, generation.config.prerequisites.keys())).await;
    let wanted = of.map(|session| generation.needed_by(&session.view()));
    let mut views = prerequisites.views();
    views.retain(|view| wanted.as_ref().is_none_or(|wanted| wanted.contains(&view.name)));
    for session in sessions {
        let session = session.view();
        if !session.status.phase.is_active() {
            continue;
        }
        let needed = generation.needed_by(&session);
        for view in views.iter_mut().filter(|view| needed.contains(&view.name)) {
            view.used_by.push(session.id.clone());
        }
    }
    for view in views.iter_mut().filter(|view| !view.used_by.is_empty()) {
        let last = view.report.as_ref().map(|report| report.checked_at);
        view.next_at =
            last.zip(prerequisites.interval(&view.name)).and_then(|(at, interval)| at.checked_add(interval).ok());
    }
    Ok(views)
}

async fn loaded<'a>(
    generation: &'a Generation,
    names: impl IntoIterator<Item = &String>,
) -> Result<&'a Arc<Prerequisites>, Problem> {
    generation.prerequisites_for(names).await.map_err(|error| Problem::new(Code::PluginUnusable, chain(&error)))
}
