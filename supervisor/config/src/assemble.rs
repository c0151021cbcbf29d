//! Merges the files of the configuration, first the administrator's and then the user's, and decides the consequence
//! of each mistake.
//!
//! - A mistake in a plugin that a user declares disables this plugin. Launches that need the plugin are refused, and
//!   the rest of the configuration takes effect.
//! - Every other mistake makes its owner's files invalid, and agentd refuses all launches until it is corrected. A
//!   reload can keep the former configuration in force instead ([`super::reload`]).
//!
//! The valid part of files with mistakes still applies to running sessions: limits, times, the journal's durability.
//!
//! A user's file never changes the administrator's settings, neither by its content nor by its mistakes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use agentd_api::configuration::{Consequence, Mistake};

use super::files::{Sources, Text, read_as_administrators, read_system, read_user};
use super::parsed::{Flaw, Key, ParsedFile, dotted, removable};
use super::template::{self, NoteTemplate, TemplateFile};
use super::{Config, Origin, Plugin, Policy, check};

/// A configuration and its origin.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration in force.
    pub config: Config,
    /// The files and mistakes of the configuration.
    pub read: Origins,
}

/// The files and mistakes of a configuration.
#[derive(Debug)]
pub struct Origins {
    /// Files in the order in which they apply. Keys of a later file replace keys of an earlier file.
    pub files: Vec<PathBuf>,
    /// Mistakes in the files, each with its consequence.
    pub mistakes: Vec<Mistake>,
    /// Merged content of the files.
    merged: toml::Table,
    /// The parsed files, with the positions of their keys.
    places: Vec<ParsedFile>,
    /// The user's file that is in force.
    pub(super) user: Option<Text>,
    /// Locations of the files.
    pub sources: Sources,
}

/// Keys of tables whose entries have names.
const PLUGINS: &str = "plugins";
const PREREQUISITES: &str = "prerequisites";

/// Which files may set a top-level key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOwner {
    /// The administrator's files and the user's file.
    Anywhere,
    /// All files, but a user's file cannot change an entry that the administrator declares.
    DeclaredOnce,
    /// Only the administrator's files.
    Administrator,
}

/// Keys with another owner than [`KeyOwner::Anywhere`].
const OWNERS: [(&str, KeyOwner); 3] = [
    (PLUGINS, KeyOwner::DeclaredOnce),
    (PREREQUISITES, KeyOwner::DeclaredOnce),
    ("plugin_policy", KeyOwner::Administrator),
];

impl KeyOwner {
    /// Returns the owner of a top-level key.
    pub fn of(key: &str) -> Self {
        OWNERS.iter().find(|(known, _)| *known == key).map_or(Self::Anywhere, |(_, owner)| *owner)
    }

    /// Returns the keys with this owner.
    fn keys(self) -> impl Iterator<Item = &'static str> {
        OWNERS.iter().filter(move |(_, owner)| *owner == self).map(|(key, _)| *key)
    }
}

/// Reads the configuration at the start of the daemon. The result is always a configuration; see [`Origins::refuses`].
pub fn load(sources: &Sources) -> Loaded {
    let (mut texts, mut mistakes) = (Vec::new(), Vec::new());
    mistakes.extend(read_system(&sources.system, &mut texts).err());
    let user = match read_user(sources) {
        Ok(user) => user,
        Err(mistake) => {
            mistakes.push(mistake);
            None
        }
    };
    let mut loaded = assemble(texts, user, sources);
    loaded.read.mistakes.splice(0..0, mistakes);
    loaded
}

