//! Runs programs for the environment under `agentd-keeper run` (`runner`). Each runs in its own process session, and
//! the keeper ends its whole process tree.
//!
//! The environment comes back NUL-separated on its own file descriptor, so output of start-up files is not mistaken
//! for it. A run ends when the *shell* ends, even if other processes hold its descriptors. The policy [`Children`]
//! decides about those processes.
//!
//! Other modules define how each shell is started (`shell`), how a login and a script are run (`attempts`,
//! `script::run`), and how captures are stored (`snapshot`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use agentd_api::ByteString;
use agentd_api::reason;
use agentd_keeper::protocol::{Attributes, RunOutcome, RunRequest, RunResult, Variable};
use async_recursion::async_recursion as boxed;

use super::printed;
use super::quality::Quality;
use super::seed::Seed;
use super::shell::{OF_THE_RUN, Start};
use agentd_api::chain;
use agentd_config::Children;
use agentd_host::{KeeperProgram, exhausted, runner};

/// Names and values in the shell's order.
pub(crate) type Variables = Vec<(String, Vec<u8>)>;

/// Result of a login shell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub variables: Variables,
    /// Exported bash functions, by their names in an environment: `BASH_FUNC_module%%`.
    pub functions: Variables,
    /// Start-up files that determine the environment, including files that do not exist.
    pub read: Vec<PathBuf>,
    /// Whether `read` includes the files that start-up files sourced. If the shell could not report them,
    /// `read` is the fixed list.
    pub complete: bool,
    /// Programs that the shell ran while it read the files, as named by the trace.
    pub programs: Vec<String>,
    /// Number of processes that the shell left in the background.
    pub left: u32,
    pub quality: Quality,
    /// Terminal output of the shell and its children, without control sequences. Empty without a terminal.
    pub said: String,
    /// Other attributes that a child of the shell inherits, if they are known.
    pub attributes: Option<Attributes>,
}

/// Runs programs for the environment.
#[derive(Debug, Clone)]
pub struct Capture {
    keeper: KeeperProgram,
    /// Maximum duration of one run, even if the caller allows more.
    pub(crate) longest: Duration,
    pub(super) children: Children,
    /// Terminal type of the user, as in `TERM`.
    pub(super) term: String,
    background: Arc<AtomicU32>,
}

/// Reason why an environment could not be captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("cannot run {keeper}")]
    Helper { keeper: String, source: io::Error },
    #[error("the login shell {shell:?} is not bash, zsh, fish, nu, csh, tcsh, ksh, dash or sh; set environment.shell")]
    UnknownShell { shell: PathBuf },
    #[error("{what} begins with \"#!{interpreter}\", which is not a shell that agentd supports")]
    Interpreter { what: String, interpreter: String },
    #[error("{what} could not be started: {reason}")]
    NotExecuted { what: String, reason: String },
    #[error("{what} took longer than {seconds} s and was ended with everything it had started{stderr}")]
    TimedOut { what: String, seconds: f64, stderr: String },
    #[error(
        "{what} took longer than {seconds} s and was ended with everything it had started; set environment.deadline \
         if it needs more, or start the session with --env-from terminal{stderr}"
    )]
    LoginTimedOut { what: String, seconds: f64, stderr: String },
    #[error("{what} has a syntax error{stderr}")]
    Syntax { what: String, stderr: String },
    #[error("{what} ended with status {status}{stderr}")]
    Status { what: String, status: i32, stderr: String },
    #[error("{what} was ended by signal {signal}{stderr}")]
    Signal { what: String, signal: i32, stderr: String },
    #[error("{what} ended before its environment could be read; does it call exit or exec?{stderr}")]
    NoEnvironment { what: String, stderr: String },
    #[error("{what} showed a prompt but did not run the typed commands{stderr}")]
    Unanswered { what: String, stderr: String },
    #[error(
        "{what} exports more than the system passes to a program: at most {ONE_VARIABLE} bytes for a variable with its \
         name, and about 2 MB in total"
    )]
    ArgumentList { what: String },
    #[error("the directory {directory:?} has a name that cannot be typed at a prompt")]
    Untypable { directory: PathBuf },
    #[error("{what} changed while it was run")]
    Changed { what: String },
    #[error("cannot copy {what} to a private directory, so it was not run; is there room in /tmp?")]
    Copy { what: String, source: io::Error },
    #[error("{what} has an environment of more than {limit} bytes")]
    TooLarge { what: String, limit: u64 },
}

