//! Takes the steps of an install. Each step is printed, taken, and can be undone until all steps are done.
//!
//! A file is written under another name and renamed into its place. A running program keeps its old file, and
//! no process reads half of a file. The old file stays under another name until all steps are done.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::service::ServiceError;
use crate::service::host::{Host, line};
use crate::service::launchd::Job;
use agentd_client::Client;

/// Time limit of a daemon's end, and of the next daemon's first answer.
const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(50);

/// One step.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Copy {
        from: PathBuf,
        to: PathBuf,
    },
    Write {
        path: PathBuf,
        text: String,
    },
    /// Steps that are shown as one line, such as the writing of all man pages.
    Group {
        description: String,
        steps: Vec<Step>,
    },
    /// Creates a private directory of the user.
    Directory(PathBuf),
    Remove(PathBuf),
    /// Runs a command of the manager; `back` undoes it.
    Run {
        command: Vec<String>,
        back: Option<Vec<String>>,
    },
    /// Changes launchd's job; `back` undoes the change.
    Job {
        job: Job,
        back: Option<Job>,
    },
    /// Ends a daemon that was started without a manager.
    Terminate {
        pid: u32,
    },
    /// Waits until agentd answers with this version, from another process than `not`.
    Await {
        client: Client,
        version: String,
        not: Option<u32>,
        user: Option<String>,
    },
}

/// Action that undoes a step.
#[derive(Debug)]
enum Back {
    Nothing,
    /// Removes a new file.
    Remove(PathBuf),
    /// Restores the previous file, which is at `before`.
    Restore {
        path: PathBuf,
        before: PathBuf,
    },
    Run(Vec<String>),
    Job(Job),
}

/// Steps taken so far.
#[derive(Debug)]
pub(super) struct Steps<'a> {
    host: &'a Host,
    done: Vec<Back>,
}

impl Step {
    /// Groups the steps on man pages of each directory; other steps stay single. `verb` is the operation on
    /// each file.
    pub(super) fn pages(verb: &str, steps: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut shown = Vec::new();
        let mut pages: BTreeMap<PathBuf, Vec<Self>> = BTreeMap::new();
        for step in steps {
            match step.page_directory() {
                Some(directory) => pages.entry(directory.to_owned()).or_default().push(step),
                None => shown.push(step),
            }
        }
        for (directory, mut steps) in pages {
            if steps.len() == 1 {
                shown.append(&mut steps);
            } else {
                let description = format!("{verb} {} man pages in {}", steps.len(), directory.display());
                shown.push(Self::Group { description, steps });
            }
        }
        shown
    }

    /// The directory of the man page that this step writes or removes.
    fn page_directory(&self) -> Option<&Path> {
        let (Self::Write { path, .. } | Self::Remove(path)) = self else { return None };
        let directory = path.parent()?;
        let is_man = directory.parent()?.ends_with("share/man");
        is_man.then_some(directory)
    }

    /// Describes the step for users.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Copy { from, to } => format!("copy {} to {}", from.display(), to.display()),
            Self::Write { path, .. } => format!("write {}", path.display()),
            Self::Group { description, .. } => description.clone(),
            Self::Directory(path) => format!("create the directory {}", path.display()),
            Self::Remove(path) => format!("remove {}", path.display()),
            Self::Run { command, .. } => line(command),
            Self::Job { job, .. } => job.describe(),
            Self::Terminate { pid } => {
                format!("end the agentd that was started without a manager (pid {pid}); its sessions continue")
            }
            Self::Await { version, user, .. } => {
                let whose = user.as_ref().map(|user| format!(" of {user}")).unwrap_or_default();
                format!("wait until agentd{whose} answers with version {version}")
            }
        }
    }
}

impl<'a> Steps<'a> {
    pub(super) fn new(host: &'a Host) -> Self {
        Self { host, done: Vec::new() }
    }

    pub(super) async fn take(&mut self, step: &Step) -> Result<(), ServiceError> {
        let failed = |path: &Path, source| ServiceError::Put { path: path.to_owned(), source };
        let back = match step {
            Step::Copy { from, to } => {
                let source = |source| ServiceError::Read { path: from.clone(), source };
                put(to, &fs::read(from).map_err(source)?, 0o755).map_err(|error| failed(to, error))?
            }
            Step::Write { path, text } => put(path, text.as_bytes(), 0o644).map_err(|error| failed(path, error))?,
            Step::Group { steps, .. } => {
                for step in steps {
                    Box::pin(self.take(step)).await?;
                }
                Back::Nothing
            }
            Step::Directory(path) => {
                // The directory of the socket is private.
                agentd_directory::create(path).map_err(|error| failed(path, error))?;
                Back::Nothing
            }
            Step::Remove(path) => {
                let before = beside(path);
                fs::rename(path, &before).map_err(|error| failed(path, error))?;
                Back::Restore { path: path.clone(), before }
            }
            Step::Run { command, back } => {
                let ran = self.host.run(command).await?;
                if !ran.success {
                    return Err(ServiceError::Failed { command: line(command), said: ran.complaint });
                }
                back.clone().map_or(Back::Nothing, Back::Run)
            }
            Step::Job { job, back } => {
                job.run(self.host).await?;
                back.clone().map_or(Back::Nothing, Back::Job)
            }
            Step::Terminate { pid } => {
                terminate(*pid).await?;
                Back::Nothing
            }
            Step::Await { client, version, not, .. } => {
                answers(client, version, *not).await?;
                Back::Nothing
            }
        };
        self.done.push(back);
        Ok(())
    }

