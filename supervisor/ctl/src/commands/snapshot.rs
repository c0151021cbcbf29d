//! Implements `agentctl snapshot`: shows, refreshes and deletes the environments with which sessions begin.

use std::time::Duration;

use agentd_api::snapshot::{LoginSnapshotView, SnapshotList, SnapshotQuality, SnapshotState};
use jiff::Timestamp;

use super::{Context, print, tell};
use crate::args::SnapshotCommand;
use crate::error::Error;
use agentd_client::Document;
use agentd_screen::table::age;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

/// Time limit of a refresh: a login shell may take its whole deadline twice.
const REFRESH_WAIT: Duration = Duration::from_mins(5);

pub(super) async fn snapshot(context: &Context, command: SnapshotCommand) -> Result<u8, Error> {
    let document = match command {
        SnapshotCommand::Status => context.client.snapshots().await?,
        SnapshotCommand::Refresh => context.client.refresh_snapshots(REFRESH_WAIT).await?,
        SnapshotCommand::Invalidate => context.client.invalidate_snapshots().await?,
    };
    let list = show(context, &document)?;
    let stale = |view: &LoginSnapshotView| matches!(view.state, SnapshotState::Stale | SnapshotState::Degraded);
    match list.login_shells.iter().find(|view| stale(view)) {
        Some(view) if matches!(command, SnapshotCommand::Refresh) => {
            let (shell, is_weak) = (view.shell.display(), view.quality == Some(SnapshotQuality::Degraded));
            let what = if is_weak { "returned less than a terminal has" } else { "failed to run again" };
            let kept = if is_weak { "there is no better snapshot" } else { "the last good snapshot is kept" };
            Err(Error::Session { detail: format!("the login shell {shell} {what}; {kept}"), hint: None })
        }
        _ => Ok(0),
    }
}

fn show<'a>(context: &Context, document: &'a Document<SnapshotList>) -> Result<&'a SnapshotList, Error> {
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(&document.value);
    }
    let (list, screen, now) = (&document.value, Screen::stdout(), Timestamp::now());
    Context::table(&shells(list, screen, now))?;
    if !list.terminals.is_empty() {
        print("\n")?;
        Context::table(&terminals(list, screen, now))?;
    }
    for view in &list.login_shells {
        for remark in remarks(view) {
            tell(&remark)?;
        }
    }
    if context.verbose {
        for file in list.login_shells.iter().flat_map(|view| &view.files) {
            tell(&format!("watched: {}", file.display()))?;
        }
    }
    Ok(list)
}

fn shells(list: &SnapshotList, screen: Screen, now: Timestamp) -> Table {
    let mut table = Table::new(&[
        ("SHELL", Cut::Start),
        ("HOME", Cut::Start),
        ("STATE", Cut::Never),
        ("AGE", Cut::Never),
        ("VARS", Cut::Never),
        ("FUNCS", Cut::Never),
        ("FILES", Cut::Never),
        ("HITS", Cut::Never),
        ("RUNS", Cut::Never),
        ("TOOK", Cut::Never),
        ("EXPIRES", Cut::Never),
    ]);
    for view in &list.login_shells {
        table.row([
            screen.line(&view.shell.to_string_lossy()),
            screen.line(&view.home.to_string_lossy()),
            state(view.state).to_owned(),
            view.captured.map(|captured| age(captured, now)).unwrap_or_default(),
            view.variables.to_string(),
            view.functions.to_string(),
            view.files.len().to_string(),
            view.hits.to_string(),
            view.captures.to_string(),
            view.last_duration_ms.map(|last| format!("{last}ms")).unwrap_or_default(),
            view.expires.map(|expires| age(now, expires)).unwrap_or_default(),
        ]);
    }
    table
}

fn terminals(list: &SnapshotList, screen: Screen, now: Timestamp) -> Table {
    let mut table = Table::new(&[("TERMINAL", Cut::Never), ("AGE", Cut::Never), ("VARS", Cut::Never)]);
    for view in &list.terminals {
        table.row([screen.line(&view.id), age(view.captured, now), view.variables.to_string()]);
    }
    table
}

