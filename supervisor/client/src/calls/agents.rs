//! Calls on agents: the configured and the known ones, their start, and the options of a session's agent.

use std::time::Duration;

use agentd_api::agents::{AgentAddRequest, AgentAddView, Catalogue};
use agentd_api::editor::RequestAnswer;
use agentd_api::login::{AgentStart, AgentStartRequest};
use agentd_api::options::OptionsView;
use agentd_api::route::call;
use agentd_api::session::SessionView;
use agentd_api::status::AgentList;

use crate::client::{BUILDING, Client, Document};
use crate::error::Error;

impl Client {
    /// Lists the configured agents.
    pub async fn agents(&self) -> Result<Document<AgentList>, Error> {
        self.ask(call::Agents {}).await
    }

    /// Lists the configured and the known agents, or shows one. `versions` runs each installed agent for its version.
    pub async fn catalogue(&self, agent: Option<&str>, versions: bool) -> Result<Document<Catalogue>, Error> {
        let call = call::Catalogue { agent: agent.map(str::to_owned), versions: Some(versions) };
        self.ask_for(call, BUILDING).await
    }

    /// Adds an agent to the user's configuration.
    pub async fn add_agent(&self, wish: &AgentAddRequest) -> Result<Document<AgentAddView>, Error> {
        self.send(call::AddAgent {}, wish, BUILDING).await
    }

    /// Returns how an agent would be started. The time limit covers the build of an environment.
    pub async fn agent_start(&self, agent: &str, request: &AgentStartRequest) -> Result<AgentStart, Error> {
        Ok(self.send(call::AgentStart { name: agent.to_owned() }, request, BUILDING).await?.value)
    }

    /// Passes an editor's answer to a request of the agent on.
    pub async fn answer_request(&self, id: &str, answer: &RequestAnswer) -> Result<(), Error> {
        let call = call::AnswerRequest { session: id.to_owned() };
        let _: Document<SessionView> = self.send(call, answer, Duration::ZERO).await?;
        Ok(())
    }

    /// Returns the options that the session's agent offers.
    pub async fn options(&self, id: &str) -> Result<Document<OptionsView>, Error> {
        self.ask(call::Options { session: id.to_owned() }).await
    }
}
