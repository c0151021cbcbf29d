//! Flags of the scripted agent, which set its overall behaviour.

use std::path::PathBuf;
use std::time::Duration;

use crate::print_raw;

/// Flags on the command line.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line, and any may stand beside any")]
pub(crate) struct Flags {
    /// `--ignore-sigterm`: ignore SIGTERM.
    pub(crate) ignore_sigterm: bool,
    /// `--ignore-eof`: ignore the end of stdin, like agents that wait for a signal.
    pub(crate) ignore_eof: bool,
    /// `--launcher`: start the agent proper as a child with the same stdio, and exit at once.
    pub(crate) launcher: bool,
    /// `--no-load`: do not offer to load conversations.
    pub(crate) no_load: bool,
    /// `--resume`: offer `session/resume` too, which replays nothing.
    pub(crate) resume: bool,
    /// `--fork`: offer `session/fork` too, which copies a conversation.
    pub(crate) fork: bool,
    /// `--delete`: offer `session/delete` too.
    pub(crate) delete: bool,
    /// `--list`: offer `session/list` too, with one conversation on each page.
    pub(crate) list: bool,
    /// `--directories`: offer to take further directories.
    pub(crate) directories: bool,
    /// `--options`: offer a model and a temperature as options, and to a client that takes it, a switch.
    pub(crate) options: bool,
    /// `--modes`: offer modes and models as lists of their own, as agents without options do.
    pub(crate) modes: bool,
    /// `--mcp`: take MCP servers over HTTP.
    pub(crate) mcp: bool,
    /// `--content`: take images, sounds and resources in prompts.
    pub(crate) content: bool,
    /// `--locked`: open no conversation before a login with the method `key`, for which `SCRIPTED_API_KEY` must be set.
    pub(crate) locked: bool,
    /// `--bound`: know a conversation only in the directory in which it was created, as Claude does.
    pub(crate) bound: bool,
    /// `--load-fails`: offer to load conversations, and fail.
    pub(crate) load_fails: bool,
    /// `--replay-after-response`: send the history after the response to `session/load` instead of before.
    pub(crate) replay_after_response: bool,
    /// `--slow-load MS`: pause between the history and the response to `session/load`.
    pub(crate) slow_load: Duration,
    /// `--banner`: print two lines that are not JSON first.
    pub(crate) banner: bool,
    /// `--slow-init MS`: duration of `initialize`.
    pub(crate) slow_init: Duration,
    /// `--pidfile PATH`: write one line `ROLE PID` for each started process.
    pub(crate) pidfile: Option<PathBuf>,
    /// `--store DIR`: directory for conversations, one file each.
    pub(crate) store: Option<PathBuf>,
    /// `--refuse METHOD CODE MESSAGE`: answer this request with this error.
    pub(crate) refuse: Option<(String, i64, String)>,
    /// `--protocol VERSION`: claim this protocol version.
    pub(crate) protocol: Option<u64>,
    /// `--version TEXT`: claim this version of the agent.
    pub(crate) version: Option<String>,
    /// `--complain TEXT`: write the text to stderr first.
    pub(crate) complain: Option<String>,
    /// `--exit STATUS`: exit at once.
    pub(crate) exit: Option<i32>,
    /// `--account PATH`: file for the agent's account, see [`crate::account::Account`].
    pub(crate) account: Option<PathBuf>,
}

impl Flags {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Self {
        let mut flags = Self::default();
        let mut args = args;
        let value = |args: &mut dyn Iterator<Item = String>, flag: &str| match args.next() {
            Some(value) => value,
            None => usage(&format!("{flag} needs a value")),
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--ignore-sigterm" => flags.ignore_sigterm = true,
                "--ignore-eof" => flags.ignore_eof = true,
                "--launcher" => flags.launcher = true,
                "--no-load" => flags.no_load = true,
                "--resume" => flags.resume = true,
                "--fork" => flags.fork = true,
                "--delete" => flags.delete = true,
                "--list" => flags.list = true,
                "--directories" => flags.directories = true,
                "--options" => flags.options = true,
                "--modes" => flags.modes = true,
                "--mcp" => flags.mcp = true,
                "--content" => flags.content = true,
                // The login at a terminal.
                "--login" => {
                    print_raw(format!("logged in, {}\n", std::env::var("WORD").unwrap_or_default()).as_bytes());
                    std::process::exit(0);
                }
                "--locked" => flags.locked = true,
                "--bound" => flags.bound = true,
                "--load-fails" => flags.load_fails = true,
                "--replay-after-response" => flags.replay_after_response = true,
                "--banner" => flags.banner = true,
                "--slow-init" => match value(&mut args, &arg).parse() {
                    Ok(ms) => flags.slow_init = Duration::from_millis(ms),
                    Err(_) => usage("--slow-init needs a number of milliseconds"),
                },
                "--slow-load" => match value(&mut args, &arg).parse() {
                    Ok(ms) => flags.slow_load = Duration::from_millis(ms),
                    Err(_) => usage("--slow-load needs a number of milliseconds"),
                },
                "--pidfile" => flags.pidfile = Some(value(&mut args, &arg).into()),
                "--store" => flags.store = Some(value(&mut args, &arg).into()),
                "--refuse" => {
                    let (method, code) = (value(&mut args, &arg), value(&mut args, &arg));
                    let code = code.parse().unwrap_or_else(|_| usage("--refuse needs a method, a code and a message"));
                    flags.refuse = Some((method, code, value(&mut args, &arg)));
                }
                "--protocol" => flags.protocol = value(&mut args, &arg).parse().ok(),
                "--version" => flags.version = Some(value(&mut args, &arg)),
                "--complain" => flags.complain = Some(value(&mut args, &arg)),
                "--exit" => flags.exit = value(&mut args, &arg).parse().ok(),
                "--account" => flags.account = Some(value(&mut args, &arg).into()),
                other => usage(&format!("unknown flag {other:?}")),
            }
        }
        flags
    }
}

/// Ends the agent because of a mistake in the test.
pub(crate) fn usage(problem: &str) -> ! {
    eprintln!("scripted-agent: {problem}");
    std::process::exit(2);
}
