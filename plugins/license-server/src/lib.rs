//! `license-server`: checks that the licence servers of a session's environment, or of the settings, answer.
//!
//! A list contains alternatives. One answering alternative is sufficient for its programs. An alternative that
//! does not answer is reported.
//!
//! A redundant triad answers if two of its three servers do. A licence file counts as its SERVER lines.
//!
//! A server is usable if its name resolves and it accepts a connection. The protocol after that is not
//! published. `lmstat`, which speaks the protocol, may never return if a server is dead.
//!
//! - `entry` parses lists and `file` parses licence files. Both are pure.
//! - `asked` connects to each server once, within the remaining time.
//! - `judged` turns the results into an outcome, facts and a remedy.

mod asked;
mod entry;
mod file;
mod judged;

use std::time::Duration;

use agentd_plugin_checks::time::{self, Budget};
use agentd_plugin_sdk::pattern::{is_pattern, matches};
use agentd_plugin_sdk::{
    Capability, CheckDescription, CheckRequest, Description, Failure, Moment, Prerequisite, Report, export_prerequisite,
};
use asked::Answers;
use entry::Manager;
use judged::List;

const DEFAULT_TIME: Duration = Duration::from_secs(4);
/// Variables that the vendors' programs read. `CDS_LIC_FILE` is one vendor's own name.
const VARIABLES: [&str; 3] = ["*_LICENSE_FILE", "CDS_LIC_FILE", "RLM_LICENSE"];

struct LicenseServer;

impl Prerequisite for LicenseServer {
    fn describe() -> CheckDescription {
        Description::new("license-server", env!("CARGO_PKG_VERSION"), "the licence servers of a session answer")
            .setting(
                "variables",
                &format!(
                    "a list of names and patterns of the session's variables; each variable with an exact name, \
                     and one of those that match a pattern, must have an answering server; default: {VARIABLES:?}"
                ),
            )
            .setting(
                "servers",
                "a list to use instead of variables: port@host, three joined by commas, or the path of a \
                 licence file; it allows a check before the environment is built",
            )
            .setting(
                "manager",
                "the licence manager: flexlm or rlm; default: rlm for variables that end with \
                _LICENSE, else flexlm",
            )
            .setting("timeout", "time limit for all servers together, such as \"4s\"; default: 4s")
            .wants(Capability::Network, ["*:*"], "connects to the servers that are named")
            .wants(Capability::File, ["/**"], "reads the licence files that are named")
            .checked(Moment::AfterEnvironment)
    }

    fn check(request: &CheckRequest) -> Result<Report, Failure> {
        let time = time::timeout(request, DEFAULT_TIME)?;
        let manager = manager(request)?;
        let texts = match request.settings("servers") {
            Some(_) if request.settings("variables").is_some() => {
                let what = "replaces \"variables\"; set only one of them";
                return Err(Failure::configuration("servers", what));
            }
            Some([]) => return Err(Failure::configuration("servers", "must have at least one server, and is empty")),
            Some(servers) => vec![Text {
                name: "the settings".to_owned(),
                must: true,
                manager: manager.unwrap_or(Manager::Flexlm),
                lists: servers.to_vec(),
            }],
            None => variables(request, manager)?,
        };
        if texts.is_empty() {
            return nothing(request);
        }
        let budget = Budget::new(time);
        let list = |Text { name, must, manager, lists }: Text| {
            let entries = lists.iter().flat_map(|list| entry::list(list, manager)).collect();
            List { name, must, alternatives: asked::alternatives(entries, manager) }
        };
        let lists: Vec<List> = texts.into_iter().map(list).collect();
        let answers = Answers::of(lists.iter().flat_map(|list| &list.alternatives), &budget);
        Ok(judged::report(&lists, &answers))
    }
}

export_prerequisite!(LicenseServer);

/// A list of servers as text, with its origin.
struct Text {
    name: String,
    /// Whether the list must have an answering server, independent of the other lists.
    must: bool,
    manager: Manager,
    lists: Vec<String>,
}

fn manager(request: &CheckRequest) -> Result<Option<Manager>, Failure> {
    match request.setting("manager")? {
        None => Ok(None),
        Some("flexlm") => Ok(Some(Manager::Flexlm)),
        Some("rlm") => Ok(Some(Manager::Rlm)),
        Some(other) => Err(Failure::configuration("manager", format!("must be flexlm or rlm, and is {other:?}"))),
    }
}

/// Makes the report if no variable names a server.
fn nothing(request: &CheckRequest) -> Result<Report, Failure> {
    if request.environment.is_empty() {
        let what = "must be set if the check runs before the environment is built, because there are no variables yet";
        return Err(Failure::configuration("servers", what));
    }
    let names = request.settings("variables").map_or_else(|| VARIABLES.join(", "), |names| names.join(", "));
    let report = Report::unknown("no variable of the session names a licence server").fact("looked for", names);
    Ok(report.remedy("load the module, or name the script, that sets the variable in the session's environment"))
}

/// Returns the variables that match and are not empty, by name.
fn variables(request: &CheckRequest, manager: Option<Manager>) -> Result<Vec<Text>, Failure> {
    let named: Vec<&str> = match request.settings("variables") {
        Some([]) => return Err(Failure::configuration("variables", "must have at least one name, and is empty")),
        Some(names) => names.iter().map(String::as_str).collect(),
        None => VARIABLES.to_vec(),
    };
    let by_default = request.settings("variables").is_none();
    let mut found = Vec::new();
    for variable in &request.environment {
        let Some(name) = named.iter().find(|name| matches(name, &variable.name)) else { continue };
        let of_name = if variable.name.ends_with("_LICENSE") { Manager::Rlm } else { Manager::Flexlm };
        let text = String::from_utf8_lossy(&variable.value).into_owned();
        if !text.trim().is_empty() {
            found.push(Text {
                name: variable.name.clone(),
                must: !by_default && !is_pattern(name),
                manager: manager.unwrap_or(of_name),
                lists: vec![text],
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
