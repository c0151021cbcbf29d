//! Pseudo-terminal with an automatic user: waits for the prompt, types the command, and answers questions.
//!
//! A shell with a line editor shows through the terminal's modes that it waits for a command. It turns off echo, line
//! mode and the translation of carriage returns. Without a line editor, a process in read(2) waits for input, and its
//! last output distinguishes a prompt from a question.
//!
//! fish uses its line editor for both, and reports when it has read its start-up files. A question of a start-up file
//! gets an empty line. If a program other than a shell asks, the question gets an end of input. No question is
//! therefore answered with a command, and none is answered forever.
//!
//! This module does not choose what to type, and does not handle the result (`run`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{InputFlags, LocalFlags, OutputFlags, SpecialCharacterIndices as Key, Termios, tcgetattr};
use nix::unistd::{getpgid, tcgetpgrp};

use crate::fifo::Fifo;
use crate::os::Family;
use crate::protocol::{self, Typed};
use crate::screen::Screen;
use crate::{os, spawn};

/// Interval at which the terminal is checked without new output.
const LOOK: Duration = Duration::from_millis(20);
/// Quiet time of the output after which a waiting reader counts as a prompt or a question.
const QUIET: Duration = Duration::from_millis(100);
/// Quiet time on a system that does not report whether a process waits for input.
const LONG_QUIET: Duration = Duration::from_millis(1500);
/// Time after which the command is typed again if the prompt is back. It grows with each attempt.
const AGAIN: Duration = Duration::from_millis(400);
/// Maximum number of times that the command is typed.
const TRIES: u32 = 6;
/// Number of times that the command is typed without an interrupt before it.
const TRIES_WITHOUT_INTERRUPT: u32 = 3;
/// Maximum number of questions that get an answer.
const ANSWERS: u32 = 20;
/// Shells whose line editors send no terminal queries, so that an answer is never for them.
const ASK_NOTHING: [&str; 8] = ["bash", "rbash", "zsh", "rzsh", "ksh", "rksh", "tcsh", "csh"];
/// Maximum number of consecutive empty lines for a shell that may be at its prompt.
const EMPTY_LINES: u32 = 3;

/// Both ends of a pseudo-terminal, and the progress of typing on it.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: OwnedFd,
    /// Slave end, held to read the modes and to keep the output when the program closes its end.
    slave: OwnedFd,
    typed: Vec<Typed>,
    screen: Screen,
    /// Bytes to write to the terminal.
    queue: Vec<u8>,
    /// Answers to terminal queries that no process has read yet.
    held: Vec<u8>,
    /// Index of the next line to type.
    step: usize,
    /// Number of times that this line was typed.
    tries: u32,
    /// Whether an interrupt was sent, and the line that follows it was not typed yet.
    interrupted: bool,
    answers: u32,
    empty: u32,
    last_output: Instant,
    last_input: Option<Instant>,
    /// Time at which the next line is typed regardless of the output.
    at_last: Option<Instant>,
}

/// Reader that waits for input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// A line editor.
    Editor,
    /// The line editor of a shell that still reads its start-up files.
    Question,
    /// A shell that reads a line without a line editor, or a single key.
    Shell,
    Other,
    Nothing,
}

impl Terminal {
    /// Opens a pseudo-terminal. `deadline` is the deadline of the run.
    pub(crate) fn open(wanted: &protocol::Terminal, fifo: &Fifo, deadline: Option<Instant>) -> io::Result<Self> {
        let size = Winsize { ws_row: wanted.rows, ws_col: wanted.columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None)?;
        for fd in [&pair.master, &pair.slave] {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        spawn::nonblocking(&pair.master)?;
        let (keeper, capture) = (text(&fifo.keeper()), text(fifo.path()));
        let with_paths = |line: &String| line.replace("{keeper}", &keeper).replace("{capture}", &capture);
        let typed = wanted.typed.iter().map(|typed| Typed {
            programs: typed.programs.clone(),
            lines: typed.lines.iter().map(with_paths).collect(),
        });
        let now = Instant::now();
        Ok(Self {
            master: pair.master,
            slave: pair.slave,
            typed: typed.collect(),
            screen: Screen::default(),
            queue: Vec::new(),
            held: Vec::new(),
            step: 0,
            tries: 0,
            interrupted: false,
            answers: 0,
            empty: 0,
            last_output: now,
            last_input: None,
            at_last: deadline.map(|deadline| now + deadline.saturating_duration_since(now).mul_f64(0.6)),
        })
    }

    pub(crate) fn slave(&self) -> BorrowedFd<'_> {
        self.slave.as_fd()
    }

