//! Permissions of plugins: the grant, the plugin's wants, the denials, and the decision about each call.
//!
//! There are three moments:
//!
//! 1. Linking: the imports are compared with the granted capabilities ([`admit`]).
//! 2. After the plugin has described itself: every pattern must be valid, and the wants are compared with the
//!    grant ([`admit`] again).
//! 3. A host call: the session's directories replace the placeholders of the patterns. The call must be within
//!    a granted pattern and a wanted pattern, and within no denied pattern ([`Rules::judge`]).
//!
//! Everything is pure, except that [`fronts`] resolves symbolic links.

mod admit;
mod command;
pub(crate) mod fronts;
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

pub use admit::{Admission, ComponentRequests, Refusal, UncoveredPattern, admit};
pub use granted_command::CommandGrant;
pub(crate) use network::Host;
pub use path::Places;
pub(crate) use path::{PathError, RequestedPath};
pub(crate) use patterns::{CallPatterns, Outside, Patterns, ResolvedFronts, Rules};
pub use steering::{is_withheld, steers};
pub(crate) use variables::Variables;
pub use variables::{line as variables_line, variables_between};
pub(crate) use version::{PREREQUISITE, Target, target_of};

/// A capability that a plugin wants, with patterns that narrow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// The capability.
    pub capability: Capability,
    /// Patterns in the grammar of a grant.
    pub patterns: Vec<String>,
    /// Why the plugin needs the capability.
    pub reason: String,
}

/// The permissions of a plugin, as the administrator writes them in the configuration. The lists contain patterns.
///
/// - Paths (`script`, `file`, `mount`) are absolute or begin with `{cwd}`, `{session}`, `{config}` or `{home}`.
///   `*` is any text within one name, `**` any text, `?` one character of a name. `..` matches nothing. A lone
///   `*` is every path.
/// - `command` is words separated by single spaces: the program, then one pattern for each argument. The
///   program is an absolute path, or a name that is looked up in the standard directories of programs. In
///   arguments `*` is any text and `?` any character. A last word `**` allows any further arguments. A command
///   with variables is a table: `{ run = "/usr/bin/tool list *", variables = ["TOOL_*"] }`.
/// - `network` is `host:port`. In a host, `*` is any text. An IPv6 address needs brackets. A port is a number,
///   a range such as `27000-27009`, or `*`.
/// - `process` and `secret` are names: `*` is any text and `?` any character.
/// - `variables` are names with `*` and `?` as above. A variable that makes programs load or run something
///   ([`steers`]) needs its exact name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Grant {
    /// Whether the plugin may run the user's login shell and read its environment.
    pub login_shell: bool,
    /// Scripts that the plugin may source.
    pub script: Vec<String>,
    /// Commands that the plugin may run.
    pub command: Vec<CommandGrant>,
    /// Files and directories that the plugin may read.
    pub file: Vec<String>,
    /// Hosts and ports that the plugin may connect to.
    pub network: Vec<String>,
    /// Mount points that the plugin may inspect.
    pub mount: Vec<String>,
    /// Names of processes that the plugin may count.
    pub process: Vec<String>,
    /// Secrets that the plugin may read or assign to a variable. The plugin receives a secret variable of the
    /// environment only if this list has its exact name.
    pub secret: Vec<String>,
    /// Variables that a provider may set or remove. Without it none, except that a built-in plugin may then
    /// change any.
    pub variables: Option<Vec<String>>,
}

/// Error for an invalid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} {pattern:?}: {problem}")]
pub struct PatternError {
    /// The key of the grant that contains the pattern.
    pub key: &'static str,
    /// The pattern.
    pub pattern: String,
    /// Description of the problem.
    pub problem: &'static str,
}

impl Grant {
    /// Checks that every pattern is valid.
    pub fn check(&self) -> Result<(), PatternError> {
        Patterns::new(self).map(|_| ())
    }

    /// Reports whether the grant includes the capability, with any pattern.
    pub fn allows(&self, capability: Capability) -> bool {
        match capability {
            Capability::Log | Capability::Clock => true,
            Capability::ShellEnvironment => self.login_shell,
            _ => !self.patterns(capability).is_empty(),
        }
    }

    /// Returns the granted patterns of the capability.
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

    /// Makes a grant of exactly these wants.
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

/// A capability that a plugin can import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    /// Writes messages to the log. Always granted.
    Log,
    /// Reads the clocks. Always granted.
    Clock,
    /// Reads the login shell's environment.
    ShellEnvironment,
    /// Finds and sources scripts.
    Script,
    /// Runs programs.
    Command,
    /// Reads files and directories.
    File,
    /// Connects to hosts and reads facts of the network.
    Network,
    /// Reads the mount table and probes mount points.
    Mount,
    /// Counts processes.
    Process,
    /// Reads secrets.
    Secret,
}

impl Capability {
    /// All capabilities.
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

    /// Returns the name of the capability's interface in the WIT package.
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

    /// Returns an example line of the configuration that grants the capability. `None` if it is always granted.
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
