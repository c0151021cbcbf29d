//! Poll loop of the keeper: turns events into inputs of the state machine, and performs its actions.
//!
//! The keeper has one thread. Only the kill of the tree at the end blocks. Each iteration of the loop has two
//! ordering promises. Records from the daemon are journalled before they are sent to the agent. Output of the agent
//! is journalled before the daemon is notified.
//!
//! **Failing fault points** ([`agentd_fault`]) make the next step fail as it could in production:
//!
//! - `keeper.launch.before`: the program cannot be executed.
//! - `keeper.launch.spawned`: the program cannot be executed, and the tree is killed.
//! - `keeper.append.journalled`: the agent's stdin cannot be written and is closed.
//! - `keeper.append.sent`: the daemon's connection cannot be written and ends without an answer.
//! - `keeper.output.read` and `keeper.end.killed`: the disk does not take the records, which wait.
//! - `keeper.stop.before`: an orderly stop is impossible, so the tree is killed at once.
//! - `keeper.end.recorded`: the daemon cannot be notified.

mod end;
mod placed;
mod resumed;

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use agentd_api::event::{Body, Exceeded};
use agentd_caller::Caller;
use agentd_fault::Point;
use agentd_journal::{AppendError, Record, ReserveUse};
use nix::poll::{PollFd, PollFlags};

use crate::agent::{self, Agent};
use crate::cgroup::Memory;
use crate::connection::Connection;
use crate::door::Door;
use crate::log::Log;
use crate::machine::{Action, Input, KeeperState, Machine};
use crate::os;
use crate::place::agent::AgentPlace;
use crate::protocol::{
    Append, Appended, FromKeeper, Hello, HoldArgs, LaunchRecord, PROTOCOL, StopTimes, Tail, ToKeeper,
};
use crate::signals::Signals;
use crate::texts::killed;
use crate::tree;
use crate::wait::{self, Read};
use crate::warm::WarmAgent;
use crate::watch::Watch;

/// Time limits of a stop that no daemon requested. Agents take up to 7 s to exit after their stdin is closed.
const OWN_TIMES: StopTimes = StopTimes { close_ms: 8000, term_ms: 2000 };
/// Time limits of an immediate kill of the whole tree.
const AT_ONCE: StopTimes = StopTimes { close_ms: 0, term_ms: 0 };
/// Interval at which the keeper looks for remaining descendants on systems where it does not adopt them.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of reads of each pipe after the kill. A pipe holds less, but a process that survived the kill may
/// continue to write.
const DRAIN: u32 = 256;

/// Keeper with a listening socket.
pub(crate) struct Keeper<'a> {
    args: &'a HoldArgs,
    start_time: u64,
    signals: Signals,
    door: Door<'a>,
    connection: Option<Connection>,
    /// Answer that waits for the disk. The keeper reads no further request until it has sent this answer.
    durable: Option<FromKeeper>,
    log: Log,
    machine: Machine,
    deadline: Option<Instant>,
    agent: Option<Agent>,
    /// Whether the memory of the launch is still to be released. That waits for the agent's first output, so that the
    /// agent does not wait.
    has_launched: bool,
    /// An agent that was started before the session began, until the launch.
    pub(crate) warm: Option<WarmAgent>,
    watch: Option<Watch>,
    /// Memory counters of the keeper's own cgroup, if it has one.
    memory: Option<Memory>,
    /// Time since which no daemon is connected.
    alone_since: Option<Instant>,
    /// Reason for ending the agent without a requested stop.
    reason: Option<String>,
    exceeded: Option<Exceeded>,
    /// Reason why the agent could not be started.
    exec_error: Option<String>,
    /// Whether `agent.exited` was handed to the log.
    ended: bool,
    over: bool,
}

impl<'a> Keeper<'a> {
    pub(crate) fn new(args: &'a HoldArgs, start_time: u64, signals: Signals, listener: UnixListener, log: Log) -> Self {
        let (machine, actions) = Machine::new();
        let mut keeper = Self {
            args,
            start_time,
            signals,
            door: Door::new(&args.socket, listener),
            connection: None,
            durable: None,
            log,
            machine,
            deadline: None,
            agent: None,
            has_launched: false,
            warm: None,
            watch: None,
            memory: None,
            alone_since: Some(Instant::now()),
            reason: None,
            exceeded: None,
            exec_error: None,
            ended: false,
            over: false,
        };
        keeper.act(actions);
        keeper
    }

