//! Checks whether another build can take over from the running daemon, before the programs are replaced.

use std::path::Path;

use agentd_api::compatibility::Compatibility;
use agentd_api::session::SessionView;
use tokio::process::Command;

use crate::error::Error;

/// Result of one compatibility check.
pub(crate) struct Finding {
    pub(crate) holds: bool,
    pub(crate) text: String,
}

/// Returns the reasons why the new build cannot take over the running build's state, for users.
pub(crate) fn obstacles(running: &Compatibility, new: &Compatibility, sessions: &[SessionView]) -> Vec<String> {
    let findings = findings(running, new, sessions).into_iter();
    findings.filter(|finding| !finding.holds).map(|finding| finding.text).collect()
}

/// Runs a program's `compatibility` command and returns its answer.
pub(crate) async fn ask(program: &Path) -> Result<Compatibility, Error> {
    let failed = |reason: String| Error::NotAgentd { program: program.to_owned(), reason };
    let output =
        Command::new(program).arg("compatibility").output().await.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// Compares a running build with a new build, for these sessions.
pub(crate) fn findings(running: &Compatibility, new: &Compatibility, sessions: &[SessionView]) -> Vec<Finding> {
    let written = |versions: &[u32]| versions.last().copied().unwrap_or_default();
    let reads = |what: &str, version: u32, known: &[u32]| Finding {
        holds: known.contains(&version),
        text: format!("{what} of version {version}: the new build reads {known:?}"),
    };
    let mut findings = vec![
        reads("session documents", written(&running.session_documents), &new.session_documents),
        reads("records of approvals", written(&running.trust_records), &new.trust_records),
    ];
    // A build that does not report versions of environments writes a version that every build reads.
    if !running.environments.is_empty() {
        findings.push(reads("stored environments", written(&running.environments), &new.environments));
    }
    for session in sessions {
        let Some(protocol) = session.status.keeper_protocol else { continue };
        findings.push(Finding {
            holds: new.keeper_protocols.contains(&protocol),
            text: format!(
                "session {} ({}): its keeper speaks protocol {protocol}, the new build {:?}",
                session.id,
                session.status.phase.as_str(),
                new.keeper_protocols
            ),
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(keepers: &[u32], documents: &[u32]) -> Compatibility {
        Compatibility {
            version: "9.9.9".into(),
            keeper_protocols: keepers.to_vec(),
            session_documents: documents.to_vec(),
            trust_records: vec![1],
            environments: vec![1, 2, 3],
        }
    }

    #[test]
    fn a_build_that_cannot_read_what_is_written_is_not_safe() {
        let holds = |new: &Compatibility| findings(&build(&[1], &[1]), new, &[]).iter().all(|finding| finding.holds);
        assert!(holds(&build(&[1, 2], &[1, 2])));
        assert!(!holds(&build(&[1], &[2])));
        let silent = Compatibility { environments: Vec::new(), ..build(&[1], &[1]) };
        assert!(!holds(&silent), "it would refuse every launch of a session that has an environment");
        assert!(findings(&silent, &build(&[1], &[1]), &[]).iter().all(|finding| finding.holds));
    }
}
