//! The files that make up the configuration: who may have written them, what each may say, and how they become one.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{Config, Origin, check};

/// Where the configuration is looked for.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// The administrator's directory; in it `agentd.toml` and `conf.d/*.toml`.
    pub(crate) system: PathBuf,
    /// The user's file.
    pub(crate) user: PathBuf,
    /// Whether it was asked for by name, so that it has to be there.
    pub(crate) named: bool,
}

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
    /// What they say together.
    merged: toml::Table,
}

/// Why the configuration is not used; the one in force stays.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    /// The mistake is shown where it stands, in words that are whole: there is nothing under it.
    #[error("{path:?} is not TOML as agentd reads it:\n{mistake}")]
    Parse { path: PathBuf, mistake: String },
    /// The files can be read one by one, and do not fit together.
    #[error("the configuration of {files} is wrong: {mistake}")]
    Merged { files: String, mistake: String },
    #[error("the configuration is wrong: {0}")]
    Invalid(String),
    #[error(
        "{path:?} belongs to user {owner}, not to root; the administrator's configuration is read only from what nobody else can write"
    )]
    NotRoots { path: PathBuf, owner: u32 },
    #[error(
        "{path:?} can be written by others than root (mode {mode:04o}); the administrator's configuration is read only from what \
         nobody else can write", mode = .mode & 0o7777
    )]
    Writable { path: PathBuf, mode: u32 },
    #[error("{path:?} has [plugin_policy], which is the administrator's to say: it is read from {system:?} only")]
    Policy { path: PathBuf, system: PathBuf },
    #[error(
        "{path:?} declares the plugin {plugin:?}; users declare none here: plugin_policy.user_plugins is false in {system:?}"
    )]
    UserPlugin { path: PathBuf, plugin: String, system: PathBuf },
    #[error(
        "{path:?} declares the {what} {name:?}, which {system:?} declares already; what is there is the administrator's to change"
    )]
    Taken { path: PathBuf, what: &'static str, name: String, system: PathBuf },
}

/// What one file says.
struct Text {
    path: PathBuf,
    content: String,
    of_user: bool,
}

/// Reads and checks the configuration.
pub(crate) fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let mut texts = Vec::new();
    for path in system_files(&sources.system)? {
        texts.push(Text { content: read_of_root(&path)?, path, of_user: false });
    }
    if let Some(content) = read_of_user(sources)? {
        texts.push(Text { path: sources.user.clone(), content, of_user: true });
    }
    combine(texts, &sources.system)
}

/// Makes one configuration of them all.
fn combine(texts: Vec<Text>, system: &Path) -> Result<Loaded, ConfigError> {
    let mut merged = toml::Table::new();
    let mut origins: BTreeMap<String, Origin> = BTreeMap::new();
    let mut of_system: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut files = Vec::new();
    for Text { path, content, of_user } in texts {
        let table = parse(&path, &content)?;
        if of_user {
            may_say(&path, &table, &merged, &origins, system)?;
            may_require(&path, &table, &of_system)?;
        } else {
            of_system.extend(declared(&table, PREREQUISITES).map(|name| (name.clone(), path.clone())));
        }
        for plugin in declared(&table, PLUGINS) {
            origins.insert(plugin.clone(), Origin { file: Some(path.clone()), of_user });
        }
        merge(&mut merged, table);
        files.push(path);
    }
    let mut config: Config = merged.clone().try_into().map_err(|source| ConfigError::Merged {
        files: files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        mistake: shown(&source),
    })?;
    for (name, plugin) in &mut config.plugins {
        plugin.origin = origins.remove(name).unwrap_or_default();
    }
    check(&config).map_err(ConfigError::Invalid)?;
    Ok(Loaded { config, read: Read { files, merged } })
}

/// Whether a user's file may say what it says of plugins, beside what the administrator's say.
fn may_say(
    path: &Path,
    table: &toml::Table,
    before: &toml::Table,
    origins: &BTreeMap<String, Origin>,
    system: &Path,
) -> Result<(), ConfigError> {
    let (path, system) = (path.to_owned(), system.to_owned());
    if table.contains_key("plugin_policy") {
        return Err(ConfigError::Policy { path, system });
    }
    let policy = before.get("plugin_policy").and_then(|policy| policy.get("user_plugins"));
    let may_declare = policy.and_then(toml::Value::as_bool).unwrap_or(true);
    for plugin in declared(table, PLUGINS).cloned() {
        if let Some(Origin { file: Some(system), of_user: false }) = origins.get(&plugin) {
            return Err(ConfigError::Taken { path, what: "plugin", name: plugin, system: system.clone() });
        }
        if !may_declare {
            return Err(ConfigError::UserPlugin { path, plugin, system });
        }
    }
    Ok(())
}

