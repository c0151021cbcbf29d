//! The end of the agent: SIGTERM, the kill of the tree, the rest of the output, and `agent.exited`.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use agentd_api::event::{AgentExited, Body, Exceeded};
use agentd_fault::Point;
use agentd_journal::Record;
use nix::sys::signal::{self, Signal, killpg};
use nix::unistd::Pid;

use super::{DRAIN, Keeper, placed};
use crate::agent::Agent;
use crate::machine::{IDLE, Input};
use crate::texts::{ended, for_want_of_memory};
use crate::tree;
use crate::wait::Read;

/// Time limit for a killed near side to disappear, and the pause between two looks.
const REAPED: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Kills the agent's processes. Returns the number of processes besides the agent.
fn kill(agent: &mut Agent) -> u32 {
    let (is_resident, pid, exit) = (agent.is_resident(), agent.pid, &mut agent.exit);
    let note = |ended, status| {
        if ended == pid {
            *exit = Some(status);
        }
    };
    if !is_resident {
        return tree::kill(pid, &mut agent.family, note).others;
    }
    // The other processes may be those of the engine that holds the agent, so only the near side is killed.
    let until = Instant::now() + REAPED;
    while agent.exit.is_none() && Instant::now() < until {
        let _ = signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
        std::thread::sleep(PAUSE);
        tree::reap(|ended, status| {
            if ended == pid {
                agent.exit = Some(status);
            }
        });
    }
    0
}

impl Keeper<'_> {
    /// Sends SIGTERM to the agent's process group. If the leader is gone, sends SIGTERM to each remaining process of
    /// the tree.
    pub(super) fn terminate(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        agent.stdin.abandon();
        if agent.exit.is_none() {
            // The leader is not reaped yet, so the process group id is still in use by this group.
            let _ = killpg(Pid::from_raw(agent.pid), Signal::SIGTERM);
        } else {
            tree::signal(&mut agent.family, Signal::SIGTERM);
        }
    }

    pub(super) fn end(&mut self) {
        if self.leaves_agent() {
            // The daemon starts another keeper, which continues with the agent.
            self.over = true;
            return;
        }
        let mut exited = AgentExited {
            launch: self.args.launch,
            status: None,
            signal: None,
            exec_error: self.exec_error.take(),
            killed: 0,
            requested: self.machine.requested(),
            reason: self.reason.take(),
            exceeded: self.exceeded.take(),
        };
        (self.watch, self.warm) = (None, None);
        if let Some(agent) = &mut self.agent {
            exited.killed = kill(agent);
            exited.status = agent.exit.and_then(|status| status.code());
            exited.signal = agent.exit.and_then(|status| status.signal());
            if let Some(memory) = self.memory.as_mut().filter(|_| !exited.requested && exited.reason.is_none())
                && exited.status != Some(0)
                && memory.ran_out(Instant::now())
            {
                (exited.exceeded, exited.reason) = (Some(Exceeded::Memory), Some(for_want_of_memory(memory)));
            }
            agent.stdin.abandon();
        }
        self.read_place();
        if let Some(agent) = &mut self.agent {
            let mut left = DRAIN;
            while left > 0 && matches!(agent.read_stdout(&mut self.log, false, false), Read::Some(_)) {
                left -= 1;
            }
            agent.read_stdout(&mut self.log, true, false);
            let mut left = DRAIN;
            while left > 0 && matches!(agent.read_stderr(&mut self.log, false), Read::Some(_)) {
                left -= 1;
            }
            agent.read_stderr(&mut self.log, true);
            agent.unmute(&mut self.log);
            if let Some(changed) = agent.place.as_ref().and_then(|place| placed::complete(place, &mut exited)) {
                self.log.write_body(&changed);
            }
            agent.remark(&ended(&exited));
        } else if exited.exec_error.is_none() {
            if exited.requested {
                // The keeper was stopped before it had an agent. The launch continues with another keeper, which
                // records the end.
                self.ended = true;
                return self.record_end();
            }
            exited.exec_error = Some(format!("no daemon requested a launch within {} s", IDLE.as_secs()));
        }
        let exited = Body::AgentExited(exited);
        let record = [Record { kind: exited.kind(), data: &exited.to_data() }];
        match agentd_fault::at(Point::KeeperEndKilled) {
            Ok(()) => self.log.write(&record),
            Err(_) => self.log.defer(&record),
        }
        self.ended = true;
        self.record_end();
    }

    pub(super) fn record_end(&mut self) {
        if self.log.finish() {
            match agentd_fault::at(Point::KeeperEndRecorded) {
                Ok(()) => self.input(Input::Recorded),
                Err(_) => self.over = true,
            }
        }
    }
}
