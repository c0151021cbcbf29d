//! One session, in the terms of a test.

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::event::TurnEnded;
use agentd_api::session::{Phase, PromptAccepted, PromptRequest, SessionSpec, SessionView};
use agentd_api::surrogates::replace_lone_surrogates;
use agentd_api::{Body, Event, SessionId, TurnId};
use agentd_client::Terms;
use serde_json::Value;

use super::events::Events;
use super::{Client, Response, journal, within};

/// A session of a daemon. Like all sessions, it outlives the daemon.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) client: Client,
    state: PathBuf,
}

/// A turn that is over.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The agent's text in the turn.
    pub(crate) text: String,
    pub(crate) ended: TurnEnded,
    pub(crate) events: Vec<Event>,
}

impl Session {
    pub(crate) fn new(id: SessionId, client: Client, state: PathBuf) -> Self {
        Self { id, client, state }
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.id)
    }

    pub(crate) async fn view(&self) -> SessionView {
        self.client.view(self.id.as_str()).await
    }

    pub(crate) async fn wait_for(&self, what: &str, condition: impl Fn(&SessionView) -> bool) -> SessionView {
        self.client.wait_for(self.id.as_str(), what, condition).await
    }

    pub(crate) async fn wait_for_phase(&self, phase: Phase) -> SessionView {
        self.wait_for(&format!("phase {}", phase.as_str()), |view| view.status.phase == phase).await
    }

    pub(crate) async fn events(&self, query: &str) -> Events {
        self.client.events(self.id.as_str(), query).await
    }

    /// Sends a prompt without waiting for the turn.
    pub(crate) async fn prompt(&self, prompt: &str) -> PromptAccepted {
        let request = PromptRequest { prompt: prompt.to_owned(), parts: Vec::new(), schema: None };
        self.client.typed().prompt(self.id.as_str(), &request).await.expect("the prompt is accepted").value
    }

    /// Sends a prompt and waits for the turn's end.
    pub(crate) async fn turn(&self, prompt: &str) -> Turn {
        let accepted = self.prompt(prompt).await;
        self.end_of(&accepted).await
    }

    /// Waits for the end of an accepted turn.
    pub(crate) async fn end_of(&self, accepted: &PromptAccepted) -> Turn {
        let mut events = self.events(&format!("after={}", accepted.after_seq)).await;
        let what = format!("the end of turn {}", accepted.turn);
        turn_of(events.until(&what, |event| ends(event, &accepted.turn)).await, &accepted.turn)
    }

    pub(crate) async fn post(&self, rest: &str, body: &Value) -> Response {
        self.client.post(&self.path(rest), body).await
    }

    pub(crate) async fn stop(&self) -> SessionView {
        let wait = Some(super::LIMIT);
        self.client.typed().stop(self.id.as_str(), wait).await.expect("the session can be stopped");
        self.wait_for_phase(Phase::Stopped).await
    }

    /// Resumes the session, and waits until it is ready for a prompt.
    pub(crate) async fn resume(&self) -> SessionView {
        let client = self.client.typed();
        let resumed = client.resume(self.id.as_str(), Some(super::LIMIT), false, Terms::default());
        resumed.await.expect("the session can be resumed");
        self.wait_for_phase(Phase::Idle).await
    }

    /// Polls until the session's view satisfies `good`, for changes that are not in the journal and so have no event.
    pub(crate) async fn see(&self, what: &str, good: impl Fn(&SessionView) -> bool) -> SessionView {
        within(what, async {
            loop {
                let view = self.view().await;
                if good(&view) {
                    return view;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    /// Returns the session's directory in the daemon's state.
    pub(crate) fn directory(&self) -> PathBuf {
        self.state.join("sessions").join(self.id.as_str())
    }

    /// Reads and checks the journal on the disk.
    pub(crate) fn journal(&self) -> Vec<Event> {
        journal::checked(&self.state, &self.id)
    }
}

/// Reports whether this event is the end of the turn.
pub(crate) fn ends(event: &Event, turn: &TurnId) -> bool {
    matches!(&event.body, Body::TurnEnded(ended) if ended.turn == *turn)
}

/// Builds a turn from events that end with the turn's end.
pub(crate) fn turn_of(events: Vec<Event>, turn: &TurnId) -> Turn {
    let Some(Event { body: Body::TurnEnded(ended), .. }) = events.last() else { panic!("{:?}", events.last()) };
    let ended = ended.clone();
    let begins = |event: &Event| matches!(&event.body, Body::TurnStarted(started) if started.turn == *turn);
    let text = events.iter().skip_while(|event| !begins(event)).filter_map(said).collect();
    Turn { text, ended, events }
}

/// Returns the text of an agent's message chunk.
pub(crate) fn said(event: &Event) -> Option<String> {
    let update = update(event)?;
    (update["sessionUpdate"] == "agent_message_chunk").then(|| update["content"]["text"].as_str().map(str::to_owned))?
}

/// Returns the `update` of an agent's `session/update`.
pub(crate) fn update(event: &Event) -> Option<Value> {
    let Body::AgentOut(message) = &event.body else { return None };
    let mut message: Value =
        serde_json::from_str(replace_lone_surrogates(message).get()).expect("the journal holds JSON");
    (message["method"] == "session/update").then(|| message["params"]["update"].take())
}

/// Builds the spec of a session with this program as its agent.
pub(crate) fn spec(directory: impl Into<PathBuf>, command: Vec<String>) -> SessionSpec {
    SessionSpec { command: Some(command), ..SessionSpec::new(directory) }
}
