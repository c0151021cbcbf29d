//! Implements `agentctl env S --diff terminal`: lists the variables of this terminal that the agent does not
//! have, with the step that dropped each and the command that keeps it.
//!
//! This process makes the comparison; the terminal's environment is not sent. A value that is or looks like a
//! secret is never shown.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use agentd_api::ByteString;
use agentd_api::doctor::shell_word;
use agentd_api::environment::{DroppedView, EnvironmentView, VariableView};
use agentd_secret_names::is_secret;
use serde::Serialize;

use super::home::HomeDiffers;
use crate::commands::{Context, print, tell};
use crate::error::Error;
use crate::machine::Machine;
use crate::terminal_variables::terminals_own;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

/// Steps that keep the variables in the setting `allow`.
const KEEPERS: [&str; 2] = ["whitelist", "snapshot"];

/// Differences between the terminal and the agent; each list is sorted by name.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    /// Launch with whose environment the agent was started.
    launch: u64,
    /// The homes differ, and so do the start-up files.
    #[serde(skip_serializing_if = "Option::is_none")]
    home_differs: Option<HomeDiffers>,
    /// Variables that the terminal has and the agent does not have.
    missing: Vec<Missing>,
    /// Variables with different values.
    differing: Vec<Differing>,
    /// Names of variables that were not compared: the agent's value is a secret, which is not sent.
    not_compared: Vec<String>,
    /// Variables that belong to the terminal and to no agent.
    terminals_own: Vec<Own>,
}

#[derive(Debug, Serialize)]
struct Missing {
    name: String,
    /// Step that dropped the variable; `None` if no step has seen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<PathBuf>,
    why: String,
    /// Remedy, as a command if possible.
    remedy: String,
}

#[derive(Debug, Serialize)]
struct Differing {
    name: String,
    set_by: String,
    step: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<PathBuf>,
    /// Entries of a list of paths that only the terminal has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    only_terminal: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    only_agent: Vec<String>,
    /// Both lists of paths have equal entries in different orders.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    order: bool,
    /// Present only if values were requested and neither value is a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    terminal: Option<ByteString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<ByteString>,
}

#[derive(Debug, Serialize)]
struct Own {
    name: String,
    reason: &'static str,
}

pub(super) type Terminal = BTreeMap<String, Vec<u8>>;

/// Returns the environment of this process. A name that is not UTF-8 is in no agent's environment, and cannot
/// be kept.
pub(super) fn this_terminal() -> Terminal {
    let pairs = std::env::vars_os();
    pairs.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_vec()))).collect()
}

/// Prints the differences between the terminal and the environment of the agent's last launch.
pub(super) async fn difference(context: &Context, id: &str, session: &str, values: bool) -> Result<u8, Error> {
    Machine::of(&context.client).only_this("the environment of this terminal")?;
    // The comparison needs the agent's values; the daemon sends no value of a secret.
    let view = context.client.environment(id, agentd_api::environment::Moment::Last, true).await?.value;
    let difference = compared(&this_terminal(), &view, values);
    if context.json {
        context.print_value(&difference)?;
        return Ok(0);
    }
    let screen = Screen::stdout();
    print(&screen.text(&report(&difference, screen, values)))?;
    if difference.missing.iter().any(|missing| missing.remedy.starts_with("agentctl env keep ")) {
        let agent = format!(
            "a kept variable reaches the agent at its next launch: agentctl stop {session} && agentctl resume {session}"
        );
        tell(&agent)?;
    }
    Ok(0)
}

fn compared(terminal: &Terminal, view: &EnvironmentView, values: bool) -> Difference {
    let mut difference = Difference {
        launch: view.launch,
        home_differs: HomeDiffers::find(terminal, view),
        missing: Vec::new(),
        differing: Vec::new(),
        not_compared: Vec::new(),
        terminals_own: Vec::new(),
    };
    for (name, value) in terminal {
        let agents = view.variables.iter().find(|variable| variable.name == *name);
        if let Some(reason) = terminals_own(name) {
            if agents.is_none_or(|agents| agents.value.as_ref().map(ByteString::as_bytes) != Some(value)) {
                difference.terminals_own.push(Own { name: name.clone(), reason });
            }
        } else if let Some(agents) = agents {
            match &agents.value {
                None => difference.not_compared.push(name.clone()),
                Some(other) if other.as_bytes() != value => {
                    difference.differing.push(differing(agents, other.as_bytes(), value, values));
                }
                Some(_) => {}
            }
        } else {
            difference.missing.push(missing(name, view));
        }
    }
    difference
}

