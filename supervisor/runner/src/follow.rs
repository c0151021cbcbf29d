//! Creates the session and follows it to its result, with the stop that a signal requests.
//!
//! A stop has three steps:
//!
//! 1. The daemon is asked, and closes the agent's stdin.
//! 2. After a part of the grace, the agent receives SIGTERM.
//! 3. After the whole grace, or at the second signal, the agent's process tree is killed.
//!
//! Then the daemon has a moment to complete the session.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use agentd_api::completion::Completion;
use agentd_api::session::{PermissionPolicy, SessionSpec, SessionView};
use agentd_api::snapshot::{TerminalSnapshot, TerminalVariable};
use agentd_api::spec::Workspace;
use agentd_api::{Body, ByteString, Event};
use agentd_client::{Client, Error as ClientError, EventStream, Next, Patience, StreamStart, Terms, patiently};
use agentd_host::platform;
use tokio::time::{Instant, sleep_until};

use crate::Created;
use crate::input::Request;
use crate::place::warning_about;
use crate::progress::Progress;
use crate::result::RunResult;
use crate::signals::StopSignals;
use crate::status::Status;

/// Time that the daemon has to complete a session whose agent was killed.
const COMPLETION: Duration = Duration::from_secs(3);

/// Everything that a run needs to follow its session.
pub(crate) struct Follower<'a> {
    pub(crate) client: Client,
    pub(crate) request: &'a Request,
    /// Time limit of an orderly stop.
    pub(crate) grace: Duration,
    /// `HOME` of a session whose user has no home directory.
    pub(crate) home: Option<PathBuf>,
}

/// A step of a stop that is due at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Terminate,
    Kill,
    GiveUp,
}

/// A stop that a signal requested.
#[derive(Debug)]
struct Stop {
    signal: i32,
    next: Step,
    at: Instant,
    killed: bool,
}

/// The agent's process: its pid and start time.
type Agent = Option<(u32, u64)>;

impl Follower<'_> {
    /// Runs the session to its result.
    pub(crate) async fn run(self, signals: &mut StopSignals, progress: &mut Progress) -> RunResult {
        let created = tokio::select! {
            created = self.create(progress) => created,
            signal = signals.next() => {
                let reason = "a signal stopped the run before its session was created".to_owned();
                return RunResult::early(Status::Signal(signal), reason);
            }
        };
        let view = match created {
            Ok(view) => view,
            Err(error) => return refused(&error),
        };
        let owner = view.spec.workspace.as_ref().map(|workspace: &Workspace| workspace.owner(&view.id).clone());
        let name = view.spec.name.as_ref().map(ToString::to_string);
        let created = Created { id: view.id.clone(), name, workspace: owner };
        progress.line(&format!("session {} in {}", view.id, view.spec.directory.display()));
        if view.spec.permissions == PermissionPolicy::Ask {
            progress.ask_for(view.id.as_str());
        }
        if let Some(prompt) = &self.request.prompt
            && let Err(error) = self.client.prompt(view.id.as_str(), prompt).await
        {
            return RunResult { created: Some(created), ..refused(&error) };
        }
        self.follow(created, signals, progress).await
    }

    /// Creates the session. A daemon that crashes meanwhile is asked again, and takes the request once.
    async fn create(&self, progress: &mut Progress) -> Result<SessionView, ClientError> {
        patiently(|| self.client.health()).await?;
        let mut spec: SessionSpec = self.request.spec.clone();
        if spec.environment.source == Some(agentd_api::environment::SnapshotSource::Terminal) {
            let variables = self.variables();
            let home = variables.iter().find(|(name, _)| name == "HOME").map(|(_, value)| value.as_os_str());
            if let Some(warning) = warning_about(home) {
                progress.line(&format!("warning: {warning}"));
            }
            let snapshot = snapshot(variables);
            spec.environment.snapshot = Some(patiently(|| self.client.add_snapshot(&snapshot)).await?.id);
        }
        // The key of each run differs, also in a state directory that other runs used as process 1.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let keyed = self.client.with_key(&format!("run-spec-{}-{now}", std::process::id()));
        Ok(patiently(|| keyed.create(&spec, Terms::default())).await?.value)
    }

    /// Returns the variables of this process, with the given home directory.
    fn variables(&self) -> Vec<(OsString, OsString)> {
        let mut variables: Vec<_> = std::env::vars_os().collect();
        if let Some(home) = &self.home {
            variables.retain(|(name, _)| name != "HOME");
            variables.push(("HOME".into(), home.clone().into()));
        }
        variables
    }

    /// Follows the session until its result is there, or the daemon is lost.
    async fn follow(&self, created: Created, signals: &mut StopSignals, progress: &mut Progress) -> RunResult {
        let id = created.id.to_string();
        let mut events = EventStream::follow(self.client.clone(), id.clone(), StreamStart::After(0), None);
        let mut stop: Option<Stop> = None;
        let mut agent: Agent = None;
        let lost = |created, reason| RunResult::of(created, Status::Daemon, reason, None);
        loop {
            let due = stop.as_ref().map(|stop| stop.at);
            tokio::select! {
                next = events.next() => match next {
                    Some(Next::Record { line, .. }) => {
                        let event = match Event::parse(&line) {
                            Ok(event) => event,
                            Err(error) => return lost(created, agentd_api::chain(&error)),
                        };
                        progress.event(&event, &line);
                        match event.body {
                            Body::AgentStarted(started) => agent = Some((started.pid, started.start_time)),
                            Body::AgentExited(_) => agent = None,
                            Body::SessionCompleted(done) => return completed(created, done, stop.as_ref()),
                            _ => {}
                        }
                    }
                    Some(Next::Away) => progress.line("agentd does not answer; the session continues meanwhile"),
                    Some(Next::Failed(error)) => return lost(created, agentd_api::chain(&error)),
                    Some(Next::Deleted) | None => return lost(created, "the session was removed".to_owned()),
                },
                signal = signals.next() => match &mut stop {
                    None => {
                        progress.line(&format!("signal {signal}: stopping the session"));
                        self.request_stop(&id);
                        stop = Some(Stop::begin(signal, self.grace));
                    }
                    Some(stop) => {
                        progress.line("a second signal: killing the agent");
                        stop.kill(agent);
                    }
                },
                () = until(due) => if let Some(stop) = &mut stop && stop.step(agent, self.grace, progress) {
                    let reason = "the session did not end within the grace, and its agent was killed".to_owned();
                    let result = RunResult::of(created, Status::Signal(stop.signal), reason, None);
                    return RunResult { signal: Some(stop.signal), killed: true, ..result };
                },
            }
        }
    }

    /// Asks the daemon to stop the session, also if the daemon is just being started again.
    fn request_stop(&self, id: &str) {
        let (client, id) = (self.client.clone(), id.to_owned());
        // The events tell the result, and the steps of the stop follow in any case.
        tokio::spawn(async move {
            let mut patience = Patience::default();
            while let Err(error) = client.stop(&id, None).await {
                if patience.wait(error).await.is_err() {
                    return;
                }
            }
        });
    }
}

