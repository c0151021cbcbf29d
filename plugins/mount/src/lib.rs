//! `mount`: checks that the expected file system is mounted at a path and answers.
//!
//! The check reads the mount table first and then connects to the server behind the mount. It accesses the
//! mount itself last, so that a dead server is reported without touching the mount. The host accesses the mount
//! in a separate process with a time limit.
//!
//! A path that an automounter manages is accessed once, to trigger the mount. The check does not examine files,
//! and does not mount anything itself.

mod server;

use std::time::Duration;

use agentd_plugin_checks::address::Endpoint;
use agentd_plugin_checks::explain;
use agentd_plugin_checks::or_unknown;
use agentd_plugin_checks::time::{self, Budget};
use agentd_plugin_sdk::mount::{self, Liveness, Mounted};
use agentd_plugin_sdk::network::{self, Problem};
use agentd_plugin_sdk::pattern::matches;
use agentd_plugin_sdk::{
    Capability, CheckDescription, CheckRequest, Description, Failure, Moment, Outcome, Prerequisite, Report,
    export_prerequisite,
};

const DEFAULT_TIME: Duration = Duration::from_secs(3);
const AUTOMOUNTER: &str = "autofs";

struct Mount;

impl Prerequisite for Mount {
    fn describe() -> CheckDescription {
        Description::new("mount", env!("CARGO_PKG_VERSION"), "a file system is mounted and answers")
            .required_setting("path", "where it is mounted: an absolute path as the mount table has it, without links")
            .setting("kind", "the kind of file system, such as \"nfs4\" or \"nfs*\"; default: any")
            .setting("source", "what is mounted, such as \"files:/export/*\" or \"/dev/sdb1\"; default: anything")
            .setting("device", "the device's numbers, such as \"259:3\"; default: any")
            .setting(
                "server",
                "the server that is behind it; default: the one in the source of nfs, cifs, smb3 and sshfs",
            )
            .setting("port", "the server's port; default: 2049 of nfs, 445 of cifs and smb3, 22 of sshfs")
            .setting("timeout", "how long it may take, such as \"3s\"; default: 3s")
            .wants(Capability::Mount, ["/**"], "finds the mount of its settings, and looks whether it answers")
            .wants(Capability::Network, ["*:*"], "connects to the server that is behind the mount")
            .checked(Moment::BeforeEnvironment)
    }

    fn check(request: &CheckRequest) -> Result<Report, Failure> {
        let check = Check {
            path: path(request)?,
            kind: request.setting("kind")?,
            source: request.setting("source")?,
            device: request.setting("device")?,
            server: server::Setting::of(request)?,
            budget: Budget::new(time::timeout(request, DEFAULT_TIME)?),
        };
        or_unknown(check.run())
    }
}

export_prerequisite!(Mount);

/// Reads the setting `path` in the form of the mount table.
fn path(request: &CheckRequest) -> Result<&str, Failure> {
    let text = request.required_setting("path")?;
    let wrong = text.split('/').any(|name| matches!(name, "." | ".."));
    if !text.starts_with('/') || wrong {
        let what = format!("must be an absolute path without . and .., and is {text:?}");
        return Err(Failure::configuration("path", what));
    }
    let trimmed = text.trim_end_matches('/');
    Ok(if trimmed.is_empty() { "/" } else { trimmed })
}

/// The settings of one check.
struct Check<'a> {
    path: &'a str,
    kind: Option<&'a str>,
    source: Option<&'a str>,
    device: Option<&'a str>,
    server: server::Setting<'a>,
    budget: Budget,
}

