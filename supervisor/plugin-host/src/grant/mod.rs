//! What a plugin may do: its grant, what it says it wants, what is denied; and the judgement of each call by them.
//!
//! Three moments. When it is linked, its imports are compared with the capabilities that are granted ([`admit`]). When it has described
//! itself, every pattern must be one, and what it wants is compared with what it is granted ([`admit`] again). When it is called, the
//! session's places are put into the patterns, and each host call must be within a granted pattern and a wanted one and no denied one
//! ([`Rules::judge`]). All of it is pure but the look at links in [`fronts`].

mod admit;
mod command;
pub(crate) mod fronts;
mod glob;
mod granted_command;
mod network;
mod path;
mod patterns;
mod steering;
mod variables;
mod version;

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use admit::{Admission, Narrowed, Refusal, Requested, admit};
pub use glob::matches;
pub use granted_command::CommandGrant;
pub(crate) use network::Host;
pub use path::Places;
pub(crate) use path::{Asked, PathError};
pub(crate) use patterns::{Led, Outside, Patterns, Prepared, Rules};
pub use steering::{is_withheld, steers};
pub(crate) use variables::Variables;
pub use variables::{line as variables_line, variables_between};
pub(crate) use version::{Made, PREREQUISITE, made_for};

use crate::call::Want;

/// What the administrator allows a plugin; as it stands in the configuration. Each list is of patterns.
///
/// - Paths (`script`, `file`, `mount`) are absolute or begin with `{cwd}`, `{session}`, `{config}` or `{home}`. `*` is any text within
///   one name, `**` any text, `?` one character of a name. `..` matches nothing. A lone `*` is every path.
/// - `command` is words with one space between: the program, an absolute path or a name that the machine's own directories of programs
///   have, and a pattern for each argument, where `*` is any text and `?` any character. A last word `**` is any further arguments.
///   A command with variables of its own is a table: `{ run = "/usr/bin/tool list *", variables = ["TOOL_*"] }`.
/// - `network` is `host:port`. In a host, `*` is any text; an IPv6 address stands in brackets. A port is a number, a range
///   `27000-27009`, or `*`.
/// - `process` and `secret` are names: `*` is any text and `?` any character.
/// - `variables` are names: `*` and `?` as before, but a name that makes programs load or run something ([`steers`]) is granted only as it
///   is spelt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Grant {
    /// May run the user's login shell and see its environment.
    pub login_shell: bool,
    /// Scripts that may be sourced.
    pub script: Vec<String>,
    /// Programs that may be run, with their arguments.
    pub command: Vec<CommandGrant>,
    /// Files and directories that may be read.
    pub file: Vec<String>,
    /// Hosts and ports that may be spoken to.
    pub network: Vec<String>,
    /// Where file systems are mounted that may be looked at.
    pub mount: Vec<String>,
    /// Processes that may be counted.
    pub process: Vec<String>,
    /// Secrets that may be read, or put into a variable. A variable that is a secret is given to the plugin by its exact name here.
    pub secret: Vec<String>,
    /// Variables that a provider may set or take away. Without it none; a part of agentd then gives what is the user's own.
    pub variables: Option<Vec<String>>,
}

/// A pattern that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} {pattern:?}: {problem}")]
pub struct PatternError {
    /// What a grant calls the list that it is in.
    pub key: &'static str,
    pub pattern: String,
    pub problem: &'static str,
}

impl Grant {
    /// Whether every pattern of it is one.
    pub fn check(&self) -> Result<(), PatternError> {
        Patterns::new(self).map(|_| ())
    }

    /// Whether anything of the capability is granted.
    pub fn allows(&self, capability: Capability) -> bool {
        match capability {
            Capability::Log | Capability::Clock => true,
            Capability::ShellEnvironment => self.login_shell,
            _ => !self.patterns(capability).is_empty(),
        }
    }

    /// What is granted of the capability.
    pub fn patterns(&self, capability: Capability) -> Cow<'_, [String]> {
        Cow::Borrowed(match capability {
            Capability::Log | Capability::Clock | Capability::ShellEnvironment => &[],
            Capability::Script => &self.script,
            Capability::Command => return self.command.iter().map(|command| command.run.clone()).collect(),
            Capability::File => &self.file,
            Capability::Network => &self.network,
            Capability::Mount => &self.mount,
            Capability::Process => &self.process,
            Capability::Secret => &self.secret,
        })
    }

    /// All that these wants ask for.
    pub fn wanted(wants: &[Want]) -> Self {
        let mut grant = Self::default();
        for Want { capability, patterns, .. } in wants {
            let list = match capability {
                Capability::Log | Capability::Clock => continue,
                Capability::ShellEnvironment => {
                    grant.login_shell = true;
                    continue;
                }
                Capability::Script => &mut grant.script,
                Capability::Command => {
                    grant.command.extend(patterns.iter().map(CommandGrant::from));
                    continue;
                }
                Capability::File => &mut grant.file,
                Capability::Network => &mut grant.network,
                Capability::Mount => &mut grant.mount,
                Capability::Process => &mut grant.process,
                Capability::Secret => &mut grant.secret,
            };
            list.extend_from_slice(patterns);
        }
        grant
    }
}

