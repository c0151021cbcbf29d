//! The keeper's command line, which the daemon writes and no person: parsed by hand, because a parser for people costs each
//! keeper memory for its whole life.

use std::ffi::OsString;
use std::os::fd::RawFd;

/// What the binary is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    Run,
    DumpEnvironment(RawFd),
    Version,
}

/// How the binary is used.
pub const USAGE: &str = "agentd-keeper run
agentd-keeper dump-environment FD
agentd-keeper --version";

/// Why the arguments make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error("a role is missing: run or dump-environment")]
    NoRole,
    #[error("{0:?} is not a role: there are run and dump-environment")]
    Role(OsString),
    #[error("{0:?} is not known, stands twice or has no value")]
    Argument(OsString),
    #[error("{0} is missing or its value is not of its form")]
    Value(&'static str),
}

/// Parses what follows the program's name.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Role, UsageError> {
    let mut args = args.into_iter();
    let role = args.next().ok_or(UsageError::NoRole)?;
    let parsed = match role.to_str() {
        Some("run") => Role::Run,
        Some("dump-environment") => {
            let fd = args.next().and_then(|fd| fd.to_str()?.parse().ok()).filter(|fd| *fd >= 0);
            Role::DumpEnvironment(fd.ok_or(UsageError::Value("the descriptor's number"))?)
        }
        Some("--version") => Role::Version,
        _ => return Err(UsageError::Role(role)),
    };
    match args.next() {
        None => Ok(parsed),
        Some(extra) => Err(UsageError::Argument(extra)),
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
        assert_eq!(parsed("run"), Ok(Role::Run));
        assert_eq!(parsed("dump-environment 12"), Ok(Role::DumpEnvironment(12)));
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for (line, message) in [
            ("", "a role is missing"),
            ("serve", "\"serve\" is not a role"),
            ("run now", "\"now\" is not known"),
            ("dump-environment x", "the descriptor's number"),
            ("dump-environment -1", "the descriptor's number"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(message), "{line}: {error}");
        }
    }
}