fn state(state: SnapshotState) -> &'static str {
    match state {
        SnapshotState::Empty => "empty",
        SnapshotState::Fresh => "fresh",
        SnapshotState::Outdated => "outdated",
        SnapshotState::Stale => "stale",
        SnapshotState::Degraded => "degraded",
        SnapshotState::Capturing => "capturing",
        SnapshotState::Unknown => "unknown",
    }
}

/// Formats the facts that have no column in the table.
fn remarks(view: &LoginSnapshotView) -> Vec<String> {
    let mut remarks: Vec<String> = view.reason.iter().map(|why| format!("{}: {why}", state(view.state))).collect();
    if view.quality == Some(SnapshotQuality::Degraded) {
        remarks.push(
            "there is no better capture: sessions begin with this capture, which has less than a terminal".to_owned(),
        );
    }
    if view.captured.is_some() && !view.complete {
        let until = view.expires.map(|expires| format!(" ({expires:.0})")).unwrap_or_default();
        remarks.push(format!(
            "{} does not report all files that it reads, so the snapshot expires sooner{until}: an unnoticed change \
             takes effect then, or after `agentctl snapshot refresh`",
            view.shell.display()
        ));
    }
    if !view.path_lost.is_empty() {
        remarks.push(format!(
            "its PATH has lost {}, which the last accepted one had; `agentctl snapshot refresh` accepts that",
            view.path_lost.join(", ")
        ));
    }
    if !view.withheld.is_empty() {
        remarks.push(format!("agents do not get {}, which the login shell sets", view.withheld.join(", ")));
    }
    if !view.missing.is_empty() {
        remarks.push(format!("without {}, which a restart of agentd lost", view.missing.join(", ")));
    }
    if !view.unanswered.is_empty() {
        let files: Vec<String> = view.unanswered.iter().map(|file| file.display().to_string()).collect();
        remarks.push(format!(
            "the file server of {} does not answer: a change there takes effect later",
            files.join(", ")
        ));
    }
    let written =
        view.unwatched.iter().map(|file| format!("{} is written at every run, and is not watched", file.display()));
    remarks.extend(written);
    if view.left > 0 {
        remarks.push(format!("the last run left {} processes in the background", view.left));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    fn list() -> SnapshotList {
        serde_json::from_value(serde_json::json!({
            "login_shells": [{
                "shell": "/usr/local/bin/some-directory/bash", "home": "/home/somebody/with/a/long/path",
                "state": "stale",
                "reason": "it ended with status \
                     3", "captured": "2026-01-01T00:00:00Z", "expires": "2026-01-02T00:00:00Z",
                "age_seconds": 3600, "variables": 81, "functions": 2, "missing": ["API_KEY"],
                "files": ["/etc/profile", "/a"],
                "complete": false, "path_lost": ["/lost/bin"], "withheld": ["nofile \
                     9"], "unwatched": ["/home/x/cache.sh"], "left": 1, "hits": 1234, "captures": 17, "failures": 1,
                "last_duration_ms": 12345,
            }],
            "terminals": [{
                "id": "k3m9x2p7qa4z", "captured": "2026-01-01T00:00:00Z", "variables": 80, "functions": 0,
                "expires": "2026-01-02T00:00:00Z",
            }],
        }))
        .unwrap()
    }

    #[test]
    fn the_table_fits_a_terminal_and_has_the_numbers() {
        let (list, screen) = (list(), Screen { terminal: true, colour: false });
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let text = shells(&list, screen, now).render(Some(100));
        assert!(text.lines().all(|line| line.width() <= 100), "{text}");
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert!(row[0].ends_with("/bash"), "{text}");
        assert_eq!(row[2..], ["stale", "1h", "81", "2", "2", "1234", "17", "12345ms", "23h"], "{text}");
        assert!(terminals(&list, screen, now).render(Some(100)).contains("k3m9x2p7qa4z  1h   80"));
    }

    #[test]
    fn what_the_table_cannot_say_is_remarked() {
        let remarks = remarks(&list().login_shells[0]).join("\n");
        for word in [
            "stale: it ended with status 3",
            "does not report all files",
            "/lost/bin",
            "API_KEY",
            "/home/x/cache.sh",
            "left 1",
        ] {
            assert!(remarks.contains(word), "{word:?} is not in:\n{remarks}");
        }
    }
}