/// Something that a plugin can import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    /// Always granted.
    Log,
    /// Always granted.
    Clock,
    ShellEnvironment,
    Script,
    Command,
    File,
    Network,
    Mount,
    Process,
    Secret,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Log,
        Self::Clock,
        Self::ShellEnvironment,
        Self::Script,
        Self::Command,
        Self::File,
        Self::Network,
        Self::Mount,
        Self::Process,
        Self::Secret,
    ];

    /// The interface's name in the WIT package.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Clock => "clock",
            Self::ShellEnvironment => "shell-environment",
            Self::Script => "script",
            Self::Command => "command",
            Self::File => "file",
            Self::Network => "network",
            Self::Mount => "mount",
            Self::Process => "process",
            Self::Secret => "secret",
        }
    }

    /// The line of a configuration that grants it; none for what is always granted.
    pub fn grant_line(self) -> Option<&'static str> {
        match self {
            Self::Log | Self::Clock => None,
            Self::ShellEnvironment => Some("login-shell = true"),
            Self::Script => Some("script = [\"{config}/**\"]"),
            Self::Command => Some("command = [\"/usr/bin/PROGRAM **\"]"),
            Self::File => Some("file = [\"/etc/PRODUCT/*\"]"),
            Self::Network => Some("network = [\"HOST:443\"]"),
            Self::Mount => Some("mount = [\"/mnt/*\"]"),
            Self::Process => Some("process = [\"NAME\"]"),
            Self::Secret => Some("secret = [\"NAME\"]"),
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_of_a_grant_is_checked_and_the_wrong_one_named() {
        let good = Grant {
            login_shell: true,
            script: vec!["{config}/**".into()],
            command: vec!["/usr/bin/modulecmd python **".into()],
            file: vec!["{home}/.netrc".into()],
            network: vec!["*.corp:27000-27009".into()],
            mount: vec!["/mnt/*".into()],
            process: vec!["sshd".into()],
            secret: vec!["corp-*".into()],
            variables: Some(vec!["PATH".into(), "LM_*".into()]),
        };
        assert_eq!(good.check(), Ok(()));
        for (grant, capability) in [
            (Grant { script: vec!["x".into()], ..good.clone() }, Capability::Script),
            (Grant { command: vec!["a  b".into()], ..good.clone() }, Capability::Command),
            (Grant { file: vec!["/a/../b".into()], ..good.clone() }, Capability::File),
            (Grant { network: vec!["corp".into()], ..good.clone() }, Capability::Network),
            (Grant { mount: vec!["mnt".into()], ..good.clone() }, Capability::Mount),
            (Grant { process: vec![String::new()], ..good.clone() }, Capability::Process),
            (Grant { secret: vec!["a\0".into()], ..good.clone() }, Capability::Secret),
        ] {
            let error = grant.check().unwrap_err();
            assert_eq!((error.key, &error.pattern), (capability.as_str(), &grant.patterns(capability)[0]));
            assert!(error.to_string().starts_with(capability.as_str()), "{error}");
        }
        let variables = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let command = CommandGrant::from("ls").with_variables(["A=B"]);
        for wrong in
            [Grant { command: vec![command], ..good.clone() }, Grant { variables: Some(variables(&["A=B"])), ..good }]
        {
            let error = wrong.check().unwrap_err();
            assert_eq!((error.key, error.pattern.as_str()), ("variables", "A=B"));
        }
    }

    #[test]
    fn a_command_is_a_text_or_a_table_with_its_variables() {
        let written = "command = [\"ls **\", { run = \"git log\", variables = [\"GIT_DIR\", \"LC_*\"] }]";
        let grant: Grant = toml::from_str(written).unwrap();
        let expected = [CommandGrant::from("ls **"), CommandGrant::from("git log").with_variables(["GIT_DIR", "LC_*"])];
        assert_eq!(grant.command, expected);
        assert_eq!(toml::from_str::<Grant>(&toml::to_string(&grant).unwrap()).unwrap(), grant);
        assert!(toml::from_str::<Grant>("command = [{ run = \"ls\", variable = [] }]").is_err());
        assert_eq!(grant.command[1].to_string(), "git log, with GIT_DIR, LC_*");
    }

    #[test]
    fn the_line_that_grants_a_capability_is_a_grant_of_it() {
        for capability in Capability::ALL {
            assert!(Grant::default().allows(capability) == capability.grant_line().is_none());
            let Some((key, value)) = capability.grant_line().and_then(|line| line.split_once(" = ")) else { continue };
            let pattern = value.trim_matches(['[', ']', '"']).to_owned();
            let want = Want { capability, patterns: vec![pattern], reason: String::new() };
            let grant = Grant::wanted(&[want]);
            assert!(grant.allows(capability) && grant.check().is_ok(), "{key}");
        }
    }
}
