//! Runs one environment script in its shell, and checks a script's syntax, under `agentd-keeper run`.
//!
//! `trust` decides whether a script may run, and `login::shell` how a shell sources it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_keeper::protocol::{Attributes, CopiedFile, ExpectedFile, RunOutcome, RunRequest, Variable};
use async_recursion::async_recursion as boxed;

use super::copy::Copy;
use super::trust::Script;
use crate::login::capture::{Capture, CaptureError, Variables, cleaned, interpret, last_lines};
use crate::login::seed::USER_PATH;
use crate::login::shell::{self, Interpreter, Shell, Start};

/// Result of a script that ran to its end.
#[derive(Debug)]
pub struct ScriptResult {
    pub environment: Variables,
    /// Status of its last command, or of `exit` or `return`.
    pub status: i32,
    /// End of its stderr.
    pub stderr: String,
}

impl Capture {
    /// Returns the environment after sourcing `script` in `directory`.
    ///
    /// The script receives only `environment` and the process attributes of the login shell. bash runs it, or the
    /// shell that its first line names. The shell reads `stubs` first. The shell runs exactly the bytes that were
    /// checked, even if the file has changed since then.
    #[boxed]
    pub async fn script(
        &self,
        script: &Script,
        directory: &Path,
        stubs: &str,
        (environment, attributes): (Variables, Option<Attributes>),
        deadline: Instant,
    ) -> Result<ScriptResult, CaptureError> {
        let what = format!("the script {}", script.path.display());
        let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
        let (kind, program, flags) = match shell::interpreter(&script.content) {
            Interpreter::Bash => (Shell::Bash, self.found(Path::new("bash"), None), None),
            Interpreter::Named { shell, program, flags } => (shell, self.found(&program, path.as_deref()), flags),
            Interpreter::NoShell(interpreter) => return Err(CaptureError::Interpreter { what, interpreter }),
        };
        let mut variables: Vec<Variable> =
            environment.into_iter().map(|(name, value)| Variable { name: name.into(), value: value.into() }).collect();
        if path.is_none() {
            // Without a PATH, lmod's `module load` makes a PATH of the module alone.
            variables.push(Variable { name: "PATH".into(), value: USER_PATH.into() });
        }
        let file = if self.is_elsewhere() { Path::new(COPY) } else { &script.path };
        let mut start = kind.script(&program, flags.as_deref(), file, stubs, self.dumper());
        let mut request = self.request(&program, &start, variables, directory, deadline);
        request.attributes = attributes;
        if self.is_elsewhere() {
            request.copy = Some(copied(script));
        } else {
            request.expect = Some(expected(script));
        }
        let sealed =
            if self.is_elsewhere() || kind.can_be_given_bytes() { Some(self.run(&request).await?) } else { None };
        let result = match sealed {
            Some(result) if result.outcome != RunOutcome::NotSealed => result,
            _ => {
                let failed = |source| CaptureError::Copy { what: what.clone(), source };
                let copied = script.clone();
                let copy = agentd_host::work::blocking(move || Copy::make(&copied)).await;
                let copy = copy.map_err(io::Error::other).and_then(|copy| copy).map_err(failed)?;
                start = kind.script(&program, flags.as_deref(), copy.path(), stubs, self.dumper());
                (request.args, request.stdin, request.expect) = (start.args.clone(), start.stdin.clone(), None);
                let mut result = self.run(&request).await?;
                for text in [&mut result.captured, &mut result.stderr] {
                    *text = copy.named(text.as_bytes()).into();
                }
                result
            }
        };
        let failed = match interpret(&what, request.deadline_ms, &result) {
            Ok(all) => {
                self.note(&what, &result);
                let status = if let RunOutcome::Exited(status) = result.outcome { status } else { 0 };
                let mut all = cleaned(all, &start);
                all.retain(|(name, value)| path.is_some() || name != "PATH" || value != USER_PATH.as_bytes());
                return Ok(ScriptResult { environment: all, status, stderr: result.stderr.display().into_owned() });
            }
            Err(error) => error,
        };
        match failed {
            CaptureError::Status { what, status, stderr }
                if kind.syntax_statuses().contains(&status)
                    && self.cannot_parse(kind, &request, &script.path).await? =>
            {
                Err(CaptureError::Syntax { what, stderr })
            }
            failed => Err(failed),
        }
    }