/// Explains why the agent does not have a variable of the terminal, with the remedy.
fn missing(name: &str, view: &EnvironmentView) -> Missing {
    if let Some(dropped) = view.dropped.iter().find(|dropped| dropped.name == name) {
        let why = dropped.reason.clone().unwrap_or_else(|| format!("removed by {}", dropped.provider));
        return Missing {
            name: name.to_owned(),
            dropped_by: Some(dropped.provider.clone()),
            step: Some(dropped.step),
            origin: dropped.origin.clone(),
            why,
            remedy: remedy(dropped),
        };
    }
    let is_lost = view.missing.iter().any(|variable| variable.name == name);
    let (why, remedy) = if is_lost {
        ("a secret that is no longer available", "agentctl snapshot refresh")
    } else {
        (NEVER_SEEN, "agentctl run --env-from terminal")
    };
    let (why, remedy) = (why.to_owned(), remedy.to_owned());
    Missing { name: name.to_owned(), dropped_by: None, step: None, origin: None, why, remedy }
}

/// Explanation of a variable that no step of the pipeline has seen.
const NEVER_SEEN: &str = "set in this terminal only, or by a file that a login shell does not read";

/// Returns the command that keeps a dropped variable, or the file that removes it.
pub(super) fn remedy(dropped: &DroppedView) -> String {
    let by_setting = dropped.reason.as_deref().is_some_and(|reason| reason.contains("allow"));
    match &dropped.origin {
        Some(origin) => format!("edit {}", shell_word(&origin.to_string_lossy())),
        None if by_setting || KEEPERS.contains(&dropped.provider.as_str()) => {
            format!("agentctl env keep {}", shell_word(&dropped.name))
        }
        None => format!("change the settings of the provider {}", dropped.provider),
    }
}

fn differing(agents: &VariableView, other: &[u8], value: &[u8], values: bool) -> Differing {
    let secret = agents.secret || is_secret(&agents.name, value) || is_secret(&agents.name, other);
    let mut differing = Differing {
        name: agents.name.clone(),
        set_by: agents.provider.clone(),
        step: agents.step,
        origin: agents.origin.clone(),
        only_terminal: Vec::new(),
        only_agent: Vec::new(),
        order: false,
        terminal: (values && !secret).then(|| ByteString::from(value)),
        agent: (values && !secret).then(|| ByteString::from(other)),
    };
    if !secret && is_list(&agents.name, value, other) {
        let entries = |value: &[u8]| -> Vec<String> {
            value.split(|byte| *byte == b':').map(|entry| String::from_utf8_lossy(entry).into_owned()).collect()
        };
        let (terminal, agent) = (entries(value), entries(other));
        let only = |these: &[String], those: &[String]| -> Vec<String> {
            let mut only: Vec<String> = Vec::new();
            for entry in these.iter().filter(|entry| !those.contains(entry)) {
                if !only.contains(entry) {
                    only.push(entry.clone());
                }
            }
            only
        };
        differing.only_terminal = only(&terminal, &agent);
        differing.only_agent = only(&agent, &terminal);
        differing.order = differing.only_terminal.is_empty() && differing.only_agent.is_empty();
    }
    differing
}

/// Reports whether both values are lists of paths.
fn is_list(name: &str, value: &[u8], other: &[u8]) -> bool {
    let is_named = name.ends_with("PATH") || name.ends_with("_DIRS") || name == "LOADEDMODULES" || name == "_LMFILES_";
    is_named && [value, other].iter().all(|value| value.is_empty() || value.contains(&b'/'))
}

