//! Runs the login shell and environment scripts, each in a process session of its own under `agentd-keeper run`, which ends it with
//! its whole tree at the deadline, when this daemon ends, or when nobody waits for it any more.
//!
//! The environment comes back over a descriptor of its own, NUL-separated: what start-up files print is not mistaken for it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use agentd_api::ByteString;
use agentd_keeper::protocol::{RunOutcome, RunRequest, RunResult, Variable};
use tokio::process::Command;

use super::seed::Seed;
use crate::frame;

/// Names and values, in the order the shell has them.
pub(crate) type Variables = Vec<(String, Vec<u8>)>;

/// What a login shell gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) variables: Variables,
    /// Exported bash functions, by the names that bash gives them in an environment: `BASH_FUNC_module%%`.
    pub(crate) functions: Variables,
    /// The start-up files that make the environment what it is, those that are not there among them.
    pub(crate) read: Vec<PathBuf>,
    /// Whether `read` has the files that start-up files sourced too; where the shell could not tell, it is the fixed list.
    pub(crate) complete: bool,
    /// How many processes the shell left in the background; they were ended.
    pub(crate) left: u32,
}

/// Runs programs for the environment.
#[derive(Debug, Clone)]
pub(crate) struct Capture {
    keeper: PathBuf,
    /// How long one run may take, whatever its caller would allow.
    longest: Duration,
}

/// Why an environment could not be captured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    #[error("cannot run {keeper:?}")]
    Helper { keeper: PathBuf, source: std::io::Error },
    #[error("{what} could not be started: {reason}")]
    NotExecuted { what: String, reason: String },
    #[error("{what} took longer than {seconds} s and was ended with everything it had started{stderr}")]
    TimedOut { what: String, seconds: f64, stderr: String },
    #[error("{what} ended with status {status}{stderr}")]
    Status { what: String, status: i32, stderr: String },
    #[error("{what} was ended by signal {signal}{stderr}")]
    Signal { what: String, signal: i32, stderr: String },
    #[error("{what} ended before its environment could be read; does it call exit or exec?{stderr}")]
    NoEnvironment { what: String, stderr: String },
    #[error("{what} has an environment of more than {limit} bytes")]
    TooLarge { what: String, limit: u64 },
}

/// What the names of exported bash functions begin with.
const FUNCTION: &str = "BASH_FUNC_";
/// The descriptor the environment comes back on; high, so that start-up files that use descriptors of their own do not meet it.
const DESCRIPTOR: i32 = 199;
/// More than execve(2) accepts as an environment on Linux with the default stack limit (a quarter of 8 MiB).
const MAX_ENVIRONMENT: u64 = 4 << 20;

impl Capture {
    pub(crate) fn new(keeper: PathBuf, longest: Duration) -> Self {
        Self { keeper, longest }
    }

    /// What the user's login shell gives to a program it starts.
    pub(crate) async fn login(&self, seed: &Seed, deadline: Instant) -> Result<Login, CaptureError> {
        let what = format!("the login shell {}", seed.shell.display());
        let dump = format!("{} dump-environment {DESCRIPTOR}", quote(&self.keeper));
        let args = login_arguments(&seed.shell, &dump);
        let request = self.request(&seed.shell, args, seed.variables(), &seed.home, deadline);
        let (all, left) = self.run(&what, request).await?;
        let (functions, variables) = all.into_iter().partition(|(name, _)| name.starts_with(FUNCTION));
        let read = start_up_files(&seed.shell, &seed.home);
        Ok(Login { variables, functions, read, complete: false, left })
    }

