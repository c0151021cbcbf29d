//! Repositories on the command line.

use std::path::{Path, PathBuf};

use agentd_api::repository::{RepositorySpec, RepositoryView};
use agentd_api::session::SessionSpec;
use agentd_api::spec::Workspace;

use crate::args::repository::WorkspaceArgs;
use crate::error::Error;
use crate::machine::Machine;
use crate::workflow::requested;

/// Returns the address of a repository for `machine`: a path of an existing directory of this machine becomes absolute.
pub(crate) fn address(source: &str, machine: &Machine) -> Result<String, Error> {
    let path = Path::new(source);
    if source.contains("://") || source.starts_with('/') || *machine != Machine::This || !path.is_dir() {
        return Ok(source.to_owned());
    }
    machine.absolute(path).map(|path| path.display().to_string())
}

/// Splits `SOURCE#BRANCH`.
pub(crate) fn with_branch(text: &str) -> (&str, Option<String>) {
    match text.rsplit_once('#') {
        Some((source, branch)) => (source, Some(branch.to_owned()).filter(|branch| !branch.is_empty())),
        None => (text, None),
    }
}

/// Length of a commit's id for people.
const SHORT: usize = 9;

/// Returns the branch and the commit of a repository.
pub(crate) fn head(view: &RepositoryView) -> String {
    let commit = view.commit.as_deref().map(|commit| &commit[..commit.len().min(SHORT)]);
    let branch = view.branch.as_deref().unwrap_or("no branch");
    commit.map_or_else(|| branch.to_owned(), |commit| format!("{branch} {commit}"))
}

/// Describes a repository in one line.
pub(crate) fn line(view: &RepositoryView) -> String {
    let message = view.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{} is {} at {}, {}{message}", view.name, view.state.as_str(), view.place.display(), head(view))
}

/// Returns the repository that contains a directory: the top directory of its main working tree, or the directory of a
/// bare repository. A worktree may be removed before a worktree that is made from it. On another machine, `directory`
/// must be that directory.
fn repository_of(directory: &Path, machine: &Machine) -> Result<PathBuf, Error> {
    let directory = machine.absolute(directory)?;
    if *machine != Machine::This {
        return Ok(directory);
    }
    let is_bare = |path: &Path| path.join("objects").is_dir() && path.join("HEAD").is_file();
    let found = directory.ancestors().find(|above| above.join(".git").exists() || is_bare(above));
    let found = found.ok_or_else(|| Error::Usage {
        detail: format!("{} is in no git repository", directory.display()),
        hint: "name a local repository: --worktree=DIR".to_owned(),
    })?;
    // The file `.git` of a worktree names `MAIN/.git/worktrees/NAME` (gitrepository-layout(5)).
    let main = std::fs::read_to_string(found.join(".git")).ok().and_then(|text| {
        let own = PathBuf::from(text.strip_prefix("gitdir: ")?.trim_end());
        let git = own.parent().filter(|parent| parent.ends_with("worktrees"))?.parent()?;
        if git.ends_with(".git") { git.parent().map(Path::to_owned) } else { Some(git.to_owned()) }
    });
    Ok(main.unwrap_or_else(|| found.to_owned()))
}

/// Returns a name for a repository whose directory has a name that is not valid.
fn plain_name(repository: &RepositorySpec) -> Option<String> {
    let name = repository.name();
    let plain: String = name
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || "._-".contains(char) { char } else { '-' })
        .collect();
    let plain = plain.trim_start_matches(['.', '-']);
    let plain = if plain.is_empty() { "tree" } else { plain };
    (plain != name).then(|| plain.to_owned())
}