/// Reads the configuration as it would be with one more file of the administrator.
pub fn load_with(sources: &Sources, file: &Path) -> Loaded {
    let (mut texts, mut mistakes) = (Vec::new(), Vec::new());
    mistakes.extend(read_system(&sources.system, &mut texts).err());
    let is_there =
        |text: &Text| text.path.canonicalize().ok().is_some_and(|path| file.canonicalize().ok() == Some(path));
    if !texts.iter().any(is_there) {
        match read_as_administrators(file) {
            Ok(text) => texts.push(text),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    let user = read_user(sources).ok().flatten();
    let mut loaded = assemble(texts, user, sources);
    loaded.read.mistakes.splice(0..0, mistakes);
    loaded
}

/// Merges all files into one configuration, and collects their mistakes.
pub(super) fn assemble(system: Vec<Text>, user: Option<Text>, sources: &Sources) -> Loaded {
    let mut written: Vec<ParsedFile> = system.into_iter().chain(user.clone()).map(ParsedFile::read).collect();
    let mut left_out = BTreeMap::new();
    let mut mistakes = check_files(&mut written, &sources.system, &mut left_out);
    let (mut merged, mut config);
    loop {
        merged = toml::Table::new();
        for file in &written {
            merge(&mut merged, file.table.clone());
        }
        config = match merged.clone().try_into::<Config>() {
            Ok(config) => config,
            Err(error) => {
                // Each file is valid alone, but they contradict each other: the last file with an effect is reduced.
                let message =
                    written.iter().fold(error.message().to_owned(), |message, file| file.masked(&[], message));
                let message = format!("contradicts the other files: {message}");
                mistakes.push(reduce_conflicting_file(&mut written, &message));
                continue;
            }
        };
        record_origins(&mut config, &written, &left_out);
        config.resume.note_template = template_in_force(&written).map(NoteTemplate::from);
        // One mistake at a time: without the first key, the others may be no mistakes, or mistakes of another file.
        let Some((key, message)) = check(&config).into_iter().next() else { break };
        mistakes.push(remove_invalid_key(&mut written, &key, message, &mut left_out));
    }
    let files = written.iter().map(|file| file.path.clone()).collect();
    Loaded { config, read: Origins { files, mistakes, merged, places: written, user, sources: sources.clone() } }
}

/// Returns the mistakes of each file alone, and removes the parts of a user's file that only the administrator may
/// set.
fn check_files(
    written: &mut [ParsedFile],
    system_folder: &Path,
    left_out: &mut BTreeMap<String, Mistake>,
) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let mut of_system: BTreeMap<Key, PathBuf> = BTreeMap::new();
    let mut may_declare = true;
    for file in written {
        for Flaw { key, mistake } in std::mem::take(&mut file.mistakes) {
            let plugin = key.get(1).filter(|_| file.of_user && key[0] == PLUGINS);
            let mistake = if let Some(plugin) = plugin {
                let mistake = Mistake { consequence: Consequence::LeftOut, ..mistake };
                left_out.insert(plugin.clone(), mistake.clone());
                mistake
            } else {
                mistake
            };
            mistakes.push(mistake);
        }
        let declared = |table: &'static str| {
            let names = file.table.get(table).and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
            names.map(|name| vec![table.to_owned(), name.clone()]).collect::<Vec<Key>>()
        };
        let declared: Vec<Key> = KeyOwner::DeclaredOnce.keys().flat_map(declared).collect();
        if !file.of_user {
            let policy = file.table.get("plugin_policy").and_then(|policy| policy.get("user_plugins"));
            may_declare = policy.and_then(toml::Value::as_bool).unwrap_or(may_declare);
            of_system.extend(declared.into_iter().map(|key| (key, file.path.clone())));
            continue;
        }
        for table in KeyOwner::Administrator.keys() {
            if file.table.remove(table).is_some() || file.contains_key(&[table.to_owned()]) {
                let message = format!(
                    "[{table}] is for the administrator and is read only from {}; remove it here",
                    system_folder.display()
                );
                mistakes.push(file.mistake(&[table.to_owned()], message, Consequence::LaunchesRefused));
            }
        }
        for key in declared {
            let (what, name) = (key[0].trim_end_matches('s'), &key[1]);
            let message = match of_system.get(&key) {
                Some(system) => format!(
                    "the {what} \"{name}\" is already declared by {}, and only the administrator can change it",
                    system.display()
                ),
                None if key[0] == PLUGINS && !may_declare => format!(
                    "the plugin \"{name}\" is disabled, because plugin_policy.user_plugins is false in {}",
                    system_folder.display()
                ),
                None => continue,
            };
            let mistake = file.mistake(&key, message, Consequence::LeftOut);
            if !of_system.contains_key(&key) {
                left_out.insert(name.clone(), mistake.clone());
            }
            remove(&mut file.table, &key);
            mistakes.push(mistake);
        }
        // The administrator's plugin is valid, whatever the user's file contains under the same name.
        left_out.retain(|name, _| !of_system.contains_key(&vec![PLUGINS.to_owned(), name.clone()]));
    }
    mistakes
}

