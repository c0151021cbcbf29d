//! The plugin `my-plugin`: checks that a server can be reached.
//!
//! Each call runs in a new instance: a `static` does not keep its value between calls.

use std::time::Duration;

use agentd_plugin_sdk::network::{self, Problem};
use agentd_plugin_sdk::{
    Capability, CheckDescription, CheckRequest, Description, Fact, Failure, Moment, Outcome, Prerequisite, Report,
    export_prerequisite,
};

struct Plugin;

/// The settings, validated.
struct Settings<'a> {
    host: &'a str,
    port: u16,
    time: u64,
    remedy: Option<&'a str>,
}

impl<'a> Settings<'a> {
    fn of(request: &'a CheckRequest) -> Result<Self, Failure> {
        let one = |key: &str| match request.settings(key) {
            None => Ok(None),
            Some([value]) => Ok(Some(value.as_str())),
            Some(values) => Err(Failure::configuration(key, format!("must be one value, and has {}", values.len()))),
        };
        let number = |key: &str, text: &str, most: u64| {
            let wrong =
                || Failure::configuration(key, format!("must be a whole number from 1 to {most}, and is \"{text}\""));
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|number| digits && (1..=most).contains(number)).ok_or_else(wrong)
        };
        let host = one("host")?.unwrap_or_default();
        if host.is_empty() {
            return Err(Failure::configuration("host", "must not be empty"));
        }
        let port = number("port", one("port")?.unwrap_or_default(), u16::MAX.into())?;
        let port = u16::try_from(port).map_err(|_| Failure::configuration("port", "must be a port"))?;
        let time = number("time", one("time")?.unwrap_or("2000"), 60000)?;
        Ok(Self { host, port, time, remedy: one("remedy")? })
    }
}

impl Prerequisite for Plugin {
    fn describe() -> CheckDescription {
        Description::new("my-plugin", env!("CARGO_PKG_VERSION"), "checks that a server can be reached")
            .required_setting("host", "the server's name or address")
            .required_setting("port", "its TCP port")
            .setting("time", "how many milliseconds it may take to answer; default: 2000")
            .setting("remedy", "what the user can do where it does not answer; default: nothing is said")
            .wants(Capability::Network, ["*:*"], "to connect to the server that the settings name")
            .checked(Moment::BeforeEnvironment)
    }

    fn check(request: &CheckRequest) -> Result<Report, Failure> {
        let Settings { host, port, time, remedy } = Settings::of(request)?;
        let report = |outcome, summary: String, facts| Report {
            outcome,
            summary,
            facts,
            remedy: remedy.filter(|_| outcome == Outcome::Fail).map(str::to_owned),
            valid_for: None,
        };
        let summary = match network::connect(host, port, Duration::from_millis(time)) {
            Ok(done) => {
                let fact = |name: &str, value: String| Fact { name: name.to_owned(), value };
                let facts =
                    vec![fact("address", done.address), fact("connected after", format!("{} ms", done.connected))];
                return Ok(report(Outcome::Pass, format!("{host}:{port} answers"), facts));
            }
            Err(Problem::NoSuchHost(_)) => format!("there is no host \"{host}\""),
            Err(Problem::Refused(_)) => format!("no server listens at {host}:{port}"),
            Err(Problem::Unreachable(_)) => format!("there is no route to {host}:{port}"),
            Err(Problem::TimedOut(_)) => format!("{host}:{port} did not answer within {time} ms"),
            Err(Problem::NotResolved(why)) => {
                let summary = format!("the address of \"{host}\" cannot be determined: {why}");
                return Ok(report(Outcome::Unknown, summary, Vec::new()));
            }
            Err(Problem::Other(failure)) => return Err(failure), // return the host's failure unchanged
        };
        Ok(report(Outcome::Fail, summary, Vec::new()))
    }
}

export_prerequisite!(Plugin);

/// Native tests with the SDK's fake host. The cases in tests/*.toml test the component in agentd's sandbox.
#[cfg(test)]
mod tests {
    use agentd_plugin_sdk::fake;
    use agentd_plugin_sdk::network::Exchanged;

    use super::*;

    /// Makes a host on which connecting has this result.
    fn host(comes_to: Result<Exchanged, Problem>) -> fake::Host {
        let host = fake::Host::new().setting("host", ["licence.corp"]).setting("port", ["27000"]);
        host.listens("licence.corp", 27000, move |_| comes_to.clone())
    }

    #[test]
    fn a_server_that_answers_is_told_with_its_address() {
        let report = host(Ok(fake::exchanged("10.0.0.1", [""; 0]))).check::<Plugin>().unwrap();
        assert_eq!(report.outcome, Outcome::Pass);
        assert_eq!(report.facts[0], Fact { name: "address".into(), value: "10.0.0.1".into() });
    }

    #[test]
    fn where_it_does_not_the_user_is_told_what_to_do() {
        for problem in [Problem::NoSuchHost, Problem::Refused, Problem::Unreachable, Problem::TimedOut] {
            let host = host(Err(problem("?".into()))).setting("remedy", ["start the VPN"]);
            let report = host.check::<Plugin>().unwrap();
            assert_eq!((report.outcome, report.remedy.as_deref()), (Outcome::Fail, Some("start the VPN")));
        }
    }

    #[test]
    fn a_name_service_that_is_down_tells_nothing_about_the_server() {
        let report = host(Err(Problem::NotResolved("no answer".into()))).check::<Plugin>().unwrap();
        assert_eq!(report.outcome, Outcome::Unknown);
    }

    #[test]
    fn what_is_not_granted_is_a_failure_and_no_report() {
        let refused = host(Ok(fake::exchanged("10.0.0.1", [""; 0]))).grant(Capability::Network, ["*:22"]);
        assert!(matches!(refused.check::<Plugin>(), Err(Failure::NotGranted(_))));
    }

    #[test]
    fn a_setting_that_is_wrong_is_named() {
        let wrong: [(&str, &[&str]); 5] =
            [("host", &[""]), ("port", &["0"]), ("port", &["65536"]), ("time", &["soon"]), ("remedy", &[])];
        for (key, values) in wrong {
            let host = host(Err(Problem::Refused("?".into()))).setting(key, values.iter().copied());
            let failure = host.check::<Plugin>().unwrap_err();
            assert!(matches!(&failure, Failure::Configuration(error) if error.key == key), "{failure:?}");
        }
    }
}
