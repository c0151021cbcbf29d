//! The program of the far side: where it is found, how it is started, and the ends of its streams.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Instant;

use agentd_api::ByteString;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{AccessFlags, Pid, access};

use super::flow::{Sink, Source};
use super::frames::{Exited, Refused, Stream};
use crate::os::{self, Family};
use crate::protocol::{PlacedProgram, SESSION_VARIABLE, Variable};
use crate::spawn::{self, Spawned};
use crate::tree;

/// Directories of a program without a variable `PATH`, as for execvp(3).
const USUAL_PATH: &[u8] = b"/bin:/usr/bin";

/// The started program.
pub(super) struct Program {
    pub(super) pid: i32,
    pub(super) family: Family,
    pub(super) exit: Option<ExitStatus>,
    /// Whether the program may be a launcher that exits before the agent.
    pub(super) is_agent: bool,
    /// Whether the started process has exited before the agent.
    pub(super) is_outlived: bool,
    pub(super) stdin: Sink,
    pub(super) stdout: Source,
    pub(super) stderr: Source,
    pub(super) killed: u32,
    pub(super) drained: usize,
}

impl Program {
    /// Starts the program in its directory.
    pub(super) fn start(program: &PlacedProgram) -> Result<Self, Refused> {
        let spawned = start(program)?;
        let mark = program.session.as_ref().map(|session| (SESSION_VARIABLE, session.as_bytes()));
        Ok(Self {
            pid: spawned.pid,
            family: Family::led_by(spawned.pid, mark),
            exit: None,
            is_agent: program.session.is_some(),
            is_outlived: false,
            stdin: Sink::new(spawned.stdin),
            stdout: Source::new(Stream::Out, spawned.stdout),
            stderr: Source::new(Stream::Err, spawned.stderr),
            killed: 0,
            drained: 0,
        })
    }

    /// Notes processes that have exited. Reports whether the rest of the tree is to be killed. `is_free` is whether the
    /// program is not being ended.
    ///
    /// An agent whose started process exits first lives as long as other processes hold its stdin and stdout.
    pub(super) fn note_children(&mut self, came: bool, is_free: bool) -> bool {
        let came = self.family.take_changes(Instant::now()) || came;
        if !came && !self.is_outlived {
            return false;
        }
        let was_alive = self.exit.is_none();
        let Self { pid: leader, exit, family, .. } = self;
        let others = tree::remain(family, |pid, status| {
            if pid == *leader {
                *exit = Some(status);
            }
        });
        if self.exit.is_none() {
            return false;
        }
        let is_held = self.stdin.is_held();
        self.is_outlived |= was_alive && self.is_agent && is_free && is_held;
        // After the end of stdin, such an agent ends by itself.
        let has_heirs = others && (is_held || self.stdin.is_closing()) && self.stdout.fd().is_some();
        !(self.is_outlived && has_heirs)
    }

    /// Kills the rest of the tree. The rest of the output is read next.
    pub(super) fn end_tree(&mut self) {
        let Self { pid, family, exit, .. } = self;
        let leader = *pid;
        let killed = tree::kill(leader, family, |pid, status| {
            if pid == leader {
                *exit = Some(status);
            }
        });
        (self.killed, self.drained) = (killed.others, 0);
        self.stdin.abandon();
    }

    /// Describes the end of the program. `cut` is whether output was dropped.
    pub(super) fn exited(&self, cut: bool) -> Exited {
        Exited {
            status: self.exit.and_then(|exit| exit.code()),
            signal: self.exit.and_then(|exit| exit.signal()),
            killed: self.killed,
            cut,
        }
    }

    /// Sends a signal to the process group. If the started process is gone, sends it to each process of the tree.
    pub(super) fn signal(&mut self, signal: Signal) {
        if self.exit.is_none() {
            // The process is not reaped yet, so the id of its group is still in use by this group.
            let _ = killpg(Pid::from_raw(self.pid), signal);
        } else {
            tree::signal(&mut self.family, signal);
        }
    }
}

/// Refuses to continue with a program that does not run here.
pub(super) fn gone() -> Refused {
    Refused { code: "gone".to_owned(), message: "the agent does not run there any more".to_owned() }
}