    /// Returns the file descriptor of the output.
    pub(crate) fn output(&self) -> io::Result<OwnedFd> {
        self.master.try_clone()
    }

    /// Returns the foreground process group of the terminal.
    pub(crate) fn foreground(&self) -> Option<i32> {
        tcgetpgrp(&self.master).ok().map(nix::unistd::Pid::as_raw).filter(|group| *group > 0)
    }

    /// Processes output of the program.
    pub(crate) fn take(&mut self, output: &[u8]) {
        if !output.is_empty() {
            self.last_output = Instant::now();
            let answers = self.screen.take(output);
            self.held.extend_from_slice(&answers);
        }
    }

    /// Records that this many lines were executed. The next prompt is for the next line.
    pub(crate) fn step_is_done(&mut self, steps: usize) {
        if steps > self.step {
            (self.step, self.tries, self.interrupted, self.last_input) = (steps, 0, false, None);
        }
    }

    /// Returns when to check the terminal again.
    pub(crate) fn due(now: Instant) -> Instant {
        now + LOOK
    }

    /// Reports whether the command was typed as often as allowed and no result comes.
    pub(crate) fn has_given_up(&self, now: Instant) -> bool {
        let waits = || self.last_input.is_some_and(|typed| now >= typed + AGAIN * (TRIES + 1));
        (self.tries >= TRIES || self.answers >= ANSWERS) && waits() && self.last_output + AGAIN < now && self.is_asked()
    }

    fn is_asked(&self) -> bool {
        // A command that still runs may write a result.
        modes(&self.slave).is_some_and(|modes| is_editor(&modes)) || self.answers >= ANSWERS
    }

    /// Checks which process waits for input, and types. `starting` is the shell, while it is known to read its
    /// start-up files.
    pub(crate) fn act(&mut self, now: Instant, family: &mut Family, starting: Option<i32>) {
        if !self.held.is_empty() {
            self.answer(now, family);
        }
        if self.queue.is_empty()
            && let Some(bytes) = self.wanted(now, family, starting)
        {
            self.queue.extend(bytes);
            self.last_input = Some(now);
        }
        // Unread input fills the terminal's queue. The rest is written at the next check.
        if let Ok(written) = nix::unistd::write(&self.master, &self.queue) {
            self.queue.drain(..written);
        }
    }

    /// Sends the terminal's answers to the program that reads them. An answer that a start-up file requested and did
    /// not read would become keys for the line editor. In vi mode they are commands, and so would be the line typed
    /// after them.
    fn answer(&mut self, now: Instant, family: &mut Family) {
        let Some(modes) = modes(&self.slave) else { return };
        let takes_lines = modes.local_flags.contains(LocalFlags::ICANON);
        if takes_lines && self.reader(&modes, self.quiet(now), family) == Reader::Nothing {
            return;
        }
        // A program that reads an answer in raw mode has also turned off output processing.
        let is_prompt = is_editor(&modes) && modes.output_flags.contains(OutputFlags::OPOST);
        if is_prompt && self.foreground().and_then(program).is_some_and(|name| ASK_NOTHING.contains(&name.as_str())) {
            self.held.clear();
        }
        self.queue.append(&mut self.held);
    }

