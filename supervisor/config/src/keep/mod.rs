//! Plans the edit of `agentctl env keep`: adds names to one list in the user's configuration file and changes nothing
//! else.
//!
//! The position of the list depends on the configuration. A use of the whitelist in `environment.providers` may have
//! a list of its own, which replaces `[plugins.whitelist]`. A list in the administrator's files is never changed.
//! This module reads the files but does not write them.

mod edit;
mod lines;

use std::path::{Path, PathBuf};

use agentd_api::AgentName;
use agentd_api::configuration::Mistake;
use agentd_api::keep::{KeepLine, KeepRequest};
use toml_edit::DocumentMut;

use super::assemble::{Loaded, Origins, assemble};
use super::files::{Sources, Text, read_system, read_user};
use super::parsed::{ParsedFile, dotted};
use super::plugins::WHITELIST;
use super::{Config, DEMO};

/// Key of the list of allowed variables, in the whitelist's settings and in each scope.
const ALLOW: &str = "allow";

/// Reason why no edit is possible.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// A file of the configuration cannot be read.
    #[error("{0}")]
    Unreadable(Mistake),
    /// The list is in a file of the administrator. `line` describes the edit that the administrator can make.
    #[error("{key} is set in {}, which only the administrator can change", file.display())]
    OfAdministrator { key: String, file: PathBuf, line: String },
    /// The pipeline has no whitelist.
    #[error("environment.providers has no \"whitelist\", so no whitelist drops variables")]
    NoWhitelist,
    /// The request names an unknown agent. `known` are the configured agents.
    #[error("there is no agent \"{agent}\" in the configuration")]
    NoSuchAgent { agent: AgentName, known: Vec<String> },
    /// The key has a value that is not a list of names.
    #[error("{}: {key} is not a list of names", file.display())]
    NotAList { key: String, file: PathBuf },
    /// The edit would cause these mistakes.
    #[error("the configuration would have a mistake: {}", .0.first().map(ToString::to_string).unwrap_or_default())]
    Mistakes(Vec<Mistake>),
}

/// A planned edit of the user's file.
#[derive(Debug)]
pub struct PlannedEdit {
    /// Former content of the user's file. `None` means that the file does not exist.
    pub before: Option<String>,
    /// New content of the user's file.
    pub after: String,
    /// Dotted keys of the lists that changed.
    pub keys: Vec<String>,
    /// Names that are added to a list.
    pub added: Vec<String>,
    /// Names that all lists already contain.
    pub already: Vec<String>,
    /// Removed and added lines, with secrets masked.
    pub lines: Vec<KeepLine>,
}

/// Plans the edit from the current files.
pub fn plan(sources: &Sources, wish: &KeepRequest) -> Result<PlannedEdit, KeepError> {
    let mut system = Vec::new();
    read_system(&sources.system, &mut system).map_err(KeepError::Unreadable)?;
    let user = match read_user(sources) {
        Ok(user) => user,
        // A missing file that the user named explicitly is created.
        Err(_) if !sources.user.exists() => None,
        Err(mistake) => return Err(KeepError::Unreadable(mistake)),
    };
    planned(system, user, sources, wish)
}

