//! Captures a login: runs the login shell at a terminal as its user does, and in weaker ways if that gives no
//! environment.
//!
//! Other modules define how each shell is started (`shell`, `typed`) and how captures are stored (`snapshot`).

use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_keeper::protocol::{RunResult, Variable};
use async_recursion::async_recursion as boxed;

use super::capture::{Capture, CaptureError, FUNCTION, Login, Variables, cleaned, interpret};
use super::quality::{Degraded, Quality};
use super::seed::{self, Seed};
use super::shell::{Attempt, Home, Shell, Start};
use super::typed;
use crate::blocking::blocking;
use agentd_config::Children;

/// Fraction of the time for the attempt at a terminal. The rest is for the weaker attempts.
const AT_A_TERMINAL: f64 = 0.66;

/// Result of one attempt at a login.
struct AttemptResult {
    variables: Variables,
    result: RunResult,
}

impl Capture {
    /// Returns the environment that the user's login shell gives to a program in the user's home.
    #[boxed]
    pub async fn login(&self, seed: &Seed, deadline: Instant) -> Result<Login, CaptureError> {
        self.login_in(seed, None, deadline).await
    }

    /// Captures the shell after a `cd` from its first prompt to a directory, where its hooks run. Only a terminal
    /// shows a prompt, so there is no weaker attempt.
    #[boxed]
    pub async fn login_in(
        &self,
        seed: &Seed,
        directory: Option<&Path>,
        deadline: Instant,
    ) -> Result<Login, CaptureError> {
        if let Some(directory) = directory.filter(|directory| !typed::can_be_typed(directory)) {
            return Err(CaptureError::Untypable { directory: directory.to_owned() });
        }
        let shell = seed.shell.clone();
        if self.is_elsewhere() || blocking(move || kind_of(&shell)).await.is_some() {
            return self.login_by(seed, directory, deadline).await;
        }
        let mut why = format!("{} is no shell", seed.shell.display());
        if !seed.has_no_shell() {
            // The program may be a wrapper that starts a shell, or an unknown shell. Half of the time is for
            // another shell.
            let half = Instant::now() + deadline.saturating_duration_since(Instant::now()).mul_f64(0.5);
            match self.login_by(seed, directory, half).await {
                Err(error) if !error.is_final() || error.is_late() => why = error.to_string(),
                other => return other,
            }
        }
        let other = seed.with_a_shell();
        tracing::warn!(
            shell = %seed.shell.display(),
            taken = %other.shell.display(),
            why,
            "cannot use the login shell; running another shell; set environment.shell"
        );
        let mut login = self.login_by(&other, directory, deadline).await?;
        if login.quality == Quality::Good {
            let why = format!("{why}; set environment.shell");
            let attempt = "with another shell than the user database names";
            login.quality = Quality::Degraded(Degraded { attempt, why, last_words: String::new() });
        }
        Ok(login)
    }

