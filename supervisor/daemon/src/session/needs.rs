//! A launch and what it needs of the world: checked before the environment is built and after it, refused, waited for, or launched all the
//! same.
//!
//! Nothing here holds one of the permits by which launches are bounded: a session that waits for a VPN keeps nobody from starting. The
//! limit of a wait is a moment in the journal, so a daemon that takes over waits until the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::prerequisite::{CheckReport, Moment, PrerequisiteView, PrerequisitesChecked, PrerequisitesForced};
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::{Body, Code, Problem, SessionId};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bringup::{Failure, Job, Progress};
use super::verdict::{TIMED_OUT, WAITING, lines, supersede, verdict};
use super::{Session, environment};
use crate::env::{Environment, chain};
use crate::plugins::SETTLED;
use crate::prerequisite::{Fresh, Prerequisites, Subject, Wanted};
use crate::world::World;

/// How often what is missing is looked at while it is waited for, at most.
const AGAIN: Duration = Duration::from_secs(1);
/// So many looks at the same are under way at once, at most.
const BESIDE: u32 = 6;

/// The needs of one launch, from the first check to the last.
pub(super) struct Needs<'a> {
    world: &'a World,
    job: &'a Job,
    report: &'a mpsc::Sender<Progress>,
    names: BTreeSet<String>,
    /// What was found in this launch so far.
    reports: Vec<CheckReport>,
}

impl<'a> Needs<'a> {
    pub(super) fn new(world: &'a World, job: &'a Job, report: &'a mpsc::Sender<Progress>) -> Self {
        Self { names: world.needed(&job.spec), world, job, report, reports: Vec::new() }
    }

    /// What can be looked at before there is an environment.
    pub(super) async fn before(&mut self) -> Result<(), Failure> {
        if self.names.is_empty() {
            self.say(verdict(&[], None)).await;
            return Ok(());
        }
        let prerequisites = prerequisites(self.world, &self.names).await?;
        let names = of_moment(prerequisites, &self.names, Moment::BeforeEnvironment);
        let left = self.names.len() - names.len();
        self.meet(prerequisites, names, Moment::BeforeEnvironment, None).await?;
        if left == 0 {
            self.say(verdict(&self.reports, self.job.forced_by.as_ref())).await;
        } else {
            let message = format!("{left} of what it needs can be looked at when its environment is there");
            self.say((ConditionStatus::Unknown, "AfterEnvironment", message)).await;
        }
        Ok(())
    }

    /// What is to be looked at with the environment that was built.
    pub(super) async fn after(&mut self, environment: &Environment) -> Result<(), Failure> {
        if self.names.is_empty() {
            return Ok(());
        }
        let prerequisites = prerequisites(self.world, &self.names).await?;
        let names = of_moment(prerequisites, &self.names, Moment::AfterEnvironment);
        if names.is_empty() {
            return Ok(());
        }
        let subject = subject(self.world, &self.job.id, &self.job.spec, self.job.launch, environment);
        self.meet(prerequisites, names, Moment::AfterEnvironment, Some(&Arc::new(subject))).await?;
        self.say(verdict(&self.reports, self.job.forced_by.as_ref())).await;
        Ok(())
    }

    /// Checks these until none is in the way, or the launch goes on without, or the time is over.
    async fn meet(
        &mut self,
        prerequisites: &Arc<Prerequisites>,
        names: Vec<String>,
        moment: Moment,
        subject: Option<&Arc<Subject>>,
    ) -> Result<(), Failure> {
        if names.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let wanted = names.iter().map(|name| Wanted { name: name.clone(), fresh: Fresh::Cached }).collect();
        let mut found = prerequisites.round(wanted, subject).await;
        let until = self.job.wait_until.filter(|until| left(*until, Timestamp::now()).is_some());
        if let Some(until) = until
            && self.job.forced_by.is_none()
            && found.iter().any(CheckReport::is_obstacle)
        {
            self.record(Body::PrerequisitesChecked(self.checked(moment, &found))).await;
            found = self.wait(prerequisites, &names, subject, (found, begun), until).await;
        }
        self.record(Body::PrerequisitesChecked(self.checked(moment, &found))).await;
        self.decide(&found).await
    }