fn planned(
    system: Vec<Text>,
    user: Option<Text>,
    sources: &Sources,
    wish: &KeepRequest,
) -> Result<PlannedEdit, KeepError> {
    let now = assemble(system.clone(), user.clone(), sources);
    let template = user.as_ref().and_then(|text| text.template.clone());
    let before = user.map(|text| text.content);
    let content = before.clone().unwrap_or_default();
    let mut document: DocumentMut = content.parse().map_err(|_| KeepError::Mistakes(now.read.mistakes.clone()))?;
    let mut plan = PlannedEdit {
        before,
        after: String::new(),
        keys: Vec::new(),
        added: Vec::new(),
        already: Vec::new(),
        lines: Vec::new(),
    };
    for list in targets(&now, &sources.user, wish)? {
        let key = dotted(&list.key);
        let array = edit::list(&mut document, &list.key, &list.inherited)
            .ok_or_else(|| KeepError::NotAList { key: key.clone(), file: sources.user.clone() })?;
        let mut changed = false;
        for name in &wish.names {
            let is_new = edit::add(array, name);
            changed |= is_new;
            let names = if is_new { &mut plan.added } else { &mut plan.already };
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        plan.keys.extend(changed.then_some(key));
    }
    // A name that was missing in any of the lists counts as added.
    plan.already.retain(|name| !plan.added.contains(name));
    plan.after = if plan.added.is_empty() { content.clone() } else { document.to_string() };
    if content.contains("\r\n") {
        // New lines get the line ends of the file.
        plan.after = plan.after.replace("\r\n", "\n").replace('\n', "\r\n");
    }
    let text = Text { path: sources.user.clone(), content: plan.after.clone(), of_user: true, template };
    let then = assemble(system, Some(text.clone()), sources);
    let is_new = |mistake: &&Mistake| {
        !now.read.mistakes.iter().any(|known| known.key == mistake.key && known.message == mistake.message)
    };
    let new: Vec<Mistake> = then.read.mistakes.iter().filter(is_new).cloned().collect();
    if !new.is_empty() {
        return Err(KeepError::Mistakes(new));
    }
    let old = ParsedFile::read(Text { content: content.clone(), ..text.clone() });
    let written = ParsedFile::read(text);
    plan.lines = lines::changed(&content, &plan.after);
    for line in &mut plan.lines {
        let file = if line.added { &written } else { &old };
        line.text = file.masked(&[], std::mem::take(&mut line.text));
    }
    Ok(plan)
}

/// A list that receives the names.
struct Target {
    key: Vec<String>,
    /// Entries of the list in another file. The list in the user's file replaces that list, so it starts with these
    /// entries.
    inherited: Vec<String>,
}

fn targets(now: &Loaded, user: &Path, wish: &KeepRequest) -> Result<Vec<Target>, KeepError> {
    let scope = |table: &str, name: &str| {
        let key = [table, name, ALLOW].map(str::to_owned).to_vec();
        Ok(vec![Target { inherited: inherited_names(&now.read, &key, user), key }])
    };
    match (&wish.agent, &wish.directory) {
        (Some(agent), _) => {
            if agent.as_str() != DEMO && !now.config.agents.contains_key(agent) {
                let known = now.config.agents.keys().map(ToString::to_string).chain([DEMO.to_owned()]).collect();
                return Err(KeepError::NoSuchAgent { agent: agent.clone(), known });
            }
            scope("agents", agent.as_str())
        }
        (None, Some(directory)) => scope("directories", &directory_key(now, directory)),
        (None, None) => whitelist_targets(&now.config, &now.read, user, &wish.names),
    }
}

/// Returns the key of this directory in the configuration, which may begin with `~` for the home directory.
fn directory_key(now: &Loaded, directory: &Path) -> String {
    let home = now.config.environment.home.clone().or_else(std::env::home_dir);
    let absolute = |key: &str| match (key.strip_prefix("~/"), &home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(key),
    };
    let tables = now.read.merged().get("directories").and_then(toml::Value::as_table);
    let known = tables.into_iter().flat_map(toml::Table::keys).find(|key| absolute(key) == directory);
    known.cloned().unwrap_or_else(|| directory.display().to_string())
}

/// Returns the lists of the whitelist: the own list of each use that has one, and the plugin's list for the other
/// uses.
fn whitelist_targets(config: &Config, read: &Origins, user: &Path, names: &[String]) -> Result<Vec<Target>, KeepError> {
    let whitelists = config.environment.providers.iter().enumerate().filter(|(_, one)| one.plugin == WHITELIST);
    let (own, shared): (Vec<_>, Vec<_>) = whitelists.partition(|(_, one)| one.settings.contains_key(ALLOW));
    if own.is_empty() && shared.is_empty() {
        return Err(KeepError::NoWhitelist);
    }
    let quoted: Vec<String> = names.iter().map(|name| toml::Value::String(name.clone()).to_string()).collect();
    let refused =
        |key: &[String], file: PathBuf, line: String| KeepError::OfAdministrator { key: dotted(key), file, line };
    let mut targets = Vec::new();
    for (index, _) in own {
        let list = ["environment", "providers", &format!("[{index}]"), "settings", ALLOW];
        let list = list.map(str::to_owned).to_vec();
        let (file, _) = read.place(&list[..2]).unwrap_or_else(|| (user.to_owned(), 1));
        if file != user {
            let line = format!("{} to the list \"allow\" of \"whitelist\" in environment.providers", quoted.join(", "));
            return Err(refused(&list, file, line));
        }
        targets.push(Target { key: list, inherited: Vec::new() });
    }
    if !shared.is_empty() {
        let list = ["plugins", WHITELIST, "settings", ALLOW].map(str::to_owned).to_vec();
        let file =
            read.declared_by_administrator(&list[..2]).or_else(|| read.where_users_declare_none(&config.plugin_policy));
        if let Some(file) = file {
            let line = format!("{} to the list `allow` in [plugins.whitelist.settings]", quoted.join(", "));
            return Err(refused(&list, file, line));
        }
        targets.push(Target { key: list, inherited: Vec::new() });
    }
    Ok(targets)
}

/// Returns the list that the merged configuration has at a key, if another file than the user's sets it.
fn inherited_names(read: &Origins, key: &[String], user: &Path) -> Vec<String> {
    if read.place(key).is_none_or(|(file, _)| file == user) {
        return Vec::new();
    }
    let list = key.iter().try_fold(None, |around: Option<&toml::Value>, part| {
        Some(Some(match around {
            None => read.merged().get(part)?,
            Some(value) => value.get(part)?,
        }))
    });
    let list = list.flatten().and_then(toml::Value::as_array).into_iter().flatten();
    list.filter_map(toml::Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
