//! Git repositories of sessions: their preparation, changes while an agent runs, worktrees, workspaces, servers that
//! require a login, and kills at each step.

mod changes;
mod kills;
mod preparation;
mod servers;
mod workspaces;
mod worktrees;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentd_api::repository::{RepositoryList, RepositorySpec, RepositoryState, RepositoryView};
use agentd_api::session::{Condition, ConditionType, SessionSpec, SessionView};

use crate::harness::{Daemon, Session};

/// Runs git in a directory and returns its output without the last line end.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=kim", "-c", "user.email=kim@example.com", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git can be run");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?} in {}: {words}", directory.display());
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Makes a commit that adds or changes a file, and returns its id.
fn commit(directory: &Path, file: &str, text: &str) -> String {
    let path = directory.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    git(directory, &["add", file]);
    git(directory, &["commit", "-qm", file]);
    git(directory, &["rev-parse", "HEAD"])
}

/// A bare repository with the branches `main`, which has two commits, and `next`, and a clone from which tests push.
pub(crate) struct Remote {
    bare: PathBuf,
    own: PathBuf,
}

impl Remote {
    pub(crate) fn new(daemon: &Daemon, name: &str) -> Self {
        let own = daemon.root().join(format!("own-{name}"));
        fs::create_dir(&own).unwrap();
        git(&own, &["init", "-q"]);
        commit(&own, "file", "first\n");
        commit(&own, "file", "second\n");
        git(&own, &["switch", "-qc", "next"]);
        commit(&own, "only-next", "next\n");
        git(&own, &["switch", "-q", "main"]);
        let bare = daemon.root().join("remotes").join(format!("{name}.git"));
        fs::create_dir_all(bare.parent().unwrap()).unwrap();
        git(daemon.root(), &["clone", "-q", "--bare", own.to_str().unwrap(), bare.to_str().unwrap()]);
        Self { bare, own }
    }

    pub(crate) fn url(&self) -> String {
        self.bare.display().to_string()
    }

    /// Makes the clone that a removed session left in the working directory.
    fn left_clone(&self, daemon: &Daemon, name: &str) -> PathBuf {
        git(&daemon.work(), &["clone", "-q", &self.url(), name]);
        let place = daemon.work().join(name);
        git(&place, &["config", "agentd.session", "gone"]);
        place
    }

    pub(crate) fn spec(&self) -> RepositorySpec {
        RepositorySpec::clone_of(self.url())
    }

    /// Pushes a new commit to a branch, and returns its id.
    pub(crate) fn push(&self, branch: &str, file: &str, text: &str) -> String {
        git(&self.own, &["switch", "-q", branch]);
        let id = commit(&self.own, file, text);
        git(&self.own, &["push", "-q", self.bare.to_str().unwrap(), branch]);
        id
    }

    fn head(&self, branch: &str) -> String {
        git(&self.bare, &["rev-parse", branch])
    }
}

fn spec(daemon: &Daemon, repos: Vec<RepositorySpec>) -> SessionSpec {
    SessionSpec { repos, ..daemon.scripted(&[]) }
}

fn condition(view: &SessionView) -> Option<&Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == ConditionType::RepositoriesReady)
}

/// Returns the state of a repository in a view.
fn state(view: &SessionView, name: &str) -> Option<RepositoryState> {
    view.status.repos.iter().find(|known| known.name == name).map(|known| known.state)
}

async fn wait_for_state(session: &Session, name: &str, wanted: RepositoryState) -> SessionView {
    let what = format!("{name} is {}", wanted.as_str());
    session.wait_for(&what, |view| state(view, name) == Some(wanted)).await
}

/// Reads the present state of one repository.
async fn listed(daemon: &Daemon, session: &Session, name: &str) -> Option<RepositoryView> {
    let list: RepositoryList = daemon.client.get(&session.path("/repos")).await.expect(200);
    list.repos.into_iter().find(|view| view.name == name)
}

/// Returns the names in a directory that agentd uses only while it works.
fn leftovers(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".agentd-") || name.starts_with(".removing-")).collect()
}
