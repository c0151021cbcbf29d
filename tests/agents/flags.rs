//! The flags of the scripted agent: how it behaves as a whole.

use std::path::PathBuf;
use std::time::Duration;

/// What is on the command line.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line, and any may stand beside any")]
pub(crate) struct Flags {
    /// `--ignore-sigterm`: SIGTERM does nothing.
    pub(crate) ignore_sigterm: bool,
    /// `--ignore-eof`: the end of stdin does nothing, as with agents that wait for a signal.
    pub(crate) ignore_eof: bool,
    /// `--launcher`: start the agent proper as a child with the same stdio, and exit at once.
    pub(crate) launcher: bool,
    /// `--no-load`: a conversation cannot be loaded.
    pub(crate) no_load: bool,
    /// `--resume`: `session/resume`, which replays nothing, is offered as well.
    pub(crate) resume: bool,
    /// `--load-fails`: loading is offered, and fails.
    pub(crate) load_fails: bool,
    /// `--replay-after-response`: the history follows the answer to `session/load` instead of preceding it.
    pub(crate) replay_after_response: bool,
    /// `--banner`: two lines that are not JSON before anything else.
    pub(crate) banner: bool,
    /// `--slow-init MS`: how long `initialize` takes.
    pub(crate) slow_init: Duration,
    /// `--pidfile PATH`: one line `ROLE PID` for each process that is started.
    pub(crate) pidfile: Option<PathBuf>,
    /// `--store DIR`: where conversations are kept, one file each.
    pub(crate) store: Option<PathBuf>,
    /// `--refuse METHOD CODE MESSAGE`: this request is answered with this error.
    pub(crate) refuse: Option<(String, i64, String)>,
    /// `--protocol VERSION`: the version of the protocol that it claims to speak.
    pub(crate) protocol: Option<u64>,
    /// `--complain TEXT`: written to stderr before anything else.
    pub(crate) complain: Option<String>,
    /// `--exit STATUS`: ends at once.
    pub(crate) exit: Option<i32>,
    /// `--account PATH`: where it notes what it was asked and what it said, see [`crate::account::Account`].
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
                "--load-fails" => flags.load_fails = true,
                "--replay-after-response" => flags.replay_after_response = true,
                "--banner" => flags.banner = true,
                "--slow-init" => match value(&mut args, &arg).parse() {
                    Ok(ms) => flags.slow_init = Duration::from_millis(ms),
                    Err(_) => usage("--slow-init needs a number of milliseconds"),
                },
                "--pidfile" => flags.pidfile = Some(value(&mut args, &arg).into()),
                "--store" => flags.store = Some(value(&mut args, &arg).into()),
                "--refuse" => {
                    let (method, code) = (value(&mut args, &arg), value(&mut args, &arg));
                    let code = code.parse().unwrap_or_else(|_| usage("--refuse needs a method, a code and a message"));
                    flags.refuse = Some((method, code, value(&mut args, &arg)));
                }
                "--protocol" => flags.protocol = value(&mut args, &arg).parse().ok(),
                "--complain" => flags.complain = Some(value(&mut args, &arg)),
                "--exit" => flags.exit = value(&mut args, &arg).parse().ok(),
                "--account" => flags.account = Some(value(&mut args, &arg).into()),
                other => usage(&format!("unknown flag {other:?}")),
            }
        }
        flags
    }
}

/// Ends the agent with a mistake of the test.
pub(crate) fn usage(problem: &str) -> ! {
    eprintln!("scripted-agent: {problem}");
    std::process::exit(2);
}
