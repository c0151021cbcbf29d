//! Continues with an agent that stayed on its place while its keeper was gone.
//!
//! The place has the agent, its output and the secrets of the launch. So the new keeper needs the way to the place, and
//! no environment.

use agentd_api::chain;
use agentd_decide::replay;
use agentd_decide::state::Run;
use agentd_keeper::protocol::{FromKeeper, LaunchRecord, PlaceLine, StreamCursor, ToKeeper};

use super::{Driver, DriverError};
use crate::journal_port::Port;
use crate::launch_plan::LaunchPlan;

impl Driver {
    /// Starts another keeper for the running agent. Reports whether it was started: without one, the launch has ended.
    pub(super) async fn resume(&mut self) -> Result<bool, DriverError> {
        let state = &self.recorder.state;
        let Some(placed) = state.placed().filter(|placed| placed.is_resident) else { return Ok(false) };
        let Run::Running(running) = &state.run else { return Ok(false) };
        // An agent that was being ended does not continue. The program of a queued launch is gone.
        if running.ending.is_some() || !placed.has_entered {
            return Ok(false);
        }
        let (job, plan) = (placed.job.clone(), self.plan(running.launch));
        let way = match line(&plan, job).await {
            Ok(way) => way,
            Err(error) => {
                tracing::error!(error, "cannot connect to the place of an agent that stayed there");
                return Ok(false);
            }
        };
        let daemon = &self.terms.generation.daemon;
        // The unit of the keeper that is gone may still be there.
        daemon.launcher.sweep(self.id()).await;
        let record = LaunchRecord {
            launch: plan.launch,
            max_line: plan.max_line,
            output_rate: plan.output_rate,
            is_unit: plan.is_unit,
            directory: "/".into(),
            place: Some(Box::new(way)),
            mute: replay::running(state, self.terms.generation.config.launch.replay_quiet.0),
            ..LaunchRecord::default()
        };
        let started = async {
            let mut link = self.outside.start(&plan, None).await.map_err(|error| chain(&error))?;
            match link.call(&ToKeeper::Launch(Box::new(record))).await {
                Ok(FromKeeper::Launched { .. }) => Ok(link),
                Ok(other) => Err(format!("the keeper gave an unexpected answer: {other:?}")),
                Err(error) => Err(chain(&error)),
            }
        };
        match started.await {
            Ok(link) => {
                self.recorder.port = Port::Keeper(link);
                self.stop.sent = false;
                self.note_keeper();
                self.catch_up().await?;
                tracing::info!("another keeper continues with the agent that stayed on its place");
                Ok(true)
            }
            Err(error) => {
                tracing::error!(error, "no keeper can continue with the agent that stayed on its place");
                Ok(false)
            }
        }
    }
}

/// Makes the line to an agent that stayed on its place. The error is a text for people.
async fn line(plan: &LaunchPlan, job: Option<String>) -> Result<PlaceLine, String> {
    let place = plan.place.clone().ok_or("the place is not configured any more")?;
    let (id, launch, directory) = (plan.id.clone(), plan.launch, plan.directory().to_owned());
    let job = match job {
        Some(job) => Some(job),
        None => place.job_of(id.as_str(), launch).await.map_err(|error| chain(&error))?,
    };
    let made = agentd_host::work::blocking(move || place.line(&id, launch, &directory)).await;
    let mut line = made.map_err(|error| error.to_string())?.map_err(|error| chain(&error))?;
    let resident = line.resident.as_mut().ok_or("the place has another level now")?;
    // The keeper knows the position from the journal.
    (resident.job, resident.submit, resident.resume) = (job, None, Some(StreamCursor::default()));
    Ok(line)
}
