//! Puts the files together: the administrator's first, then the user's, and decides what becomes of each mistake.
//!
//! A mistake in a plugin that a user declares leaves out that plugin; what needs it is refused, and the rest holds. Every other mistake makes
//! its owner's files unusable: nothing is launched until it is corrected, unless a reload can keep what was in force ([`super::again`]).
//! What is read of such files all the same serves the sessions that run: limits, times, the journal's durability.
//!
//! The administrator's files are never changed by a user's: not by what those say, and not by what is wrong in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use agentd_api::configuration::{Consequence, Mistake};

use super::files::{Sources, Text, read_as_administrators, read_system, read_user};
use super::written::{Flaw, Key, Written, dotted, removable};
use super::{Config, Origin, Plugin, Policy, check};

/// A configuration and what it was read from.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) read: Read,
}

/// What a configuration was read from.
#[derive(Debug)]
pub(crate) struct Read {
    /// First to last; a later one's keys take the place of an earlier one's.
    pub(crate) files: Vec<PathBuf>,
    /// What is not in force as the files say it.
    pub(crate) mistakes: Vec<Mistake>,
    /// What they say together.
    merged: toml::Table,
    /// Each key's file and line.
    places: Vec<Written>,
    /// The user's file as it is in force.
    pub(super) user: Option<Text>,
    /// Where it was looked for.
    pub(crate) sources: Sources,
}

/// The tables of things that have names.
const PLUGINS: &str = "plugins";
const PREREQUISITES: &str = "prerequisites";

