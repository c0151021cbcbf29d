//! `command`: runs an administrator's own check. Exit status 0 is a pass, 1 a warning, any other a failure. The
//! first line of output is the summary.
//!
//! A program that is ended by a signal, times out or cannot run has the outcome unknown. The administrator must
//! grant the program; nothing is granted by default. Reports never contain the program's arguments or
//! environment.

use std::time::Duration;

use agentd_plugin_checks::{or_unknown, text, time};
use agentd_plugin_sdk::command::{Command, Completed, Ending};
use agentd_plugin_sdk::{
    Capability, CheckDescription, CheckRequest, Description, Failure, Moment, Prerequisite, Report, export_prerequisite,
};

const DEFAULT_TIME: Duration = Duration::from_secs(4);
/// `PATH` of the program, unless the session's PATH is passed.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Maximum number of output lines that are reported after the first.
const FURTHER: usize = 8;

/// Working directories that the program may have besides `/`.
const PLACES: [&str; 3] = ["{config}", "{cwd}", "{session}"];

struct OwnCheck;

impl Prerequisite for OwnCheck {
    fn describe() -> CheckDescription {
        Description::new(
            "command",
            env!("CARGO_PKG_VERSION"),
            "runs a program: status 0 is a pass, 1 a warning, any other a failure, its first line the reason",
        )
        .required_setting("program", "an absolute path, or a name in the machine's own directories of programs")
        .setting("arguments", "a list of arguments; default: none")
        .setting(
            "directory",
            "its working directory: {config}, or {cwd} or {session} with moment = \"after-environment\"; default: /",
        )
        .setting(
            "environment",
            "a list of session variables to pass, with moment = \"after-environment\"; default: a standard PATH only",
        )
        .setting("timeout", "after which time it is killed with its descendants, such as \"4s\"; default: 4s")
        .wants(Capability::Command, ["**"], "runs the program of its settings")
        .checked(Moment::BeforeEnvironment)
    }

    fn check(request: &CheckRequest) -> Result<Report, Failure> {
        let program = request.required_setting("program")?;
        let time = time::timeout(request, DEFAULT_TIME)?;
        let arguments = request.settings("arguments").unwrap_or_default();
        let mut command = Command::new(program).arguments(arguments).variable("PATH", PATH).time(time);
        if let Some(directory) = request.setting("directory")? {
            if !PLACES.contains(&directory) {
                let what = format!("must be one of {}, and is {directory:?}", PLACES.join(", "));
                return Err(Failure::configuration("directory", what));
            }
            command = command.directory(directory);
        }
        let names = request.settings("environment").unwrap_or_default();
        if !names.is_empty() && request.environment.is_empty() {
            let what = "names variables of a session, and there are none before its environment is built; set \
                moment = \"after-environment\"";
            return Err(Failure::configuration("environment", what));
        }
        command = command.environment(request.environment.iter().filter(|variable| names.contains(&variable.name)));
        match command.run() {
            Ok(completed) => Ok(judge(program, &completed)),
            Err(Failure::TimedOut(why)) => {
                Ok(Report::unknown(format!("{program} did not end within {}", time::shown(time)))
                    .fact("error", why)
                    .remedy(format!(
                        "see why {program} takes so long, or give it more time with the setting \"timeout\""
                    )))
            }
            Err(failure) => or_unknown(Err(failure)),
        }
    }
}

export_prerequisite!(OwnCheck);

/// Makes the report from a program's end and its output.
fn judge(program: &str, completed: &Completed) -> Report {
    let mut lines = lines(&completed.output);
    if lines.is_empty() {
        lines = self::lines(&completed.errors);
    }
    let mut lines = lines.into_iter();
    let first = lines.next();
    let said = |otherwise: &str| first.clone().unwrap_or_else(|| format!("{program} {otherwise}"));
    let status = match completed.ending {
        Ending::Exited(0) => return Report::pass(said("ended with status 0")),
        Ending::Exited(status) => status,
        Ending::Signalled(signal) => {
            let report = Report::unknown(format!("{program} was ended by signal {signal}"));
            let report =
                first.into_iter().chain(lines.take(FURTHER)).fold(report, |report, line| report.fact("said", line));
            return report.remedy(format!("see why {program} does not run to its end"));
        }
    };
    let words = said(&format!("ended with status {status}"));
    let report = if status == 1 { Report::warn(words) } else { Report::fail(words) };
    let report = report.fact("status", status.to_string());
    let report = lines.take(FURTHER).fold(report, |report, line| report.fact("said", line));
    report.remedy(format!("this machine's administrator provides {program}: ask them if its output does not help"))
}