    /// What is found when nothing is in the way any more, or when the time is over.
    ///
    /// A check may sit out its time on what was lost before the world was well again. So no round waits for the one before: the first in
    /// which all passes ends the wait.
    async fn wait(
        &self,
        prerequisites: &Arc<Prerequisites>,
        names: &[String],
        subject: Option<&Arc<Subject>>,
        (mut found, begun): (Vec<CheckReport>, Instant),
        until: Timestamp,
    ) -> Vec<CheckReport> {
        let mut under_way = JoinSet::new();
        let (mut number, mut known, mut last) = (0_u64, 0, None);
        let (mut begun, mut said) = (begun, String::new());
        loop {
            let missing = lines(&found, CheckReport::is_obstacle);
            if said != missing {
                let message = format!("{missing}; waited for until {}", until.strftime("%Y-%m-%dT%H:%M:%SZ"));
                self.say((ConditionStatus::False, WAITING, message)).await;
                said = missing;
            }
            let pause = pause(prerequisites, &found);
            let left_now = left(until, Timestamp::now()).unwrap_or_default();
            tokio::select! {
                // At the limit they are looked at once more.
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
                    // It says why in the log. With the last one nothing further would come.
                    Err(_) if last.is_some() && under_way.is_empty() => return found,
                    _ => {}
                }
            }
        }
    }

    /// What becomes of the launch by what was found last.
    async fn decide(&mut self, found: &[CheckReport]) -> Result<(), Failure> {
        supersede(&mut self.reports, found);
        let missing: Vec<String> =
            found.iter().filter(|report| report.is_obstacle()).map(|report| report.name.clone()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(by) = self.job.forced_by.clone() {
            tracing::warn!(agentd.session = %self.job.id, ?missing, %by, "a session is launched without what it needs, as was asked");
            self.record(Body::PrerequisitesForced(PrerequisitesForced { launch: self.job.launch, by, missing })).await;
            return Ok(());
        }
        let (_, reason, message) = verdict(&self.reports, None);
        let (reason, message) = match self.job.wait_until {
            Some(_) => (TIMED_OUT, format!("the wait is over, and still missing is {message}")),
            None => (reason, message),
        };
        Err(Failure { kind: ConditionType::PrerequisitesMet, reason, message })
    }

    fn checked(&self, moment: Moment, reports: &[CheckReport]) -> PrerequisitesChecked {
        PrerequisitesChecked { launch: self.job.launch, moment, reports: reports.to_vec() }
    }

    async fn record(&self, body: Body) {
        let _ = self.report.send(Progress::Record(Box::new(body))).await;
    }

    async fn say(&self, (status, reason, message): super::verdict::Verdict) {
        let kind = ConditionType::PrerequisitesMet;
        let _ = self.report.send(Progress::Condition { kind, status, reason: reason.to_owned(), message }).await;
    }
}

/// How long after a round the next is begun: so that no more than a few are under way, however long a look takes.
fn pause(prerequisites: &Prerequisites, found: &[CheckReport]) -> Duration {
    let missing = found.iter().filter(|report| report.is_obstacle());
    let longest = missing.filter_map(|report| prerequisites.time(&report.name)).max().unwrap_or_default();
    (longest / BESIDE).max(AGAIN)
}

/// What a further round asks for. What another who waits has begun since the round before is as good: all of them look once.
fn further(names: &[String], found: &[CheckReport], pause: Duration) -> Vec<Wanted> {
    let is_missing = |name: &String| found.iter().any(|report| report.is_obstacle() && report.name == *name);
    let fresh = |name| if is_missing(name) { Fresh::Begun(pause * 9 / 10) } else { Fresh::Cached };
    names.iter().map(|name| Wanted { name: name.clone(), fresh: fresh(name) }).collect()
}

/// How long it is until then, if it is not over.
fn left(until: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(until.duration_since(now)).ok().filter(|left| !left.is_zero())
}

async fn prerequisites<'a>(world: &'a World, names: &BTreeSet<String>) -> Result<&'a Arc<Prerequisites>, Failure> {
    let kind = ConditionType::PrerequisitesMet;
    let failed = |error| Failure { kind, reason: "PluginsUnusable", message: chain(&error) };
    world.prerequisites_for(names).await.map_err(failed)
}

fn of_moment(prerequisites: &Prerequisites, names: &BTreeSet<String>, moment: Moment) -> Vec<String> {
    names.iter().filter(|name| prerequisites.moment(name) == moment).cloned().collect()
}

fn subject(world: &World, id: &SessionId, spec: &SessionSpec, launch: u64, environment: &Environment) -> Subject {
    let name = spec.name.as_ref().map(ToString::to_string);
    let places = environment::places(world, id, spec);
    Subject::new((id.clone(), name, world.agent_label(spec), launch), places, environment)
}

