//! Calls on schedules.

use std::time::Duration;

use agentd_api::Call;
use agentd_api::route::call;
use agentd_api::schedule::{ScheduleList, ScheduleRuns, ScheduleSpec, ScheduleView};

use crate::client::{Client, Document};
use crate::error::Error;

impl Client {
    /// Lists the schedules.
    pub async fn schedules(&self) -> Result<Document<ScheduleList>, Error> {
        self.ask(call::Schedules {}).await
    }

    /// Shows a schedule.
    pub async fn schedule(&self, name: &str) -> Result<Document<ScheduleView>, Error> {
        self.ask(call::Schedule { schedule: name.to_owned() }).await
    }

    /// Adds a schedule.
    pub async fn add_schedule(&self, spec: &ScheduleSpec) -> Result<Document<ScheduleView>, Error> {
        self.send(call::AddSchedule {}, spec, Duration::ZERO).await
    }

    /// Replaces the specification, only if it still has this generation.
    pub async fn set_schedule(&self, spec: &ScheduleSpec, generation: u64) -> Result<Document<ScheduleView>, Error> {
        let client = self.at_generation(Some(generation));
        client.send(call::SetSchedule { schedule: spec.name.to_string() }, spec, Duration::ZERO).await
    }

    /// Removes a schedule.
    pub async fn remove_schedule(&self, name: &str) -> Result<(), Error> {
        self.order(&Call::RemoveSchedule { schedule: name.to_owned() }, Duration::ZERO).await
    }

    /// Runs a schedule now. `due` runs it only if a time is due.
    pub async fn run_schedule(&self, name: &str, due: bool) -> Result<Document<ScheduleRuns>, Error> {
        let call = call::RunSchedule { schedule: name.to_owned(), due: due.then_some(true) };
        self.ask(call).await
    }
}