    /// Runs until the agent has ended and the daemon was notified, or until no daemon connected in time.
    pub(crate) fn run(mut self) -> io::Result<()> {
        while !self.over {
            if !self.agent.as_ref().is_some_and(|agent| agent.stdout.has_more()) {
                self.log.shrink();
            }
            self.wait()?;
            self.door.look();
            self.accept();
            self.note_signals();
            self.write_stdin();
            self.note_heirs();
            self.read_place();
            self.read_agent();
            self.note_times();
            self.serve();
            if self.has_launched && self.agent.as_ref().is_some_and(Agent::has_spoken) {
                self.has_launched = false;
                os::release_memory();
            }
        }
        Ok(())
    }

    /// Waits until there may be something to do. The steps that follow try everything without blocking.
    fn wait(&self) -> io::Result<()> {
        let now = Instant::now();
        let looks = self.watch.as_ref().map(Watch::due);
        let memory = self.memory.as_ref().and_then(Memory::due);
        let mut until =
            vec![self.deadline, self.log.retry_at(), Some(self.door.due()), self.orphaned_at(), looks, memory];
        let mut fds = vec![
            PollFd::new(self.signals.children(), PollFlags::POLLIN),
            PollFd::new(self.signals.terminate(), PollFlags::POLLIN),
        ];
        fds.extend(self.door.fd().map(|door| PollFd::new(door, PollFlags::POLLIN)));
        if let Some(connection) = &self.connection {
            until.push(connection.report_at(self.tail()));
            fds.push(PollFd::new(connection.fd(), connection.events()));
        }
        if let Some(agent) = &self.agent {
            until.extend([agent.mute_ends(), agent.flood_due(now)]);
            fds.extend(agent.stdin.wanting().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)));
            fds.extend(
                agent.place.iter().filter_map(AgentPlace::pipe).map(|pipe| PollFd::new(pipe, PollFlags::POLLIN)),
            );
            if self.machine.state() == KeeperState::Outlived {
                fds.extend(agent.stdin.pipe().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::empty())));
            }
            for output in [&agent.stdout, &agent.stderr].into_iter().filter(|_| self.listens()) {
                match output.due(now) {
                    Ok(pipe) => fds.extend(pipe.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN))),
                    Err(not_before) => until.push(Some(not_before)),
                }
            }
            match agent.family.due(now) {
                Ok(changes) => fds.extend(changes.map(|changes| PollFd::new(changes, PollFlags::POLLIN))),
                Err(not_before) => until.push(Some(not_before)),
            }
            if !os::ADOPTS && agent.exit.is_some() {
                until.push(Some(now + LOOK_AGAIN));
            }
        }
        wait::wait(&mut fds, until.into_iter().flatten().min())
    }

    fn accept(&mut self) {
        while let Some(stream) = self.door.accept() {
            // An agent is not the daemon. It runs below this keeper, and an agent of another session runs below that
            // session's keeper.
            if Caller::is_owner(&stream) {
                self.connect(stream);
            }
        }
    }

    /// Greets a daemon, which replaces the connected one.
    pub(crate) fn connect(&mut self, stream: UnixStream) {
        let Ok(mut connection) = Connection::new(stream) else { return };
        let tail = self.tail();
        connection.send(&FromKeeper::Hello(Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            session: self.args.session.clone(),
            launch: self.args.launch,
            pid: std::process::id(),
            start_time: self.start_time,
            agent_pid: self.agent.as_ref().filter(|_| !self.ended).map(|agent| agent.pid.unsigned_abs()),
            tail,
        }));
        connection.mark_reported(tail);
        // The old daemon is gone or about to be replaced, and does not get the answers it waited for.
        self.connection = Some(connection);
        self.alone_since = None;
        self.durable = None;
        self.input(Input::Connected);
    }

    fn note_signals(&mut self) {
        if self.signals.take_terminate() {
            self.input(stop(OWN_TIMES));
        }
        let mut came = self.signals.take_children();
        let Some(agent) = self.agent.as_mut().filter(|_| !self.ended) else { return };
        came |= agent.family.take_changes(Instant::now());
        if !came && (os::ADOPTS || agent.exit.is_none()) {
            return;
        }
        let alive = agent.exit.is_none();
        let Agent { pid: leader, exit, family, .. } = agent;
        let others = tree::remain(family, |pid, status| {
            if pid == *leader {
                *exit = Some(status);
            }
        });
        if alive && agent.exit.is_some() {
            let heirs = others && agent.stdin.is_held();
            self.input(Input::LeaderExited { heirs });
        }
        if !others {
            self.input(Input::TreeEmpty);
        }
    }

    /// Reports [`Input::StdinEnded`] when the heirs of an exited leader have exited or closed the agent's stdin.
    fn note_heirs(&mut self) {
        let held = self.agent.as_ref().is_some_and(|agent| agent.stdin.is_held());
        if self.machine.state() == KeeperState::Outlived && !held {
            self.input(Input::StdinEnded);
        }
    }

    fn write_stdin(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.stdin.write();
        }
    }

    /// Reports whether the keeper reads the agent's output. Without a daemon, no process shortens the journal or
    /// answers the requests that fill it. Output of an agent on a place waits until the place has named its secrets.
    fn listens(&self) -> bool {
        let is_resuming = |agent: &Agent| agent.place.as_ref().is_some_and(AgentPlace::is_resuming);
        let has_reader = self.connection.is_some() || !self.log.is_passed();
        !self.log.is_blocked() && has_reader && !self.agent.as_ref().is_some_and(is_resuming)
    }

    fn read_agent(&mut self) {
        let now = Instant::now();
        let (listens, is_followed) = (self.listens(), self.connection.is_some());
        let Some(agent) = self.agent.as_mut().filter(|_| listens) else { return };
        let mut ended = false;
        if agent.stdout.due(now).is_ok_and(|pipe| pipe.is_some()) {
            ended = agent.read_stdout(&mut self.log, false, is_followed) == Read::End;
        }
        // The first read may have found the disk full.
        if !self.log.is_blocked() && agent.stderr.due(now).is_ok_and(|pipe| pipe.is_some()) {
            agent.read_stderr(&mut self.log, false);
        }
        if ended {
            self.input(Input::StdoutEnded);
        }
    }

    fn note_times(&mut self) {
        let now = Instant::now();
        if self.log.retry(now) {
            if let (Some(answer), Some(connection)) = (self.durable.take(), &mut self.connection) {
                connection.send(&answer);
            }
            if self.ended && self.machine.state() == KeeperState::Ending {
                self.record_end();
            }
        }
        if let Some(agent) = self.agent.as_mut().filter(|agent| agent.mute_ends().is_some_and(|ends| ends <= now)) {
            agent.unmute(&mut self.log);
        }
        if let Some(agent) = self.agent.as_mut().filter(|_| !self.log.is_blocked()) {
            agent.report_flood(now, &mut self.log);
        }
        self.note_limits(now);
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.input(Input::Deadline);
        }
    }

    /// Ends an agent that no daemon reconnects to, or that exceeds a limit.
    fn note_limits(&mut self, now: Instant) {
        let Some(agent) = self.agent.as_mut().filter(|_| !self.ended) else { return };
        if let Some(kills) = self.memory.as_mut().and_then(|memory| memory.look(now)) {
            agent.remark(&format!("{}: out of memory", killed(kills)));
        }
        if let Some((exceeded, reason)) = self.watch.as_mut().and_then(|watch| watch.look(now, &mut agent.family)) {
            self.watch = None;
            (self.exceeded, self.reason) = (Some(exceeded), Some(reason));
            self.input(Input::GiveUp(AT_ONCE));
        }
        if self.orphaned_at().is_some_and(|at| at <= now) {
            let seconds = self.args.orphan_ttl.map_or(0, |ttl| ttl.as_secs());
            self.reason = Some(format!("no daemon was connected for {seconds} s"));
            self.input(Input::GiveUp(OWN_TIMES));
        }
    }

    /// Returns when the agent is ended unless a daemon connects. `None` while the agent is already being ended.
    fn orphaned_at(&self) -> Option<Instant> {
        let waits = matches!(self.machine.state(), KeeperState::Running | KeeperState::Outlived);
        self.alone_since.filter(|_| waits)?.checked_add(self.args.orphan_ttl?)
    }

    fn serve(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.read();
        }
        while self.durable.is_none() {
            let Some(request) = self.connection.as_mut().and_then(Connection::request) else { break };
            let (answer, then) = self.answer(request);
            let Some(answer) = answer else {
                if let Some(connection) = &mut self.connection {
                    connection.end();
                }
                break;
            };
            if let Some(connection) = self.connection.as_mut().filter(|_| self.durable.is_none()) {
                connection.send(&answer);
            } else {
                self.durable = Some(answer);
            }
            if let Some(input) = then {
                self.input(input);
            }
        }
        let (tail, more) = (self.tail(), self.agent.as_ref().is_some_and(|agent| agent.stdout.has_more()));
        let Some(connection) = &mut self.connection else { return };
        connection.flush(tail, more);
        if connection.is_over() {
            self.connection = None;
            self.alone_since = Some(Instant::now());
            self.durable = None;
            self.input(Input::Disconnected);
        } else if connection.is_idle() && self.durable.is_none() {
            self.input(Input::Delivered);
        }
    }

    /// Returns the end of the journal, and the error that blocks it.
    fn tail(&self) -> Tail {
        Tail { ended: self.ended && self.machine.state() == KeeperState::Ending, ..self.log.tail() }
    }

    /// Performs a request. Returns the answer, and the input to apply after sending it. Without an answer, the
    /// connection must end.
    fn answer(&mut self, request: Result<ToKeeper, serde_json::Error>) -> (Option<FromKeeper>, Option<Input>) {
        let (answer, then) = match request {
            Ok(ToKeeper::Launch(mut record)) => {
                let answered = self.launch(&record);
                record.zeroize();
                self.has_launched = true;
                answered
            }
            Ok(ToKeeper::Append(append)) => {
                let answer = self.append(append);
                let appended = matches!(answer, FromKeeper::Appended(_));
                if appended && agentd_fault::at(Point::KeeperAppendSent).is_err() {
                    self.durable = None;
                    return (None, None);
                }
                (answer, None)
            }
            Ok(ToKeeper::Hide(hide)) => {
                if let Some(agent) = &mut self.agent {
                    agent.hide(&hide);
                }
                (FromKeeper::Hidden, None)
            }
            Ok(ToKeeper::Stop(times)) => (FromKeeper::Stopping, Some(stop(times))),
            Err(error) => (refused("unknown-request", format!("unknown request: {error}")), None),
        };
        (Some(answer), then)
    }

    fn launch(&mut self, record: &LaunchRecord) -> (FromKeeper, Option<Input>) {
        if self.machine.state() != KeeperState::Empty {
            return (refused("already-launched", "this keeper has already launched its agent".to_owned()), None);
        }
        if record.launch != self.args.launch {
            let message = format!("this keeper is for launch {}, not {}", self.args.launch, record.launch);
            return (refused("wrong-launch", message), None);
        }
        if let Some(line) = &record.place
            && line.resident.as_ref().is_some_and(|resident| resident.resume.is_some())
        {
            return self.resume(record);
        }
        let memory = if record.is_unit { Memory::of_own_cgroup(Instant::now()) } else { None };
        let warm = self.warm.take();
        let launched =
            agentd_fault::at(Point::KeeperLaunchBefore).and_then(|()| agent::launch(&self.args.session, record, warm));
        let recorded = launched.and_then(|(agent, started)| {
            self.agent = Some(agent);
            agentd_fault::at(Point::KeeperLaunchSpawned)?;
            Ok(started)
        });
        match recorded {
            Ok(started) => {
                let pid = started.pid;
                if let Some(agent) = &self.agent {
                    agent.remark(&format!("launch {} of the agent is process {pid}", record.launch));
                }
                self.memory = memory;
                let sent = record.initialize.as_deref().filter(|_| started.warm);
                let started = Body::AgentStarted(started);
                // One write has both: an agent that was kept warm has received its first request already.
                let sent = sent.map(|line| Record { kind: "agent.in", data: line });
                let begin = self.agent.as_ref().and_then(|agent| agent.place.as_ref()?.position.as_ref());
                let begin = begin.map(|position| Body::PlaceRead(position.read).to_data());
                let begin = begin.as_ref().map(|data| Record { kind: "place.read", data });
                let records = [Record { kind: started.kind(), data: &started.to_data() }];
                self.log.write(&records.into_iter().chain(begin).chain(sent).collect::<Vec<_>>());
                // The limits are those of this machine.
                self.watch = record.place.is_none().then(|| Watch::new(record.limits, Instant::now())).flatten();
                (FromKeeper::Launched { pid }, Some(Input::Launched))
            }
            Err(error) => {
                let message = error.to_string();
                self.exec_error = Some(message.clone());
                (refused("not-executed", message), Some(Input::NotLaunched))
            }
        }
    }

    fn append(&mut self, append: Append) -> FromKeeper {
        let to_send: usize =
            append.records.iter().filter(|record| record.send).map(|record| record.data.get().len() + 1).sum();
        let agent = self.agent.as_mut().filter(|_| !self.ended);
        if to_send > 0 && agent.as_ref().is_some_and(|agent| !agent.stdin.has_room(to_send)) {
            let message = format!("{} MiB wait for the agent, which does not read its stdin", agent::QUEUE >> 20);
            return refused("agent-not-reading", message);
        }
        if to_send > 0 && self.ended {
            // Every record marked as sent was sent. The daemon reads the agent's end from the journal and sends
            // another request.
            return refused("agent-ended", "cannot send to the agent: it has ended".to_owned());
        }
        if self.log.is_blocked() && !append.from_reserve {
            return blocked(self.log.tail().errno, "the journal cannot be written now".to_owned());
        }
        let need = if append.from_reserve { ReserveUse::Final } else { ReserveUse::Ordinary };
        let seq = match self.log.try_write(need, &append.records) {
            Ok(seq) => seq,
            Err(error @ AppendError::LineBreak { .. }) => return refused("bad-record", error.to_string()),
            Err(AppendError::Write { source, .. } | AppendError::Sync { source, .. }) => {
                return blocked(source.raw_os_error(), format!("the journal cannot be written: {source}"));
            }
        };
        let may_be_sent = agentd_fault::at(Point::KeeperAppendJournalled).is_ok();
        if let Some(agent) = agent {
            if !may_be_sent {
                agent.stdin.abandon();
            }
            if let Some(rule) = append.mute {
                agent.mute(rule, &mut self.log);
            }
            for record in append.records.iter().filter(|record| record.send) {
                agent.push(record, &self.args.state);
            }
            agent.stdin.write();
        }
        let answer = FromKeeper::Appended(Appended { request: append.request, seq });
        if append.durable && !(append.from_reserve && self.log.sync_written()) && !self.log.sync() {
            self.durable = Some(answer.clone());
        }
        answer
    }

    fn input(&mut self, input: Input) {
        let input = self.with_time_for_place(input);
        let actions = self.machine.on(input);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Arm(after) => self.deadline = Instant::now().checked_add(after),
                Action::Disarm => self.deadline = None,
                Action::CloseStdin => {
                    if let Some(agent) = &mut self.agent {
                        agent.place.iter_mut().for_each(AgentPlace::announce_close);
                        agent.stdin.close();
                    }
                }
                Action::Terminate => self.terminate(),
                Action::End => self.end(),
                Action::Quit => self.over = true,
            }
        }
    }
}

/// Makes the input of an orderly stop.
fn stop(times: StopTimes) -> Input {
    let way = agentd_fault::at(Point::KeeperStopBefore);
    Input::Stop(if way.is_ok() { times } else { AT_ONCE })
}

fn refused(code: &str, message: String) -> FromKeeper {
    FromKeeper::Refused { code: code.to_owned(), message, errno: None }
}

fn blocked(errno: Option<i32>, message: String) -> FromKeeper {
    FromKeeper::Refused { code: "journal-blocked".to_owned(), message, errno }
}
