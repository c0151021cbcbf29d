//! `license-server`: the licence servers that a session's environment names, or the settings, answer.
//!
//! A list is of alternatives: one that answers is enough for its programs, and one that does not is told. A redundant triad answers when
//! two of its three servers do. A licence file is as good as its SERVER lines. Of a server it is found out that it resolves and accepts a
//! connection, and no more: what is spoken then is not published, and `lmstat`, which speaks it, may never return with a dead server.
//!
//! - `entry` reads lists, `file` reads licence files: pure.
//! - `asked` connects, each server once and within the time that is left for it.
//! - `judged` makes of what was found an outcome, its facts, and what to do.

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
/// Those that the vendors' programs look at. `CDS_LIC_FILE` is one vendor's own name for his.
const VARIABLES: [&str; 3] = ["*_LICENSE_FILE", "CDS_LIC_FILE", "RLM_LICENSE"];

struct LicenseServer;

impl Prerequisite for LicenseServer {
    fn describe() -> CheckDescription {
        Description::new("license-server", env!("CARGO_PKG_VERSION"), "the licence servers of a session answer")
            .setting(
                "variables",
                &format!(
                    "a list of names of the session's variables, or patterns of names; one that is named as it is must have a server that answers, \
                     of those that a pattern matches one must; default: {VARIABLES:?}"
                ),
            )
            .setting(
                "servers",
                "a list as it would stand in a variable, in the place of variables: port@host, three joined by commas, or the path of a \
                 licence file; with it, the check can be made before the environment",
            )
            .setting("manager", "whose servers are: flexlm or rlm; default: rlm for variables that end with _LICENSE, else flexlm")
            .setting("timeout", "how long it may take for all servers together, such as \"4s\"; default: 4s")
            .wants(Capability::Network, ["*:*"], "connects to the servers that are named")
            .wants(Capability::File, ["/**"], "reads the licence files that are named")
            .checked(Moment::AfterEnvironment)
    }

    fn check(request: &CheckRequest) -> Result<Report, Failure> {
        let time = time::timeout(request, DEFAULT_TIME)?;
        let manager = manager(request)?;
        let texts = match request.settings("servers") {
            Some(_) if request.settings("variables").is_some() => {
                let what = "stands in the place of \"variables\"; set one of them";
                return Err(Failure::configuration("servers", what));
            }
            Some([]) => return Err(Failure::configuration("servers", "must have a server at least, and is empty")),
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

/// What names servers.
struct Text {
    name: String,
    /// Whether it must have a server that answers, whatever the others have.
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

/// No variable names a server, so nothing can be told of any.
fn nothing(request: &CheckRequest) -> Result<Report, Failure> {
    if request.environment.is_empty() {
        let what = "must be set where the check is made before the environment, which then has no variables";
        return Err(Failure::configuration("servers", what));
    }
    let names = request.settings("variables").map_or_else(|| VARIABLES.join(", "), |names| names.join(", "));
    let report = Report::unknown("no variable of the session names a licence server").fact("looked for", names);
    Ok(report.remedy("load the module, or name the script, that sets the variable in the session's environment"))
}

/// The variables that are looked at, those that are not empty, by name.
fn variables(request: &CheckRequest, manager: Option<Manager>) -> Result<Vec<Text>, Failure> {
    let named: Vec<&str> = match request.settings("variables") {
        Some([]) => return Err(Failure::configuration("variables", "must have a name at least, and is empty")),
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
