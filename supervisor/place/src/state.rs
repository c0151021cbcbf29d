//! The state of a launch in the words of its engine.

use agentd_api::event::PlaceState;
use jiff::Timestamp;

/// State of a launch, as its engine prints it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineState {
    /// Name of the launch at its engine: `agentd-SESSION-LAUNCH`.
    pub name: String,
    /// State of the job, the container or the pod. `Running` means that the engine runs it: `agentd-keeper enter` may
    /// not have started the agent yet. Absent if no [`PlaceState`] fits the engine's word, which the
    /// message then has.
    pub state: Option<PlaceState>,
    /// Reason of the engine in its own word: `Resources`, `OUT_OF_MEMORY`, `Unschedulable`.
    pub reason: Option<String>,
    /// Description for people.
    pub message: Option<String>,
    /// Id that the engine gave the launch.
    pub job: Option<String>,
    /// Host that the engine chose.
    pub host: Option<String>,
    /// Time at which the engine expects to start a queued launch. It changes with each query.
    pub starts: Option<Timestamp>,
    /// Time at which the engine will end the launch.
    pub ends: Option<Timestamp>,
    /// Whether the engine ended the launch because of a node or of another job, not because of the launch itself.
    pub is_of_engine: bool,
    /// Whether the launch ends or has ended because its program did. The end of the program itself is then the reason.
    pub is_of_program: bool,
}

impl EngineState {
    /// Makes a state of the launch with this name.
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Makes the message of a word that no state fits.
    pub(crate) fn unknown(mut self, word: &str) -> Self {
        self.state = None;
        self.message = Some(format!("the engine reports the state {word:?}"));
        self
    }

    /// Reports whether the engine has ended the launch.
    pub fn is_ended(&self) -> bool {
        self.state == Some(PlaceState::Ended)
    }
}

/// Returns the text if it is not empty.
pub(crate) fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
