//! Calls on schedules.

use std::time::Duration;

use agentd_api::Call;
use agentd_api::schedule::{ScheduleList, ScheduleRuns, ScheduleSpec, ScheduleView};

use super::{Client, Document};
use crate::error::Error;

impl Client {
    pub(crate) async fn schedules(&self) -> Result<Document<ScheduleList>, Error> {
        self.fetch(&Call::Schedules {}, Duration::ZERO).await
    }

    pub(crate) async fn schedule(&self, name: &str) -> Result<Document<ScheduleView>, Error> {
        self.fetch(&Call::Schedule { schedule: name.to_owned() }, Duration::ZERO).await
    }

    pub(crate) async fn add_schedule(&self, spec: &ScheduleSpec) -> Result<Document<ScheduleView>, Error> {
        self.submit(&Call::AddSchedule {}, spec, Duration::ZERO).await
    }

    /// Replaces the specification, only if it still has this generation.
    pub(crate) async fn set_schedule(
        &self,
        spec: &ScheduleSpec,
        generation: u64,
    ) -> Result<Document<ScheduleView>, Error> {
        let client = Self { generation: Some(generation), ..self.clone() };
        client.submit(&Call::SetSchedule { schedule: spec.name.to_string() }, spec, Duration::ZERO).await
    }

    pub(crate) async fn remove_schedule(&self, name: &str) -> Result<(), Error> {
        self.call(&Call::RemoveSchedule { schedule: name.to_owned() }, None, Duration::ZERO).await.map(drop)
    }

    pub(crate) async fn run_schedule(&self, name: &str, due: bool) -> Result<Document<ScheduleRuns>, Error> {
        let call = Call::RunSchedule { schedule: name.to_owned(), due: due.then_some(true) };
        self.fetch(&call, Duration::ZERO).await
    }
}
