//! Calls on sessions.

use std::time::Duration;

use agentd_api::context::{ContextChange, ContextView, HintRequest, TitleRequest};
use agentd_api::note::NoteView;
use agentd_api::prune::{PruneRequest, PruneView};
use agentd_api::route::call;
use agentd_api::session::{PermissionAnswer, PromptAccepted, PromptRequest, SessionSpec, SessionView};
use agentd_api::spec::{SpecChangeView, SpecPatch};
use agentd_api::validation::ValidationView;
use agentd_api::{Call, PermissionId, TurnId};

use crate::client::{BUILDING, Client, Document, PATIENCE, waiting};
use crate::error::Error;
use crate::terms::Terms;

impl Client {
    /// Creates a session and begins its first launch.
    pub async fn create(&self, spec: &SessionSpec, terms: Terms) -> Result<Document<SessionView>, Error> {
        let call = call::CreateSession {
            wait: waiting(Some(Duration::ZERO)),
            wait_for_prerequisites: terms.wait_for_prerequisites(),
            force: terms.force(),
            degraded: terms.degraded(),
        };
        self.send(call, spec, Duration::ZERO).await
    }

    /// Shows a session, by its id or its name.
    pub async fn session(&self, id: &str) -> Result<Document<SessionView>, Error> {
        self.ask(call::Session { session: id.to_owned() }).await
    }

    /// Removes a session. `force` stops the session first.
    pub async fn delete(&self, id: &str, force: bool) -> Result<(), Error> {
        let call = call::RemoveSession { session: id.to_owned(), force: force.then_some(true) };
        // With force it stops the session first, which takes its time.
        self.order(&call.into(), PATIENCE).await
    }

    /// Queues a turn.
    pub async fn prompt(&self, id: &str, request: &PromptRequest) -> Result<Document<PromptAccepted>, Error> {
        self.send(call::Prompt { session: id.to_owned() }, request, Duration::ZERO).await
    }

    /// Sends a prompt that may be repeated: the daemon takes a key only once.
    pub async fn prompt_once(
        &self,
        id: &str,
        request: &PromptRequest,
        key: &str,
    ) -> Result<Document<PromptAccepted>, Error> {
        self.with_key(key).prompt(id, request).await
    }

    /// Shows the context of a session.
    pub async fn context(&self, id: &str) -> Result<Document<ContextView>, Error> {
        self.ask(call::Context { session: id.to_owned() }).await
    }

    /// Changes sets of the context.
    pub async fn change_context(&self, id: &str, change: &ContextChange) -> Result<Document<ContextView>, Error> {
        self.send(call::ChangeContext { session: id.to_owned() }, change, Duration::ZERO).await
    }

    /// Sets or removes the environment hint.
    pub async fn set_hint(&self, id: &str, hint: Option<String>) -> Result<Document<SessionView>, Error> {
        self.send(call::SetHint { session: id.to_owned() }, &HintRequest { hint }, Duration::ZERO).await
    }

    /// Sets or removes the title.
    pub async fn set_title(&self, id: &str, title: Option<String>) -> Result<Document<SessionView>, Error> {
        self.send(call::SetTitle { session: id.to_owned() }, &TitleRequest { title }, Duration::ZERO).await
    }

    /// Changes the specification. With a generation, only if the specification still has that generation.
    pub async fn change_spec(
        &self,
        id: &str,
        patch: &SpecPatch,
        generation: Option<u64>,
    ) -> Result<Document<SpecChangeView>, Error> {
        let client = self.at_generation(generation);
        client.send(call::ChangeSpec { session: id.to_owned() }, patch, Duration::ZERO).await
    }

    /// Records that a person looks at the session. A daemon without this call, and a caller inside a session, are no
    /// reason to show nothing.
    pub async fn observed(&self, id: &str) {
        let call = call::Observe { session: id.to_owned() };
        let _ = self.ask(call).await;
    }

    /// Cancels the running turn.
    pub async fn cancel(&self, id: &str) -> Result<Document<SessionView>, Error> {
        self.ask(call::Cancel { session: id.to_owned() }).await
    }

    /// Drops a queued turn, or cancels the running turn.
    pub async fn cancel_turn(&self, id: &str, turn: &TurnId) -> Result<(), Error> {
        let call = call::CancelTurn { session: id.to_owned(), turn: turn.to_string() };
        self.order(&call.into(), Duration::ZERO).await
    }

    /// Stops a session, and waits at most `wait` until it is stopped.
    pub async fn stop(&self, id: &str, wait: Option<Duration>) -> Result<Document<SessionView>, Error> {
        // The table has another type too: that of a session without a view.
        let call = Call::Stop { session: id.to_owned(), wait: waiting(wait) };
        self.fetch(&call, wait.unwrap_or_default()).await
    }

    /// Ends the agent of a session whose stored state is unreadable. Such a session has no view.
    pub async fn stop_set_aside(&self, id: &str) -> Result<(), Error> {
        self.order(&Call::Stop { session: id.to_owned(), wait: None }, PATIENCE).await
    }

    /// Resumes a session. `fresh` begins a new conversation instead of continuing the old one.
    pub async fn resume(
        &self,
        id: &str,
        wait: Option<Duration>,
        fresh: bool,
        terms: Terms,
    ) -> Result<Document<SessionView>, Error> {
        let wait = wait.unwrap_or_default();
        let call = call::Resume {
            session: id.to_owned(),
            wait: waiting(Some(wait)),
            new_conversation: Some(fresh),
            wait_for_prerequisites: terms.wait_for_prerequisites(),
            force: terms.force(),
            degraded: terms.degraded(),
        };
        self.ask_for(call, wait).await
    }

    /// Answers a permission request.
    pub async fn answer(
        &self,
        id: &str,
        permission: &PermissionId,
        answer: &PermissionAnswer,
    ) -> Result<Document<SessionView>, Error> {
        let call = call::Permit { session: id.to_owned(), permission: permission.to_string() };
        self.send(call, answer, Duration::ZERO).await
    }

    /// Removes sessions, or lists them in a dry run. The time limit covers many large sessions.
    pub async fn prune(&self, request: &PruneRequest) -> Result<Document<PruneView>, Error> {
        self.send(call::Prune {}, request, BUILDING).await
    }

    /// Lists the warnings that a launch would report now.
    pub async fn validation(&self, id: &str) -> Result<Document<ValidationView>, Error> {
        self.ask(call::Validation { session: id.to_owned() }).await
    }

    /// Returns the note of the next prompt. The time limit covers the build of an environment.
    pub async fn note(&self, id: &str) -> Result<Document<NoteView>, Error> {
        self.ask_for(call::Note { session: id.to_owned() }, BUILDING).await
    }
}
