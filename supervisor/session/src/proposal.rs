//! The script that is proposed for a session, usually by its agent.
//!
//! The script is a file of the session's directory. It runs only while the owner's approval covers exactly this
//! content, and [`agentd_environment`] looks at that before each launch. So a proposal decides nothing.

use std::path::PathBuf;

use agentd_api::prerequisite::Requester;
use agentd_api::scripts::{EXPLANATION_BYTES, PROPOSAL_BYTES, ScriptProposal};
use agentd_api::{Code, Problem, SessionId};
use agentd_environment::{PROPOSED_SCRIPT, ScriptDirectories};
use agentd_host::files;
use async_recursion::async_recursion as boxed;

use super::{Command, Session};
use crate::generation::Generation;

/// Returns the path of the session's proposed script. The file may be missing.
pub fn path_of(generation: &Generation, id: &SessionId) -> PathBuf {
    generation.daemon.directories.session(id).join(PROPOSED_SCRIPT)
}

/// Stores a proposed script, and records it.
///
/// # Errors
///
/// The proposal is refused, or the script cannot be written.
#[boxed]
pub async fn propose(
    generation: &Generation,
    session: &Session,
    proposal: ScriptProposal,
    requester: Requester,
) -> Result<(), Problem> {
    let ScriptProposal { text, explanation } = proposal;
    let explanation = explanation.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    check(&text, explanation.as_deref())?;
    let digest = ScriptDirectories::digest_of(Some(&text)).unwrap_or_default();
    let path = path_of(generation, session.id());
    let written = agentd_host::work::blocking(move || files::write(&path, text.as_bytes())).await;
    written.map_err(std::io::Error::other).flatten().map_err(|error| {
        Problem::new(Code::Internal, format!("cannot store the proposed script: {error}"))
            .hint("see the log of agentd, and try again")
    })?;
    session.ask(Command::ProposeScript { digest, explanation, requester: Some(requester) }).await.map(drop)
}

/// Refuses a proposal that a person could not review.
fn check(text: &str, explanation: Option<&str>) -> Result<(), Problem> {
    let refused = |detail: String, hint: &str| Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
    if text.trim().is_empty() {
        return refused("the proposed script is empty".to_owned(), "send the text of a shell script");
    }
    if text.contains('\0') {
        return refused("the proposed script contains a NUL byte".to_owned(), "send the text of a shell script");
    }
    if text.len() > PROPOSAL_BYTES {
        let detail = format!("the proposed script has {} bytes, and the limit is {PROPOSAL_BYTES}", text.len());
        return refused(detail, "propose a shorter script, which may source other files");
    }
    if let Some(long) = explanation.filter(|text| text.len() > EXPLANATION_BYTES) {
        let detail = format!("the explanation has {} bytes, and the limit is {EXPLANATION_BYTES}", long.len());
        return refused(detail, "shorten the explanation");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proposal_that_nobody_could_review_is_refused_with_the_limit() {
        let long = "#".repeat(PROPOSAL_BYTES + 1);
        let explained = "x".repeat(EXPLANATION_BYTES + 1);
        for (text, explanation, expected) in [
            (" \n", None, "is empty"),
            ("export A=1\0", None, "NUL"),
            (long.as_str(), None, "65536"),
            ("export A=1", Some(explained.as_str()), "2000"),
        ] {
            let problem = check(text, explanation).unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest);
            assert!(problem.detail.contains(expected) && problem.hint.is_some(), "{}", problem.detail);
        }
        assert!(check(&long[1..], Some(&explained[1..])).is_ok());
    }
}
