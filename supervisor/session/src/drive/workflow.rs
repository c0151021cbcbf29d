//! Examines the workflow that a running session requests, in a task beside the driver.

use std::sync::Arc;

use agentd_api::Body;
use agentd_api::workflow::{WorkflowChanged, WorkflowSpec};
use agentd_decide::batch::Batch;
use agentd_decide::workflow::{activation, next_examination};
use agentd_fault::Point;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Driver, DriverError, pulse};
use crate::journal_port::Port;
use crate::workflow::Examined;

/// A running examination. Dropping the value ends it.
pub(super) struct WorkflowTask {
    wanted: WorkflowSpec,
    examined: oneshot::Receiver<Examined>,
    task: JoinHandle<()>,
}

impl Drop for WorkflowTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Driver {
    /// Begins the examination of the requested workflow. Ends the examination of another workflow.
    pub(super) fn mind_workflow(&mut self) {
        let can_record = !self.timers.is_retrying() && matches!(self.recorder.port, Port::Keeper(_));
        let wanted = next_examination(&self.recorder.state, &self.recorder.document.spec).filter(|_| can_record);
        if self.workflow.as_ref().map(|task| &task.wanted) == wanted.as_ref() {
            return;
        }
        self.workflow = wanted.map(|wanted| {
            let plan = Arc::new(self.plan(self.recorder.state.launches));
            let (say, examined) = oneshot::channel();
            let task = self.outside.workflow(plan, wanted.clone(), say);
            WorkflowTask { wanted, examined, task }
        });
    }

    /// Records the outcome of the examination: the workflow comes into force, or the reason why it does not.
    pub(super) async fn workflow_examined(&mut self, examined: Option<Examined>) -> Result<(), DriverError> {
        self.workflow = None;
        match examined {
            Some(Ok(active)) => self.put_into_force(WorkflowChanged { workflow: Some(active) }).await,
            Some(Err(failed)) => self.append(Batch::of(Body::WorkflowFailed(failed))).await.map(drop),
            None => Ok(()),
        }
    }

    /// Records that a workflow is in force, or none. A running agent is ended by it, and a launch begins again.
    pub(super) async fn put_into_force(&mut self, changed: WorkflowChanged) -> Result<(), DriverError> {
        // The bring-up that reported the change ends here.
        self.launching.bring_up = None;
        if agentd_fault::at(Point::DaemonWorkflowExamined).is_err() {
            return Ok(());
        }
        let batch = match changed.workflow {
            Some(active) => activation(&self.recorder.state, active),
            None => Batch::of(Body::WorkflowChanged(changed)),
        };
        self.append(batch).await?;
        // This fault point has no error to return.
        let _ = agentd_fault::at(Point::DaemonWorkflowRecorded);
        Ok(())
    }

    /// Takes over what the workflow in force needs.
    pub(super) fn take_over_workflow(&mut self) {
        if self.terms.has_another_workflow(&self.recorder.state) {
            self.renew();
        }
    }
}

/// Waits for the outcome of the examination; waits forever without any.
pub(super) async fn examination(task: &mut Option<WorkflowTask>) -> Option<Examined> {
    match task {
        Some(task) => pulse::elsewhere(&mut task.examined).await.ok(),
        None => std::future::pending().await,
    }
}