fn report(difference: &Difference, screen: Screen, values: bool) -> String {
    let mut parts = Vec::new();
    let columns = agentd_screen::terminal::columns();
    parts.extend(difference.home_differs.iter().map(|differs| screen.line(&differs.line()) + "\n"));
    if !difference.missing.is_empty() {
        let mut table =
            Table::new(&[("NAME", Cut::Never), ("DROPPED BY", Cut::Never), ("REMEDY", Cut::Never), ("WHY", Cut::End)]);
        // Dropped variables come first: a command keeps them.
        let (dropped, unseen): (Vec<_>, Vec<_>) = difference.missing.iter().partition(|one| one.dropped_by.is_some());
        for missing in dropped.into_iter().chain(unseen) {
            let by = missing.dropped_by.as_deref().unwrap_or("-");
            table.row([&missing.name, by, &missing.remedy, &missing.why].map(|cell| screen.line(cell)));
        }
        parts.push(format!("Only the terminal has:\n{}", table.render(columns)));
    }
    if !difference.differing.is_empty() {
        let mut table = Table::new(&[("NAME", Cut::Never), ("SET BY", Cut::Never), ("DIFFERENCE", Cut::Never)]);
        for one in &difference.differing {
            for (row, text) in differences(one, values).iter().enumerate() {
                let (name, by) = if row == 0 { (one.name.as_str(), one.set_by.as_str()) } else { ("", "") };
                table.row([name, by, text].map(|cell| screen.line(cell)));
            }
        }
        parts.push(format!("Different values:\n{}", table.render(None)));
    }
    if !difference.not_compared.is_empty() {
        let names: Vec<String> = difference.not_compared.iter().map(|name| screen.line(name)).collect();
        parts.push(format!("Secrets (not compared): {}\n", names.join(", ")));
    }
    if parts.is_empty() {
        parts.push("The agent has every variable of the terminal.\n".to_owned());
    }
    if !difference.terminals_own.is_empty() {
        let mut table = Table::new(&[("NAME", Cut::Never), ("WHY NOT THE AGENT'S", Cut::End)]);
        for own in &difference.terminals_own {
            table.row([screen.line(&own.name), own.reason.to_owned()]);
        }
        parts.push(format!("The terminal's own:\n{}", table.render(columns)));
    }
    parts.join("\n")
}

/// Formats the differences of a variable, one per line.
fn differences(one: &Differing, values: bool) -> Vec<String> {
    if one.order {
        return vec!["the same entries in another order".to_owned()];
    }
    let entries = |what: &str, entries: &[String]| -> Vec<String> {
        entries
            .iter()
            .map(|entry| format!("{what}: {}", if entry.is_empty() { "an empty entry" } else { entry }))
            .collect()
    };
    let lines =
        [entries("only in the terminal", &one.only_terminal), entries("only the agent's", &one.only_agent)].concat();
    if !lines.is_empty() {
        return lines;
    }
    match (&one.terminal, &one.agent) {
        (Some(terminal), Some(agent)) => {
            vec![format!("terminal: {}", terminal.display()), format!("agent: {}", agent.display())]
        }
        _ if values => vec!["‹secret›".to_owned()],
        _ => vec!["--values shows both".to_owned()],
    }
}

/// Explanation of a variable with regard to this terminal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Here {
    pub(super) why: Option<String>,
    pub(super) remedy: String,
}

