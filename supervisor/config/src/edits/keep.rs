//! Plans the edit of `agentctl env keep`: adds names to one list in the user's configuration file.
//!
//! The position of the list depends on the configuration. A use of the whitelist in `environment.providers` may have
//! a list of its own, which replaces `[plugins.whitelist]`.

use std::path::{Path, PathBuf};

use agentd_api::keep::KeepRequest;

use super::{EditError, FileEdit, Files, list};
use crate::assemble::{Loaded, Origins};
use crate::parsed::dotted;
use crate::plugins::WHITELIST;
use crate::{Config, DEMO};

/// Key of the list of allowed variables, in the whitelist's settings and in each scope.
const ALLOW: &str = "allow";

/// A planned edit of the user's file.
#[derive(Debug)]
pub struct KeepPlan {
    /// The edit of the file.
    pub edit: FileEdit,
    /// Dotted keys of the lists that changed.
    pub keys: Vec<String>,
    /// Names that are added to a list.
    pub added: Vec<String>,
    /// Names that all lists already contain.
    pub already: Vec<String>,
}

/// Plans the edit of the current files.
pub(super) fn planned(files: Files, wish: &KeepRequest) -> Result<KeepPlan, EditError> {
    let mut document = files.document()?;
    let (mut keys, mut added, mut already) = (Vec::new(), Vec::new(), Vec::new());
    let user = files.sources.user.clone();
    for target in targets(&files.now, &user, wish)? {
        let key = dotted(&target.key);
        let array = list::list(&mut document, &target.key, &target.inherited)
            .ok_or_else(|| EditError::NotAList { key: key.clone(), file: user.clone() })?;
        let mut changed = false;
        for name in &wish.names {
            let is_new = list::add(array, name);
            changed |= is_new;
            let names: &mut Vec<String> = if is_new { &mut added } else { &mut already };
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        keys.extend(changed.then_some(key));
    }
    // A name that was missing in any of the lists counts as added.
    already.retain(|name| !added.contains(name));
    let after = (!added.is_empty()).then(|| document.to_string());
    Ok(KeepPlan { edit: files.edit(after)?, keys, added, already })
}

/// A list that receives the names.
struct Target {
    key: Vec<String>,
    /// Entries of the list in another file. The list in the user's file replaces that list, so it starts with these
    /// entries.
    inherited: Vec<String>,
}

fn targets(now: &Loaded, user: &Path, wish: &KeepRequest) -> Result<Vec<Target>, EditError> {
    let scope = |table: &str, name: &str| {
        let key = [table, name, ALLOW].map(str::to_owned).to_vec();
        Ok(vec![Target { inherited: inherited_names(&now.read, &key, user), key }])
    };
    match (&wish.agent, &wish.directory) {
        (Some(agent), _) => {
            if agent.as_str() != DEMO && !now.config.agents.contains_key(agent) {
                let known = now.config.agents.keys().map(ToString::to_string).chain([DEMO.to_owned()]).collect();
                return Err(EditError::NoSuchAgent { agent: agent.clone(), known });
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
fn whitelist_targets(config: &Config, read: &Origins, user: &Path, names: &[String]) -> Result<Vec<Target>, EditError> {
    let whitelists = config.environment.providers.iter().enumerate().filter(|(_, one)| one.plugin == WHITELIST);
    let (own, shared): (Vec<_>, Vec<_>) = whitelists.partition(|(_, one)| one.settings.contains_key(ALLOW));
    if own.is_empty() && shared.is_empty() {
        return Err(EditError::NoWhitelist);
    }
    let quoted: Vec<String> = names.iter().map(|name| toml::Value::String(name.clone()).to_string()).collect();
    let refused =
        |key: &[String], file: PathBuf, line: String| EditError::OfAdministrator { key: dotted(key), file, line };
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
#[path = "keep_tests.rs"]
mod tests;