    /// Undoes the steps in reverse order. Returns the failures, for users.
    pub(super) async fn undo(self) -> Vec<String> {
        let mut left = Vec::new();
        for back in self.done.into_iter().rev() {
            let undone = match &back {
                Back::Nothing => Ok(()),
                Back::Remove(path) => fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display())),
                Back::Restore { path, before } => {
                    fs::rename(before, path).map_err(|error| format!("{}: {error}", path.display()))
                }
                Back::Run(command) => match self.host.run(command).await {
                    Ok(ran) if ran.success => Ok(()),
                    Ok(ran) => Err(format!("`{}`: {}", line(command), ran.complaint)),
                    Err(error) => Err(error.to_string()),
                },
                Back::Job(job) => job.run(self.host).await.map_err(|error| error.to_string()),
            };
            left.extend(undone.err());
        }
        left
    }

    /// Ends the transaction: the previous files are deleted.
    pub(super) fn keep(self) {
        for back in self.done {
            if let Back::Restore { before, .. } = back {
                let _ = fs::remove_file(before); // the next install writes over it
            }
        }
    }
}

/// Replaces a file atomically.
fn put(path: &Path, content: &[u8], mode: u32) -> io::Result<Back> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let mut file = tempfile::Builder::new().prefix(".agentctl-").tempfile_in(directory)?;
    file.write_all(content)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    let back = if fs::symlink_metadata(path).is_ok() {
        let before = beside(path);
        match fs::remove_file(&before) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // The file keeps its name while it also receives the second name. Linux permits only copies of files of
        // other users, and some file systems have no hard links.
        fs::hard_link(path, &before).or_else(|_| fs::copy(path, &before).map(drop))?;
        Back::Restore { path: path.to_owned(), before }
    } else {
        Back::Remove(path.to_owned())
    };
    file.persist(path).map_err(|error| error.error)?;
    fs::File::open(directory)?.sync_all()?;
    Ok(back)
}

/// Returns the temporary name of the previous file.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.before"))
}

async fn terminate(pid: u32) -> Result<(), ServiceError> {
    let failed = |source| ServiceError::End { pid, source };
    let process = Pid::from_raw(i32::try_from(pid).map_err(|error| failed(io::Error::other(error)))?);
    match kill(process, Signal::SIGTERM) {
        Ok(()) => {}
        Err(nix::errno::Errno::ESRCH) => return Ok(()),
        Err(errno) => return Err(failed(errno.into())),
    }
    let deadline = Instant::now() + PATIENCE;
    // A zombie holds no lock, and has no arguments.
    let command_line = PathBuf::from(format!("/proc/{pid}/cmdline"));
    let has_arguments = || fs::read(&command_line).is_ok_and(|arguments| !arguments.is_empty());
    let knew = has_arguments();
    while kill(process, None).is_ok() && (!knew || has_arguments()) {
        if Instant::now() >= deadline {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

async fn answers(client: &Client, version: &str, not: Option<u32>) -> Result<(), ServiceError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = match client.version().await {
            Ok(view) if view.value.version == version && Some(view.value.pid) != not => return Ok(()),
            Ok(view) => format!("agentd {} answers (pid {})", view.value.version, view.value.pid),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= deadline {
            return Err(ServiceError::NotThere { version: version.to_owned(), found });
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_done_is_undone_to_the_byte_the_mode_and_the_last_file() {
        let directory = tempfile::tempdir().unwrap();
        let [old, gone, new] = ["old", "gone", "new"].map(|name| directory.path().join(name));
        fs::write(&old, "as it was").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(&gone, "also").unwrap();
        let marker = directory.path().join("undone");
        let touch = vec!["touch".to_owned(), marker.display().to_string()];
        let host = Host::of_kim();
        run(async {
            let mut steps = Steps::new(&host);
            for step in [
                Step::Write { path: old.clone(), text: "another".into() },
                Step::Remove(gone.clone()),
                Step::Copy { from: old.clone(), to: new.clone() },
                Step::Run { command: vec!["true".into()], back: Some(touch) },
            ] {
                steps.take(&step).await.unwrap();
            }
            assert_eq!(fs::read_to_string(&new).unwrap(), "another");
            assert!(!gone.exists());
            let error = steps.take(&Step::Run { command: vec!["false".into()], back: None }).await.unwrap_err();
            assert!(error.to_string().contains("`false` failed: status 1"), "{error}");
            assert_eq!(steps.undo().await, Vec::<String>::new());
        });
        assert_eq!(names(directory.path()), ["gone", "old", "undone"]);
        assert_eq!(fs::read_to_string(&old).unwrap(), "as it was");
        assert_eq!(old.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn when_all_is_done_nothing_of_before_is_left_and_a_program_that_runs_keeps_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("sleep");
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("600").spawn().unwrap();
        let host = Host::of_kim();
        run(async {
            let mut steps = Steps::new(&host);
            steps.take(&Step::Copy { from: "/bin/true".into(), to: program.clone() }).await.unwrap();
            steps.keep();
        });
        assert_eq!(names(directory.path()), ["sleep"]);
        assert_eq!(fs::read(&program).unwrap(), fs::read("/bin/true").unwrap());
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
