//! From a symptom to its remedy with the documentation only. The test reads the commands and the parts of their output
//! from `docs/environment.md`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use agentd_api::environment::EnvironmentView;
use agentd_api::session::SessionSpec;

use crate::harness::ctl::{Said, ctl, end_of};
use crate::harness::{Daemon, Session, paths};

const PAGE: &str = include_str!("../../docs/environment.md");

/// A command of the documentation, and the required parts of its output.
#[derive(Debug)]
struct Step {
    command: String,
    pieces: Vec<String>,
}

/// Returns the commands below a heading.
fn steps(heading: &str) -> Vec<Step> {
    let section = PAGE.split("\n### ").find(|part| part.starts_with(heading)).expect("the page has the section");
    let block = section.split("```console\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it has a block");
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_owned(), pieces: Vec::new() }),
            (None, Some(step)) => step.pieces.push(line.to_owned()),
            (None, None) => panic!("{heading}: the block begins with output"),
        }
    }
    assert!((1..=3).contains(&steps.len()), "{heading}: three commands are the most: {steps:#?}");
    steps
}

/// A terminal with a directory and variables.
struct Terminal<'a> {
    daemon: &'a Daemon,
    directory: PathBuf,
    variables: Vec<(&'a str, String)>,
}

impl Terminal<'_> {
    /// Runs a line that the person types.
    async fn run(&self, line: &str) -> Said {
        let mut command = std::process::Command::new("/bin/sh");
        let programs = paths::programs();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display());
        command.args(["-c", line]).env_clear().env("PATH", path).env("HOME", self.daemon.home());
        command.env("AGENTD_SOCKET", self.daemon.client.socket()).env("TERM", "xterm-256color");
        command.envs(self.variables.iter().map(|(name, value)| (*name, value))).current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end_of(command.spawn().expect("it can be executed")).await
    }

    /// Runs the commands below this heading of the documentation.
    async fn follow(&self, heading: &str) {
        for Step { command, pieces } in steps(heading) {
            let said = self.run(&command).await;
            let text = format!("{}{}", said.out, said.err);
            for piece in &pieces {
                assert!(text.contains(piece), "{heading}: `{command}` does not say {piece:?}:\n{text}");
            }
            // A command that only checks may end with findings.
            assert!(said.status == Some(0) || command.contains(" validate "), "{heading}: `{command}`: {said:?}");
        }
    }
}

/// Creates a session with the name `work` in a directory below the home.
async fn work(daemon: &Daemon) -> (Session, PathBuf) {
    let directory = daemon.home().join("project");
    fs::create_dir_all(&directory).unwrap();
    // The mode is set explicitly, so that no umask makes the directory writable by others.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    let name = Some("work".parse().unwrap());
    let spec = SessionSpec { directory: directory.clone(), name, ..daemon.scripted(&[]) };
    (daemon.session(&spec).await, directory)
}

async fn environment(daemon: &Daemon, session: &Session) -> EnvironmentView {
    daemon.client.get(&session.path("/environment?values=true")).await.expect(200)
}

async fn value(daemon: &Daemon, session: &Session, name: &str) -> Option<String> {
    let view = environment(daemon, session).await;
    let variable = view.variables.into_iter().find(|variable| variable.name == name)?;
    variable.value.map(|value| value.display().to_string())
}

fn program(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "#!/bin/sh\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn whitelist(daemon: &Daemon, settings: &str) {
    daemon.configure(|config| format!("{config}\n[plugins.whitelist.settings]\n{settings}\n"));
}

