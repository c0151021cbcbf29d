//! `tcp`: somebody listens at a host and port, and says what is expected of him.
//!
//! What is refused, has no way, has no name, or is silent is a failure of its own kind. Who accepts and does not speak when he should is
//! one as well, by the check's deadline. Not its job: TLS, and what is said beyond the first bytes.

use std::time::Duration;

use agentd_plugin_checks::address::Endpoint;
use agentd_plugin_checks::text::escaped;
use agentd_plugin_checks::{explain, time, told};
use agentd_plugin_sdk::network::{self, Ending, Exchanged, Problem, Step};
use agentd_plugin_sdk::{
    Capability, CheckDescription, CheckRequest, Description, Failure, Moment, Prerequisite, Report, export_prerequisite,
};

const DEFAULT_TIME: Duration = Duration::from_secs(3);
/// The banner must be in so many of the first bytes.
const FIRST: u32 = 4096;

struct Tcp;

impl Prerequisite for Tcp {
    fn describe() -> CheckDescription {
        Description::new("tcp", env!("CARGO_PKG_VERSION"), "somebody answers at a host and port")
            .required_setting("host", "the host's name or address")
            .required_setting("port", "the port, from 1 to 65535")
            .setting("banner", "text that must be in the first 4096 bytes that come; default: nothing is waited for")
            .setting("send", "text that is sent before the banner is waited for; default: nothing")
            .setting("timeout", "how long it may take, such as \"3s\", resolving the name included; default: 3s")
            .wants(Capability::Network, ["*:*"], "connects to the host and port of its settings")
            .checked(Moment::BeforeEnvironment)
    }

    fn check(request: &CheckRequest) -> Result<Report, Failure> {
        told(found(request))
    }
}

export_prerequisite!(Tcp);

/// What is found; what keeps it from being looked for is a failure.
fn found(request: &CheckRequest) -> Result<Report, Failure> {
    let to = Endpoint::of(request, None)?;
    let time = time::timeout(request, DEFAULT_TIME)?;
    let banner = request.setting("banner")?.filter(|banner| !banner.is_empty());
    let send = request.setting("send")?.unwrap_or_default();
    if banner.is_none() && !send.is_empty() {
        return Err(Failure::configuration("send", "is of no use without a banner, which says what must come back"));
    }
    let steps: Vec<Step> = banner.iter().map(|banner| Step::send(send).receive(FIRST).until(*banner)).collect();
    match network::exchange(&to.host, to.port, &steps, time) {
        Ok(exchanged) => Ok(judge(&to, &exchanged, banner, time)),
        Err(problem) => {
            let report = Report::fail(explain::reason(&problem, &to, time)?);
            Ok(explain::connection(report, &problem, &to).remedy(remedy(&problem, &to)))
        }
    }
}

/// Of a connection that opened: whether what came is what must come.
fn judge(to: &Endpoint, exchanged: &Exchanged, banner: Option<&str>, time: Duration) -> Report {
    let Some(banner) = banner else {
        return connected(Report::pass(format!("{to} answers")), exchanged);
    };
    let came = exchanged.received.concat();
    let expected = banner.as_bytes();
    if came.windows(expected.len()).any(|part| part == expected) {
        return connected(Report::pass(format!("{to} answers as it should")), exchanged);
    }
    let summary = match (exchanged.ending, came.is_empty()) {
        (Ending::Closed, true) => format!("{to} accepts the connection and closes it without a word"),
        (_, true) => format!("{to} accepts the connection and says nothing within {}", time::shown(time)),
        _ => format!("{to} says something else than it should"),
    };
    let report = connected(Report::fail(summary), exchanged).fact("expected", escaped(expected));
    let report = if came.is_empty() { report } else { report.fact("received", escaped(&came)) };
    report.remedy(format!(
        "look at the service behind {to}: it runs, and does not do its work, or it is another service than the one that is meant"
    ))
}

fn connected(report: Report, exchanged: &Exchanged) -> Report {
    report.fact("address", exchanged.address.as_str()).fact("connected after", format!("{} ms", exchanged.connected))
}

/// What the user can do.
fn remedy(problem: &Problem, to: &Endpoint) -> String {
    match problem {
        Problem::NoSuchHost(_) => {
            format!("connect to the network that knows {}, or correct the setting \"host\"", to.host)
        }
        Problem::NotResolved(_) => "see to it that the name servers can be reached".to_owned(),
        Problem::Refused(_) => format!("start the service that should listen at {to}"),
        _ => format!(
            "connect to the network that {} is in, and see to it that no firewall drops port {}",
            to.host, to.port
        ),
    }
}

#[cfg(test)]
mod tests;
