//! Calls on hooks.

use std::time::Duration;

use agentd_api::hook::{HookList, HookTestView};
use agentd_api::route::call;

use crate::client::{Client, Document};
use crate::error::Error;

/// Additional time limit of a test: the longest time limit of a hook, and the end of its command.
const TESTING: Duration = Duration::from_secs(75);

impl Client {
    /// Lists the hooks with their last deliveries.
    pub async fn hooks(&self) -> Result<Document<HookList>, Error> {
        self.ask(call::Hooks {}).await
    }

    /// Delivers one test event by a hook, and returns the result.
    pub async fn test_hook(&self, name: &str) -> Result<Document<HookTestView>, Error> {
        self.ask_for(call::TestHook { name: name.to_owned() }, TESTING).await
    }
}
