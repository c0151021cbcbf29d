//! State machine of a keeper, as a table: state × input → next state and actions. It has no clock and does no I/O;
//! deadlines arrive as inputs.
//!
//! ```text
//!   Empty ──launched──▶ Running ──leader exited, heirs hold its pipes──▶ Outlived
//!     │                    │ └──────────stop, give up──────┐                   │ stop, give up
//!     │                    │ leader exited                ▼                   ▼
//!     │ stop, deadline,    │                           Closing ──deadline──▶ Terminating
//!     │ not executed       │                              │ leader exited       │ leader exited, deadline
//!     └──────────┬─────────┴──────────────────────────────┴────────┬────────────┘
//!                ▼                                                 │
//!             Ending (kill the tree, drain, write agent.exited) ◀──┘
//!                │ recorded
//!                ▼
//!             Farewell ──delivered, disconnected, deadline──▶ Over
//! ```
//!
//! **When an agent has ended.** The started process, the leader, can be a launcher that exits before the agent. If
//! the leader exits without a requested stop, the agent lives as long as it has heirs. Heirs are descendants that
//! hold both the agent's stdin and its stdout: they can receive requests and send responses. A tool left in the
//! background holds at most the pipe to which it prints. After a requested stop, the agent ends when the leader
//! exits.

use std::time::Duration;

use crate::protocol::StopTimes;

/// Time limit for a keeper without an agent to be contacted by a daemon.
pub(crate) const IDLE: Duration = Duration::from_secs(30);
/// Time limit for the daemon to read the final frames.
const FAREWELL: Duration = Duration::from_secs(1);

/// Event that the machine reacts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Connected,
    Disconnected,
    Launched,
    /// The program could not be executed.
    NotLaunched,
    Stop(StopTimes),
    /// The keeper ends the agent on its own: no daemon reconnected, or the agent exceeded a limit.
    GiveUp(StopTimes),
    /// The leader exited. `heirs` says whether other processes of its tree hold its stdin.
    LeaderExited {
        heirs: bool,
    },
    /// No process holds the read end of the agent's stdin.
    StdinEnded,
    /// No process holds the write end of the agent's stdout.
    StdoutEnded,
    /// No process of the agent's tree is left.
    TreeEmpty,
    /// The time set by the last [`Action::Arm`] has come.
    Deadline,
    /// `agent.exited` is in the journal and on the disk.
    Recorded,
    /// The daemon has read everything that the keeper sent.
    Delivered,
}

/// Action for the keeper to perform. The keeper performs actions in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sets the machine's only deadline.
    Arm(Duration),
    Disarm,
    CloseStdin,
    /// Sends SIGTERM.
    Terminate,
    /// Kills the rest of the tree, drains its pipes and writes `agent.exited`. [`Input::Recorded`] follows.
    End,
    Quit,
}
/// State of the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeeperState {
    /// There is no agent yet.
    Empty,
    Running,
    /// The leader exited, and its heirs are the agent.
    Outlived,
    /// The agent's stdin is closed, and SIGTERM follows after `term`.
    Closing {
        term: Duration,
        outlived: bool,
    },
    /// SIGTERM was sent.
    Terminating {
        outlived: bool,
    },
    Ending,
    Farewell,
    Over,
}

/// State machine of a keeper; see the module comment.
#[derive(Debug)]
pub(crate) struct Machine {
    state: KeeperState,
    connected: bool,
    stdout_open: bool,
    requested: bool,
}

impl Machine {
    /// Returns the initial machine and its first actions.
    pub(crate) fn new() -> (Self, Vec<Action>) {
        let machine = Self { state: KeeperState::Empty, connected: false, stdout_open: true, requested: false };
        (machine, vec![Action::Arm(IDLE)])
    }

    pub(crate) fn state(&self) -> KeeperState {
        self.state
    }

    /// Reports whether a stop was requested.
    pub(crate) fn requested(&self) -> bool {
        self.requested
    }

