//! What the machine or the process has run out of: descriptors, memory, processes. It passes, and says nothing of what was asked.
//!
//! The system's errors reach people through many causes, in words of many modules; the number of the error stands in each of them as the standard
//! library writes it, and by that they are known, wherever they come from.

use agentd_api::{Code, Problem};
use nix::libc;

/// What is scarce by this error's text, for people; nothing where it is about something else.
pub(crate) fn in_text(text: &str) -> Option<&'static str> {
    let (_, number) = text.rsplit_once("(os error ")?;
    by_number(number.split_once(')')?.0.parse().ok()?)
}

/// Whether the same call may succeed a moment later: something was scarce, or a signal came.
pub(crate) fn passes(error: &std::io::Error) -> bool {
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

/// Codes of problems whose text may be another program's: that something was scarce for it, it says itself.
const QUOTING: [Code; 3] = [Code::SnapshotFailed, Code::PrerequisitesNotMet, Code::OutOfResources];

/// The problem as it is where something was scarce.
pub(crate) fn judge(refused: Problem) -> Problem {
    if QUOTING.contains(&refused.code) || in_text(&refused.detail).is_none() {
        refused
    } else {
        problem(&refused.detail)
    }
}

/// What is answered where something was scarce.
pub(crate) fn problem(detail: &str) -> Problem {
    let detail = in_text(detail).map_or_else(|| detail.to_owned(), |what| format!("{what}: {detail}"));
    Problem::new(Code::OutOfResources, detail).hint(
        "nothing is wrong with what was asked; stop sessions or close connections and ask again, or allow agentd more \
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
