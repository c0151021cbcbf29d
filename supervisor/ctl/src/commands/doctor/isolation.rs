//! Checks whether this kernel supports the isolation level `guard` for this user. The keeper applies the
//! isolation, so the keeper is asked.

use std::path::Path;
use std::process::Stdio;

use agentd_api::doctor::Check;
use agentd_api::isolation::IsolationSurvey;
use agentd_api::prerequisite::Outcome;
use tokio::process::Command;

use super::MOMENT;
/// Asks the keeper in this directory. Returns `None` if there is no keeper that can answer.
pub(super) async fn look(directory: &Path) -> Option<IsolationSurvey> {
    let mut command = Command::new(directory.join("agentd-keeper"));
    command.arg("isolation").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(MOMENT, command.output()).await.ok()?.ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

pub(super) fn check(survey: &IsolationSurvey, os: &str) -> Check {
    if survey.missing.is_empty() {
        return Check::new("isolation", Outcome::Pass, "agents can have the level \"guard\"");
    }
    if os == "macos" {
        return Check::new("isolation", Outcome::Pass, "agents have the level \"none\", since macOS has no other");
    }
    let parts: Vec<&str> = survey.missing.iter().map(|missing| missing.part.as_str()).collect();
    let summary = format!("agents cannot have all of the level \"guard\" for lack of: {}", parts.join(", "));
    let check = Check::new("isolation", Outcome::Warn, summary);
    let with_facts =
        survey.missing.iter().fold(check, |check, missing| check.fact(missing.part.as_str(), missing.reason.as_str()));
    with_facts.remedy("docs/isolation.md lists the requirements of each part; without them, keep isolation at \"none\"")
}

#[cfg(test)]
mod tests {
    use agentd_api::isolation::{IsolationPart, MissingPart};

    use super::*;

    #[test]
    fn a_part_that_the_kernel_lacks_is_a_warning_with_its_reason() {
        let missing = vec![MissingPart { part: IsolationPart::Landlock, reason: "ABI 4".to_owned() }];
        let survey = IsolationSurvey { missing };
        let told = check(&survey, "linux");
        assert!(told.outcome == Outcome::Warn && told.summary.ends_with("for lack of: landlock"), "{told:?}");
        assert_eq!(told.facts[0].value, "ABI 4");
        assert_eq!(check(&survey, "macos").outcome, Outcome::Pass);
        assert_eq!(check(&IsolationSurvey::default(), "linux").outcome, Outcome::Pass);
    }
}