/// Returns the template of the last file that names one.
fn template_in_force(written: &[ParsedFile]) -> Option<&TemplateFile> {
    let key = template::KEY.map(str::to_owned);
    written.iter().rev().find(|file| holds(&file.table, &key))?.template.as_ref()
}

/// Records the declaring file of each plugin, and adds the invalid plugins together with their mistakes.
fn record_origins(config: &mut Config, written: &[ParsedFile], left_out: &BTreeMap<String, Mistake>) {
    for (name, plugin) in &mut config.plugins {
        let key = [PLUGINS.to_owned(), name.clone()];
        if let Some(file) = written.iter().rev().find(|file| file.contains_key(&key) && holds(&file.table, &key)) {
            plugin.origin = Origin { file: Some(file.path.clone()), of_user: file.of_user };
        }
    }
    for (name, mistake) in left_out {
        let origin = Origin { file: mistake.file.clone(), of_user: true };
        let broken = Plugin { origin, mistake: Some(mistake.to_string()), ..Plugin::default() };
        config.plugins.insert(name.clone(), broken);
    }
}

/// Handles a mistake that shows only in the merged configuration: removes the key from the last file that contains
/// it.
fn remove_invalid_key(
    written: &mut [ParsedFile],
    key: &[String],
    message: String,
    left_out: &mut BTreeMap<String, Mistake>,
) -> Mistake {
    let around = (1..=key.len()).rev().map(|length| &key[..length]);
    for key in around {
        let Some(file) = written.iter_mut().rev().find(|file| holds(&file.table, key)) else { continue };
        let plugin = key.get(1).filter(|_| file.of_user && key[0] == PLUGINS).cloned();
        let consequence = if plugin.is_some() { Consequence::LeftOut } else { Consequence::LaunchesRefused };
        let mistake = file.mistake(key, message, consequence);
        remove(&mut file.table, &removable(key));
        if let Some(plugin) = plugin {
            left_out.insert(plugin, mistake.clone());
        }
        return mistake;
    }
    // No file contains the key: a default contradicts the files. All files are cleared, because no smaller part can
    // be removed.
    for file in written {
        file.table.clear();
    }
    Mistake { key: dotted(key), message, ..Mistake::default() }
}

/// Removes the contradiction from the first file that does not fit the files before it: one top-level key if that is
/// enough, otherwise the whole content.
fn reduce_conflicting_file(written: &mut [ParsedFile], message: &str) -> Mistake {
    let mut before = toml::Table::new();
    for file in written {
        let fits = |table: toml::Table| {
            let mut merged = before.clone();
            merge(&mut merged, table);
            merged.try_into::<Config>().is_ok()
        };
        if fits(file.table.clone()) {
            merge(&mut before, file.table.clone());
            continue;
        }
        let without = |name: &String| {
            let mut table = file.table.clone();
            table.remove(name);
            table
        };
        let name = file.table.keys().find(|&name| fits(without(name))).cloned();
        let key: Key = name.into_iter().collect();
        let mistake = file.mistake(&key, message.to_owned(), Consequence::LaunchesRefused);
        remove(&mut file.table, &key);
        return mistake;
    }
    Mistake { message: message.to_owned(), ..Mistake::default() }
}

impl Origins {
    /// Reports whether a mistake refuses all launches.
    pub fn refuses(&self) -> bool {
        self.mistakes.iter().any(|mistake| mistake.consequence == Consequence::LaunchesRefused)
    }

    /// Returns a mistake in a key that shows only when the configuration is used.
    pub fn mistake(&self, key: &[&str], message: String, consequence: Consequence) -> Mistake {
        let key: Key = key.iter().map(|&part| part.to_owned()).collect();
        let file = self.places.iter().rev().find(|file| file.contains_key(&key));
        match file {
            Some(file) => file.mistake(&key, message, consequence),
            None => Mistake { key: dotted(&key), message, consequence, ..Mistake::default() },
        }
    }