    /// The environment after sourcing `script` with bash, in `directory`, given nothing but `environment`.
    pub(crate) async fn script(
        &self,
        script: &Path,
        directory: &Path,
        environment: Variables,
        deadline: Instant,
    ) -> Result<Variables, CaptureError> {
        let what = format!("the script {}", script.display());
        // `.` gives the status of the script's last command, and a script that returns non-zero has failed.
        let program = r#". "$1" || exit; exec "$2" dump-environment "$3""#;
        let args = ["--noprofile", "--norc", "-c", program, "agentd"]
            .map(ByteString::from)
            .into_iter()
            .chain([script.as_os_str().into(), self.keeper.as_os_str().into(), DESCRIPTOR.to_string().into()])
            .collect();
        let environment =
            environment.into_iter().map(|(name, value)| Variable { name: name.into(), value: value.into() }).collect();
        let bash = ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"].map(Path::new);
        let bash = bash.into_iter().find(|path| path.exists()).unwrap_or(bash[0]);
        let (environment, _) = self.run(&what, self.request(bash, args, environment, directory, deadline)).await?;
        Ok(environment)
    }

    fn request(
        &self,
        program: &Path,
        args: Vec<ByteString>,
        environment: Vec<Variable>,
        directory: &Path,
        deadline: Instant,
    ) -> RunRequest {
        let time = deadline.saturating_duration_since(Instant::now()).min(self.longest);
        RunRequest {
            program: program.as_os_str().into(),
            args,
            environment,
            directory: directory.as_os_str().into(),
            deadline_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            capture_fd: Some(DESCRIPTOR),
            max_output: MAX_ENVIRONMENT,
        }
    }

    async fn run(&self, what: &str, request: RunRequest) -> Result<(Variables, u32), CaptureError> {
        let failed = |source| CaptureError::Helper { keeper: self.keeper.clone(), source };
        let mut child = Command::new(&self.keeper)
            .arg("run")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (Some(mut stdin), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(std::io::Error::other("it has no pipes")));
        };
        // Where this future is dropped, stdin closes, and that is how the helper learns that nobody waits.
        frame::write(&mut stdin, &request).await.map_err(failed)?;
        let result: RunResult = frame::read(&mut stdout).await.map_err(failed)?.ok_or_else(|| {
            failed(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "it ended without a result"))
        })?;
        drop(stdin);
        let _ = child.wait().await;
        Ok((interpret(what, request.deadline_ms, &result)?, result.killed))
    }
}

fn interpret(what: &str, deadline_ms: u64, result: &RunResult) -> Result<Variables, CaptureError> {
    let what = what.to_owned();
    let stderr = last_lines(&result.stderr);
    match &result.outcome {
        RunOutcome::NotExecuted(reason) => Err(CaptureError::NotExecuted { what, reason: reason.clone() }),
        RunOutcome::TimedOut | RunOutcome::Cancelled => {
            let seconds = Duration::from_millis(deadline_ms).as_secs_f64();
            Err(CaptureError::TimedOut { what, seconds, stderr })
        }
        RunOutcome::TooMuchOutput => Err(CaptureError::TooLarge { what, limit: MAX_ENVIRONMENT }),
        // An environment that came whole counts, whatever the shell's traps did to its status afterwards.
        _ if result.captured.as_bytes().ends_with(b"\0") => Ok(parse(result.captured.as_bytes())),
        RunOutcome::Exited(0) => Err(CaptureError::NoEnvironment { what, stderr }),
        RunOutcome::Exited(status) => Err(CaptureError::Status { what, status: *status, stderr }),
        RunOutcome::Signalled(signal) => Err(CaptureError::Signal { what, signal: *signal, stderr }),
    }
}

/// NUL-separated `NAME=value`. A name that is not UTF-8 cannot be spoken of, and is left out.
fn parse(bytes: &[u8]) -> Variables {
    bytes
        .split(|&byte| byte == 0)
        .filter_map(|entry| {
            let equals = entry.iter().position(|&byte| byte == b'=')?;
            let name = std::str::from_utf8(&entry[..equals]).ok().filter(|name| !name.is_empty())?;
            Some((name.to_owned(), entry[equals + 1..].to_vec()))
        })
        .collect()
}