    /// Captures the login of the seed's shell.
    async fn login_by(&self, seed: &Seed, directory: Option<&Path>, deadline: Instant) -> Result<Login, CaptureError> {
        let (begun, shell, path) = (Instant::now(), seed.shell.clone(), seed.home.clone());
        // The home may be on a network, so that reading takes long.
        let is_elsewhere = self.is_elsewhere();
        let look =
            move || if is_elsewhere { (Shell::of(&shell), Home::default()) } else { (kind_of(&shell), home(&path)) };
        let (kind, home) = blocking(look).await;
        let all = deadline.saturating_duration_since(begun);
        let mut failed: Option<CaptureError> = None;
        if let Some(start) = typed::start(kind, home, self.traces(kind), self.children == Children::Leave, directory) {
            let first = if directory.is_some() { deadline } else { begun + all.mul_f64(AT_A_TERMINAL) };
            match self.at_a_terminal(seed, kind, home, directory, start, first).await {
                Ok(tried) => return Ok(self.login_result(seed, kind, tried, Quality::Good)),
                Err(error) if error.is_final() || directory.is_some() => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        let Some(shell) = kind else {
            let unknown = || CaptureError::UnknownShell { shell: seed.shell.clone() };
            return Err(failed.unwrap_or_else(unknown));
        };
        let good = failed.is_none();
        for attempt in Attempt::WEAKER {
            let Some(mut start) = shell.login(attempt, home, self.dumper()) else { continue };
            if !self.traces(kind) {
                start.without_trace();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // An attempt that hangs leaves half of the time to the next.
            let until = if attempt == Attempt::Quiet { deadline } else { Instant::now() + left.mul_f64(0.5) };
            match self.try_login(seed, start, false, until).await {
                Ok(tried) => {
                    let quality = match failed {
                        None if good && attempt == Attempt::Traced => Quality::Good,
                        failed => degraded(attempt.words(), failed),
                    };
                    if let Quality::Degraded(degraded) = &quality {
                        tracing::warn!(
                            shell = %seed.shell.display(),
                            attempt = degraded.attempt,
                            why = degraded.why,
                            "the login shell gave no environment at a terminal; using a weaker attempt"
                        );
                    }
                    return Ok(self.login_result(seed, kind, tried, quality));
                }
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    // The first error describes the user's unchanged files. Its last output may have been withheld.
                    if failed.as_ref().is_none_or(|before| before.last_words().is_empty() && !before.is_late()) {
                        failed = Some(error);
                    }
                }
            }
        }
        let error = failed.unwrap_or(CaptureError::UnknownShell { shell: seed.shell.clone() });
        Err(match error {
            CaptureError::TimedOut { what, stderr, .. } => {
                CaptureError::LoginTimedOut { what, seconds: all.as_secs_f64(), stderr }
            }
            error => error,
        })
    }

    /// Reports whether the shell is asked to trace the files that it reads.
    fn traces(&self, kind: Option<Shell>) -> bool {
        // A background process of a start-up file may be a part of the shell that writes to the same trace. After
        // the run the trace has no reader, and SIGPIPE would end that process at its next command.
        // The trace names files, and the files of a place are not examined.
        !(self.is_elsewhere() || self.children == Children::Leave && kind == Some(Shell::Bash))
    }

    /// Runs the shell at a terminal. Runs it again without a trace if a start-up file would have noticed the trace.
    async fn at_a_terminal(
        &self,
        seed: &Seed,
        kind: Option<Shell>,
        home: Home,
        directory: Option<&Path>,
        start: Start,
        deadline: Instant,
    ) -> Result<AttemptResult, CaptureError> {
        let is_traced = kind == Some(Shell::Bash) && start.trace.is_some();
        let untraced =
            || typed::start(kind, home, false, self.children == Children::Leave, directory).unwrap_or_default();
        let home_path = seed.home.clone();
        if is_traced && blocking(move || one_notices_trace(&Shell::Bash.own_files(&home_path))).await {
            return self.try_login(seed, untraced(), true, deadline).await;
        }
        let tried = self.try_login(seed, start, true, deadline).await?;
        let (mut read, _) = Shell::Bash.files_read(&seed.home, tried.result.sourced.as_ref());
        read.retain(|file| !file.starts_with("/etc") && !file.starts_with("/usr"));
        if is_traced && blocking(move || one_notices_trace(&read)).await {
            return self.try_login(seed, untraced(), true, deadline).await;
        }
        Ok(tried)
    }

    async fn try_login(
        &self,
        seed: &Seed,
        start: Start,
        at_a_terminal: bool,
        deadline: Instant,
    ) -> Result<AttemptResult, CaptureError> {
        let what = format!("the login shell {}", seed.shell.display());
        let mut variables = seed.variables();
        variables.retain(|variable| start.added.iter().all(|(name, _)| variable.name.as_bytes() != name.as_bytes()));
        variables.extend(start.added.iter().map(|&(n, v)| Variable { name: n.into(), value: v.into() }));
        if at_a_terminal {
            variables.retain(|variable| variable.name.as_bytes() != b"TERM");
            variables.push(Variable { name: "TERM".into(), value: self.term.as_str().into() });
        }
        let mut request = self.request(&seed.shell, &start, variables, &seed.home, deadline);
        request.umask = (!self.is_elsewhere()).then(seed::umask);
        if at_a_terminal {
            // A dash before the name makes the shell a login shell, as in login(1).
            let name = seed.shell.file_name().unwrap_or_default().to_string_lossy();
            request.arg0 = Some(format!("-{name}").into());
        }
        let result = self.run(&request).await?;
        let mut variables = cleaned(interpret(&what, request.deadline_ms, &result)?, &start);
        if at_a_terminal {
            self.without_terminal(&mut variables);
        }
        self.note(&what, &result);
        Ok(AttemptResult { variables, result })
    }

    /// Removes variables that come from this terminal instead of the user's files.
    fn without_terminal(&self, variables: &mut Variables) {
        const OF_A_MULTIPLEXER: [&str; 4] = ["TMUX", "TMUX_PANE", "STY", "WINDOW"];
        let in_one = variables.iter().any(|(name, _)| matches!(name.as_str(), "TMUX" | "STY" | "ZELLIJ"));
        variables.retain(|(name, value)| match name.as_str() {
            "TERM" => !in_one && value != self.term.as_bytes(),
            name if typed::PRIVATE.contains(&name) => !value.starts_with(b"/tmp/agentd-run-"),
            name => !in_one || !(OF_A_MULTIPLEXER.contains(&name) || name.starts_with("ZELLIJ")),
        });
    }

    fn login_result(&self, seed: &Seed, kind: Option<Shell>, tried: AttemptResult, quality: Quality) -> Login {
        let AttemptResult { variables, result } = tried;
        let left = result.killed + result.left;
        let (functions, variables) = variables.into_iter().partition(|(name, _)| name.starts_with(FUNCTION));
        let files = |kind: Shell| kind.files_read(&seed.home, result.sourced.as_ref());
        let (read, complete) = match kind {
            // The files of a place are not watched.
            _ if self.is_elsewhere() => (Vec::new(), false),
            None => (vec![seed.shell.clone()], false),
            Some(kind) => files(kind),
        };
        let said = result.stderr.display().into_owned();
        let programs = result.sourced.iter().flat_map(|sourced| &sourced.programs);
        let programs = programs.filter_map(|name| String::from_utf8(name.0.clone()).ok()).collect();
        Login { variables, functions, read, complete, programs, left, quality, attributes: result.attributes, said }
    }
}

fn degraded(attempt: &'static str, failed: Option<CaptureError>) -> Quality {
    let Some(failed) = failed else {
        let why = "this shell is not run at a terminal if its user has no configuration files".to_owned();
        return Quality::Degraded(Degraded { attempt, why, last_words: String::new() });
    };
    let (why, last_words) = failed.apart();
    Quality::Degraded(Degraded { attempt, why, last_words })
}

impl CaptureError {
    /// Reports whether another attempt would end in the same way.
    fn is_final(&self) -> bool {
        !matches!(
            self,
            Self::NoEnvironment { .. }
                | Self::Status { .. }
                | Self::Signal { .. }
                | Self::TimedOut { .. }
                | Self::Unanswered { .. }
        )
    }

    fn is_late(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::LoginTimedOut { .. } | Self::Unanswered { .. })
    }
}

/// Returns the kind of a shell, from its name or from the name of the program that its path leads to.
fn kind_of(shell: &Path) -> Option<Shell> {
    Shell::of(shell).or_else(|| Shell::of(&shell.canonicalize().ok()?))
}

/// Reports whether one of the files would behave otherwise in a traced shell.
fn one_notices_trace(files: &[PathBuf]) -> bool {
    files.iter().any(|file| std::fs::read(file).is_ok_and(|text| typed::notices_trace(&text)))
}

/// Collects the facts about the home directory for `Shell::login`.
fn home(home: &Path) -> Home {
    let profile =
        [".bash_profile", ".bash_login", ".profile"].iter().find_map(|name| std::fs::read(home.join(name)).ok());
    Home {
        lone_bashrc: home.join(".bashrc").exists() && !profile.as_ref().is_some_and(|profile| names_bashrc(profile)),
        no_nu_files: ![".config/nushell", "Library/Application Support/nushell"]
            .iter()
            .any(|directory| home.join(directory).exists()),
        no_zsh_files: ![".zshenv", ".zprofile", ".zshrc", ".zlogin"].iter().any(|name| home.join(name).exists()),
    }
}

/// Reports whether a profile uses `.bashrc`. A comment that mentions it does not count.
fn names_bashrc(profile: &[u8]) -> bool {
    let lines = profile.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.trim_ascii_start().starts_with(b"#")).any(|line| {
        let code = memchr::memmem::find(line, b" #").map_or(line, |at| &line[..at]);
        memchr::memmem::find(code, b"bashrc").is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bashrc_is_read_separately_only_if_no_profile_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert!(!home(directory.path()).lone_bashrc);
        std::fs::write(at(".bashrc"), "").unwrap();
        assert!(home(directory.path()).lone_bashrc);
        std::fs::write(at(".profile"), "# see .bashrc\nexport A=1 # not in .bashrc\n").unwrap();
        assert!(home(directory.path()).lone_bashrc, "a comment reads nothing");
        std::fs::write(at(".profile"), ". ~/.bashrc\n").unwrap();
        assert!(!home(directory.path()).lone_bashrc);
        // bash reads only the first file that exists.
        std::fs::write(at(".bash_profile"), "export A=1\n").unwrap();
        assert!(home(directory.path()).lone_bashrc);
    }
}
