//! Runs a component on its author's cases, in the sandbox and with recorded answers. Reports differences between the
//! results and the expectations.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::plugin_tool::{CaseOutcome, CaseRun, TestRun, ToolProblem};
use agentd_plugin_host::{Call, CallError, Description, Grant, Host, Limits, LoadTerms, World};
use similar::{ChangeTag, TextDiff};

use super::case::{Case, CaseError};
use super::expectation::Expectation;
use super::recorded::{Recorded, places};
use super::{ToolError, source};
use agentd_api::chain;
use agentd_plugin_set::combined;

pub(super) async fn test(host: &Host, file: &Path, cases: &[PathBuf], update: bool) -> Result<TestRun, ToolError> {
    let known = host.inspect(source(file)).await?.description;
    let mut runs = Vec::new();
    for case in cases {
        runs.push(run(host, file, &known, case, update).await);
    }
    Ok(TestRun { plugin: known.name.clone(), cases: runs })
}

/// Returns the variables that a provider sets in a case.
pub(super) async fn variables(
    host: &Host,
    file: &Path,
    known: &Description,
    path: &Path,
) -> Result<Vec<String>, ToolError> {
    let wrong = |reason: String| ToolError::Case { path: path.display().to_string(), reason };
    let (mut case, _) = Case::read(path).map_err(|error| wrong(chain(&error)))?;
    case.grant = None; // The case's own grant must not hide variables.
    let called = call(host, file, known, case).await.map_err(|error| match error {
        NotCalled::Settings(message) => wrong(message),
        NotCalled::Load(error) => error,
    })?;
    called.result.map(|answer| answer.variables()).map_err(|error| wrong(chain(&error)))
}

/// Result of a call.
struct CallResult {
    result: Result<Expectation, CallError>,
    recorded: Arc<Recorded>,
    took: Duration,
}

async fn run(host: &Host, file: &Path, known: &Description, path: &Path, update: bool) -> CaseRun {
    let mut run = CaseRun {
        file: path.display().to_string(),
        outcome: CaseOutcome::Failed,
        problem: None,
        difference: Vec::new(),
        unanswered: Vec::new(),
        log: Vec::new(),
        microseconds: 0,
    };
    let fail = |mut run: CaseRun, code: &str, message: String, hint: Option<String>| {
        run.problem = Some(ToolProblem { code: code.to_owned(), message, hint });
        run
    };
    let (mut read, text) = match Case::read(path) {
        Ok(case_and_text) => case_and_text,
        Err(error) => return fail(run, "case", chain(&error), None),
    };
    let expected = read.expect.take();
    let actual = match call(host, file, known, read).await {
        Ok(actual) => actual,
        Err(NotCalled::Settings(message)) => return fail(run, "case", format!("{}: {message}", path.display()), None),
        Err(NotCalled::Load(error)) => {
            let ToolProblem { code, message, hint } = error.problem();
            return fail(run, &code, message, hint);
        }
    };
    (run.log, run.unanswered) = actual.recorded.take_records();
    run.microseconds = u64::try_from(actual.took.as_micros()).unwrap_or(u64::MAX);
    let actual = match actual.result {
        Ok(actual) => actual,
        Err(error) => return fail(run, error.code(), chain(&error), None),
    };
    if !run.unanswered.is_empty() {
        return run;
    }
    if expected.as_ref() == Some(&actual) {
        run.outcome = CaseOutcome::Passed;
        return run;
    }
    if update {
        return match write(path, &actual, &text) {
            Ok(()) => CaseRun { outcome: CaseOutcome::Updated, ..run },
            Err(error) => fail(run, "case", chain(&error), None),
        };
    }
    run.difference = difference(&expected.as_ref().map(Expectation::text).unwrap_or_default(), &actual.text());
    if expected.is_none() {
        let message = "the case has no expectation; the difference shows the actual result".to_owned();
        return fail(run, "case", message, Some("store the result in the case with --update".to_owned()));
    }
    run
}

/// Reason why a plugin could not be called for a case.
enum NotCalled {
    Settings(String),
    Load(ToolError),
}

async fn call(host: &Host, file: &Path, known: &Description, case: Case) -> Result<CallResult, NotCalled> {
    let settings =
        combined(&toml::Table::new(), &case.settings).map_err(|error| NotCalled::Settings(error.to_string()))?;
    let terms = LoadTerms {
        name: Some(known.name.clone()),
        any_variable: case.grant.is_none(),
        grant: case.grant.unwrap_or_else(|| Grant::wanted(&known.wants)),
        deny: None,
        settings: vec![settings.clone()],
        on_compile: None,
    };
    let plugin = host.load_with(source(file), terms).await.map_err(|error| NotCalled::Load(error.into()))?;
    let session = case.session.facts();
    let places = places(&session.id, &session.directory);
    let recorded = Arc::new(Recorded::new(case.answers, places.clone()));
    let call = Call {
        session: Some(session),
        environment: case.environment.into_iter().map(|(name, value)| (name, value.0)).collect(),
        foreign: Vec::new(),
        settings,
        places,
        services: Arc::clone(&recorded) as Arc<_>,
        limits: Limits::default(),
    };
    let began = Instant::now();
    let result = match plugin.world() {
        World::Provider => plugin.provide(call).await.map(Expectation::changes),
        World::Prerequisite => plugin.check(call).await.map(Expectation::report),
    };
    let took = began.elapsed();
    let result = match result {
        Err(CallError::Failed { failure, .. }) => Ok(Expectation::failure(failure)),
        other => other,
    };
    Ok(CallResult { result, recorded, took })
}

fn write(path: &Path, actual: &Expectation, text: &str) -> Result<(), CaseError> {
    let written = actual
        .written_to(text)
        .map_err(|error| CaseError::Wrong { path: path.to_owned(), reason: error.to_string() })?;
    std::fs::write(path, written).map_err(|source| CaseError::Write { path: path.to_owned(), source })
}

/// Returns a line-by-line comparison with signs. Equal lines appear only within three lines of a difference.
fn difference(expected: &str, actual: &str) -> Vec<String> {
    let diff = TextDiff::from_lines(expected, actual);
    let mut lines = Vec::new();
    for (number, group) in diff.grouped_ops(3).iter().enumerate() {
        if number > 0 {
            lines.push("...".to_owned());
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            lines.push(format!("{sign} {}", change.value().trim_end_matches('\n')));
        }
    }
    lines
}