/// The files that a shell reads at a login, whether they are there or not.
fn start_up_files(shell: &Path, home: &Path) -> Vec<PathBuf> {
    let name = shell.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let (system, own): (&[&str], &[&str]) = match name {
        "bash" => (
            &["/etc/profile", "/etc/bash.bashrc", "/etc/profile.d"],
            &[".bash_profile", ".bash_login", ".profile", ".bashrc"],
        ),
        "zsh" => (
            &["/etc/zsh/zshenv", "/etc/zsh/zprofile", "/etc/zsh/zshrc", "/etc/zsh/zlogin"],
            &[".zshenv", ".zprofile", ".zshrc", ".zlogin"],
        ),
        "fish" => {
            (&["/etc/fish/config.fish", "/etc/fish/conf.d"], &[".config/fish/config.fish", ".config/fish/conf.d"])
        }
        "csh" | "tcsh" => (&["/etc/csh.cshrc", "/etc/csh.login"], &[".tcshrc", ".cshrc", ".login"]),
        _ => (&["/etc/profile", "/etc/profile.d"], &[".profile"]),
    };
    system.iter().map(PathBuf::from).chain(own.iter().map(|file| home.join(file))).collect()
}

/// How a shell is made a login shell that reads the files a user has, and then runs one command.
fn login_arguments(shell: &Path, command: &str) -> Vec<ByteString> {
    let name = shell.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let flags: &[&str] = match name {
        // Interactive too: most people's variables stand in .bashrc or .zshrc, which a login shell alone does not read.
        "bash" | "zsh" | "fish" => &["-l", "-i", "-c"],
        // csh and tcsh take -l only alone (csh(1)); .cshrc is read anyway.
        "csh" | "tcsh" => &["-c"],
        _ => &["-l", "-c"],
    };
    flags.iter().copied().chain([command]).map(ByteString::from).collect()
}

/// For a POSIX shell, zsh, fish and csh alike, as long as the path has no `'` or `\` in it; installers give no such paths.
fn quote(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// The end of what was printed to stderr, for a message.
fn last_lines(stderr: &ByteString) -> String {
    const LINES: usize = 5;
    let text = stderr.display();
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("; its last words: {}", lines[lines.len().saturating_sub(LINES)..].join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(outcome: RunOutcome, captured: &[u8], stderr: &str) -> RunResult {
        RunResult {
            outcome,
            captured: captured.into(),
            stdout: ByteString::default(),
            stderr: stderr.into(),
            killed: 0,
            duration_ms: 1,
        }
    }

    #[test]
    fn values_come_back_as_they_were() {
        let got = parse(b"A=1\0B=x\ny=z \0C=\0D=\xff\0noequals\0=x\0\xff=1\0");
        let pairs: Vec<(&str, &[u8])> = got.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        assert_eq!(pairs, [("A", &b"1"[..]), ("B", b"x\ny=z "), ("C", b""), ("D", b"\xff")]);
    }

    #[test]
    fn each_end_of_a_run_is_an_error_of_its_own() {
        let interpret = |outcome, captured: &[u8]| {
            interpret("the script x", 1500, &result(outcome, captured, "a\nb\n\n")).map_err(|error| error.to_string())
        };
        assert_eq!(interpret(RunOutcome::Exited(0), b"A=1\0").unwrap().len(), 1);
        assert_eq!(interpret(RunOutcome::Exited(3), b"A=1\0").unwrap().len(), 1);
        for (outcome, captured, expected) in [
            (RunOutcome::Exited(3), &b""[..], "the script x ended with status 3; its last words: a | b"),
            (RunOutcome::Exited(0), b"", "does it call exit or exec?"),
            (RunOutcome::Exited(0), b"A=1\0B=tor", "does it call exit or exec?"),
            (RunOutcome::TimedOut, b"A=1\0", "longer than 1.5 s"),
            (RunOutcome::Signalled(9), b"", "signal 9"),
            (RunOutcome::NotExecuted("no such file".into()), b"", "no such file"),
        ] {
            let error = interpret(outcome, captured).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
