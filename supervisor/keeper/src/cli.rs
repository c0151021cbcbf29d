//! Command line of the keeper. Only the daemon writes it, and it is parsed by hand. A parser library for
//! human-written command lines would cost each keeper memory for its whole life.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use agentd_journal::{Options, Sync};

use crate::environment::Target;
use crate::protocol::{HoldArgs, JournalSizeLimit};

/// Task that the command line selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    Hold(HoldArgs),
    Standby,
    Run,
    /// Lifetime limit in seconds.
    Look(u32),
    DumpEnvironment(Target, String),
    /// File descriptors of the request and of the report.
    Enter(RawFd, RawFd),
    /// The far side of a place.
    Far,
    /// The parent of an agent that stays on its place. Name of the agent.
    Stay(String),
    /// The way of a client to such an agent, and whether to start its parent.
    Attach(String, bool),
    /// A list of such agents.
    List,
    /// The end of such an agent.
    End(String),
    /// The SHA-256 of this program.
    Digest,
    /// The near side of a place. File descriptor of its reports.
    Place(Option<RawFd>),
    Isolation,
    Version,
}

/// Usage text of the binary.
pub const USAGE: &str = "agentd-keeper hold --session ID --launch N --state DIRECTORY --socket PATH
                   [--rotate BYTES] [--keep BYTES|all] [--sync never|asked|always] [--orphan-ttl SECONDS] [--core BYTES]
agentd-keeper standby [ROOM ...]
agentd-keeper run
agentd-keeper look SECONDS
agentd-keeper dump-environment FD|PATH [LABEL]
agentd-keeper enter FD FD
agentd-keeper enter
agentd-keeper enter stay NAME
agentd-keeper enter attach NAME [start]
agentd-keeper enter list
agentd-keeper enter end NAME
agentd-keeper enter digest
agentd-keeper place [FD]
agentd-keeper isolation
agentd-keeper --version";

/// Error of the command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error("a role is missing; use hold, standby, run, look, dump-environment, enter, place or isolation")]
    NoRole,
    #[error("{0:?} is not a role; use hold, standby, run, look, dump-environment, enter, place or isolation")]
    Role(OsString),
    #[error("{0:?} is unknown, repeated or has no value")]
    Argument(OsString),
    #[error("{0} is missing or has an invalid value")]
    Value(&'static str),
}

/// Parses the arguments after the program name.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Role, UsageError> {
    let mut args = args.into_iter();
    let role = args.next().ok_or(UsageError::NoRole)?;
    let parsed = match role.to_str() {
        Some("hold") => return hold(args).map(Role::Hold),
        Some("standby") => {
            // The arguments are only room for the later command line.
            args.by_ref().for_each(drop);
            Role::Standby
        }
        Some("run") => Role::Run,
        Some("look") => {
            let seconds = args.next().and_then(|seconds| seconds.to_str()?.parse().ok()).filter(|seconds| *seconds > 0);
            Role::Look(seconds.ok_or(UsageError::Value("the number of seconds"))?)
        }
        Some("dump-environment") => {
            let target = target(args.next())?;
            Role::DumpEnvironment(target, args.next().and_then(|label| label.into_string().ok()).unwrap_or_default())
        }
        Some("enter") => match args.next() {
            None => Role::Far,
            Some(word) if word == "stay" => Role::Stay(name(args.next())?),
            Some(word) if word == "end" => Role::End(name(args.next())?),
            Some(word) if word == "list" => Role::List,
            Some(word) if word == "digest" => Role::Digest,
            Some(word) if word == "attach" => {
                let name = name(args.next())?;
                match args.next() {
                    None => Role::Attach(name, false),
                    Some(word) if word == "start" => Role::Attach(name, true),
                    Some(word) => return Err(UsageError::Argument(word)),
                }
            }
            request => Role::Enter(descriptor(request)?, descriptor(args.next())?),
        },
        Some("place") => Role::Place(args.next().map(|number| descriptor(Some(number))).transpose()?),
        Some("isolation") => Role::Isolation,
        Some("--version") => Role::Version,
        _ => return Err(UsageError::Role(role)),
    };
    match args.next() {
        None => Ok(parsed),
        Some(extra) => Err(UsageError::Argument(extra)),
    }
}

/// Parses a file descriptor number, or the absolute path of an existing file.
fn target(to: Option<OsString>) -> Result<Target, UsageError> {
    match to {
        Some(path) if path.as_bytes().starts_with(b"/") => Ok(Target::File(path.into())),
        number => descriptor(number).map(Target::Descriptor),
    }
}

/// Parses the name of an agent on a place.
fn name(name: Option<OsString>) -> Result<String, UsageError> {
    name.and_then(|name| name.into_string().ok()).ok_or(UsageError::Value("the name"))
}

