//! Writes an edit of the user's configuration file, and applies the changed configuration.
//!
//! The file is replaced by a rename, at the target of a symbolic link, and only if its content is still the planned
//! base. Mistakes that the change would cause are found before the write. Changes and reloads run one at a time.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use agentd_api::configuration::Mistake;
use agentd_api::hint;
use agentd_api::{Code, Problem};
use nix::unistd::{AccessFlags, access};

use super::{Reload, internal};
use agentd_config::{EditError, FileEdit};
use agentd_session::configuration_mistakes;

impl Reload {
    /// Writes an edit and reloads. Returns the mistakes after the reload. The caller holds the lock of reloads.
    pub(super) async fn carry_out(&self, edit: FileEdit) -> Result<Vec<Mistake>, Problem> {
        let file = self.sources.user.clone();
        let written = agentd_host::work::blocking(move || write(&file, &edit));
        written.await.map_err(|error| internal(&error))??;
        // The file is written. A failed reload is reported, and the edit stays.
        match self.replace().await {
            Ok(reloaded) => Ok(reloaded.mistakes),
            Err(problem) if problem.particulars.mistakes.is_empty() => Err(problem),
            Err(problem) => Ok(problem.particulars.mistakes),
        }
    }
}

/// Returns the problem of an edit that cannot be planned.
pub(super) fn refused(error: EditError) -> Problem {
    let message = error.to_string();
    match error {
        EditError::Unreadable(mistake) => configuration_mistakes::problem(vec![mistake]),
        EditError::Mistakes(mistakes) => {
            let problem = configuration_mistakes::problem(mistakes);
            Problem { detail: format!("nothing was written: {}", problem.detail), ..problem }
        }
        EditError::OfAdministrator { file, line, .. } => Problem::new(Code::ConfigurationNotWritable, message)
            .hint(format!("ask the administrator to add {line} to {}", file.display())),
        EditError::NoWhitelist => Problem::new(Code::InvalidRequest, message).hint(hint::SHOW_DIFFERENCE),
        EditError::NoSuchAgent { known, .. } => {
            Problem::new(Code::NoSuchAgent, message).hint(format!("known agents: {}", known.join(", ")))
        }
        EditError::Agent(_, hint) => Problem::new(Code::InvalidRequest, message).hint(hint),
        EditError::AgentExists { .. } => {
            Problem::new(Code::NameTaken, message).hint("choose another name with --as, or edit that entry")
        }
        EditError::NotAList { .. } => Problem::new(Code::ConfigurationInvalid, message)
            .hint("make it a list of quoted names, such as [\"JAVA_HOME\"], and try again"),
    }
}

/// Replaces the file by a rename.
fn write(file: &Path, plan: &FileEdit) -> Result<(), Problem> {
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

    fn plan(before: Option<&str>) -> FileEdit {
        FileEdit { before: before.map(str::to_owned), after: "new\n".to_owned(), lines: Vec::new() }
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
