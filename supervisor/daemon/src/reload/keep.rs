//! Adds names to a whitelist in the user's configuration file, and applies the changed configuration.

use agentd_api::keep::{KeepRequest, KeepView};
use agentd_api::{Code, Problem};
use agentd_secret_names::is_secret_name;

use super::{Reload, edit, internal};
use agentd_config::{self as config, KeepPlan};

/// Maximum number of names in one request.
const MOST: usize = 1000;

impl Reload {
    /// Adds names to a keep list. A dry run only returns the planned lines.
    pub(crate) async fn keep(&self, wish: &KeepRequest) -> Result<KeepView, Problem> {
        check(wish)?;
        let _alone = self.running.lock().await;
        let (sources, asked) = (self.sources.clone(), wish.clone());
        let planned = agentd_host::work::blocking(move || config::plan_to_keep(&sources, &asked));
        let KeepPlan { edit, keys, added, already } =
            planned.await.map_err(|error| internal(&error))?.map_err(edit::refused)?;
        let mut view = KeepView {
            file: self.sources.user.clone(),
            created: edit.before.is_none() && !added.is_empty(),
            dry_run: wish.dry_run,
            keys,
            secrets: wish.names.iter().filter(|name| is_secret_name(name)).cloned().collect(),
            already,
            lines: edit.lines.clone(),
            mistakes: Vec::new(),
            added,
        };
        if !wish.dry_run && !view.added.is_empty() {
            view.mistakes = self.carry_out(edit).await?;
        }
        Ok(view)
    }
}

fn check(wish: &KeepRequest) -> Result<(), Problem> {
    let invalid = |detail: String, hint: &str| Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
    let names = &wish.names;
    if names.is_empty() || names.len() > MOST {
        return invalid(
            format!("the request has {} names, and 1 to {MOST} are allowed", names.len()),
            "name some variables",
        );
    }
    let is_wrong = |name: &&String| {
        name.is_empty() || name.contains(['=', '$']) || name.chars().any(|c| c.is_whitespace() || c.is_control())
    };
    if let Some(wrong) = names.iter().find(is_wrong) {
        let hint = "give only names such as JAVA_HOME, or patterns such as ROS_*; set values with [agents.NAME] env";
        return invalid(format!("{wrong:?} is not a variable name"), hint);
    }
    match (&wish.agent, &wish.directory) {
        (Some(_), Some(_)) => {
            invalid("the request names both an agent and a directory".to_owned(), "name at most one of them")
        }
        (_, Some(directory)) if !directory.is_absolute() => invalid(
            format!("the path {} of the directory is not absolute", directory.display()),
            "give the absolute path",
        ),
        _ => Ok(()),
    }
}