fn descriptor(number: Option<OsString>) -> Result<RawFd, UsageError> {
    let number = number.and_then(|number| number.to_str()?.parse().ok()).filter(|number| *number >= 0);
    number.ok_or(UsageError::Value("the file descriptor number"))
}

fn hold(mut args: impl Iterator<Item = OsString>) -> Result<HoldArgs, UsageError> {
    let (mut session, mut launch, mut state, mut socket) = (None, None, None, None);
    let (mut rotate, mut keep, mut sync, mut orphan_ttl, mut core) = (None, None, None, None, None);
    while let Some(name) = args.next() {
        let slot = match name.to_str() {
            Some("--session") => &mut session,
            Some("--launch") => &mut launch,
            Some("--state") => &mut state,
            Some("--socket") => &mut socket,
            Some("--rotate") => &mut rotate,
            Some("--keep") => &mut keep,
            Some("--sync") => &mut sync,
            Some("--orphan-ttl") => &mut orphan_ttl,
            Some("--core") => &mut core,
            _ => return Err(UsageError::Argument(name)),
        };
        match args.next() {
            Some(value) if slot.is_none() => *slot = Some(value),
            _ => return Err(UsageError::Argument(name)),
        }
    }
    let path = |value: Option<OsString>, name| {
        value.map(PathBuf::from).filter(|path| path.is_absolute()).ok_or(UsageError::Value(name))
    };
    let number = |value: OsString, name| {
        value.to_str().and_then(|value| value.parse::<u64>().ok()).filter(|n| *n > 0).ok_or(UsageError::Value(name))
    };
    let mut journal = Options::default();
    if let Some(rotate) = rotate {
        journal.rotate = number(rotate, "--rotate")?;
    }
    if let Some(sync) = sync {
        let found = SYNCS.iter().find(|(_, name)| sync.to_str() == Some(name));
        journal.sync = found.ok_or(UsageError::Value("--sync"))?.0;
    }
    let keep = match keep {
        None => JournalSizeLimit::default(),
        Some(keep) if keep == ALL => JournalSizeLimit(None),
        Some(keep) => {
            JournalSizeLimit(Some(keep.to_str().and_then(|keep| keep.parse().ok()).ok_or(UsageError::Value("--keep"))?))
        }
    };
    let orphan_ttl = orphan_ttl.map(|ttl| number(ttl, "--orphan-ttl")).transpose()?.map(Duration::from_secs);
    let core =
        core.map(|core: OsString| core.to_str().and_then(|core| core.parse().ok()).ok_or(UsageError::Value("--core")));
    Ok(HoldArgs {
        session: session.and_then(|session| session.into_string().ok()).ok_or(UsageError::Value("--session"))?,
        launch: launch.and_then(|launch| launch.to_str()?.parse().ok()).ok_or(UsageError::Value("--launch"))?,
        state: path(state, "--state")?,
        socket: path(socket, "--socket")?,
        journal,
        keep,
        orphan_ttl,
        core: core.transpose()?,
    })
}

/// Length in bytes of the command line that a keeper in standby can take over, with a NUL behind each argument.
pub const ROOM: usize = 1024;

/// Returns the arguments that start a keeper in standby for any session. The last one makes room for its later command
/// line.
pub fn standby_arguments() -> [OsString; 2] {
    ["standby".into(), " ".repeat(ROOM).into()]
}

/// Returns the arguments that start a keeper in standby for one session. Until it holds the session, its role is the
/// first argument.
pub fn standby_for(args: &HoldArgs) -> Vec<OsString> {
    std::iter::once("standby".into()).chain(args.arguments()).collect()
}

/// Value of `--keep` for a journal whose segments are never removed.
const ALL: &str = "all";

const SYNCS: [(Sync, &str); 3] = [(Sync::Never, "never"), (Sync::OnRequest, "asked"), (Sync::Always, "always")];

