//! Checks the configuration files for mistakes, and compares them with the configuration in force.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::configuration::{Consequence, Mistake};
use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;

use agentd_config::{self as config, Effects};
use agentd_session::generation::Generation;

/// Time limit for checking that the configured directories exist.
const PATIENCE: Duration = Duration::from_secs(2);

/// Result of reading the files again.
#[derive(Debug, Default)]
struct FileFindings {
    mistakes: Vec<Mistake>,
    /// Configured directories that do not exist.
    missing: Vec<Mistake>,
    /// Keys whose values in the files are not in force.
    changed: Vec<String>,
    /// Keys that were read and take effect only after a restart of agentd.
    waiting: Vec<String>,
}

pub(super) async fn check(generation: &Arc<Generation>) -> Check {
    let of = Arc::clone(generation);
    let looked = agentd_host::work::blocking(move || {
        let changes: Vec<_> =
            of.read.changed_since(&of.daemon.at_start).iter().map(|key| Effects::change(key)).collect();
        let waiting = Effects::at_the_next_start(&changes);
        match config::reload(&of.read.sources, &of.read) {
            Ok(loaded) => {
                let keys = loaded.read.changed_since(&of.read);
                FileFindings { changed: keys, mistakes: loaded.read.mistakes, waiting, missing: Vec::new() }
            }
            Err(mistakes) => FileFindings { mistakes, waiting, ..FileFindings::default() },
        }
    });
    match looked.await {
        Ok(mut files) => {
            files.missing = missing(generation).await;
            let known = LastReload {
                in_use: in_use(generation),
                any: !generation.daemon.standing.mistakes().is_empty(),
                refused: generation.launchable().is_err(),
            };
            let check = concluded(&files, &known);
            generation.read.files.iter().fold(check, |check, file| check.fact("file", file.display().to_string()))
        }
        Err(error) => super::unknown("configuration", &error),
    }
}

/// Returns the configured directories that do not exist. A directory on a mount that does not answer does not count
/// as missing.
async fn missing(generation: &Arc<Generation>) -> Vec<Mistake> {
    let of = Arc::clone(generation);
    let look = agentd_host::work::blocking(move || config::missing_directories(&of.config, &of.read));
    tokio::time::timeout(PATIENCE, look).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// Findings of the last reload or start.
#[derive(Debug, Default)]
struct LastReload {
    /// Mistakes that show only in use: a token, a port.
    in_use: Vec<Mistake>,
    /// Whether any mistake was found.
    any: bool,
    /// Whether launches are refused because of a mistake.
    refused: bool,
}

fn in_use(generation: &Generation) -> Vec<Mistake> {
    let is_of_use =
        |mistake: &Mistake| mistake.key.starts_with("control.") && !generation.read.mistakes.contains(mistake);
    generation.daemon.standing.mistakes().into_iter().filter(is_of_use).collect()
}

fn concluded(files: &FileFindings, known: &LastReload) -> Check {
    const RELOAD: &str = "agentctl reload";
    let same = |one: &Mistake, other: &Mistake| (&one.file, &one.key) == (&other.file, &other.key);
    // Mistakes in the files take precedence. Mistakes that show only in use are known from the last reload.
    let of_use = known.in_use.iter().filter(|mistake| !files.mistakes.iter().any(|found| same(found, mistake)));
    let mut findings: Vec<Finding> = files.mistakes.iter().chain(of_use).map(finding).collect();
    if findings.is_empty() && known.any {
        let consequence =
            if known.refused { "launches are still refused" } else { "the correction is not in force yet" };
        findings.push(
            Finding::bare(
                Outcome::Fail,
                format!("a mistake in the configuration is corrected in the files, but {consequence}"),
            )
            .run(RELOAD),
        );
    } else if !files.changed.is_empty() {
        let keys = files.changed.join(", ");
        findings
            .push(Finding::bare(Outcome::Warn, format!("the files were changed but not reloaded: {keys}")).run(RELOAD));
    }
    if !files.waiting.is_empty() {
        let summary = format!("in force only after a restart of agentd: {}", files.waiting.join(", "));
        let remedy = "restart agentd at a suitable time; its sessions continue";
        findings.push(Finding::new(Outcome::Warn, summary, remedy));
    }
    let is_missing = |missing: &Mistake| {
        Finding::new(Outcome::Warn, missing.to_string(), "create the directory, mount it, or correct the key")
    };
    findings.extend(files.missing.iter().map(is_missing));
    Check::of("configuration", &findings, "the files have no mistakes and are in force")
}

fn finding(mistake: &Mistake) -> Finding {
    let outcome = match mistake.consequence {
        // The left-out `control` settings were requested, and agentd has no TCP endpoint without them.
        Consequence::LeftOut if !mistake.key.starts_with("control.") => Outcome::Warn,
        _ => Outcome::Fail,
    };
    let summary = format!("{mistake}; {}", mistake.consequence.explained());
    Finding::new(outcome, summary, "correct the mistake; `agentctl config check` checks the files without a reload")
        .run("agentctl reload")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(key: &str, consequence: Consequence) -> Mistake {
        Mistake { key: key.to_owned(), message: "it is wrong".to_owned(), consequence, ..Mistake::default() }
    }

    #[test]
    fn a_mistake_an_unloaded_correction_and_an_unloaded_change_have_different_outcomes() {
        let files = |mistakes: Vec<Mistake>, changed: &[&str]| FileFindings {
            mistakes,
            changed: changed.iter().map(|&key| key.to_owned()).collect(),
            ..FileFindings::default()
        };
        let known = |any, refused| LastReload { any, refused, in_use: Vec::new() };
        let outcome = |files: &FileFindings, known: &LastReload| concluded(files, known).outcome;
        assert_eq!(outcome(&files(vec![], &[]), &known(false, false)), Outcome::Pass);
        let refused = mistake("limits.body", Consequence::LaunchesRefused);
        assert_eq!(outcome(&files(vec![refused], &[]), &known(true, true)), Outcome::Fail);
        let left_out = mistake("plugins.mine", Consequence::LeftOut);
        assert_eq!(outcome(&files(vec![left_out], &[]), &known(true, false)), Outcome::Warn);
        let corrected = concluded(&files(vec![], &["limits.body"]), &known(true, true));
        assert_eq!((corrected.outcome, &corrected.remedy), (Outcome::Fail, &None), "the command says it all");
        assert_eq!(corrected.run[0].line, "agentctl reload");
        let changed = concluded(&files(vec![], &["limits.turn"]), &known(false, false));
        assert!(changed.outcome == Outcome::Warn && changed.summary.contains("limits.turn"), "{changed:?}");
        let waiting = FileFindings { waiting: vec!["limits.connections".to_owned()], ..FileFindings::default() };
        let check = concluded(&waiting, &known(false, false));
        assert!(check.outcome == Outcome::Warn && check.summary.contains("limits.connections"), "{check:?}");
        // A missing token shows when the file is opened, not when the configuration is parsed.
        let token = mistake("control.token", Consequence::FormerInForce);
        let check = concluded(&FileFindings::default(), &LastReload { in_use: vec![token], any: true, refused: false });
        assert!(check.outcome == Outcome::Fail && check.summary.contains("control.token"), "{check:?}");
    }
}
