//! Defines `agentctl ls`.

use std::path::PathBuf;
use std::str::FromStr;

use agentd_api::list::{Conditions, Phases};
use agentd_api::quantity::Time;
use agentd_api::route::Value;
use clap::Args;
use serde_json_path::JsonPath;

use super::SelectorArgs;
use super::files::path;

const EXAMPLES: &str = "\
Examples:
  agentctl ls --condition NeedsAttention   sessions that wait for a person
  agentctl ls --phase idle,busy --dir ~/src
  agentctl stop $(agentctl ls -q -l team=web)
  agentctl ls --sort -updated -o wide      the last active ones first
  agentctl ls -o custom-columns=ID:.id,TEAM:.spec.labels.team
  agentctl ls --watch                      again whenever a session changes
  agentctl ls --all-hosts                  this machine and those of agentctl host";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct LsArgs {
    /// List stopped sessions too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Check the sessions now, stopped ones too, and list only those that are stale, with the findings
    #[arg(long, conflicts_with_all = ["sort", "output", "no_headers", "quiet", "watch"])]
    pub(crate) stale: bool,
    #[command(flatten)]
    pub(crate) labels: SelectorArgs,
    /// Only sessions in one of these phases, with commas between
    #[arg(long, value_name = "PHASE", value_parser = value::<Phases>)]
    pub(crate) phase: Option<Phases>,
    /// Only sessions of this agent
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Only sessions in this directory or below it
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Only sessions for which a condition is true, or with !CONDITION is not; several with commas between
    #[arg(long, value_name = "CONDITION", value_parser = value::<Conditions>)]
    pub(crate) condition: Option<Conditions>,
    /// Order by created, updated, name, agent, phase or directory; -KEY reverses
    ///
    /// Without it, sessions that need a person come first, and the order of creation decides among equals.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) sort: Option<Sort>,
    /// One of wide, json, yaml, name and custom-columns=TITLE:PATH,...
    ///
    /// With json and yaml, prints whole documents. With name, prints names, or the ids of sessions without a name. With
    /// custom-columns, prints the value of each path (RFC 9535) in each document.
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) output: Option<ListOutput>,
    /// Print no line with the titles of the columns
    #[arg(long)]
    pub(crate) no_headers: bool,
    /// Print ids only
    #[arg(short, long, conflicts_with = "output")]
    pub(crate) quiet: bool,
    /// List again whenever a session changes, until Ctrl-C; without a terminal, print the changed sessions only
    ///
    /// With json and yaml, prints one document for each session that is added, changed or removed.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// List the sessions of this machine and of all machines of `agentctl host ls`, with a column HOST
    ///
    /// A machine that fails is reported on standard error, and all others are listed. The exit status is
    /// 0 if a machine answered, else that of the first failure. ssh asks nothing. With --quiet, prints HOST/ID.
    #[arg(long)]
    pub(crate) all_hosts: bool,
    /// With --all-hosts: the time limit of each machine
    #[arg(long, value_name = "DURATION", default_value = "10s", requires = "all_hosts")]
    pub(crate) timeout: Time,
}

/// Parses a value as a query of the daemon has it.
fn value<T: Value>(text: &str) -> Result<T, String> {
    T::read(text).ok_or_else(|| format!("give {}", T::describe().replace('`', "")))
}

/// Value of `--sort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sort {
    pub(crate) key: SortKey,
    pub(crate) is_reversed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SortKey {
    Created,
    Updated,
    Name,
    Agent,
    Phase,
    Directory,
}

impl FromStr for Sort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (is_reversed, name) = text.strip_prefix('-').map_or((false, text), |name| (true, name));
        let key = match name {
            "created" => SortKey::Created,
            "updated" => SortKey::Updated,
            "name" => SortKey::Name,
            "agent" => SortKey::Agent,
            "phase" => SortKey::Phase,
            "directory" => SortKey::Directory,
            _ => return Err("the keys are created, updated, name, agent, phase and directory, each with - to reverse"),
        };
        Ok(Self { key, is_reversed })
    }
}

/// Value of `--output`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ListOutput {
    Wide,
    Json,
    Yaml,
    Name,
    Columns(Vec<CustomColumn>),
}

/// A column that the command line defines.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CustomColumn {
    pub(crate) title: String,
    pub(crate) path: JsonPath,
}

impl CustomColumn {
    /// Returns the field that contains the column's values; `None` if it may need the whole document.
    pub(crate) fn field(&self) -> Option<String> {
        let path = self.path.to_string();
        let names: Vec<&str> = path.strip_prefix("$.")?.split('.').collect();
        let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty();
        match names.as_slice() {
            [first @ ("spec" | "status"), second, ..] if is_name(second) => Some(format!("{first}.{second}")),
            [first] if is_name(first) => Some((*first).to_owned()),
            _ => None,
        }
    }
}

impl FromStr for CustomColumn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (title, given) = text.split_once(':').filter(|(title, _)| !title.is_empty()).ok_or_else(|| {
            format!("{text:?} is no column: give TITLE:PATH, as in custom-columns=ID:.id,PHASE:.status.phase")
        })?;
        Ok(Self { title: title.to_owned(), path: path(given)? })
    }
}

impl FromStr for ListOutput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "wide" => Ok(Self::Wide),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            "name" => Ok(Self::Name),
            _ => match text.strip_prefix("custom-columns=") {
                Some(columns) => columns.split(',').map(str::parse).collect::<Result<_, _>>().map(Self::Columns),
                None => Err("the formats are wide, json, yaml, name and custom-columns=TITLE:PATH,...".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sort_key_may_be_reversed() {
        let sort = |key, is_reversed| Ok(Sort { key, is_reversed });
        assert_eq!("name".parse(), sort(SortKey::Name, false));
        assert_eq!("-updated".parse(), sort(SortKey::Updated, true));
        for bad in ["", "-", "age", "--name"] {
            assert!(bad.parse::<Sort>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_custom_column_asks_for_its_field_alone_if_its_path_is_plain() {
        let fields = |text: &str| match text.parse() {
            Ok(ListOutput::Columns(columns)) => columns.iter().map(CustomColumn::field).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(fields("custom-columns=ID:.id,P:.status.phase"), [some("id"), some("status.phase")]);
        assert_eq!(fields("custom-columns=T:$.spec.labels.team"), [some("spec.labels")]);
        for whole in
            ["custom-columns=A:.status.conditions[0].reason", "custom-columns=A:$..id", "custom-columns=A:.a.b"]
        {
            assert_eq!(fields(whole), [None], "{whole}");
        }
        for bad in ["YAML", "custom-columns=", "custom-columns=id", "custom-columns=:.id", "custom-columns=A:]"] {
            assert!(bad.parse::<ListOutput>().is_err(), "{bad}");
        }
    }
}
