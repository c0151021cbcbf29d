//! Defines the commands for specifications of sessions in files.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use serde_json_path::JsonPath;

use super::{SelectorArgs, TermsArgs};

const GET_EXAMPLES: &str = "\
Examples:
  agentctl get build -o yaml > build.yaml       a file for agentctl apply
  agentctl get -l team=web -o toml > web.toml   many sessions in one file
  agentctl stop $(agentctl get -l team=web -o name)
  agentctl get build -o jsonpath='$.status.phase'
  agentctl get -o jsonpath='$.status.conditions[?@.status==\"False\"].message'";

const APPLY_EXAMPLES: &str = "\
Examples:
  agentctl apply -f team.yaml            create and change the sessions of a file
  agentctl apply -f sessions/            all *.toml, *.yaml and *.yml in a directory
  agentctl apply --dry-run -f team.yaml  print the changes without making them
  agentctl get build | agentctl apply -f -

Exit status: 0 if each session is as its file requests, else that of the first
failure. All sessions are tried. A mistake in a file changes nothing at all.";

const DIFF_STATUSES: &str = "\
Exit status: 0 without a difference, 1 with differences, 2 or more for an error.";

#[derive(Debug, Args)]
#[command(after_help = GET_EXAMPLES)]
pub(crate) struct GetArgs {
    /// Sessions; by default all, as one file
    #[arg(value_name = "SESSION", conflicts_with = "selector")]
    pub(crate) sessions: Vec<String>,
    /// One of yaml (the default), toml, json, name and jsonpath=EXPR
    ///
    /// With yaml and toml, prints specifications, as a file for `agentctl apply`. With json, prints whole documents.
    /// With name, prints names, or the ids of sessions without a name. With jsonpath=EXPR, prints the values of a
    /// query (RFC 9535) in each document, one a line.
    #[arg(short, long, value_name = "FORMAT", value_parser = Output::from_str)]
    pub(crate) output: Option<Output>,
    #[command(flatten)]
    pub(crate) labels: SelectorArgs,
}

/// Value of `--output`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Output {
    Toml,
    Yaml,
    Json,
    Name,
    Path(JsonPath),
}

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "toml" => Ok(Self::Toml),
            "yaml" => Ok(Self::Yaml),
            "json" => Ok(Self::Json),
            "name" => Ok(Self::Name),
            _ => match text.strip_prefix("jsonpath=") {
                Some(expression) => path(expression).map(Self::Path),
                None => Err("the formats are toml, yaml, json, name and jsonpath=EXPR".to_owned()),
            },
        }
    }
}

/// Parses a query. Accepts it without `$` and in braces too, as kubectl does.
pub(super) fn path(given: &str) -> Result<JsonPath, String> {
    let bare = given.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(given);
    let path = if bare.starts_with(['.', '[']) { format!("${bare}") } else { bare.to_owned() };
    JsonPath::parse(&path).map_err(|error| format!("{path:?} is no JSONPath, as $.status.phase: {error}"))
}

/// Files of specifications.
#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// A file in TOML or YAML, a directory with such files, or `-` for standard input; may be repeated
    #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = APPLY_EXAMPLES)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) files: FilesArgs,
    /// Print the changes without making them
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
}

#[derive(Debug, Args)]
#[command(after_help = DIFF_STATUSES)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    pub(crate) files: FilesArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_a_format_or_a_path() {
        for (text, wanted) in [("toml", Output::Toml), ("yaml", Output::Yaml), ("json", Output::Json)] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
        let path: Result<Output, String> = "jsonpath=$.status.phase".parse();
        for same in ["jsonpath=.status.phase", "jsonpath={.status.phase}", "jsonpath={$.status.phase}"] {
            assert_eq!(same.parse(), path, "{same}");
        }
        for wrong in ["", "YAML", "wide", "jsonpath", "jsonpath=", "jsonpath=status", "jsonpath=$.a[?search(@,'b')]"] {
            assert!(wrong.parse::<Output>().is_err(), "{wrong}");
        }
    }
}