/// Explains a variable that this terminal has and the agent does not have.
pub(super) fn here(name: &str, terminal: &Terminal, view: &EnvironmentView) -> Option<Here> {
    if view.variables.iter().any(|variable| variable.name == name) {
        return None;
    }
    let is_here = terminal.contains_key(name);
    if let Some(dropped) = view.dropped.iter().find(|dropped| dropped.name == name) {
        let own = terminals_own(name).filter(|_| is_here);
        return Some(match own {
            Some(reason) => Here { why: None, remedy: format!("none: it {reason}") },
            None => Here { why: None, remedy: remedy(dropped) },
        });
    }
    if !is_here {
        return None;
    }
    if let Some(reason) = terminals_own(name) {
        return Some(Here {
            why: Some(format!("it {reason}")),
            remedy: "none: the variable belongs to the terminal".to_owned(),
        });
    }
    let Missing { why, remedy, .. } = missing(name, view);
    let remedy = format!(
        "export it in a file that a login shell reads (~/.profile, ~/.zprofile, conf.d of fish), or begin with \
             this terminal: {remedy}"
    );
    Some(Here { why: Some(why), remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> EnvironmentView {
        serde_json::from_value(serde_json::json!({
            "captured": "2026-01-01T00:00:00Z", "launch": 2, "digest": "",
            "variables": [
                { "name": "PATH", "value": "/usr/bin:/agent", "provider": "snapshot", "step": 1 },
                { "name": "EDITOR", "value": "vi", "provider": "snapshot", "step": 1 },
                { "name": "LANG", "value": "C", "provider": "snapshot", "step": 1 },
                { "name": "API_KEY", "provider": "whitelist", "step": 2, "secret": true },
                { "name": "REMOTE", "value": "https://host", "provider": "snapshot", "step": 1 },
                { "name": "MANPATH", "value": "/b:/a", "provider": "snapshot", "step": 1 },
            ],
            "dropped": [
                { "name": "JAVA_HOME", "provider": "whitelist", "step": 2, "reason": "not in the minimal list \
                     and not in the setting \"allow\"" },
                { "name": "BY_SCRIPT", "provider": "env-script", "step": 3, "origin": "/w/.agentd-env.sh" },
                { "name": "CORP", "provider": "corp", "step": 4, "reason": "policy" },
                { "name": "TERM", "provider": "snapshot", "step": 1, "reason": "belongs to a terminal" },
            ],
        }))
        .unwrap()
    }

    fn terminal() -> Terminal {
        [
            ("PATH", "/usr/bin:/opt/jdk/bin"),
            ("EDITOR", "emacs"),
            ("LANG", "C"),
            ("API_KEY", "hunter2"),
            ("REMOTE", "https://kim:hunter2@host"),
            ("MANPATH", "/a:/b"),
            ("JAVA_HOME", "/opt/jdk"),
            ("BY_SCRIPT", "1"),
            ("CORP", "1"),
            ("HERE_ONLY", "hunter2"),
            ("TERM", "xterm"),
            ("SSH_TTY", "/dev/pts/1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()))
        .into()
    }

    #[test]
    fn each_variable_that_is_missing_has_its_step_its_reason_and_the_line_that_keeps_it() {
        let difference = compared(&terminal(), &view(), false);
        let rows: Vec<_> = difference
            .missing
            .iter()
            .map(|one| (one.name.as_str(), one.dropped_by.as_deref(), one.remedy.as_str()))
            .collect();
        assert_eq!(
            rows,
            [
                ("BY_SCRIPT", Some("env-script"), "edit /w/.agentd-env.sh"),
                ("CORP", Some("corp"), "change the settings of the provider corp"),
                ("HERE_ONLY", None, "agentctl run --env-from terminal"),
                ("JAVA_HOME", Some("whitelist"), "agentctl env keep JAVA_HOME"),
            ]
        );
        let own: Vec<&str> = difference.terminals_own.iter().map(|own| own.name.as_str()).collect();
        assert_eq!((own, difference.not_compared), (vec!["SSH_TTY", "TERM"], vec!["API_KEY".to_owned()]));
    }

    #[test]
    fn paths_are_compared_by_entries_and_other_values_are_shown_if_they_are_asked_for_and_no_secret() {
        let screen = Screen { terminal: false, colour: false };
        let text = |values| report(&compared(&terminal(), &view(), values), screen, values);
        for line in
            ["only in the terminal: /opt/jdk/bin", "only the agent's: /agent", "the same entries in another order"]
        {
            assert!(text(false).contains(line), "{}", text(false));
        }
        assert!(!text(false).contains("emacs") && text(true).contains("terminal: emacs"), "{}", text(true));
        let json = |values| serde_json::to_string(&compared(&terminal(), &view(), values)).unwrap();
        for text in [text(false), text(true), json(false), json(true)] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_terminal_that_the_agent_is_equal_to_is_said_to_be() {
        let screen = Screen { terminal: false, colour: false };
        let text = report(&compared(&Terminal::new(), &view(), false), screen, false);
        assert_eq!(text, "The agent has every variable of the terminal.\n");
    }

    #[test]
    fn an_explanation_says_what_the_terminal_has_and_no_step_has_seen() {
        let (terminal, view) = (terminal(), view());
        let of = |name: &str| here(name, &terminal, &view);
        assert_eq!((of("PATH"), of("NOWHERE")), (None, None));
        let only_here = of("HERE_ONLY").unwrap();
        assert!(
            only_here.why.unwrap().contains("this terminal only") && only_here.remedy.contains("--env-from terminal")
        );
        assert_eq!(of("JAVA_HOME").unwrap().remedy, "agentctl env keep JAVA_HOME");
        assert!(of("SSH_TTY").unwrap().why.unwrap().contains("this login over the network"));
    }
}
