//! Whether another build can take over from the daemon that runs: asked before the programs are replaced.

use std::path::{Path, PathBuf};

use agentd_api::compatibility::Compatibility;
use agentd_api::session::SessionView;
use tokio::process::Command;

use super::{Context, print};
use crate::error::Error;
use crate::terminal::Screen;

/// One thing that has to be so.
struct Finding {
    holds: bool,
    text: String,
}

/// 0 where the new build can take everything over, 1 where it cannot.
pub(super) async fn check(context: &Context, program: Option<PathBuf>) -> Result<u8, Error> {
    let program = program
        .map_or_else(|| std::env::current_exe().map(|own| own.with_file_name("agentd")), Ok)
        .map_err(Error::Setup)?;
    let new = ask(&program).await?;
    let running = context.client.version().await?.value;
    let sessions = context.client.list().await?.value.sessions;
    let findings = findings(&running.compatibility, &new, &sessions);
    let safe = findings.iter().all(|finding| finding.holds);
    if context.json {
        let document = serde_json::json!({
            "safe": safe,
            "running": running.compatibility,
            "new": new,
            "findings": findings.iter().map(|finding| serde_json::json!({ "holds": finding.holds, "text": finding.text })).collect::<Vec<_>>(),
        });
        print(&format!("{document}\n"))?;
    } else {
        let screen = Screen::stdout();
        print(&format!(
            "running {}, new {} ({})\n",
            screen.line(&running.version),
            screen.line(&new.version),
            screen.line(&program.to_string_lossy())
        ))?;
        for finding in &findings {
            print(&format!("{} {}\n", if finding.holds { "ok  " } else { "FAIL" }, screen.line(&finding.text)))?;
        }
        let verdict = if safe {
            "the new build can take over: replace agentd, agentd-keeper and agentctl, then restart agentd; sessions go on meanwhile"
        } else {
            "the new build cannot take over: stop the sessions first, or keep this build until they have ended"
        };
        print(&format!("{verdict}\n"))?;
    }
    Ok(u8::from(!safe))
}

/// What keeps the new build from taking over what the other wrote and holds, for people.
pub(super) fn obstacles(running: &Compatibility, new: &Compatibility, sessions: &[SessionView]) -> Vec<String> {
    let findings = findings(running, new, sessions).into_iter();
    findings.filter(|finding| !finding.holds).map(|finding| finding.text).collect()
}

/// What the program says of itself.
pub(super) async fn ask(program: &Path) -> Result<Compatibility, Error> {
    let failed = |reason: String| Error::NotAgentd { program: program.to_owned(), reason };
    let output =
        Command::new(program).arg("compatibility").output().await.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

fn findings(running: &Compatibility, new: &Compatibility, sessions: &[SessionView]) -> Vec<Finding> {
    let written = |versions: &[u32]| versions.last().copied().unwrap_or_default();
    let reads = |what: &str, version: u32, known: &[u32]| Finding {
        holds: known.contains(&version),
        text: format!("{what} of version {version}: the new build reads {known:?}"),
    };
    let mut findings = vec![
        reads("session documents", written(&running.session_documents), &new.session_documents),
        reads("records of approvals", written(&running.trust_records), &new.trust_records),
    ];
    // A build that does not say writes what every build reads.
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
