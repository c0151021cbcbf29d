//! Calls on agents: their start, and the options of a session's agent.

use std::time::Duration;

use agentd_api::Call;
use agentd_api::login::{AgentStart, AgentStartRequest};
use agentd_api::options::OptionsView;

use super::{BUILDING, Client, Document};
use crate::error::Error;

impl Client {
    /// Returns how an agent would be started. The time limit covers the build of an environment.
    pub(crate) async fn agent_start(&self, agent: &str, request: &AgentStartRequest) -> Result<AgentStart, Error> {
        Ok(self.submit(&Call::AgentStart { name: agent.to_owned() }, request, BUILDING).await?.value)
    }

    /// Returns the options that the session's agent offers.
    pub(crate) async fn options(&self, id: &str) -> Result<Document<OptionsView>, Error> {
        self.fetch(&Call::Options { session: id.to_owned() }, Duration::ZERO).await
    }
}