/// Whether a user's file leaves the administrator's prerequisites (`of_system`, by name with their files) as they are.
fn may_require(path: &Path, table: &toml::Table, of_system: &BTreeMap<String, PathBuf>) -> Result<(), ConfigError> {
    let mut taken = declared(table, PREREQUISITES).filter_map(|name| Some((name, of_system.get(name)?)));
    let Some((name, system)) = taken.next() else { return Ok(()) };
    let (path, what) = (path.to_owned(), "prerequisite");
    Err(ConfigError::Taken { path, what, name: name.clone(), system: system.clone() })
}

impl Read {
    /// The keys, dotted, that have another value than before, or are in one of the two only.
    pub(crate) fn changed_since(&self, before: &Self) -> Vec<String> {
        let mut changed = Vec::new();
        differing("", &before.merged, &self.merged, &mut changed);
        changed.sort();
        changed
    }
}

/// The administrator's files, in order.
fn system_files(system: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let drop_ins = system.join("conf.d");
    let mut files = Vec::from_iter(Some(system.join("agentd.toml")).filter(|path| path.exists()));
    match std::fs::read_dir(&drop_ins) {
        Ok(entries) => {
            let mut found = Vec::new();
            for entry in entries {
                let path = entry.map_err(|source| ConfigError::Read { path: drop_ins.clone(), source })?.path();
                if path.extension().is_some_and(|extension| extension == "toml") {
                    found.push(path);
                }
            }
            found.sort();
            files.extend(found);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(ConfigError::Read { path: drop_ins, source }),
    }
    if !files.is_empty() {
        for directory in [system, &drop_ins].into_iter().filter(|directory| directory.exists()) {
            let metadata = std::fs::metadata(directory);
            of_root(directory, &metadata.map_err(|source| ConfigError::Read { path: directory.to_owned(), source })?)?;
        }
    }
    Ok(files)
}

/// A file of the administrator's, wherever a link leads, from a directory in which nobody else could have put another.
fn read_of_root(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let real = path.canonicalize().map_err(failed)?;
    if let Some(directory) = real.parent() {
        of_root(directory, &std::fs::metadata(directory).map_err(failed)?)?;
    }
    let mut file = File::open(&real).map_err(failed)?;
    of_root(path, &file.metadata().map_err(failed)?)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn of_root(path: &Path, metadata: &Metadata) -> Result<(), ConfigError> {
    if metadata.uid() != 0 {
        return Err(ConfigError::NotRoots { path: path.to_owned(), owner: metadata.uid() });
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(ConfigError::Writable { path: path.to_owned(), mode: metadata.mode() });
    }
    Ok(())
}

fn read_of_user(sources: &Sources) -> Result<Option<String>, ConfigError> {
    match std::fs::read_to_string(&sources.user) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !sources.named => Ok(None),
        Err(source) => Err(ConfigError::Read { path: sources.user.clone(), source }),
    }
}

/// A mistake as the parser shows it, without the line's end behind it.
fn shown(mistake: &toml::de::Error) -> String {
    mistake.to_string().trim_end().to_owned()
}

fn parse(path: &Path, text: &str) -> Result<toml::Table, ConfigError> {
    // Once as what it is meant to be, so that a mistake is shown where it stands; once as a table, to be merged.
    let failed = |source: toml::de::Error| ConfigError::Parse { path: path.to_owned(), mistake: shown(&source) };
    toml::from_str::<Config>(text).map_err(failed)?;
    toml::from_str(text).map_err(failed)
}

/// The tables of things that have names.
const PLUGINS: &str = "plugins";
const PREREQUISITES: &str = "prerequisites";

/// The names in one of them that a file says something of.
fn declared<'a>(table: &'a toml::Table, of: &str) -> impl Iterator<Item = &'a String> + use<'a> {
    table.get(of).and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys)
}

fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

fn differing(prefix: &str, old: &toml::Table, new: &toml::Table, changed: &mut Vec<String>) {
    let only_new = new.keys().filter(|key| !old.contains_key(*key));
    for key in old.keys().chain(only_new) {
        let dotted = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match (old.get(key), new.get(key)) {
            (Some(toml::Value::Table(old)), Some(toml::Value::Table(new))) => differing(&dotted, old, new, changed),
            (old, new) if old == new => {}
            _ => changed.push(dotted),
        }
    }
}

#[cfg(test)]
pub(super) fn of_texts(system: &[&str], user: &[&str]) -> Result<Loaded, ConfigError> {
    let text = |directory: &str, of_user: bool, n: usize, text: &&str| Text {
        path: Path::new(directory).join(format!("{n}.toml")),
        content: (*text).to_owned(),
        of_user,
    };
    let system = system.iter().enumerate().map(|(n, toml)| text("/etc/agentd", false, n, toml));
    let texts = system.chain(user.iter().enumerate().map(|(n, toml)| text("/home/kim", true, n, toml)));
    combine(texts.collect(), Path::new("/etc/agentd"))
}