/// Returns the non-empty lines.
fn lines(said: &[u8]) -> Vec<String> {
    said.split(|byte| *byte == b'\n').map(text::line).filter(|line| !line.is_empty()).take(FURTHER + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_plugin_sdk::fake::{Call, Host, completed};
    use agentd_plugin_sdk::{Outcome, Variable};

    const PROGRAM: &str = "/usr/local/bin/check-lab";

    fn host(ending: impl Fn() -> Result<Completed, Failure> + 'static) -> Host {
        Host::new().setting("program", [PROGRAM]).command("/usr/local/bin/check-lab **", move |_| ending())
    }

    #[test]
    fn the_status_is_the_outcome_and_the_first_line_the_reason() {
        for (status, output, errors, outcome, summary) in [
            (0, "three boards are free\nmore\n", "", Outcome::Pass, "three boards are free"),
            (0, "", "", Outcome::Pass, "/usr/local/bin/check-lab ended with status 0"),
            (1, "\n  one board is free \n", "x", Outcome::Warn, "one board is free"),
            (2, "", "\x1b[31mno board\x1b[0m\r\nask the lab", Outcome::Fail, "[31mno board [0m"),
            (1, "", "", Outcome::Warn, "/usr/local/bin/check-lab ended with status 1"),
            (127, "\n\n", "\n", Outcome::Fail, "/usr/local/bin/check-lab ended with status 127"),
        ] {
            let report =
                host(move || Ok(completed(status, output, errors))).check_without_session::<OwnCheck>().unwrap();
            assert_eq!((report.outcome, report.summary.as_str()), (outcome, summary));
            let fact = (outcome != Outcome::Pass).then(|| ("status".to_owned(), status.to_string()));
            assert_eq!(report.facts.first().map(|fact| (fact.name.clone(), fact.value.clone())), fact);
            assert_eq!(report.remedy.is_some(), outcome != Outcome::Pass);
        }
    }

    #[test]
    fn further_lines_are_facts_and_not_all_of_them() {
        let many = (0..100).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
        let report = host(move || Ok(completed(3, many.as_str(), ""))).check::<OwnCheck>().unwrap();
        let said: Vec<&str> = report.facts.iter().skip(1).map(|fact| fact.value.as_str()).collect();
        assert_eq!((report.summary.as_str(), said.len(), said[0]), ("line 0", FURTHER, "line 1"));
    }

    #[test]
    fn a_program_that_does_not_come_to_its_end_told_nothing() {
        let killed = || Ok(Completed { ending: Ending::Signalled(9), ..completed(0, "half", "") });
        let late = || Err(Failure::TimedOut("it took longer".to_owned()));
        let report = host(killed).check::<OwnCheck>().unwrap();
        assert_eq!((report.outcome, report.facts[0].value.as_str()), (Outcome::Unknown, "half"));
        assert_eq!(report.summary, "/usr/local/bin/check-lab was ended by signal 9");
        let report = host(late).check::<OwnCheck>().unwrap();
        assert_eq!(report.outcome, Outcome::Unknown);
        assert_eq!(report.summary, "/usr/local/bin/check-lab did not end within 4 s");
        let missing = || Err(Failure::not_found("there is no such program"));
        assert_eq!(host(missing).check::<OwnCheck>(), Ok(Report::unknown("there is no such program")));
    }

    #[test]
    fn it_gets_its_arguments_its_directory_and_the_variables_that_are_named() {
        let host = host(|| Ok(completed(0, "", "")))
            .setting("arguments", ["--board", "*"])
            .setting("directory", ["{cwd}"])
            .setting("environment", ["LM_LICENSE_FILE", "ABSENT"])
            .setting("timeout", ["2s"])
            .variable("LM_LICENSE_FILE", "27000@lic")
            .variable("A_TOKEN", "secret");
        host.check::<OwnCheck>().unwrap();
        let [Call::Run(run)] = &host.calls()[..] else { panic!("{:?}", host.calls()) };
        assert_eq!(run.arguments, ["--board", "*"]);
        assert_eq!(run.environment, [Variable::new("PATH", PATH), Variable::new("LM_LICENSE_FILE", "27000@lic")]);
        assert_eq!((run.directory.as_deref(), run.time), (Some("{cwd}"), Some(2000)));
    }

    #[test]
    fn it_starts_in_a_place_of_its_call_and_in_no_other() {
        for elsewhere in ["/tmp", "{cwd}/bin", "{home}"] {
            let refused = host(|| panic!("it is run")).setting("directory", [elsewhere]).check::<OwnCheck>();
            assert!(matches!(refused, Err(Failure::Configuration(error)) if error.key == "directory"), "{elsewhere}");
        }
    }

    #[test]
    fn variables_of_a_session_need_the_moment_that_has_them() {
        let host = host(|| panic!("it is run")).setting("environment", ["LM_LICENSE_FILE"]);
        let refused = host.check_without_session::<OwnCheck>();
        assert!(matches!(refused, Err(Failure::Configuration(error)) if error.message.contains("after-environment")));
    }

    #[test]
    fn only_the_program_that_the_administrator_granted_is_run() {
        let granted =
            |pattern: &str| host(|| Ok(completed(0, "", ""))).grant(Capability::Command, [pattern]).check::<OwnCheck>();
        assert!(granted(PROGRAM).is_ok());
        assert!(matches!(granted("/usr/local/bin/other"), Err(Failure::NotGranted(_))));
    }
}