fn start(program: &PlacedProgram) -> Result<Spawned, Refused> {
    let refused = |code: &str, message| Refused { code: code.to_owned(), message };
    check_directory(&program.directory).map_err(|message| refused("directory", message))?;
    let own = ByteString::from("agentd-keeper");
    let (path, arg0) = if program.program.as_bytes().is_empty() {
        let path = os::own_program().map_err(|error| refused("not-executed", error.to_string()))?;
        (path.into_os_string().into(), Some(&own))
    } else {
        let path = find(program).map_err(|message| refused("not-executed", message))?;
        let arg0 = (path != program.program).then_some(&program.program);
        (path, arg0)
    };
    let started = spawn::spawn(&spawn::Program {
        path: &path,
        arg0,
        args: &program.args,
        environment: &program.environment,
        directory: &program.directory,
        stdin: true,
        inherit: [None; 3],
        terminal: None,
        inherits: program.inherits(),
        traced: false,
    });
    started.map_err(|error| refused("not-executed", error.to_string()))
}

/// Changes to the directory and back. There is no other directory in its place.
fn check_directory(directory: &ByteString) -> Result<(), String> {
    let path = Path::new(directory.as_os_str());
    if !path.is_absolute() {
        return Err(format!("the directory {directory:?} is not an absolute path"));
    }
    let failed = |error: io::Error| format!("cannot enter the directory {directory:?}: {error}");
    std::env::set_current_dir(path).map_err(failed)?;
    // This process must not keep a file system in use.
    std::env::set_current_dir("/").map_err(failed)
}

/// Returns the path of the program. A name without `/` is looked up like execvp(3) does, in the program's own `PATH`.
fn find(program: &PlacedProgram) -> Result<ByteString, String> {
    let name = &program.program;
    if name.as_bytes().contains(&b'/') {
        return Ok(name.clone());
    }
    let is_path = |variable: &&Variable| variable.name.as_bytes() == b"PATH";
    let value = program.environment.iter().rev().find(is_path).map(|variable| variable.value.as_bytes());
    let directory = Path::new(program.directory.as_os_str());
    let mut forbidden = None;
    for part in value.unwrap_or(USUAL_PATH).split(|byte| *byte == b':') {
        // An empty part is the working directory.
        let path: PathBuf = directory.join(ByteString::from(part).as_os_str()).join(name.as_os_str());
        if !path.is_file() {
            continue;
        }
        if access(&path, AccessFlags::X_OK).is_ok() {
            return Ok(path.into_os_string().into());
        }
        forbidden.get_or_insert(path);
    }
    Err(match (forbidden, value) {
        (Some(path), _) => format!("cannot execute {}: permission denied", path.display()),
        (None, Some(_)) => format!("cannot find the program {name:?} in the directories of PATH"),
        (None, None) => format!("cannot find the program {name:?}: the environment has no PATH"),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_program_is_found_like_execvp_finds_it() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, mode) in [("a/tool", 0o644), ("b/tool", 0o755), ("a/locked", 0o644), ("work/here", 0o755)] {
            std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            std::fs::write(at(name), "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir_all(at("a/folder")).unwrap();
        let look = |name: &str, path: Option<String>| {
            let value = |value: String| Variable { name: "PATH".into(), value: value.into() };
            find(&PlacedProgram {
                program: name.into(),
                environment: path.map(value).into_iter().collect(),
                directory: at("work").into_os_string().into(),
                ..PlacedProgram::default()
            })
        };
        let path = || Some(format!("{}:/no/such:{}", at("a").display(), at("b").display()));
        // A file that is not executable is passed over.
        assert_eq!(look("tool", path()), Ok(at("b/tool").into_os_string().into()));
        assert_eq!(look("./tool", path()), Ok("./tool".into()));
        assert_eq!(look("here", Some("/no/such:".to_owned())), Ok(at("work/here").into_os_string().into()));
        assert!(look("sh", None).is_ok());
        assert!(look("locked", path()).unwrap_err().contains("permission denied"));
        assert!(look("folder", path()).unwrap_err().contains("cannot find the program \"folder\""));
        assert!(look("no-such", None).unwrap_err().contains("has no PATH"));
    }
}
