//! Adds an agent to the user's configuration file, and applies the changed configuration.

use agentd_api::Problem;
use agentd_api::agents::{AgentAddRequest, AgentAddView};

use super::{Reload, edit, internal};
use agentd_config::{self as config, AgentPlan};

impl Reload {
    /// Adds an agent. A dry run only returns the planned lines.
    pub(crate) async fn add_agent(&self, wish: &AgentAddRequest) -> Result<AgentAddView, Problem> {
        let _alone = self.running.lock().await;
        let (sources, asked) = (self.sources.clone(), wish.clone());
        let planned = agentd_host::work::blocking(move || config::plan_to_add_agent(&sources, &asked));
        let AgentPlan { edit, name, archive } =
            planned.await.map_err(|error| internal(&error))?.map_err(edit::refused)?;
        let mut view = AgentAddView {
            name,
            file: self.sources.user.clone(),
            created: edit.before.is_none(),
            dry_run: wish.dry_run,
            lines: edit.lines.clone(),
            archive,
            mistakes: Vec::new(),
        };
        if !wish.dry_run {
            view.mistakes = self.carry_out(edit).await?;
        }
        Ok(view)
    }
}