    fn quiet(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_output.max(self.last_input.unwrap_or(self.last_output)))
    }

    fn wanted(&mut self, now: Instant, family: &mut Family, starting: Option<i32>) -> Option<Vec<u8>> {
        let modes = modes(&self.slave)?;
        let again = self.interrupted || self.last_input.is_none_or(|typed| now >= typed + AGAIN * self.tries.max(1));
        let quiet = self.quiet(now);
        let line_end = if modes.local_flags.contains(LocalFlags::ICANON) { b'\n' } else { b'\r' };
        let at_last = self.at_last.is_some_and(|at_last| at_last <= now);
        let asks = |shell: i32| self.foreground() == Some(shell) && program(shell).is_some_and(|name| name == "fish");
        let reader = match is_editor(&modes) {
            true if self.answers < ANSWERS && starting.is_some_and(asks) => Reader::Question,
            true => Reader::Editor,
            false => self.reader(&modes, quiet, family),
        };
        match reader {
            // The first prompt is answered at once, because the shell has finished its start-up by then.
            Reader::Editor if self.tries == 0 || (again && quiet >= QUIET) => self.command(&modes, line_end),
            Reader::Editor | Reader::Nothing if at_last && self.tries == 0 => self.command(&modes, line_end),
            Reader::Shell if quiet >= QUIET && self.answers < ANSWERS => {
                if self.screen.shows_prompt() || self.empty >= EMPTY_LINES {
                    self.empty = 0;
                    return if self.tries == 0 || again { self.command(&modes, line_end) } else { None };
                }
                (self.empty, self.answers) = (self.empty + 1, self.answers + 1);
                Some(vec![line_end])
            }
            Reader::Question if quiet >= QUIET => {
                self.answers += 1;
                Some(vec![line_end])
            }
            Reader::Other if quiet >= QUIET && self.answers < ANSWERS => {
                self.answers += 1;
                let end = modes.control_chars[Key::VEOF as usize];
                let takes_lines = modes.local_flags.contains(LocalFlags::ICANON);
                Some(vec![if takes_lines && end != 0 { end } else { line_end }])
            }
            _ => None,
        }
    }

    /// Returns the next line for the program that has the terminal.
    fn command(&mut self, modes: &Termios, line_end: u8) -> Option<Vec<u8>> {
        if self.tries >= TRIES {
            return None;
        }
        let program = self.foreground().and_then(program);
        let fits = |typed: &&Typed| {
            typed.programs.is_empty() || program.as_ref().is_some_and(|program| typed.programs.contains(program))
        };
        let lines = &self.typed.iter().find(fits)?.lines;
        let line = lines.get(self.step).or(lines.last())?;
        let key = |key: Key| Some(modes.control_chars[key as usize]).filter(|key| *key != 0);
        // The line may contain an unread answer of the terminal. In vi mode it may have become a command, and only an
        // interrupt starts a new line then. nu drops keys that arrive together with an interrupt. An interrupt also
        // ends a start-up file that asks a question, so the first attempts send none.
        if self.tries >= TRIES_WITHOUT_INTERRUPT
            && !self.interrupted
            && let Some(interrupt) = key(Key::VINTR)
        {
            self.interrupted = true;
            return Some(vec![interrupt]);
        }
        self.interrupted = false;
        let mut bytes = Vec::new();
        bytes.extend(key(Key::VKILL).filter(|_| (1..TRIES_WITHOUT_INTERRUPT).contains(&self.tries)));
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(line_end);
        self.tries += 1;
        Some(bytes)
    }

    /// Determines which reader waits for input without a line editor.
    fn reader(&self, modes: &Termios, quiet: Duration, family: &mut Family) -> Reader {
        if quiet < QUIET {
            return Reader::Nothing;
        }
        let Some(group) = self.foreground() else { return Reader::Nothing };
        let members = family.tree().unwrap_or_default();
        let in_group = |pid: &i32| getpgid(Some(nix::unistd::Pid::from_raw(*pid))).is_ok_and(|of| of.as_raw() == group);
        let mut is_known = true;
        for pid in members.into_iter().filter(in_group) {
            match os::reads_terminal(pid) {
                Some(false) => {}
                Some(true) => return self.kind(pid),
                None => is_known = false,
            }
        }
        let is_single_key = !modes.local_flags.contains(LocalFlags::ICANON);
        // Programs wait for a single key in poll(2) or select(2) as often as in read(2).
        if quiet >= LONG_QUIET && (!is_known || is_single_key || self.screen.shows_prompt()) {
            return self.kind(group);
        }
        Reader::Nothing
    }

    fn kind(&self, pid: i32) -> Reader {
        let is_shell = |program: String| self.typed.iter().any(|typed| typed.programs.contains(&program));
        if program(pid).is_none_or(is_shell) { Reader::Shell } else { Reader::Other }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the file name of the process's program without its version.
fn program(pid: i32) -> Option<String> {
    let path = agentd_caller::program(pid)?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
    let name = Path::new(path).file_name()?.to_string_lossy();
    // Examples: `zsh-5.9`, `ksh93`.
    Some(name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-').to_owned())
}

fn modes(slave: &OwnedFd) -> Option<Termios> {
    tcgetattr(slave).ok()
}

/// Reports whether a line editor has the terminal. The editor of tcsh keeps the translation of carriage returns and
/// reads them as a key.
fn is_editor(modes: &Termios) -> bool {
    let by_itself = !modes.local_flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO);
    by_itself && (!modes.input_flags.contains(InputFlags::ICRNL) || modes.input_flags.contains(InputFlags::INLCR))
}