/// The same with the environment of the session's last launch; nothing where it has had none.
pub(super) async fn kept_subject(world: &World, session: &Session) -> Result<Option<Arc<Subject>>, Problem> {
    let (id, view) = (session.id(), session.view());
    let Some(kept) = environment::kept(world, id).await? else { return Ok(None) };
    let mut environment = Environment::from_view(&kept.last);
    environment.restore(&world.environments.secrets(id));
    Ok(Some(Arc::new(subject(world, id, &view.spec, view.status.launches, &environment))))
}

/// Why a launch would be refused now, by what can be looked at without its environment.
pub(super) async fn refusal(world: &World, spec: &SessionSpec) -> Option<Problem> {
    let names = world.needed(spec);
    if names.is_empty() {
        return None;
    }
    // What is wrong with the plugins is the launch's to say: it waits for those that are compiled, and tries others again.
    let plugins = world.plugins_of(spec).await.ok()?;
    if plugins.iter().any(|plugin| plugin.loaded().is_none()) {
        return None;
    }
    let prerequisites = world.prerequisites().await.ok()?;
    let names = of_moment(prerequisites, &names, Moment::BeforeEnvironment);
    let wanted = names.into_iter().map(|name| Wanted { name, fresh: Fresh::Cached }).collect();
    let mut reports = prerequisites.round(wanted, None).await;
    reports.retain(CheckReport::is_obstacle);
    (!reports.is_empty()).then(|| {
        let mut problem = Problem::new(Code::PrerequisitesNotMet, lines(&reports, |_| true))
            .hint("`agentctl resume --wait` waits for what is missing; `--force` starts the session without");
        problem.prerequisites = reports;
        problem
    })
}

/// Says now what one check finds; for a session where it looks at an environment.
pub(crate) async fn check_now(world: &World, name: &str, session: Option<&Session>) -> Result<CheckReport, Problem> {
    let prerequisites = loaded(world, [&name.to_owned()]).await?;
    if !prerequisites.holds(name) {
        let problem = Problem::new(Code::NoSuchPrerequisite, format!("there is no prerequisite {name:?}"));
        return Err(problem.hint(format!("`agentctl check` lists them; declare it as [prerequisites.{name}]")));
    }
    let subject = match (prerequisites.moment(name), session) {
        (Moment::AfterEnvironment, Some(session)) => {
            let subject = kept_subject(world, session).await?;
            let none = || {
                Problem::new(Code::WrongPhase, format!("the session \"{}\" has had no environment yet", session.id()))
            };
            Some(subject.ok_or_else(none)?)
        }
        (Moment::AfterEnvironment, None) => {
            let detail = format!("{name:?} looks at a session's environment, and the request names no session");
            return Err(Problem::new(Code::InvalidRequest, detail).hint("`agentctl check --session S` names one"));
        }
        _ => None,
    };
    // Of a session's places one look that hangs is enough.
    let fresh = if subject.is_some() { Fresh::Found(Duration::ZERO) } else { Fresh::Begun(Duration::ZERO) };
    let wanted = vec![Wanted { name: name.to_owned(), fresh }];
    let mut reports = prerequisites.round(wanted, subject.as_ref()).await;
    reports.pop().ok_or_else(|| Problem::new(Code::Internal, "the check ended without a word"))
}

/// All prerequisites with the active sessions that need them; with a session, those that it needs.
pub(crate) async fn views(
    world: &World,
    sessions: &[Session],
    of: Option<&Session>,
) -> Result<Vec<PrerequisiteView>, Problem> {
    let prerequisites = loaded(world, []).await?;
    // What is not settled by then is shown as far as it is known.
    let _ = tokio::time::timeout(SETTLED, loaded(world, world.config.prerequisites.keys())).await;
    let wanted = of.map(|session| world.needed(&session.view().spec));
    let mut views = prerequisites.views();
    views.retain(|view| wanted.as_ref().is_none_or(|wanted| wanted.contains(&view.name)));
    for session in sessions {
        let session = session.view();
        if !session.status.phase.is_active() {
            continue;
        }
        let needed = world.needed(&session.spec);
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
    world: &'a World,
    names: impl IntoIterator<Item = &String>,
) -> Result<&'a Arc<Prerequisites>, Problem> {
    world.prerequisites_for(names).await.map_err(|error| Problem::new(Code::PluginUnusable, chain(&error)))
}
