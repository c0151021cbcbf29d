//! Whether the configuration is right, and whether it is the one in the files.

use std::sync::Arc;

use agentd_api::configuration::{Consequence, Mistake};
use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;

use crate::config;
use crate::world::World;

/// What reading the files again would come to.
#[derive(Debug, Default)]
struct Files {
    mistakes: Vec<Mistake>,
    /// Keys that are not in force as the files say them.
    changed: Vec<String>,
}

pub(super) async fn check(world: &Arc<World>) -> Check {
    let of = Arc::clone(world);
    let looked = tokio::task::spawn_blocking(move || match config::load_again(&of.read.sources, &of.read) {
        Ok(loaded) => Files { changed: loaded.read.changed_since(&of.read), mistakes: loaded.read.mistakes },
        Err(mistakes) => Files { mistakes, changed: Vec::new() },
    });
    match looked.await {
        Ok(files) => {
            let known = world.standing.mistakes();
            let check = concluded(&files, &known, world.launchable().is_err());
            world.read.files.iter().fold(check, |check, file| check.fact("file", file.display().to_string()))
        }
        Err(error) => super::unknown("configuration", &error),
    }
}

fn concluded(files: &Files, known: &[Mistake], refused: bool) -> Check {
    const RELOAD: &str = "agentctl reload";
    let same = |one: &Mistake, other: &Mistake| (&one.file, &one.key) == (&other.file, &other.key);
    // What a reload would find counts first; what only shows in use (a token, a plugin) is known from the last one.
    let in_use = |mistake: &&Mistake| !files.mistakes.iter().any(|found| same(found, mistake));
    let is_of_use = |mistake: &&Mistake| mistake.key.starts_with("control.") || mistake.key.starts_with("plugins.");
    let of_use = known.iter().filter(in_use).filter(is_of_use);
    let mut findings: Vec<Finding> = files.mistakes.iter().chain(of_use).map(finding).collect();
    if findings.is_empty() && !known.is_empty() {
        let consequence = if refused { "launches are still refused" } else { "it is not in force yet" };
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
        };
        let outcome = |files: &Files, known: &[Mistake], refused| concluded(files, known, refused).outcome;
        assert_eq!(outcome(&files(vec![], &[]), &[], false), Outcome::Pass);
        let refused = mistake("limits.body", Consequence::LaunchesRefused);
        assert_eq!(outcome(&files(vec![refused.clone()], &[]), std::slice::from_ref(&refused), true), Outcome::Fail);
        let left_out = mistake("plugins.mine", Consequence::LeftOut);
        assert_eq!(outcome(&files(vec![left_out.clone()], &[]), &[left_out], false), Outcome::Warn);
        let corrected = concluded(&files(vec![], &["limits.body"]), &[refused], true);
        assert_eq!((corrected.outcome, &corrected.remedy), (Outcome::Fail, &None), "the command says it all");
        assert_eq!(corrected.run[0].line, "agentctl reload");
        let changed = concluded(&files(vec![], &["limits.turn"]), &[], false);
        assert!(changed.outcome == Outcome::Warn && changed.summary.contains("limits.turn"), "{changed:?}");
        // A token that is missing shows when it is opened, and not in the files.
        let token = mistake("control.token", Consequence::FormerInForce);
        let check = concluded(&files(vec![], &[]), &[token], false);
        assert!(check.outcome == Outcome::Fail && check.summary.contains("control.token"), "{check:?}");
    }
}
