//! Whether the configuration is right, and whether it is the one in the files.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::configuration::{Consequence, Mistake};
use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;

use crate::config::{self, Effects};
use crate::world::World;

/// How long the directories of the configuration have to say whether they are there.
const PATIENCE: Duration = Duration::from_secs(2);

/// What reading the files again would come to.
#[derive(Debug, Default)]
struct Files {
    mistakes: Vec<Mistake>,
    /// Directories that are named and not there.
    missing: Vec<Mistake>,
    /// Keys that are not in force as the files say them.
    changed: Vec<String>,
    /// Keys that were read, and take effect only when agentd is started again.
    waiting: Vec<String>,
}

pub(super) async fn check(world: &Arc<World>) -> Check {
    let of = Arc::clone(world);
    let looked = tokio::task::spawn_blocking(move || {
        let changes: Vec<_> = of.read.changed_since(&of.at_start).iter().map(|key| Effects::change(key)).collect();
        let waiting = Effects::at_the_next_start(&changes);
        match config::load_again(&of.read.sources, &of.read) {
            Ok(loaded) => {
                let keys = loaded.read.changed_since(&of.read);
                Files { changed: keys, mistakes: loaded.read.mistakes, waiting, missing: Vec::new() }
            }
            Err(mistakes) => Files { mistakes, waiting, ..Files::default() },
        }
    });
    match looked.await {
        Ok(mut files) => {
            files.missing = missing(world).await;
            let known = Known {
                in_use: in_use(world),
                any: !world.standing.mistakes().is_empty(),
                refused: world.launchable().is_err(),
            };
            let check = concluded(&files, &known);
            world.read.files.iter().fold(check, |check, file| check.fact("file", file.display().to_string()))
        }
        Err(error) => super::unknown("configuration", &error),
    }
}

/// The directories of the configuration in force that are not there. One on a mount that does not answer is not known to be missing.
async fn missing(world: &Arc<World>) -> Vec<Mistake> {
    let of = Arc::clone(world);
    let look = tokio::task::spawn_blocking(move || config::missing_directories(&of.config, &of.read));
    tokio::time::timeout(PATIENCE, look).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// What the last reload or the start found.
#[derive(Debug, Default)]
struct Known {
    /// Mistakes that only show in use: a token, a port.
    in_use: Vec<Mistake>,
    /// Whether there was any mistake.
    any: bool,
    /// Whether launches are refused for one.
    refused: bool,
}

fn in_use(world: &World) -> Vec<Mistake> {
    let is_of_use = |mistake: &Mistake| mistake.key.starts_with("control.") && !world.read.mistakes.contains(mistake);
    world.standing.mistakes().into_iter().filter(is_of_use).collect()
}

fn concluded(files: &Files, known: &Known) -> Check {
    const RELOAD: &str = "agentctl reload";
    let same = |one: &Mistake, other: &Mistake| (&one.file, &one.key) == (&other.file, &other.key);
    // What a reload would find counts first; what only shows in use is known from the last one.
    let of_use = known.in_use.iter().filter(|mistake| !files.mistakes.iter().any(|found| same(found, mistake)));
    let mut findings: Vec<Finding> = files.mistakes.iter().chain(of_use).map(finding).collect();
    if findings.is_empty() && known.any {
        let consequence = if known.refused { "launches are still refused" } else { "it is not in force yet" };
        findings.push(
            Finding::bare(
                Outcome::Fail,
                format!("a mistake in the configuration is corrected in the files, and {consequence}"),
            )
            .run(RELOAD),
        );
    } else if !files.changed.is_empty() {
        let keys = files.changed.join(", ");
        findings
            .push(Finding::bare(Outcome::Warn, format!("the files were changed and not reloaded: {keys}")).run(RELOAD));
    }
    if !files.waiting.is_empty() {
        let summary = format!("read, and not in force before agentd is started again: {}", files.waiting.join(", "));
        let remedy = "end agentd and start it again when that suits you; its sessions go on";
        findings.push(Finding::new(Outcome::Warn, summary, remedy));
    }
    let is_missing = |missing: &Mistake| {
        Finding::new(Outcome::Warn, missing.to_string(), "make the directory, mount it, or correct the key")
    };
    findings.extend(files.missing.iter().map(is_missing));
    Check::of("configuration", &findings, "it has no mistake, and is the one in force")
}

fn finding(mistake: &Mistake) -> Finding {
    let outcome = match mistake.consequence {
        // Who asked for TCP has none.
        Consequence::LeftOut if !mistake.key.starts_with("control.") => Outcome::Warn,
        _ => Outcome::Fail,
    };
    let summary = format!("{mistake}; {}", mistake.consequence.explained());
    Finding::new(outcome, summary, "correct it; `agentctl config check` checks the files without a reload")
        .run("agentctl reload")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(key: &str, consequence: Consequence) -> Mistake {
        Mistake { key: key.to_owned(), message: "it is wrong".to_owned(), consequence, ..Mistake::default() }
    }

    #[test]
    fn a_mistake_a_correction_that_is_not_reloaded_and_a_change_that_is_not_are_told_apart() {
        let files = |mistakes: Vec<Mistake>, changed: &[&str]| Files {
            mistakes,
            changed: changed.iter().map(|&key| key.to_owned()).collect(),
            ..Files::default()
        };
        let known = |any, refused| Known { any, refused, in_use: Vec::new() };
        let outcome = |files: &Files, known: &Known| concluded(files, known).outcome;
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
        let waiting = Files { waiting: vec!["limits.connections".to_owned()], ..Files::default() };
        let check = concluded(&waiting, &known(false, false));
        assert!(check.outcome == Outcome::Warn && check.summary.contains("limits.connections"), "{check:?}");
        // A token that is missing shows when it is opened, and not in the files.
        let token = mistake("control.token", Consequence::FormerInForce);
        let check = concluded(&Files::default(), &Known { in_use: vec![token], any: true, refused: false });
        assert!(check.outcome == Outcome::Fail && check.summary.contains("control.token"), "{check:?}");
    }
}