    pub(super) fn merged(&self) -> &toml::Table {
        &self.merged
    }

    /// Returns the file whose value of this key is in force, and the line of the key.
    pub(super) fn place(&self, key: &[String]) -> Option<(PathBuf, u32)> {
        let file = self.places.iter().rev().find(|file| file.contains_key(key) && holds(&file.table, key))?;
        Some((file.path.clone(), file.place(key)?.0))
    }

    /// Returns the administrator's file that contains this key.
    pub(super) fn declared_by_administrator(&self, key: &[String]) -> Option<PathBuf> {
        self.places.iter().rev().find(|file| !file.of_user && file.contains_key(key)).map(|file| file.path.clone())
    }

    /// Returns the administrator's file that forbids users to declare plugins, if one does.
    pub(super) fn where_users_declare_none(&self, policy: &Policy) -> Option<PathBuf> {
        if policy.user_plugins {
            return None;
        }
        self.declared_by_administrator(&["plugin_policy".to_owned(), "user_plugins".to_owned()])
    }

    /// Returns the dotted keys whose values differ from `before`, or that only one of the configurations has. A
    /// template with another content differs.
    pub fn changed_since(&self, before: &Self) -> Vec<String> {
        let mut changed = BTreeSet::new();
        collect_changes("", &before.merged, &self.merged, &mut changed);
        if template_in_force(&self.places) != template_in_force(&before.places) {
            changed.insert(template::KEY.join("."));
        }
        changed.into_iter().collect()
    }
}

fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

fn holds(table: &toml::Table, key: &[String]) -> bool {
    match key {
        [] => true,
        [last] => table.contains_key(last),
        [first, rest @ ..] => table.get(first).and_then(toml::Value::as_table).is_some_and(|inner| holds(inner, rest)),
    }
}

fn remove(table: &mut toml::Table, key: &[String]) {
    match key {
        [] => table.clear(),
        [last] => drop(table.remove(last)),
        [first, rest @ ..] => {
            if let Some(inner) = table.get_mut(first).and_then(toml::Value::as_table_mut) {
                remove(inner, rest);
            }
        }
    }
}

/// Collects the dotted keys that differ, also where the table around a key exists on one side only.
fn collect_changes(prefix: &str, old: &toml::Table, new: &toml::Table, changed: &mut BTreeSet<String>) {
    let empty = toml::Table::new();
    for key in old.keys().chain(new.keys()) {
        let dotted = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match (old.get(key), new.get(key)) {
            (old, new) if old == new => {}
            // An empty `[limits]` changes nothing.
            (Some(toml::Value::Table(only)), None) | (None, Some(toml::Value::Table(only)))
                if only.is_empty() && prefix.is_empty() => {}
            (Some(toml::Value::Table(old)), Some(toml::Value::Table(new))) => {
                collect_changes(&dotted, old, new, changed);
            }
            (Some(toml::Value::Table(old)), None) if !old.is_empty() => collect_changes(&dotted, old, &empty, changed),
            (None, Some(toml::Value::Table(new))) if !new.is_empty() => collect_changes(&dotted, &empty, new, changed),
            _ => drop(changed.insert(dotted)),
        }
    }
}

#[cfg(test)]
pub(super) fn of_texts(system: &[&str], user: &[&str]) -> Result<Loaded, String> {
    let text = |directory: &str, of_user: bool, n: usize, text: &&str| Text {
        path: Path::new(directory).join(format!("{n}.toml")),
        content: (*text).to_owned(),
        of_user,
        template: None,
    };
    let system = system.iter().enumerate().map(|(n, toml)| text("/etc/agentd", false, n, toml)).collect();
    let user = user.first().map(|toml| text("/home/kim", true, 0, toml));
    let sources = Sources { system: "/etc/agentd".into(), user: "/home/kim/0.toml".into(), named: false };
    let loaded = assemble(system, user, &sources);
    match loaded.read.mistakes.first() {
        None => Ok(loaded),
        Some(mistake) => Err(mistake.to_string()),
    }
}