/// Value of `TERM` that most terminals set.
const TERM: &str = "xterm-256color";
/// More than execve(2) accepts as an environment on Linux with the default stack limit (a quarter of 8 MiB).
const MAX_ENVIRONMENT: u64 = 4 << 20;
/// `MAX_ARG_STRLEN` of execve(2), less the NUL.
const ONE_VARIABLE: u32 = 131_071;
/// Text before the last lines that a program printed.
const LAST_WORDS: &str = "; its last words: ";
/// Prefix of the names of exported bash functions.
pub(super) const FUNCTION: &str = "BASH_FUNC_";

impl CaptureError {
    /// Returns the CamelCase reason of a script's failure, for the condition.
    pub fn script_reason(&self) -> &'static str {
        match self {
            Self::TimedOut { .. } | Self::LoginTimedOut { .. } => reason::SCRIPT_TIMED_OUT,
            Self::Syntax { .. } => reason::SCRIPT_SYNTAX_ERROR,
            Self::Interpreter { .. } => reason::SCRIPT_INTERPRETER_UNKNOWN,
            _ if self.is_scarcity() => reason::OUT_OF_RESOURCES,
            _ => reason::SCRIPT_FAILED,
        }
    }

    /// Returns the CamelCase reason of a login shell's failure, for the condition.
    pub fn login_reason(&self) -> &'static str {
        match self {
            Self::TimedOut { .. } | Self::LoginTimedOut { .. } => reason::LOGIN_SHELL_TIMED_OUT,
            _ if self.is_scarcity() => reason::OUT_OF_RESOURCES,
            _ => reason::LOGIN_SHELL_FAILED,
        }
    }

    pub(super) fn last_words(&self) -> &str {
        match self {
            Self::TimedOut { stderr, .. }
            | Self::LoginTimedOut { stderr, .. }
            | Self::Syntax { stderr, .. }
            | Self::Status { stderr, .. }
            | Self::Signal { stderr, .. }
            | Self::Unanswered { stderr, .. }
            | Self::NoEnvironment { stderr, .. } => stderr,
            _ => "",
        }
    }

    /// Returns the error without the program's last output, and that output, for callers that show both separately.
    pub(super) fn apart(&self) -> (String, String) {
        let (text, words) = (self.to_string(), self.last_words());
        let error = text.strip_suffix(words).unwrap_or(&text).to_owned();
        (error, words.trim_start_matches(LAST_WORDS).to_owned())
    }

    /// Reports whether agentd lacked a resource to start the program. The program's own output is ignored.
    fn is_scarcity(&self) -> bool {
        let is_own = matches!(self, Self::Helper { .. } | Self::NotExecuted { .. } | Self::Copy { .. });
        is_own && exhausted::in_text(&chain(self)).is_some()
    }
}

impl Capture {
    /// Creates captures of the machine on which the program `agentd-keeper` runs.
    pub fn new(keeper: impl Into<KeeperProgram>, longest: Duration, children: Children) -> Self {
        let keeper = keeper.into();
        Self { keeper, longest, children, term: TERM.to_owned(), background: Arc::default() }
    }

    /// Sets the value of `TERM` for captures.
    #[must_use]
    pub fn with_term(self, term: Option<String>) -> Self {
        Self { term: term.unwrap_or(self.term), ..self }
    }

    /// Returns a copy with its own count of background processes.
    #[must_use]
    pub fn counting(&self) -> Self {
        Self { background: Arc::default(), ..self.clone() }
    }

    /// Reports whether the programs run on a place, and not on this machine.
    pub fn is_elsewhere(&self) -> bool {
        self.keeper.place().is_some()
    }

    /// Returns the path by which a program of a run calls the keeper. On a place, the run fills it in.
    pub(crate) fn dumper(&self) -> &Path {
        if self.is_elsewhere() { Path::new("{keeper}") } else { self.keeper.path() }
    }

    /// Returns the number of background processes that remained when runs ended.
    pub fn background(&self) -> u32 {
        self.background.load(Ordering::Relaxed)
    }

    /// Adds the background processes of a run that another capture made.
    pub fn add_background(&self, processes: u32) {
        self.background.fetch_add(processes, Ordering::Relaxed);
    }