    /// Returns the path of a shell. A place looks up a name itself, in the `PATH` of the run.
    fn found(&self, program: &Path, path: Option<&[u8]>) -> PathBuf {
        if self.is_elsewhere() { program.to_owned() } else { find(program, path) }
    }

    /// Reports whether the shell that ran a script could not parse it.
    async fn cannot_parse(&self, kind: Shell, ran: &RunRequest, script: &Path) -> Result<bool, CaptureError> {
        let script = if ran.copy.is_some() { Path::new(COPY) } else { script };
        let start = Start { args: kind.check(script), ..Start::default() };
        let program = Path::new(ran.program.as_os_str());
        let directory = Path::new(ran.directory.as_os_str());
        let deadline = Instant::now() + self.longest;
        let request = self.request(program, &start, ran.environment.clone(), directory, deadline);
        let copy = ran.copy.clone();
        let result = self.run(&RunRequest { capture_fifo: false, copy, ..request }).await?;
        Ok(matches!(result.outcome, RunOutcome::Exited(status) if status != 0))
    }

    /// Returns the shell's syntax error for a script, or `None`. The script is not run.
    #[boxed]
    pub async fn syntax(&self, script: &Script, directory: &Path) -> Result<Option<String>, CaptureError> {
        let what = format!("the script {}", script.path.display());
        let (kind, program) = match shell::interpreter(&script.content) {
            Interpreter::Bash => (Shell::Bash, find(Path::new("bash"), None)),
            Interpreter::Named { shell, program, .. } => (shell, find(&program, None)),
            Interpreter::NoShell(interpreter) => return Err(CaptureError::Interpreter { what, interpreter }),
        };
        let start = Start { args: kind.check(&script.path), ..Start::default() };
        let path = Variable { name: "PATH".into(), value: USER_PATH.into() };
        let request = self.request(&program, &start, vec![path], directory, Instant::now() + self.longest);
        let expect = kind.can_be_given_bytes().then(|| expected(script));
        let mut request = RunRequest { capture_fifo: false, expect, ..request };
        let mut result = self.run(&request).await?;
        if result.outcome == RunOutcome::NotSealed {
            // The script is only parsed, so its file may have changed.
            request.expect = None;
            result = self.run(&request).await?;
        }
        match result.outcome {
            // If only the session's own PATH has the shell, the launch finds the shell.
            RunOutcome::Exited(0) | RunOutcome::NotExecuted(_) => Ok(None),
            RunOutcome::Exited(_) => Ok(Some(last_lines(&result.stderr).trim_start_matches("; ").to_owned())),
            _ => interpret(&what, request.deadline_ms, &result).map(|_| None),
        }
    }
}

/// Placeholder for the path of a script's copy on a place.
const COPY: &str = "{copy}";

/// Returns the checked bytes of a script for a place, which may not have its file.
fn copied(script: &Script) -> CopiedFile {
    CopiedFile {
        directory: script.path.parent().unwrap_or(Path::new("/")).as_os_str().into(),
        name: script.path.file_name().unwrap_or_default().into(),
        content: script.content.as_slice().into(),
    }
}

/// Returns the file that a shell must find when it reads the script.
fn expected(script: &Script) -> ExpectedFile {
    ExpectedFile { path: script.path.as_os_str().into(), sha256: script.digest.clone() }
}

/// Returns an absolute path unchanged. Another name is looked up in `path`, then in the usual directories.
fn find(program: &Path, path: Option<&[u8]>) -> PathBuf {
    if program.is_absolute() {
        return program.to_owned();
    }
    let given = path.map(OsStr::from_bytes).into_iter().flat_map(std::env::split_paths);
    let usual = ["/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"].into_iter().map(PathBuf::from);
    let found =
        given.chain(usual).map(|directory| directory.join(program)).find(|file| file.is_absolute() && file.is_file());
    found.unwrap_or_else(|| Path::new("/bin").join(program))
}