#[tokio::test]
async fn node_of_this_project() {
    let daemon = Daemon::start().await;
    let nvm = daemon.home().join(".nvm");
    let node = nvm.join("versions/node/v20.11.0/bin");
    program(&node.join("node"));
    // The function imitates nvm: the nearest .nvmrc chooses the version.
    let stand_in = "nvm() { local v; v=$(cat .nvmrc) && PATH=$HOME/.nvm/versions/node/v$v.11.0/bin:$PATH; }\n";
    fs::write(nvm.join("nvm.sh"), stand_in).unwrap();
    let directory = daemon.home().join("project");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join(".nvmrc"), "20\n").unwrap();
    let (session, directory) = work(&daemon).await;
    let terminal = Terminal { daemon: &daemon, directory, variables: Vec::new() };
    terminal.follow("The agent uses another node than the project").await;
    let path = value(&daemon, &session, "PATH").await.unwrap();
    assert!(path.starts_with(&node.display().to_string()), "{path}");
    let said = ctl(&daemon, &["validate", "work"]).await;
    assert!(!said.out.contains("ProjectFileNotHonoured"), "{said:?}");
}

#[tokio::test]
async fn gcc_of_this_project_in_each_login_shell() {
    for shell in ["bash", "zsh", "fish", "tcsh"] {
        let shell =
            ["/bin", "/usr/bin"].map(|place| Path::new(place).join(shell)).into_iter().find(|path| path.exists());
        let Some(shell) = shell else { continue };
        let mut daemon = Daemon::prepare();
        daemon.configure(|config| config.replace("/bin/bash", &shell.display().to_string()));
        daemon.run().await;
        let toolchain = daemon.home().join("toolchains/gcc-13/bin");
        program(&toolchain.join("gcc"));
        let (session, directory) = work(&daemon).await;
        let programs = paths::programs();
        let path = format!("{}:{}:/usr/bin:/bin", toolchain.display(), programs.display());
        let terminal = Terminal { daemon: &daemon, directory, variables: vec![("PATH", path)] };
        terminal.follow("The agent uses another gcc than the project").await;
        let path = value(&daemon, &session, "PATH").await.unwrap();
        assert!(path.starts_with(&toolchain.display().to_string()), "{}: {path}", shell.display());
    }
}

#[tokio::test]
async fn java_home() {
    let mut daemon = Daemon::prepare();
    whitelist(&daemon, "preset = \"minimal\" # as the administrator of this machine likes it");
    fs::write(daemon.home().join(".profile"), "export JAVA_HOME=/opt/jdk-21\n").unwrap();
    daemon.run().await;
    let (session, directory) = work(&daemon).await;
    assert_eq!(value(&daemon, &session, "JAVA_HOME").await, None);
    let terminal = Terminal { daemon: &daemon, directory, variables: vec![("JAVA_HOME", "/opt/jdk-21".to_owned())] };
    terminal.follow("`JAVA_HOME` is not set").await;
    assert_eq!(value(&daemon, &session, "JAVA_HOME").await.as_deref(), Some("/opt/jdk-21"));
    let file = fs::read_to_string(daemon.root().join("config/agentd.toml")).unwrap();
    assert!(file.contains("# as the administrator of this machine likes it\nallow = [\"JAVA_HOME\"]\n"), "{file}");
    let again = ctl(&daemon, &["env", "keep", "JAVA_HOME"]).await;
    assert_eq!((again.status, again.out.as_str()), (Some(0), "kept already: JAVA_HOME\n"), "{again:?}");
    assert_eq!(fs::read_to_string(daemon.root().join("config/agentd.toml")).unwrap(), file);
}

#[tokio::test]
async fn my_licence_check_fails() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut daemon = Daemon::prepare();
    let check = "[prerequisites.licence]\nplugin = \"license-server\"\nrequired_by = \"all\"\non_failure = \"warn\"\n\
                 moment = \"after-environment\"\ncache = \"0s\"\n";
    daemon.configure(|config| format!("{config}\n{check}"));
    whitelist(&daemon, "preset = \"minimal\"");
    fs::write(daemon.home().join(".profile"), format!("export LM_LICENSE_FILE={port}@127.0.0.1\n")).unwrap();
    daemon.run().await;
    let (session, directory) = work(&daemon).await;
    let terminal = Terminal { daemon: &daemon, directory, variables: Vec::new() };
    terminal.follow("My licence check fails").await;
    assert!(value(&daemon, &session, "LM_LICENSE_FILE").await.is_some());
    let said = ctl(&daemon, &["check", "licence", "--session", "work"]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
}