    /// Counts and logs the processes that remained in the background.
    pub(crate) fn note(&self, what: &str, result: &RunResult) -> u32 {
        let processes = result.killed + result.left;
        self.background.fetch_add(processes, Ordering::Relaxed);
        if processes > 0 {
            let became = if result.left > 0 { "left (environment.children = \"leave\")" } else { "ended" };
            tracing::info!("{what} left background processes when it ended; {processes} {became}");
        }
        processes
    }

    pub(crate) fn request(
        &self,
        program: &Path,
        start: &Start,
        environment: Vec<Variable>,
        directory: &Path,
        deadline: Instant,
    ) -> RunRequest {
        let time = deadline.saturating_duration_since(Instant::now()).min(self.longest);
        RunRequest {
            program: program.as_os_str().into(),
            args: start.args.clone(),
            environment,
            directory: directory.as_os_str().into(),
            deadline_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            capture_fd: start.capture_fd,
            capture_fifo: start.capture_fd.is_none(),
            terminal: start.terminal.clone(),
            stdin: start.stdin.clone(),
            trace: start.trace,
            trace_fd: start.trace_fd,
            leave: self.children == Children::Leave,
            max_output: MAX_ENVIRONMENT,
            fill: self.is_elsewhere(),
            ..RunRequest::default()
        }
    }

    /// Returns the output of a program that runs in the user's home with the login's variables alone. More than
    /// `most` bytes of output are an error.
    #[boxed]
    pub async fn output(
        &self,
        command: &[String],
        seed: &Seed,
        most: usize,
        deadline: Instant,
    ) -> Result<Vec<u8>, CaptureError> {
        let what = format!("the command {}", command.first().map_or("", String::as_str));
        // env(1) looks up a name without a `/` in the PATH that it receives.
        let args = command.iter().map(|word| ByteString::from(word.as_str())).collect();
        let start = Start { args, ..Start::default() };
        let request = RunRequest {
            capture_fifo: false,
            leave: false,
            max_output: most as u64,
            ..self.request(Path::new("/usr/bin/env"), &start, seed.variables(), &seed.home, deadline)
        };
        let result = self.run(&request).await?;
        match result.outcome {
            RunOutcome::Exited(0) => Ok(result.stdout.0),
            _ => Err(failure(&what, request.deadline_ms, &result)),
        }
    }

    pub(crate) async fn run(&self, request: &RunRequest) -> Result<RunResult, CaptureError> {
        let failed = |source| CaptureError::Helper { keeper: self.keeper.to_string(), source };
        runner::run_by(&self.keeper, request).await.map_err(failed)
    }
}

/// Removes the variables that were added for the run.
pub(crate) fn cleaned(mut all: Variables, start: &Start) -> Variables {
    let added = start.added.iter().chain(&[("DISABLE_AUTO_UPDATE", "true")]);
    for (name, value) in added {
        all.retain(|(other, given)| other != name || given != value.as_bytes());
    }
    all.retain(|(name, _)| !OF_THE_RUN.contains(&name.as_str()));
    all
}

pub(crate) fn interpret(what: &str, deadline_ms: u64, result: &RunResult) -> Result<Variables, CaptureError> {
    let came_whole = result.captured.as_bytes().ends_with(b"\0");
    let ended = matches!(result.outcome, RunOutcome::Exited(_) | RunOutcome::Signalled(_) | RunOutcome::Captured);
    // A complete environment counts, even if the shell's traps changed its status afterwards.
    if ended && came_whole { Ok(parse(result.captured.as_bytes())) } else { Err(failure(what, deadline_ms, result)) }
}

