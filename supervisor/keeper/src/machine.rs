//! The life of a keeper as a table: state × input → state and actions. No clock, no I/O: deadlines come in as messages.
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
//! **When an agent has ended.** The process that was started may be a launcher that the agent itself outlives. So when it exits
//! and nobody asked for that, the agent lives for as long as there are heirs: descendants that hold both its stdin and its
//! stdout. What can be asked and can answer is still the agent; a tool that was left behind holds at most the one it prints to.
//! After a stop was asked for, the exit of the process that was started is the end.

use std::time::Duration;

use crate::protocol::StopTimes;

/// How long a keeper without an agent waits for a daemon.
pub(crate) const IDLE: Duration = Duration::from_secs(30);
/// How long the daemon may take to hear of the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Connected,
    Disconnected,
    Launched,
    /// The program could not be executed.
    NotLaunched,
    Stop(StopTimes),
    /// The keeper ends the agent, which nobody asked for: no daemon comes back, or a limit is passed.
    GiveUp(StopTimes),
    /// The process that was started has ended; are there others of its tree that hold its stdin?
    LeaderExited {
        heirs: bool,
    },
    /// Nobody holds the agent's stdin any more.
    StdinEnded,
    /// Nobody holds the agent's stdout any more.
    StdoutEnded,
    /// Nobody is left of the tree.
    TreeEmpty,
    /// The time that was last armed has come.
    Deadline,
    /// `agent.exited` is in the journal and on the disk.
    Recorded,
    /// The daemon has all that was written to it.
    Delivered,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sets the one deadline there is.
    Arm(Duration),
    Disarm,
    CloseStdin,
    /// SIGTERM.
    Terminate,
    /// Kill what is left, drain, write `agent.exited`; [`Input::Recorded`] answers.
    End,
    Quit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// No agent yet.
    Empty,
    Running,
    /// The process that was started has ended, and the agent has not.
    Outlived,
    /// stdin is closed.
    Closing {
        term: Duration,
        outlived: bool,
    },
    /// SIGTERM is sent.
    Terminating {
        outlived: bool,
    },
    Ending,
    Farewell,
    Over,
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Machine {
    state: State,
    connected: bool,
    stdout_open: bool,
    requested: bool,
}

