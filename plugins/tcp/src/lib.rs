//! `tcp`: checks that a server listens at a host and port, and optionally that it sends an expected banner.
//!
//! Each kind of failure has its own message: refused, no route, unknown name, timeout. A server that accepts
//! the connection but does not send the banner in time fails too. The check does not support TLS, and reads
//! only the first bytes.

use std::time::Duration;

use agentd_plugin_checks::address::Endpoint;
use agentd_plugin_checks::text::escaped;
use agentd_plugin_checks::{explain, or_unknown, time};
use agentd_plugin_sdk::network::{self, Ending, Exchanged, Problem, Step};
use agentd_plugin_sdk::{
    Capability, CheckDescription, CheckRequest, Description, Failure, Moment, Prerequisite, Report, export_prerequisite,
};

const DEFAULT_TIME: Duration = Duration::from_secs(3);
/// Number of bytes in which the banner must appear.
const FIRST: u32 = 4096;

struct Tcp;

impl Prerequisite for Tcp {
    fn describe() -> CheckDescription {
        Description::new("tcp", env!("CARGO_PKG_VERSION"), "a server answers at a host and port")
            .required_setting("host", "the host's name or address")
            .required_setting("port", "the port, from 1 to 65535")
            .setting("banner", "text that must be in the first 4096 received bytes; default: none is expected")
            .setting("send", "text to send before waiting for the banner; default: nothing")
            .setting("timeout", "time limit including name resolution, such as \"3s\"; default: 3s")
            .wants(Capability::Network, ["*:*"], "connects to the host and port of its settings")
            .checked(Moment::BeforeEnvironment)
    }

    fn check(request: &CheckRequest) -> Result<Report, Failure> {
        or_unknown(found(request))
    }
}

export_prerequisite!(Tcp);

/// Runs the check.
fn found(request: &CheckRequest) -> Result<Report, Failure> {
    let to = Endpoint::of(request, None)?;
    let time = time::timeout(request, DEFAULT_TIME)?;
    let banner = request.setting("banner")?.filter(|banner| !banner.is_empty());
    let send = request.setting("send")?.unwrap_or_default();
    if banner.is_none() && !send.is_empty() {
        return Err(Failure::configuration("send", "has no effect without \"banner\", the expected response"));
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

/// Makes the report for an established connection from the received bytes.
fn judge(to: &Endpoint, exchanged: &Exchanged, banner: Option<&str>, time: Duration) -> Report {
    let Some(banner) = banner else {
        return connected(Report::pass(format!("{to} answers")), exchanged);
    };
    let came = exchanged.received.concat();
    let expected = banner.as_bytes();
    if came.windows(expected.len()).any(|part| part == expected) {
        return connected(Report::pass(format!("{to} answers with the expected banner")), exchanged);
    }
    let summary = match (exchanged.ending, came.is_empty()) {
        (Ending::Closed, true) => format!("{to} accepts the connection and closes it without sending anything"),
        (_, true) => format!("{to} accepts the connection but sends nothing within {}", time::shown(time)),
        _ => format!("{to} does not send the expected banner"),
    };
    let report = connected(Report::fail(summary), exchanged).fact("expected", escaped(expected));
    let report = if came.is_empty() { report } else { report.fact("received", escaped(&came)) };
    report
        .remedy(format!("check the service behind {to}: it does not work correctly, or it is not the expected service"))
}

fn connected(report: Report, exchanged: &Exchanged) -> Report {
    report.fact("address", exchanged.address.as_str()).fact("connected after", format!("{} ms", exchanged.connected))
}

/// Returns what the user can do.
fn remedy(problem: &Problem, to: &Endpoint) -> String {
    match problem {
        Problem::NoSuchHost(_) => {
            format!("connect to the network that resolves {}, or correct the setting \"host\"", to.host)
        }
        Problem::NotResolved(_) => "make sure that the name servers can be reached".to_owned(),
        Problem::Refused(_) => format!("start the service that should listen at {to}"),
        _ => format!("connect to the network of {}, and make sure that no firewall drops port {}", to.host, to.port),
    }
}

#[cfg(test)]
mod tests;
