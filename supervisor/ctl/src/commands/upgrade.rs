//! Implements `agentctl upgrade-check`: checks whether another build can take over from the running daemon.

use std::path::PathBuf;

use super::{Context, print};
use crate::compatibility::{Finding, ask, findings};
use crate::error::Error;
use agentd_screen::terminal::Screen;

/// Compares the new build with the running daemon. Returns exit status 0 if the new build can take over, otherwise 1.
pub(super) async fn check(context: &Context, program: Option<PathBuf>) -> Result<u8, Error> {
    let program = program
        .map_or_else(|| std::env::current_exe().map(|own| own.with_file_name("agentd")), Ok)
        .map_err(Error::Setup)?;
    let new = ask(&program).await?;
    let running = context.client.version().await?.value;
    let sessions = context.client.sessions(&["status.keeper_protocol"]).await?;
    let findings = findings(&running.compatibility, &new, &sessions);
    let safe = findings.iter().all(|finding| finding.holds);
    if context.json {
        let each = |finding: &Finding| serde_json::json!({ "holds": finding.holds, "text": finding.text });
        let document = serde_json::json!({
            "safe": safe,
            "running": running.compatibility,
            "new": new,
            "findings": findings.iter().map(each).collect::<Vec<_>>(),
        });
        context.print_value(&document)?;
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
            "the new build can take over: replace agentd, agentd-keeper and agentctl, then restart agentd; \
                 sessions continue meanwhile"
        } else {
            "the new build cannot take over: stop the sessions first, or keep this build until they have ended"
        };
        print(&format!("{verdict}\n"))?;
    }
    Ok(u8::from(!safe))
}