impl Machine {
    /// The machine, and what is to be done first.
    pub(crate) fn new() -> (Self, Vec<Action>) {
        let machine = Self { state: State::Empty, connected: false, stdout_open: true, requested: false };
        (machine, vec![Action::Arm(IDLE)])
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Whether a stop was asked for.
    pub(crate) fn requested(&self) -> bool {
        self.requested
    }

    pub(crate) fn on(&mut self, input: Input) -> Vec<Action> {
        use Action::{Arm, CloseStdin, Disarm, Quit, Terminate};
        match input {
            Input::Connected => self.connected = true,
            Input::Disconnected => self.connected = false,
            Input::StdoutEnded => self.stdout_open = false,
            Input::Stop(_) => self.requested |= !matches!(self.state, State::Ending | State::Farewell | State::Over),
            _ => {}
        }
        let stop = |times: StopTimes| (Duration::from_millis(times.close_ms), Duration::from_millis(times.term_ms));
        let (state, actions) = match (self.state, input) {
            (State::Empty, Input::Connected) => (State::Empty, vec![Disarm]),
            (State::Empty, Input::Disconnected) => (State::Empty, vec![Arm(IDLE)]),
            (State::Empty, Input::Launched) => (State::Running, vec![Disarm]),

            (State::Running, Input::LeaderExited { heirs: true }) if self.stdout_open => (State::Outlived, vec![]),
            (State::Running | State::Outlived, Input::Stop(times) | Input::GiveUp(times)) => {
                let (close, term) = stop(times);
                (State::Closing { term, outlived: self.state == State::Outlived }, vec![CloseStdin, Arm(close)])
            }

            // A second stop is impatience, or a patience that is over: its times count from now.
            (State::Closing { outlived, .. }, Input::Stop(times) | Input::GiveUp(times)) => {
                let (close, term) = stop(times);
                (State::Closing { term, outlived }, vec![Arm(close)])
            }
            (State::Terminating { outlived }, Input::Stop(times) | Input::GiveUp(times)) => {
                (State::Terminating { outlived }, vec![Arm(stop(times).1)])
            }
            (State::Closing { term, outlived }, Input::Deadline) => {
                (State::Terminating { outlived }, vec![Terminate, Arm(term)])
            }

            (State::Empty, Input::NotLaunched | Input::Stop(_) | Input::Deadline)
            | (State::Running, Input::LeaderExited { .. } | Input::TreeEmpty)
            | (State::Outlived, Input::StdinEnded | Input::StdoutEnded | Input::TreeEmpty)
            | (State::Closing { .. } | State::Terminating { .. }, Input::LeaderExited { .. } | Input::TreeEmpty)
            | (State::Closing { outlived: true, .. } | State::Terminating { outlived: true }, Input::StdoutEnded)
            | (State::Terminating { .. }, Input::Deadline) => return self.end(),

            (State::Ending, Input::Recorded) if self.connected => (State::Farewell, vec![Arm(FAREWELL)]),
            (State::Ending, Input::Recorded)
            | (State::Farewell, Input::Delivered | Input::Disconnected | Input::Deadline) => (State::Over, vec![Quit]),
            (state, _) => (state, vec![]),
        };
        self.state = state;
        actions
    }

    fn end(&mut self) -> Vec<Action> {
        self.state = State::Ending;
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
        fn it_ends_once_and_quits_only_after_that_was_recorded(inputs in proptest::collection::vec(input(), 0..40)) {
            let (mut machine, mut actions) = Machine::new();
            for input in inputs {
                let before = machine.state();
                let new = machine.on(input);
                if new.contains(&Action::Quit) {
                    prop_assert!(count(&actions, Action::End) == 1);
                    prop_assert!(input == Input::Recorded || before == State::Farewell);
                }
                if before == State::Over {
                    prop_assert!(new.is_empty(), "{:?}", new);
                }
                actions.extend(new);
            }
            prop_assert!(count(&actions, Action::End) <= 1);
            prop_assert!(count(&actions, Action::Quit) <= 1);
            prop_assert!(count(&actions, Action::Terminate) <= count(&actions, Action::CloseStdin));
        }

        #[test]
        fn whatever_came_before_a_stop_and_two_deadlines_end_it(inputs in proptest::collection::vec(input(), 0..40)) {
            let (mut machine, mut actions) = after(&inputs);
            for input in [Input::Stop(TIMES), Input::Deadline, Input::Deadline] {
                actions.extend(machine.on(input));
            }
            prop_assert_eq!(count(&actions, Action::End), 1);
            machine.on(Input::Recorded);
            machine.on(Input::Deadline);
            prop_assert_eq!(machine.state(), State::Over);
        }

        #[test]
        fn a_state_that_only_time_can_end_has_a_deadline(inputs in proptest::collection::vec(input(), 0..40)) {
            let (machine, actions) = after(&inputs);
            let armed = actions.iter().rev().find_map(|action| match action {
                Action::Arm(_) => Some(true),
                Action::Disarm => Some(false),
                _ => None,
            });
            if matches!(machine.state(), State::Closing { .. } | State::Terminating { .. } | State::Farewell) {
                prop_assert_eq!(armed, Some(true));
            }
            if matches!(machine.state(), State::Running | State::Outlived | State::Ending) {
                prop_assert_eq!(armed, Some(false));
            }
        }
    }

    #[test]
    fn a_launcher_may_go_before_the_agent() {
        let outlived = [Input::Launched, Input::LeaderExited { heirs: true }];
        assert_eq!(after(&outlived).0.state(), State::Outlived);
        for end in [Input::StdinEnded, Input::StdoutEnded, Input::TreeEmpty] {
            let (mut machine, _) = after(&outlived);
            assert_eq!(machine.on(end), [Action::Disarm, Action::End]);
        }
        let no_heirs = [Input::Launched, Input::LeaderExited { heirs: false }];
        assert_eq!(after(&no_heirs).0.state(), State::Ending);
        let closed = [Input::Launched, Input::StdoutEnded, Input::LeaderExited { heirs: true }];
        assert_eq!(after(&closed).0.state(), State::Ending);
    }

    #[test]
    fn after_a_stop_the_end_of_the_process_that_was_started_is_the_end() {
        let (machine, actions) = after(&[Input::Launched, Input::Stop(TIMES), Input::LeaderExited { heirs: true }]);
        assert_eq!(machine.state(), State::Ending);
        assert!(machine.requested());
        assert_eq!(count(&actions, Action::Terminate), 0);
    }

    #[test]
    fn a_keeper_that_gives_up_stops_its_agent_as_if_it_had_been_asked_to_and_says_that_it_was_not() {
        let given_up = after(&[Input::Launched, Input::GiveUp(TIMES)]);
        let asked = after(&[Input::Launched, Input::Stop(TIMES)]);
        assert_eq!((given_up.0.state(), given_up.1), (asked.0.state(), asked.1));
        assert!(asked.0.requested() && !given_up.0.requested());
    }

    #[test]
    fn a_stop_after_the_end_was_not_what_ended_it() {
        let (machine, _) = after(&[Input::Launched, Input::TreeEmpty, Input::Stop(TIMES)]);
        assert!(!machine.requested());
    }

    #[test]
    fn a_keeper_that_nobody_uses_ends() {
        let (machine, actions) = after(&[Input::Connected, Input::Disconnected, Input::Deadline, Input::Recorded]);
        assert_eq!((machine.state(), actions[0]), (State::Over, Action::Arm(IDLE)));
    }
}
