//! Adds names to a whitelist in the user's configuration file, and applies the changed configuration.
//!
//! The file is replaced by a rename, at the target of a symbolic link, and only if its content is still the planned
//! base. Mistakes that the change would cause are found before the write. Changes and reloads run one at a time.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use agentd_api::hint;
use agentd_api::keep::{KeepRequest, KeepView};
use agentd_api::{Code, Problem};
use agentd_secret_names::is_secret_name;
use nix::unistd::{AccessFlags, access};

use super::{Reload, internal};
use agentd_config::{self as config, KeepError, KeepPlan};
use agentd_session::configuration_mistakes;

/// Maximum number of names in one request.
const MOST: usize = 1000;

impl Reload {
    /// Adds names to a keep list. A dry run only returns the planned lines.
    pub(crate) async fn keep(&self, wish: &KeepRequest) -> Result<KeepView, Problem> {
        check(wish)?;
        let _alone = self.running.lock().await;
        let (sources, asked) = (self.sources.clone(), wish.clone());
        let planned = agentd_host::work::blocking(move || config::plan_to_keep(&sources, &asked));
        let plan = planned.await.map_err(|error| internal(&error))?.map_err(refused)?;
        let file = self.sources.user.clone();
        let mut view = KeepView {
            file: file.clone(),
            created: plan.before.is_none() && !plan.added.is_empty(),
            dry_run: wish.dry_run,
            keys: plan.keys.clone(),
            secrets: wish.names.iter().filter(|name| is_secret_name(name)).cloned().collect(),
            added: plan.added.clone(),
            already: plan.already.clone(),
            lines: plan.lines.clone(),
            mistakes: Vec::new(),
        };
        if wish.dry_run || plan.added.is_empty() {
            return Ok(view);
        }
        let written = agentd_host::work::blocking(move || write(&file, &plan));
        written.await.map_err(|error| internal(&error))??;
        // The line is written. A failed reload is reported, and the line stays.
        match self.replace().await {
            Ok(reloaded) => view.mistakes = reloaded.mistakes,
            Err(problem) if problem.particulars.mistakes.is_empty() => return Err(problem),
            Err(problem) => view.mistakes = problem.particulars.mistakes,
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

fn refused(error: KeepError) -> Problem {
    let message = error.to_string();
    match error {
        KeepError::Unreadable(mistake) => configuration_mistakes::problem(vec![mistake]),
        KeepError::Mistakes(mistakes) => {
            let problem = configuration_mistakes::problem(mistakes);
            Problem { detail: format!("nothing was written: {}", problem.detail), ..problem }
        }
        KeepError::OfAdministrator { file, line, .. } => Problem::new(Code::ConfigurationNotWritable, message)
            .hint(format!("ask the administrator to add {line} to {}", file.display())),
        KeepError::NoWhitelist => Problem::new(Code::InvalidRequest, message).hint(hint::SHOW_DIFFERENCE),
        KeepError::NoSuchAgent { known, .. } => {
            Problem::new(Code::NoSuchAgent, message).hint(format!("known agents: {}", known.join(", ")))
        }
        KeepError::NotAList { .. } => Problem::new(Code::ConfigurationInvalid, message)
            .hint("make it a list of quoted names, such as [\"JAVA_HOME\"], and try again"),
    }
}

/// Replaces the file by a rename.
fn write(file: &Path, plan: &KeepPlan) -> Result<(), Problem> {
    let lines: Vec<&str> = plan.lines.iter().filter(|line| line.added).map(|line| line.text.as_str()).collect();
    let by_hand = format!("add by hand: {}", lines.join(" / "));
    let failed = |why: String| {
        Problem::new(Code::ConfigurationNotWritable, format!("cannot write {}: {why}", file.display())).hint(&*by_hand)
    };
    let real: PathBuf = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let directory = real.parent().unwrap_or(Path::new("/"));
    let io = |error: io::Error| failed(error.to_string());
    if plan.before.is_some() {
        access(&real, AccessFlags::W_OK).map_err(|error| failed(error.desc().to_owned()))?;
    } else {
        fs::create_dir_all(directory).map_err(io)?;
    }
    let mut new = tempfile::Builder::new().prefix(".agentd-").suffix(".new").tempfile_in(directory).map_err(io)?;
    new.write_all(plan.after.as_bytes()).map_err(io)?;
    let mode = fs::metadata(&real).map_or(0o600, |metadata| metadata.permissions().mode() & 0o7777);
    new.as_file().set_permissions(fs::Permissions::from_mode(mode)).map_err(io)?;
    new.as_file().sync_all().map_err(io)?;
    let now = match fs::read_to_string(&real) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io(error)),
    };
    if now != plan.before {
        let problem = failed("the file changed meanwhile".to_owned());
        return Err(Problem { hint: Some("nothing was changed; try again".to_owned()), ..problem });
    }
    new.persist(&real).map_err(|error| io(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(before: Option<&str>) -> KeepPlan {
        KeepPlan {
            before: before.map(str::to_owned),
            after: "new\n".to_owned(),
            keys: Vec::new(),
            added: vec!["A".to_owned()],
            already: Vec::new(),
            lines: Vec::new(),
        }
    }

    #[test]
    fn a_file_that_changed_meanwhile_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("below/agentd.toml");
        write(&file, &plan(None)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
        fs::write(&file, "another's\n").unwrap();
        for before in [None, Some("old\n")] {
            let problem = write(&file, &plan(before)).unwrap_err();
            assert!(
                problem.code == Code::ConfigurationNotWritable && problem.detail.contains("meanwhile"),
                "{problem:?}"
            );
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "another's\n");
        let left = fs::read_dir(file.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no temporary file remains");
    }
}