/// Reads the configuration of a daemon that starts. It always comes to one; see [`Read::refuses`].
pub(crate) fn load(sources: &Sources) -> Loaded {
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

/// Reads what the configuration would be with one more file of the administrator's.
pub(crate) fn load_with(sources: &Sources, file: &Path) -> Loaded {
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

/// Makes one configuration of them all, whatever is wrong with them.
pub(super) fn assemble(system: Vec<Text>, user: Option<Text>, sources: &Sources) -> Loaded {
    let mut written: Vec<Written> = system.into_iter().chain(user.clone()).map(Written::read).collect();
    let mut left_out = BTreeMap::new();
    let mut mistakes = judge(&mut written, &sources.system, &mut left_out);
    let (mut merged, mut config);
    loop {
        merged = toml::Table::new();
        for file in &written {
            merge(&mut merged, file.table.clone());
        }
        config = match merged.clone().try_into::<Config>() {
            Ok(config) => config,
            Err(error) => {
                // Each file is right, and together they are not: the last one that matters gives way.
                let message =
                    written.iter().fold(error.message().to_owned(), |message, file| file.without_secrets(&[], message));
                let message = format!("does not fit what the other files say: {message}");
                mistakes.push(give_way(&mut written, &message));
                continue;
            }
        };
        declare(&mut config, &written, &left_out);
        // One at a time: without the key of the first one, the others may be no mistakes, or those of another file.
        let Some((key, message)) = check(&config).into_iter().next() else { break };
        mistakes.push(settle(&mut written, &key, message, &mut left_out));
    }
    let files = written.iter().map(|file| file.path.clone()).collect();
    Loaded { config, read: Read { files, mistakes, merged, places: written, user, sources: sources.clone() } }
}

/// What is wrong in each file alone, and what a user's file says that is the administrator's to say.
fn judge(written: &mut [Written], system_folder: &Path, left_out: &mut BTreeMap<String, Mistake>) -> Vec<Mistake> {
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
        let declared: Vec<Key> = [declared(PLUGINS), declared(PREREQUISITES)].concat();
        if !file.of_user {
            let policy = file.table.get("plugin_policy").and_then(|policy| policy.get("user_plugins"));
            may_declare = policy.and_then(toml::Value::as_bool).unwrap_or(may_declare);
            of_system.extend(declared.into_iter().map(|key| (key, file.path.clone())));
            continue;
        }
        if file.table.remove("plugin_policy").is_some() || file.says(&["plugin_policy".to_owned()]) {
            let message = format!(
                "[plugin_policy] is the administrator's to say: it is read from {} only",
                system_folder.display()
            );
            mistakes.push(file.mistake(&["plugin_policy".to_owned()], message, Consequence::LaunchesRefused));
        }
        for key in declared {
            let (what, name) = (key[0].trim_end_matches('s'), &key[1]);
            let message = match of_system.get(&key) {
                Some(system) => format!(
                    "the {what} \"{name}\" is declared by {} already; what is there is the administrator's to change",
                    system.display()
                ),
                None if key[0] == PLUGINS && !may_declare => format!(
                    "users declare no plugin here, and so not \"{name}\": plugin_policy.user_plugins is false in {}",
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
        // The administrator's plugin is there, whatever the user says of the same name.
        left_out.retain(|name, _| !of_system.contains_key(&vec![PLUGINS.to_owned(), name.clone()]));
    }
    mistakes
}

/// Writes down where each plugin is declared, and puts those that are left out among the others, with their mistakes.
fn declare(config: &mut Config, written: &[Written], left_out: &BTreeMap<String, Mistake>) {
    for (name, plugin) in &mut config.plugins {
        let key = [PLUGINS.to_owned(), name.clone()];
        if let Some(file) = written.iter().rev().find(|file| file.says(&key) && holds(&file.table, &key)) {
            plugin.origin = Origin { file: Some(file.path.clone()), of_user: file.of_user };
        }
    }
    for (name, mistake) in left_out {
        let origin = Origin { file: mistake.file.clone(), of_user: true };
        let broken = Plugin { origin, mistake: Some(mistake.to_string()), ..Plugin::default() };
        config.plugins.insert(name.clone(), broken);
    }
}

/// What becomes of a mistake that only the merged configuration shows: the key is left out of the last file that has it.
fn settle(
    written: &mut [Written],
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
    // It is in no file: a default that does not hold with what the files say. Nothing less is left to be taken away.
    for file in written {
        file.table.clear();
    }
    Mistake { key: dotted(key), message, ..Mistake::default() }
}

/// Removes what keeps the first file from fitting those before it: one of its top-level keys if that is enough, else all of it.
fn give_way(written: &mut [Written], message: &str) -> Mistake {
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

impl Read {
    /// Whether there is a mistake for which nothing is launched.
    pub(crate) fn refuses(&self) -> bool {
        self.mistakes.iter().any(|mistake| mistake.consequence == Consequence::LaunchesRefused)
    }

    /// A mistake in a key that only shows when the configuration is made use of.
    pub(crate) fn mistake(&self, key: &[&str], message: String, consequence: Consequence) -> Mistake {
        let key: Key = key.iter().map(|&part| part.to_owned()).collect();
        let file = self.places.iter().rev().find(|file| file.says(&key));
        match file {
            Some(file) => file.mistake(&key, message, consequence),
            None => Mistake { key: dotted(&key), message, consequence, ..Mistake::default() },
        }
    }

    pub(super) fn merged(&self) -> &toml::Table {
        &self.merged
    }

    /// The file whose value of this key holds, and the key's line in it.
    pub(super) fn place(&self, key: &[String]) -> Option<(PathBuf, u32)> {
        let file = self.places.iter().rev().find(|file| file.says(key) && holds(&file.table, key))?;
        Some((file.path.clone(), file.place(key)?.0))
    }

    /// The administrator's file that says something of this key.
    pub(super) fn declared_by_administrator(&self, key: &[String]) -> Option<PathBuf> {
        self.places.iter().rev().find(|file| !file.of_user && file.says(key)).map(|file| file.path.clone())
    }

    /// The administrator's file that forbids users to declare plugins, where one does.
    pub(super) fn where_users_declare_none(&self, policy: &Policy) -> Option<PathBuf> {
        if policy.user_plugins {
            return None;
        }
        self.declared_by_administrator(&["plugin_policy".to_owned(), "user_plugins".to_owned()])
    }

    /// The keys, dotted, that have another value than before, or are in one of the two only.
    pub(crate) fn changed_since(&self, before: &Self) -> Vec<String> {
        let mut changed = BTreeSet::new();
        differing("", &before.merged, &self.merged, &mut changed);
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

/// Down to the key that changed, also where the table around it is new or gone.
fn differing(prefix: &str, old: &toml::Table, new: &toml::Table, changed: &mut BTreeSet<String>) {
    let empty = toml::Table::new();
    for key in old.keys().chain(new.keys()) {
        let dotted = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match (old.get(key), new.get(key)) {
            (old, new) if old == new => {}
            // `[limits]` without a key says nothing.
            (Some(toml::Value::Table(only)), None) | (None, Some(toml::Value::Table(only)))
                if only.is_empty() && prefix.is_empty() => {}
            (Some(toml::Value::Table(old)), Some(toml::Value::Table(new))) => differing(&dotted, old, new, changed),
            (Some(toml::Value::Table(old)), None) if !old.is_empty() => differing(&dotted, old, &empty, changed),
            (None, Some(toml::Value::Table(new))) if !new.is_empty() => differing(&dotted, &empty, new, changed),
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