    /// Applies an input and returns the actions to perform.
    pub(crate) fn on(&mut self, input: Input) -> Vec<Action> {
        use Action::{Arm, CloseStdin, Disarm, Quit, Terminate};
        match input {
            Input::Connected => self.connected = true,
            Input::Disconnected => self.connected = false,
            Input::StdoutEnded => self.stdout_open = false,
            Input::Stop(_) => {
                self.requested |=
                    !matches!(self.state, KeeperState::Ending | KeeperState::Farewell | KeeperState::Over);
            }
            _ => {}
        }
        let stop = |times: StopTimes| (Duration::from_millis(times.close_ms), Duration::from_millis(times.term_ms));
        let (state, actions) = match (self.state, input) {
            (KeeperState::Empty, Input::Connected) => (KeeperState::Empty, vec![Disarm]),
            (KeeperState::Empty, Input::Disconnected) => (KeeperState::Empty, vec![Arm(IDLE)]),
            (KeeperState::Empty, Input::Launched) => (KeeperState::Running, vec![Disarm]),

            (KeeperState::Running, Input::LeaderExited { heirs: true }) if self.stdout_open => {
                (KeeperState::Outlived, vec![])
            }
            (KeeperState::Running | KeeperState::Outlived, Input::Stop(times) | Input::GiveUp(times)) => {
                let (close, term) = stop(times);
                (
                    KeeperState::Closing { term, outlived: self.state == KeeperState::Outlived },
                    vec![CloseStdin, Arm(close)],
                )
            }

            // A second stop shortens or extends the first: its times count from now.
            (KeeperState::Closing { outlived, .. }, Input::Stop(times) | Input::GiveUp(times)) => {
                let (close, term) = stop(times);
                (KeeperState::Closing { term, outlived }, vec![Arm(close)])
            }
            (KeeperState::Terminating { outlived }, Input::Stop(times) | Input::GiveUp(times)) => {
                (KeeperState::Terminating { outlived }, vec![Arm(stop(times).1)])
            }
            (KeeperState::Closing { term, outlived }, Input::Deadline) => {
                (KeeperState::Terminating { outlived }, vec![Terminate, Arm(term)])
            }

            (KeeperState::Empty, Input::NotLaunched | Input::Stop(_) | Input::Deadline)
            | (KeeperState::Running, Input::LeaderExited { .. } | Input::TreeEmpty)
            | (KeeperState::Outlived, Input::StdinEnded | Input::StdoutEnded | Input::TreeEmpty)
            | (
                KeeperState::Closing { .. } | KeeperState::Terminating { .. },
                Input::LeaderExited { .. } | Input::TreeEmpty,
            )
            | (
                KeeperState::Closing { outlived: true, .. } | KeeperState::Terminating { outlived: true },
                Input::StdoutEnded,
            )
            | (KeeperState::Terminating { .. }, Input::Deadline) => return self.end(),

            (KeeperState::Ending, Input::Recorded) if self.connected => (KeeperState::Farewell, vec![Arm(FAREWELL)]),
            (KeeperState::Ending, Input::Recorded)
            | (KeeperState::Farewell, Input::Delivered | Input::Disconnected | Input::Deadline) => {
                (KeeperState::Over, vec![Quit])
            }
            (state, _) => (state, vec![]),
        };
        self.state = state;
        actions
    }