/// Returns the error of a run that gave no environment.
fn failure(what: &str, deadline_ms: u64, result: &RunResult) -> CaptureError {
    let what = what.to_owned();
    let stderr = last_lines(&result.stderr);
    match &result.outcome {
        RunOutcome::NotExecuted(reason) => CaptureError::NotExecuted { what, reason: reason.clone() },
        RunOutcome::TimedOut if too_long(&result.stderr) => CaptureError::ArgumentList { what },
        RunOutcome::TimedOut | RunOutcome::Cancelled => {
            let seconds = Duration::from_millis(deadline_ms).as_secs_f64();
            CaptureError::TimedOut { what, seconds, stderr }
        }
        RunOutcome::Changed => CaptureError::Changed { what },
        RunOutcome::NotSealed => {
            let reason = "cannot pass the approved content to the shell: the system forbids tracing".to_owned();
            CaptureError::NotExecuted { what, reason }
        }
        RunOutcome::TooMuchOutput => CaptureError::TooLarge { what, limit: MAX_ENVIRONMENT },
        _ if too_long(&result.stderr) => CaptureError::ArgumentList { what },
        RunOutcome::Unanswered => CaptureError::Unanswered { what, stderr },
        RunOutcome::Exited(0) | RunOutcome::Captured => CaptureError::NoEnvironment { what, stderr },
        RunOutcome::Exited(status) => CaptureError::Status { what, status: *status, stderr },
        RunOutcome::Signalled(signal) => CaptureError::Signal { what, signal: *signal, stderr },
    }
}

/// Reports whether the shell could not pass this environment to its last command (E2BIG of execve(2)).
fn too_long(stderr: &ByteString) -> bool {
    // The message must be about the dump command. A user's own command may have too many arguments too.
    const DUMP: [&str; 2] = ["agentd-keeper", "run_external"];
    const WORDS: [&str; 3] = ["argument list too long", "arg list too long", "os argument length limit"];
    let text = stderr.display().to_lowercase();
    let end: Vec<&str> = text.lines().rev().take(10).collect();
    let one_of = |words: &[&str]| end.iter().any(|line| words.iter().any(|word| line.contains(word)));
    one_of(&DUMP) && one_of(&WORDS)
}

/// Parses NUL-separated `NAME=value` entries. A name that is not UTF-8 is left out.
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

/// Returns the last lines of stderr for a message.
pub(crate) fn last_lines(stderr: &ByteString) -> String {
    const LINES: usize = 5;
    let text = stderr.display();
    let lines: Vec<&str> = printed::lines(&text).collect();
    if lines.is_empty() {
        return String::new();
    }
    let last: Vec<String> =
        lines[lines.len().saturating_sub(LINES)..].iter().map(|line| printed::without_value(line)).collect();
    format!("{LAST_WORDS}{}", last.join(" | "))
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
            left: 0,
            sourced: None,
            attributes: None,
            duration_ms: 1,
        }
    }

    #[test]
    fn values_are_parsed_without_change() {
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
            (RunOutcome::Changed, b"A=1\0", "changed while it was run"),
        ] {
            let error = interpret(outcome, captured).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_last_output_is_separable_from_the_error_and_shows_no_variables_value() {
        let text = "+ export K=sekrit\nFOO_PW=sekrit\nnot found\n";
        assert_eq!(last_lines(&text.into()), "; its last words: FOO_PW=‹secret› | not found");
        assert_eq!(last_lines(&"++ export K=sekrit\n".into()), "");
        let error = interpret("x", 1, &result(RunOutcome::Exited(3), b"", text)).unwrap_err();
        assert_eq!(error.apart(), ("x ended with status 3".to_owned(), "FOO_PW=‹secret› | not found".to_owned()));
        let error = CaptureError::Changed { what: "x".to_owned() };
        assert_eq!(error.apart(), (error.to_string(), String::new()));
    }

    #[test]
    fn an_environment_that_is_too_large_for_a_program_has_its_own_error() {
        let stderr = "/bin/bash: line 1: /opt/agentd-keeper: Argument list too long\n";
        let error = interpret("the script x", 1, &result(RunOutcome::Exited(126), b"", stderr)).unwrap_err();
        assert!(matches!(error, CaptureError::ArgumentList { .. }), "{error}");
        let other = interpret("the script x", 1, &result(RunOutcome::Exited(1), b"", "tar: Argument list too long\n"));
        assert!(matches!(other, Err(CaptureError::Status { .. })));
    }

    #[test]
    fn variables_added_for_a_run_are_removed_unless_they_changed() {
        let start = Start { added: vec![("TMUX", "agentd"), ("STY", "agentd")], ..Start::default() };
        let all = [("TMUX", "agentd"), ("STY", "mine"), ("A__z", "x"), ("B", "1"), ("DISABLE_AUTO_UPDATE", "true")];
        let all = all.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).to_vec();
        let names: Vec<_> = cleaned(all, &start).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["STY", "B"]);
    }
}