/// Adds the requested workspace and repositories to a specification. `directory` is the given one.
pub(crate) fn add(
    spec: SessionSpec,
    args: &WorkspaceArgs,
    directory: Option<PathBuf>,
    machine: &Machine,
) -> Result<SessionSpec, Error> {
    let clone = |text: &String| {
        let (source, branch) = with_branch(text);
        Ok(RepositorySpec { branch, ..RepositorySpec::clone_of(address(source, machine)?) })
    };
    let mut repos = args.repo.iter().map(clone).collect::<Result<Vec<_>, Error>>()?;
    let mut inside = directory;
    if let Some(text) = &args.worktree {
        let (source, branch) = with_branch(text);
        let source = if source.is_empty() { "." } else { source };
        let main = repository_of(Path::new(source), machine)?;
        let worktree = RepositorySpec { branch, ..RepositorySpec::worktree_of(main) };
        let worktree = RepositorySpec { name: plain_name(&worktree), ..worktree };
        inside = inside.or_else(|| Some(worktree.place()));
        repos.insert(0, worktree);
    }
    let workflow = requested(&args.workflow, machine)?;
    let spec = SessionSpec { workflow, ..spec };
    if args.parent.is_some() {
        return Ok(SessionSpec { repos, parent: args.parent.clone(), ..spec });
    }
    if !args.workspace && args.worktree.is_none() {
        return Ok(SessionSpec { repos, ..spec });
    }
    Ok(SessionSpec { workspace: Some(Workspace::New), directory: inside.unwrap_or_default(), repos, ..spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::workflow::WorkflowArgs;

    fn args(workspace: bool, repo: &[&str], worktree: Option<&str>) -> WorkspaceArgs {
        let repo = repo.iter().map(|url| (*url).to_owned()).collect();
        WorkspaceArgs {
            workspace,
            repo,
            worktree: worktree.map(str::to_owned),
            parent: None,
            workflow: WorkflowArgs::default(),
        }
    }

    #[test]
    fn repositories_have_a_branch_behind_a_hash() {
        let spec =
            add(SessionSpec::new("/w"), &args(false, &["https://h/web#v2", "/no/where"], None), None, &Machine::This)
                .unwrap();
        assert_eq!((spec.workspace, spec.directory.as_path()), (None, Path::new("/w")));
        let found: Vec<_> = spec.repos.iter().map(|one| (one.url.as_deref().unwrap(), one.branch.as_deref())).collect();
        assert_eq!(found, [("https://h/web", Some("v2")), ("/no/where", None)]);
    }

    #[test]
    fn a_worktree_is_the_directory_of_a_session_with_a_workspace() {
        let top = tempfile::tempdir().unwrap();
        let app = top.path().canonicalize().unwrap().join("app");
        std::fs::create_dir_all(app.join(".git")).unwrap();
        std::fs::create_dir(app.join("src")).unwrap();
        let text = format!("{}#fix", app.join("src").display());
        let spec = add(SessionSpec::new("/w"), &args(false, &[], Some(&text)), None, &Machine::This).unwrap();
        assert_eq!((spec.workspace, spec.directory.as_path()), (Some(Workspace::New), Path::new("app")));
        assert_eq!(spec.repos[0], RepositorySpec { branch: Some("fix".into()), ..RepositorySpec::worktree_of(&app) });
        let other = add(SessionSpec::new("/w"), &args(true, &[], None), None, &Machine::This).unwrap();
        assert_eq!(other.directory, Path::new(""));
        // A worktree of it belongs to the same repository, and the name of a directory may be no name.
        let tree = top.path().join("a tree");
        std::fs::create_dir(&tree).unwrap();
        let git = app.join(".git/worktrees/tree");
        std::fs::write(tree.join(".git"), format!("gitdir: {}\n", git.display())).unwrap();
        assert_eq!(repository_of(&tree, &Machine::This).unwrap(), app);
        let odd = RepositorySpec::worktree_of("/src/.a tree");
        assert_eq!(plain_name(&odd).as_deref(), Some("a-tree"));
        assert!(
            add(SessionSpec::new("/w"), &args(false, &[], Some("/")), None, &Machine::This).is_err(),
            "it is in no repository"
        );
    }
}