impl Check<'_> {
    fn run(&self) -> Result<Report, Failure> {
        let mut table = mount::mounts()?;
        if self.is_automounted(&table) {
            let server = self.expected_server()?;
            if let Some(silence) =
                server.as_ref().and_then(|server| self.silence(server)).filter(Silence::is_of_the_way)
            {
                let report = self.dead(&silence)?;
                return Ok(report.remedy(silence.untouched()));
            }
            if let Liveness::Hangs = mount::probe(self.path, self.budget.share(2))? {
                return Ok(self.automounter_hangs());
            }
            table = mount::mounts()?;
        }
        // If several mounts are at one path, the last is on top. An automounter without a mount on top counts
        // as nothing.
        let on_top = table.iter().rfind(|mounted| mounted.path == self.path);
        let Some(mounted) = on_top.filter(|mounted| !self.is_mere_automounter(mounted)) else {
            return self.missing(&table);
        };
        if let Some(another) = self.another(mounted) {
            return Ok(another);
        }
        let server = self.server.behind(&mounted.kind, &mounted.source, &mounted.options)?;
        let silence = server.as_ref().and_then(|server| self.silence(server));
        if let Some(silence) = silence.as_ref().filter(|silence| silence.is_of_the_way()) {
            return Ok(described(self.dead(silence)?, mounted).remedy(silence.untouched()));
        }
        let liveness = mount::probe(self.path, self.budget.share(1))?;
        Ok(self.looked_at(mounted, silence.as_ref(), liveness))
    }

    fn is_mere_automounter(&self, mounted: &Mounted) -> bool {
        let wanted = self.kind.is_some_and(|kind| matches(kind, AUTOMOUNTER));
        !wanted && mounted.kind == AUTOMOUNTER
    }

    /// Reports whether accessing the path would trigger an automounter.
    fn is_automounted(&self, table: &[Mounted]) -> bool {
        nearest(table, self.path).is_some_and(|mounted| self.is_mere_automounter(mounted))
    }

    /// Returns the server that the settings describe.
    fn expected_server(&self) -> Result<Option<Endpoint>, Failure> {
        self.server.behind(self.kind.unwrap_or_default(), self.source.unwrap_or_default(), &[])
    }

    /// Returns why the server cannot be connected to, or `None` if it can.
    fn silence<'a>(&self, server: &'a Endpoint) -> Option<Silence<'a>> {
        let time = self.budget.share(2);
        let problem = network::connect(&server.host, server.port, time).err()?;
        Some(Silence { server, problem, time })
    }

    /// Makes the report for a server that cannot be connected to.
    fn dead(&self, silence: &Silence) -> Result<Report, Failure> {
        let Silence { server, problem, time } = silence;
        let reason = explain::reason(problem, server, *time)?;
        let report = Report::fail(format!("the server of {} cannot be used: {reason}", self.path));
        Ok(explain::connection(report, problem, server))
    }

    fn automounter_hangs(&self) -> Report {
        let report = Report::fail(format!("the automounter does not mount {}: it did not answer in time", self.path));
        report.remedy("check whether the server behind it runs, and read the automounter's log")
    }

    /// Makes the report for a path without a mount. Adds the nearest mount, and whether the server would
    /// answer.
    fn missing(&self, table: &[Mounted]) -> Result<Report, Failure> {
        let server = self.expected_server()?;
        let mut report = Report::fail(format!("nothing is mounted at {}", self.path));
        let mut remedy = format!("mount it, with `mount {}` where /etc/fstab has it", self.path);
        if let Some(silence) = server.as_ref().and_then(|server| self.silence(server)) {
            let dead = self.dead(&silence)?;
            report = Report { summary: format!("{}, and {}", report.summary, dead.summary), ..dead };
            remedy =
                format!("connect to the network of {}, or make sure that it runs; then {remedy}", silence.server.host);
        }
        report = nearest_of(report, table, self.path);
        if let Some(source) = self.source {
            report = report.fact("expected", source);
        }
        Ok(report.remedy(remedy))
    }

    /// Returns a report if another file system than the expected one is mounted.
    fn another(&self, mounted: &Mounted) -> Option<Report> {
        let wrong = [
            ("kind", self.kind, &mounted.kind),
            ("source", self.source, &mounted.source),
            ("device", self.device, &mounted.device),
        ]
        .into_iter()
        .find_map(|(what, expected, is)| {
            expected.filter(|expected| !matches(expected, is)).map(|expected| (what, expected, is))
        });
        let (what, expected, is) = wrong?;
        let summary =
            format!("another file system is mounted at {}: its {what} is {is}, and should be {expected}", self.path);
        let report = described(Report::fail(summary), mounted);
        Some(report.remedy(format!("unmount what is at {}, and mount what should be there", self.path)))
    }

    fn looked_at(&self, mounted: &Mounted, nameless: Option<&Silence>, liveness: Liveness) -> Report {
        let path = self.path;
        match liveness {
            Liveness::Answers(_) => match nameless {
                None => described(Report::pass(format!("{path} is mounted and answers")), mounted),
                Some(Silence { server, problem, .. }) => {
                    let summary = format!(
                        "{path} is mounted and answers, and the name of its server {} has no address",
                        server.host
                    );
                    let report =
                        described(Report::new(Outcome::Warn, summary), mounted).fact("error", problem.message());
                    explain::name_service(report)
                        .remedy("connect to the network that resolves the name: a new mount would fail")
                }
            },
            Liveness::Hangs => {
                let report = described(Report::fail(format!("{path} is mounted and does not answer")), mounted);
                report.remedy(format!(
                    "check whether its server runs; `umount -l {path}` removes a dead mount and unblocks \
                        programs that wait for it"
                ))
            }
            Liveness::Error(error) => {
                let report =
                    described(Report::fail(format!("{path} is mounted and answers with an error: {error}")), mounted);
                report.remedy(format!("check whether its server runs, then `umount {path}` and mount it again"))
            }
        }
    }
}

/// A server that could not be connected to, with the problem and the time limit.
struct Silence<'a> {
    server: &'a Endpoint,
    problem: Problem,
    time: Duration,
}

impl Silence<'_> {
    /// Reports whether the connection failed, and not the name resolution. A mount that knows the server's
    /// address works without its name.
    fn is_of_the_way(&self) -> bool {
        !explain::is_of_the_name(&self.problem)
    }

    fn untouched(&self) -> String {
        let host = &self.server.host;
        format!("connect to the network of {host}, or make sure that it runs; the mount was not touched")
    }
}

/// Adds the properties of a mount to the report.
fn described(report: Report, mounted: &Mounted) -> Report {
    report
        .fact("source", mounted.source.as_str())
        .fact("kind", mounted.kind.as_str())
        .fact("device", mounted.device.as_str())
}

/// Returns the mount that the path is on.
fn nearest<'a>(table: &'a [Mounted], path: &str) -> Option<&'a Mounted> {
    let is_above = |mounted: &&Mounted| {
        let rest = path.strip_prefix(mounted.path.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // If several mounts are at one path, the last counts.
    table.iter().filter(is_above).max_by_key(|mounted| mounted.path.len())
}

fn nearest_of(report: Report, table: &[Mounted], path: &str) -> Report {
    match nearest(table, path) {
        Some(mounted) => report.fact("is on", format!("{} ({} from {})", mounted.path, mounted.kind, mounted.source)),
        None => report,
    }
}

#[cfg(test)]
mod tests;
