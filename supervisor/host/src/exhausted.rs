//! Recognises errors that mean exhausted resources: descriptors, memory, processes. They are temporary and say
//! nothing about the requested object.
//!
//! The system's errors are wrapped by many modules before users see them. The standard library writes the error's
//! number into the text, so the number identifies the error in any message.

use agentd_api::{Code, Problem};
use nix::libc;

/// Returns the exhausted resource for an error's text, as a message. `None` means another kind of error.
pub fn in_text(text: &str) -> Option<&'static str> {
    let (_, number) = text.rsplit_once("(os error ")?;
    by_number(number.split_once(')')?.0.parse().ok()?)
}

/// Reports whether the same call may succeed a moment later: a resource was exhausted, or a signal interrupted the
/// call.
pub fn passes(error: &std::io::Error) -> bool {
    error.raw_os_error().is_some_and(|errno| errno == libc::EINTR || by_number(errno).is_some())
}

fn by_number(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EMFILE => Some("agentd has no descriptor left"),
        libc::ENFILE => Some("the machine has no descriptor left"),
        libc::ENOMEM => Some("there is too little memory"),
        libc::EAGAIN => Some("no more processes or threads may be started, or there is too little memory"),
        _ => None,
    }
}

/// Codes of problems that may quote another program's text. An exhausted resource in the quote is that program's own.
const QUOTING: [Code; 3] = [Code::SnapshotFailed, Code::PrerequisitesNotMet, Code::OutOfResources];

/// Converts a problem about an exhausted resource. Other problems are returned unchanged.
pub fn judge(refused: Problem) -> Problem {
    if QUOTING.contains(&refused.code) || in_text(&refused.detail).is_none() {
        refused
    } else {
        problem(&refused.detail)
    }
}

/// Returns the problem for an exhausted resource.
pub fn problem(detail: &str) -> Problem {
    let detail = in_text(detail).map_or_else(|| detail.to_owned(), |what| format!("{what}: {detail}"));
    Problem::new(Code::OutOfResources, detail).hint(
        "the request itself is valid; stop sessions or close connections and try again, or allow agentd more \
         (`LimitNOFILE=`, `TasksMax=` and `MemoryMax=` of its unit, or `ulimit -n`)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_about_scarcity_by_its_number_wherever_it_stands() {
        let of = |errno| format!("cannot look: {}: and so on", std::io::Error::from_raw_os_error(errno));
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN] {
            assert!(in_text(&of(errno)).is_some(), "{errno}");
        }
        for errno in [libc::ENOENT, libc::EACCES, libc::ENOSPC] {
            assert_eq!(in_text(&of(errno)), None);
        }
        let problem = judge(Problem::new(Code::NoSuchDirectory, of(libc::EMFILE)));
        assert_eq!((problem.code, problem.status), (Code::OutOfResources, 503));
        assert_eq!(judge(problem.clone()), problem, "it is said once");
        let other = Problem::new(Code::NoSuchDirectory, "it is not there");
        assert_eq!(judge(other.clone()), other);
    }
}
