//! Calls on agents: the configured and the known ones, their start, and the options of a session's agent.

use std::time::Duration;

use agentd_api::Call;
use agentd_api::agents::{AgentAddRequest, AgentAddView, Catalogue};
use agentd_api::editor::RequestAnswer;
use agentd_api::login::{AgentStart, AgentStartRequest};
use agentd_api::options::OptionsView;
use agentd_api::session::SessionView;
use agentd_api::status::AgentList;

use super::{BUILDING, Client, Document};
use crate::error::Error;

impl Client {
    pub(crate) async fn agents(&self) -> Result<Document<AgentList>, Error> {
        self.fetch(&Call::Agents {}, Duration::ZERO).await
    }

    /// Lists the configured and the known agents, or shows one. `versions` runs each installed agent for its version.
    pub(crate) async fn catalogue(&self, agent: Option<&str>, versions: bool) -> Result<Document<Catalogue>, Error> {
        let call = Call::Catalogue { agent: agent.map(str::to_owned), versions: Some(versions) };
        self.fetch(&call, BUILDING).await
    }

    /// Adds an agent to the user's configuration.
    pub(crate) async fn add_agent(&self, wish: &AgentAddRequest) -> Result<Document<AgentAddView>, Error> {
        self.submit(&Call::AddAgent {}, wish, BUILDING).await
    }

    /// Returns how an agent would be started. The time limit covers the build of an environment.
    pub(crate) async fn agent_start(&self, agent: &str, request: &AgentStartRequest) -> Result<AgentStart, Error> {
        Ok(self.submit(&Call::AgentStart { name: agent.to_owned() }, request, BUILDING).await?.value)
    }

    /// Passes an editor's answer to a request of the agent on.
    pub(crate) async fn answer_request(&self, id: &str, answer: &RequestAnswer) -> Result<(), Error> {
        let call = Call::AnswerRequest { session: id.to_owned() };
        let _: Document<SessionView> = self.submit(&call, answer, Duration::ZERO).await?;
        Ok(())
    }

    /// Returns the options that the session's agent offers.
    pub(crate) async fn options(&self, id: &str) -> Result<Document<OptionsView>, Error> {
        self.fetch(&Call::Options { session: id.to_owned() }, Duration::ZERO).await
    }
}