impl HoldArgs {
    /// Returns the arguments that start a keeper. Default values are left out, so that every release of the keeper
    /// accepts the result.
    pub fn arguments(&self) -> Vec<OsString> {
        let default = Options::default();
        let mut arguments: Vec<OsString> = vec!["hold".into()];
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        add("--session", self.session.clone().into());
        add("--launch", self.launch.to_string().into());
        add("--state", self.state.clone().into());
        add("--socket", self.socket.clone().into());
        if self.journal.rotate != default.rotate {
            add("--rotate", self.journal.rotate.to_string().into());
        }
        if self.keep != JournalSizeLimit::default() {
            add("--keep", self.keep.0.map_or_else(|| ALL.to_owned(), |keep| keep.to_string()).into());
        }
        if let Some((_, name)) = SYNCS.iter().find(|(sync, _)| *sync == self.journal.sync && *sync != default.sync) {
            add("--sync", (*name).into());
        }
        if let Some(ttl) = self.orphan_ttl {
            add("--orphan-ttl", ttl.as_secs().max(1).to_string().into());
        }
        if let Some(core) = self.core {
            add("--core", core.to_string().into());
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Role, UsageError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_roles_parse() {
        let hold = HoldArgs {
            session: "a".to_owned(),
            launch: 2,
            state: "/s".into(),
            socket: "/r/k".into(),
            ..HoldArgs::default()
        };
        assert_eq!(parsed("hold --launch 2 --session a --socket /r/k --state /s"), Ok(Role::Hold(hold)));
        assert_eq!(parse(standby_arguments()), Ok(Role::Standby));
        assert_eq!(parsed("run"), Ok(Role::Run));
        assert_eq!(parsed("look 30"), Ok(Role::Look(30)));
        assert_eq!(parsed("dump-environment 12"), Ok(Role::DumpEnvironment(Target::Descriptor(12), String::new())));
        assert_eq!(
            parsed("dump-environment /x/y stay"),
            Ok(Role::DumpEnvironment(Target::File("/x/y".into()), "stay".to_owned()))
        );
        assert_eq!(parsed("enter 4 7"), Ok(Role::Enter(4, 7)));
        assert_eq!(parsed("enter"), Ok(Role::Far));
        assert_eq!(parsed("enter stay a"), Ok(Role::Stay("a".to_owned())));
        assert_eq!(parsed("enter attach a"), Ok(Role::Attach("a".to_owned(), false)));
        assert_eq!(parsed("enter attach a start"), Ok(Role::Attach("a".to_owned(), true)));
        assert_eq!(parsed("enter list"), Ok(Role::List));
        assert_eq!(parsed("enter digest"), Ok(Role::Digest));
        assert_eq!(parsed("enter end a"), Ok(Role::End("a".to_owned())));
        assert_eq!(parsed("place"), Ok(Role::Place(None)));
        assert_eq!(parsed("place 5"), Ok(Role::Place(Some(5))));
        assert_eq!(parsed("isolation"), Ok(Role::Isolation));
    }

    #[test]
    fn arguments_parse_back_to_the_values_they_were_made_from() {
        for (sync, _) in SYNCS {
            for (rotate, keep, orphan_ttl, core) in [
                (Options::default().rotate, JournalSizeLimit::default(), None, None),
                (1, JournalSizeLimit(None), Some(Duration::from_secs(90)), Some(0)),
                (1, JournalSizeLimit(Some(0)), None, Some(u64::MAX)),
            ] {
                let journal = Options { rotate, sync };
                let (session, state, socket) = ("a b".to_owned(), "/s".into(), "/r/k".into());
                let args = HoldArgs { session, launch: 2, state, socket, journal, keep, orphan_ttl, core };
                assert_eq!(parse(args.arguments()), Ok(Role::Hold(args)));
            }
        }
    }

    #[test]
    fn the_arguments_of_a_keeper_in_standby_are_room() {
        for line in ["standby", "standby room", "standby hold --session a --launch x"] {
            assert_eq!(parsed(line), Ok(Role::Standby), "{line}");
        }
        assert_eq!(parse(standby_arguments()), Ok(Role::Standby));
    }

    #[test]
    fn an_invalid_argument_is_refused_by_name() {
        for (line, message) in [
            ("", "a role is missing"),
            ("serve", "\"serve\" is not a role"),
            ("run now", "\"now\" is unknown"),
            ("look", "the number of seconds"),
            ("look 0", "the number of seconds"),
            ("dump-environment x", "the file descriptor number"),
            ("dump-environment -1", "the file descriptor number"),
            ("enter 4", "the file descriptor number"),
            ("enter 4 5 6", "\"6\" is unknown"),
            ("enter stay", "the name is missing"),
            ("enter attach a b", "\"b\" is unknown"),
            ("enter list a", "\"a\" is unknown"),
            ("place x", "the file descriptor number"),
            ("place 5 6", "\"6\" is unknown"),
            ("hold --session", "\"--session\" is unknown, repeated or has no value"),
            ("hold --session a --session b", "\"--session\" is unknown, repeated"),
            ("hold --session a --launch x --state /s --socket /k", "--launch is missing"),
            ("hold --session a --launch 1 --state s --socket /k", "--state is missing or has an invalid"),
            ("hold --session a --launch 1 --state /s --socket /k --rotate 0", "--rotate is missing or has an invalid"),
            ("hold --session a --launch 1 --state /s --socket /k --keep some", "--keep is missing or has an invalid"),
            ("hold --session a --launch 1 --state /s --socket /k --sync often", "--sync is missing or has an invalid"),
            ("hold --session a --launch 1 --state /s --socket /k --orphan-ttl 1h", "--orphan-ttl is missing or has an"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(message), "{line}: {error}");
        }
    }
}
