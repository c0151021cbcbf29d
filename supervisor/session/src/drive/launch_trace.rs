//! The trace of the launch in progress: one span for the launch, and one for each step that the driver carries out.
//!
//! The bring-up has spans of its own below the span of the launch. After a restart of the daemon, a launch that waits
//! continues the trace of its request, because the record of its start has the context.

use agentd_api::event::{LaunchReason, LaunchStarted};
use agentd_api::{Body, Event};
use agentd_traces::TARGET;
use tracing::{Span, info_span};

use crate::document::Document;

/// Follows the records of a session, and opens and closes the spans of its launches.
#[derive(Debug)]
pub(super) struct LaunchTrace {
    /// The launch that has begun and has no outcome yet.
    started: Option<Started>,
    launch: Span,
    /// The opening of the conversation, after the start of the agent.
    conversation: Span,
}

#[derive(Debug)]
struct Started {
    number: u64,
    reason: LaunchReason,
    parent: Option<String>,
}

impl Default for LaunchTrace {
    fn default() -> Self {
        Self { started: None, launch: Span::none(), conversation: Span::none() }
    }
}

impl LaunchTrace {
    /// Returns the span of the launch in progress, which is opened if this daemon has not done so.
    pub(super) fn span(&mut self, document: &Document) -> Span {
        if let Some(Started { number, reason, parent }) = self.started.take() {
            self.launch = info_span!(
                target: TARGET,
                "launch",
                agentd.session = %document.id,
                agentd.agent = document.spec.agent.as_ref().map(agentd_api::AgentName::as_str),
                agentd.launch = number,
                agentd.reason = reason.as_str(),
                otel.status_code = tracing::field::Empty,
                otel.status_description = tracing::field::Empty,
            );
            if let Some(parent) = parent {
                agentd_traces::continue_from(&self.launch, &parent);
            }
        }
        self.launch.clone()
    }

    /// Takes in a record, in order.
    pub(super) fn record(&mut self, event: &Event) {
        match &event.body {
            Body::LaunchStarted(LaunchStarted { launch: number, reason, trace_parent, .. }) => {
                self.close();
                self.started = Some(Started { number: *number, reason: *reason, parent: trace_parent.clone() });
            }
            Body::AgentStarted(_) if !self.launch.is_disabled() => {
                self.conversation = info_span!(target: TARGET, parent: &self.launch, "conversation");
            }
            Body::ConversationOpened(_) => {
                self.launch.record("otel.status_code", "ok");
                self.close();
            }
            Body::LaunchFailed(failed) => self.fail(&failed.message),
            Body::AgentExited(_) => self.fail("the agent ended before its conversation was open"),
            _ => {}
        }
    }

    fn fail(&mut self, message: &str) {
        self.launch.record("otel.status_code", "error");
        self.launch.record("otel.status_description", message);
        self.close();
    }

    /// Ends the spans, so that they are sent.
    fn close(&mut self) {
        *self = Self::default();
    }
}