impl Stop {
    fn begin(signal: i32, grace: Duration) -> Self {
        Self { signal, next: Step::Terminate, at: Instant::now() + grace.mul_f64(0.6), killed: false }
    }

    /// Kills the agent with its process tree.
    fn kill(&mut self, agent: Agent) {
        if let Some((pid, started)) = agent {
            platform::kill_tree(pid, started);
            self.killed = true;
        }
        (self.next, self.at) = (Step::GiveUp, Instant::now() + COMPLETION);
    }

    /// Makes the step that is due. Reports whether it was the last step.
    fn step(&mut self, agent: Agent, grace: Duration, progress: &mut Progress) -> bool {
        match self.next {
            Step::Terminate => {
                if let Some((pid, started)) = agent
                    && platform::is_running(pid, started)
                {
                    platform::terminate(pid);
                }
                (self.next, self.at) = (Step::Kill, self.at + grace.mul_f64(0.4));
            }
            Step::Kill => {
                progress.line("the session did not stop within the grace: killing the agent");
                self.kill(agent);
            }
            Step::GiveUp => return true,
        }
        false
    }
}

fn completed(created: Created, done: Box<Completion>, stop: Option<&Stop>) -> RunResult {
    let signal = stop.map(|stop| stop.signal);
    let status = Status::of(&done, signal);
    let result = RunResult::of(created, status, done.reason.clone(), Some(done));
    RunResult { signal, killed: stop.is_some_and(|stop| stop.killed), ..result }
}

/// Describes a session that the daemon did not create.
fn refused(error: &ClientError) -> RunResult {
    let status = match error {
        ClientError::Problem { problem, .. } if matches!(problem.status, 409 | 412 | 429) => Status::Refused,
        ClientError::Problem { problem, .. } if problem.status < 500 => Status::Usage,
        _ => Status::Daemon,
    };
    let hint = match error {
        ClientError::Problem { problem, .. } => problem.hint.as_ref().map(|hint| format!("; {hint}")),
        _ => None,
    };
    RunResult::early(status, format!("{}{}", agentd_api::chain(error), hint.unwrap_or_default()))
}

/// Returns variables as a terminal's environment. A name that is not UTF-8 has no form in the interface, and is left
/// out.
fn snapshot(variables: Vec<(OsString, OsString)>) -> TerminalSnapshot {
    let variables = variables.into_iter().filter_map(|(name, value)| {
        Some(TerminalVariable { name: name.into_string().ok()?, value: ByteString::from(value.as_os_str()) })
    });
    TerminalSnapshot { variables: variables.collect() }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
