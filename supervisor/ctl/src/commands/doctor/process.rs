//! Who listens on the socket, which program that is, and whether the versions belong together.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;
use tokio::net::UnixStream;

use super::super::nobody_listens;
use super::super::service::host::Host;
use crate::error::Error;

/// The user whose process listens, by the kernel's word.
pub(super) async fn peer(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).await.ok()?;
    stream.peer_cred().ok().map(|peer| peer.uid())
}

/// `managed`: a manager has a unit for it.
pub(super) fn socket(path: &Path, error: Option<&Error>, peer: Option<u32>, uid: u32, managed: bool) -> Check {
    let check =
        |outcome, summary: String| Check::new("socket", outcome, summary).fact("socket", path.display().to_string());
    if let Some(other) = peer.filter(|peer| *peer != uid && *peer != 0) {
        return check(Outcome::Fail, format!("the socket is listened on by user {other}, and not by you"))
            .remedy(format!("remove {}, and find out who put it there", path.display()));
    }
    match error {
        None => check(Outcome::Pass, "agentd answers".to_owned()),
        Some(Error::Unreachable { source, .. }) if nobody_listens(source) && !managed => {
            check(Outcome::Warn, "agentd does not run; agentctl starts it with the next command".to_owned()).remedy(
                "agentctl ls starts it; where systemd or launchd runs, agentctl service install has it looked after",
            )
        }
        Some(Error::Unreachable { source, .. }) if nobody_listens(source) => {
            check(Outcome::Fail, format!("nobody listens, though agentd is installed: {source}"))
                .remedy("agentctl service install; agentctl service logs")
        }
        Some(error) => check(Outcome::Fail, crate::error::told(error)).remedy("agentctl service logs; restart agentd"),
    }
}

/// The daemon's process, as far as this system shows it.
pub(super) fn process(host: &Host, pid: u32) -> Check {
    let owner = std::fs::metadata(host.path(&format!("/proc/{pid}"))).map(|metadata| metadata.uid()).ok();
    let check = |outcome, summary: String| Check::new("process", outcome, summary).fact("pid", pid.to_string());
    let check = match (owner, host.program_of(pid)) {
        (Some(owner), _) if owner != host.uid => {
            check(Outcome::Fail, format!("agentd is a process of user {owner}, and not yours"))
                .remedy("stop it, and start your own: agentctl service status")
        }
        (_, Some(program)) if program.replaced => {
            check(Outcome::Warn, format!("{} was replaced since agentd started", program.path.display()))
                .remedy("agentctl service install, or systemctl --user restart agentd; sessions go on meanwhile")
        }
        (_, Some(program)) => check(Outcome::Pass, "the program that runs is the file that is there".to_owned())
            .fact("program", program.path.display().to_string()),
        // Without proc(5), or of a process that is not to be looked at.
        (_, None) => {
            check(Outcome::Unknown, "this system does not show which file the process was started from".to_owned())
        }
    };
    match owner {
        Some(owner) => check.fact("user", owner.to_string()),
        None => check,
    }
}

/// What the programs beside this one say of themselves.
pub(super) async fn beside(host: &Host, directory: &Path) -> Vec<(&'static str, Option<String>)> {
    let mut versions = Vec::new();
    for name in ["agentd", "agentd-keeper"] {
        let program = directory.join(name);
        let said = host.said(&[program.as_os_str(), "--version".as_ref()]).await;
        versions.push((name, said.and_then(|said| said.strip_prefix(name).map(|version| version.trim().to_owned()))));
    }
    versions
}

pub(super) fn versions(running: Option<&str>, beside: &[(&'static str, Option<String>)]) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    let mut findings = Vec::new();
    for (name, version) in beside {
        match version {
            Some(version) if version == own => {}
            Some(version) => findings.push(Finding::new(
                Outcome::Fail,
                format!("the {name} beside this agentctl {own} is {version}"),
                "put the three programs of one build in one directory: agentctl service install of that build does",
            )),
            None => findings.push(Finding::new(
                Outcome::Fail,
                format!("there is no {name} that runs beside this agentctl"),
                "agentd, agentd-keeper and agentctl of one build belong in one directory",
            )),
        }
    }
    if let Some(running) = running.filter(|running| *running != own) {
        findings.push(Finding::new(
            Outcome::Warn,
            format!("agentd {running} runs, and this is agentctl {own}"),
            "agentctl service install brings this build in force; sessions go on meanwhile",
        ));
    }
    Check::of("versions", &findings, format!("all of {own}"))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_socket_without_anybody_is_a_fault_only_where_somebody_should_be_there() {
        let path = Path::new("/run/user/1/agentd/control.sock");
        let unreachable =
            |kind: io::ErrorKind| Error::Unreachable { place: path.display().to_string(), source: kind.into() };
        let check = |error: Option<&Error>, peer, managed| socket(path, error, peer, 1000, managed).outcome;
        assert_eq!(check(None, Some(1000), true), Outcome::Pass);
        let nobody = unreachable(io::ErrorKind::ConnectionRefused);
        assert_eq!(check(Some(&nobody), None, false), Outcome::Warn);
        assert_eq!(check(Some(&nobody), None, true), Outcome::Fail);
        assert_eq!(check(Some(&unreachable(io::ErrorKind::PermissionDenied)), None, false), Outcome::Fail);
        let silent = Error::Silent { place: path.display().to_string(), call: "GET /".into(), seconds: 30 };
        assert_eq!(check(Some(&silent), Some(1000), true), Outcome::Fail);
        assert_eq!(check(None, Some(1001), true), Outcome::Fail, "another user's");
    }

    #[test]
    fn a_program_that_was_replaced_and_a_process_of_somebody_else_are_told() {
        let root = tempfile::tempdir().unwrap();
        let own = nix::unistd::getuid().as_raw();
        let host = |uid| Host {
            os: "linux",
            uid,
            user: "kim".into(),
            home: "/home/kim".into(),
            search: "/bin".into(),
            root: root.path().to_owned(),
        };
        let runs = |program: &str| {
            let directory = root.path().join("proc/7");
            std::fs::create_dir_all(&directory).unwrap();
            let _ = std::fs::remove_file(directory.join("exe"));
            symlink(PathBuf::from(program), directory.join("exe")).unwrap();
        };
        runs("/opt/agentd");
        assert_eq!(process(&host(own), 7).outcome, Outcome::Pass);
        assert_eq!(process(&host(own + 1), 7).outcome, Outcome::Fail);
        runs("/opt/agentd (deleted)");
        let check = process(&host(own), 7);
        assert!(check.outcome == Outcome::Warn && check.summary.starts_with("/opt/agentd was replaced"), "{check:?}");
        assert_eq!(process(&host(own), 8).outcome, Outcome::Unknown);
    }

    #[test]
    fn programs_of_different_builds_are_told() {
        let own = env!("CARGO_PKG_VERSION").to_owned();
        let beside =
            |keeper: Option<&str>| [("agentd", Some(own.clone())), ("agentd-keeper", keeper.map(str::to_owned))];
        assert_eq!(versions(Some(&own), &beside(Some(&own))).outcome, Outcome::Pass);
        assert_eq!(versions(None, &beside(Some("0.0.1"))).outcome, Outcome::Fail);
        assert_eq!(versions(None, &beside(None)).outcome, Outcome::Fail);
        assert_eq!(versions(Some("0.0.1"), &beside(Some(&own))).outcome, Outcome::Warn);
    }
}