    fn end(&mut self) -> Vec<Action> {
        self.state = KeeperState::Ending;
        vec![Action::Disarm, Action::End]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMES: StopTimes = StopTimes { close_ms: 8000, term_ms: 2000 };

    fn input() -> impl Strategy<Value = Input> {
        prop_oneof![
            Just(Input::Connected),
            Just(Input::Disconnected),
            Just(Input::Launched),
            Just(Input::NotLaunched),
            Just(Input::Stop(TIMES)),
            Just(Input::GiveUp(TIMES)),
            any::<bool>().prop_map(|heirs| Input::LeaderExited { heirs }),
            Just(Input::StdinEnded),
            Just(Input::StdoutEnded),
            Just(Input::TreeEmpty),
            Just(Input::Deadline),
            Just(Input::Recorded),
            Just(Input::Delivered),
        ]
    }

    fn after(inputs: &[Input]) -> (Machine, Vec<Action>) {
        let (mut machine, mut actions) = Machine::new();
        for input in inputs {
            actions.extend(machine.on(*input));
        }
        (machine, actions)
    }

    fn count(actions: &[Action], wanted: Action) -> usize {
        actions.iter().filter(|action| **action == wanted).count()
    }

    proptest! {
        #[test]
        fn a_keeper_ends_once_and_quits_after_recording_the_end(inputs in proptest::collection::vec(input(), 0..40)) {
            let (mut machine, mut actions) = Machine::new();
            for input in inputs {
                let before = machine.state();
                let new = machine.on(input);
                if new.contains(&Action::Quit) {
                    prop_assert!(count(&actions, Action::End) == 1);
                    prop_assert!(input == Input::Recorded || before == KeeperState::Farewell);
                }
                if before == KeeperState::Over {
                    prop_assert!(new.is_empty(), "{:?}", new);
                }
                actions.extend(new);
            }
            prop_assert!(count(&actions, Action::End) <= 1);
            prop_assert!(count(&actions, Action::Quit) <= 1);
            prop_assert!(count(&actions, Action::Terminate) <= count(&actions, Action::CloseStdin));
        }

        #[test]
        fn a_stop_and_two_deadlines_end_every_history(inputs in proptest::collection::vec(input(), 0..40)) {
            let (mut machine, mut actions) = after(&inputs);
            for input in [Input::Stop(TIMES), Input::Deadline, Input::Deadline] {
                actions.extend(machine.on(input));
            }
            prop_assert_eq!(count(&actions, Action::End), 1);
            machine.on(Input::Recorded);
            machine.on(Input::Deadline);
            prop_assert_eq!(machine.state(), KeeperState::Over);
        }

        #[test]
        fn a_state_that_only_time_can_end_has_a_deadline(inputs in proptest::collection::vec(input(), 0..40)) {
            let (machine, actions) = after(&inputs);
            let armed = actions.iter().rev().find_map(|action| match action {
                Action::Arm(_) => Some(true),
                Action::Disarm => Some(false),
                _ => None,
            });
            let is_stopping = matches!(machine.state(), KeeperState::Closing { .. } | KeeperState::Terminating { .. });
            if is_stopping || matches!(machine.state(), KeeperState::Farewell) {
                prop_assert_eq!(armed, Some(true));
            }
            if matches!(machine.state(), KeeperState::Running | KeeperState::Outlived | KeeperState::Ending) {
                prop_assert_eq!(armed, Some(false));
            }
        }
    }

    #[test]
    fn a_launcher_may_exit_before_the_agent() {
        let outlived = [Input::Launched, Input::LeaderExited { heirs: true }];
        assert_eq!(after(&outlived).0.state(), KeeperState::Outlived);
        for end in [Input::StdinEnded, Input::StdoutEnded, Input::TreeEmpty] {
            let (mut machine, _) = after(&outlived);
            assert_eq!(machine.on(end), [Action::Disarm, Action::End]);
        }
        let no_heirs = [Input::Launched, Input::LeaderExited { heirs: false }];
        assert_eq!(after(&no_heirs).0.state(), KeeperState::Ending);
        let closed = [Input::Launched, Input::StdoutEnded, Input::LeaderExited { heirs: true }];
        assert_eq!(after(&closed).0.state(), KeeperState::Ending);
    }

    #[test]
    fn after_a_stop_the_agent_ends_when_the_leader_exits() {
        let (machine, actions) = after(&[Input::Launched, Input::Stop(TIMES), Input::LeaderExited { heirs: true }]);
        assert_eq!(machine.state(), KeeperState::Ending);
        assert!(machine.requested());
        assert_eq!(count(&actions, Action::Terminate), 0);
    }

    #[test]
    fn giving_up_stops_the_agent_like_a_stop_but_is_not_a_requested_stop() {
        let given_up = after(&[Input::Launched, Input::GiveUp(TIMES)]);
        let asked = after(&[Input::Launched, Input::Stop(TIMES)]);
        assert_eq!((given_up.0.state(), given_up.1), (asked.0.state(), asked.1));
        assert!(asked.0.requested() && !given_up.0.requested());
    }

    #[test]
    fn a_stop_after_the_end_does_not_count_as_requested() {
        let (machine, _) = after(&[Input::Launched, Input::TreeEmpty, Input::Stop(TIMES)]);
        assert!(!machine.requested());
    }

    #[test]
    fn an_unused_keeper_ends() {
        let (machine, actions) = after(&[Input::Connected, Input::Disconnected, Input::Deadline, Input::Recorded]);
        assert_eq!((machine.state(), actions[0]), (KeeperState::Over, Action::Arm(IDLE)));
    }
}
