//! What a plugin asks for against what it was granted: pure, and decided before any of the plugin's code runs.

use std::fmt;

use serde::Deserialize;

/// The version of the WIT package `agentd:plugin` that this host speaks.
pub(crate) const PACKAGE_VERSION: &str = "1.0.0";
const PACKAGE: &str = "agentd:plugin/";
/// The interface that a provider exports, and the one of a prerequisite.
pub(crate) const PROVIDER: &str = "environment-provider";
pub(crate) const PREREQUISITE: &str = "prerequisite-check";

/// What the administrator allows a plugin; as it stands in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Grant {
    /// May run the user's login shell and see its environment.
    pub login_shell: bool,
    /// May source the scripts whose path, with its placeholder, matches one of these: `*` is any text, `?` any character.
    pub script: Vec<String>,
    /// Programs with their arguments.
    pub command: Vec<String>,
    /// Paths that may be read.
    pub file: Vec<String>,
    /// Hosts with their ports.
    pub network: Vec<String>,
    /// Paths where file systems are mounted.
    pub mount: Vec<String>,
    /// Names of processes.
    pub process: Vec<String>,
    /// Names of secrets.
    pub secret: Vec<String>,
}

impl Grant {
    /// Whether the capability is granted at all.
    pub fn allows(&self, capability: Capability) -> bool {
        match capability {
            Capability::Log | Capability::Clock => true,
            Capability::ShellEnvironment => self.login_shell,
            _ => !self.patterns(capability).is_empty(),
        }
    }

    fn patterns(&self, capability: Capability) -> &[String] {
        match capability {
            Capability::Log | Capability::Clock | Capability::ShellEnvironment => &[],
            Capability::Script => &self.script,
            Capability::Command => &self.command,
            Capability::File => &self.file,
            Capability::Network => &self.network,
            Capability::Mount => &self.mount,
            Capability::Process => &self.process,
            Capability::Secret => &self.secret,
        }
    }

    /// Whether what is asked for matches a pattern of the capability. What climbs (`..`) matches nothing.
    pub fn permits(&self, capability: Capability, asked: &str) -> bool {
        let climbs = asked.split('/').any(|segment| segment == "..");
        !climbs && self.patterns(capability).iter().any(|pattern| matches(pattern, asked))
    }
}

/// Something that a plugin can import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
            Self::Script => Some("script = [\"{config}/*\"]"),
            Self::Command => Some("command = [\"/usr/bin/PROGRAM **\"]"),
            Self::File => Some("file = [\"/etc/PRODUCT/*\"]"),
            Self::Network => Some("network = [\"HOST:PORT\"]"),
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

/// Why a component's imports or exports are not accepted; the names are the component's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotGranted { import: String, capability: Capability },
    Wasi { import: String },
    Unknown { import: String },
    Version { interface: String, found: String },
    World { exports: Vec<String> },
}

/// What a name of an import or export is.
#[derive(Debug, PartialEq, Eq)]
enum Name<'a> {
    /// An interface of our package, of the version we speak.
    Ours(&'a str),
    OurVersion {
        interface: &'a str,
        found: &'a str,
    },
    Foreign,
}

fn parse(name: &str) -> Name<'_> {
    let Some(interface) = name.strip_prefix(PACKAGE) else { return Name::Foreign };
    match interface.split_once('@') {
        Some((interface, PACKAGE_VERSION)) => Name::Ours(interface),
        Some((interface, found)) => Name::OurVersion { interface, found },
        None => Name::OurVersion { interface, found: "none" },
    }
}

/// What is requested and granted, or the first thing that is not.
pub(crate) fn admit<'a>(imports: impl IntoIterator<Item = &'a str>, grant: &Grant) -> Result<Vec<Capability>, Refusal> {
    let mut admitted = Vec::new();
    for import in imports {
        match parse(import) {
            Name::Ours("types") => {} // words, nothing to call
            Name::Ours(interface) => {
                let capability = Capability::ALL.into_iter().find(|capability| capability.as_str() == interface);
                match capability {
                    None => return Err(Refusal::Unknown { import: import.to_owned() }),
                    Some(capability) if grant.allows(capability) => admitted.push(capability),
                    Some(capability) => return Err(Refusal::NotGranted { import: import.to_owned(), capability }),
                }
            }
            Name::OurVersion { interface, found } => {
                return Err(Refusal::Version { interface: interface.to_owned(), found: found.to_owned() });
            }
            Name::Foreign if import.starts_with("wasi:") => return Err(Refusal::Wasi { import: import.to_owned() }),
            Name::Foreign => return Err(Refusal::Unknown { import: import.to_owned() }),
        }
    }
    Ok(admitted)
}

/// The one of our interfaces that a component exports. Exports beside it are no harm: nobody calls them.
pub(crate) fn world<'a>(exports: impl IntoIterator<Item = &'a str>) -> Result<&'static str, Refusal> {
    let exports: Vec<&str> = exports.into_iter().collect();
    let mut found = Vec::new();
    for export in &exports {
        match parse(export) {
            Name::Ours(PROVIDER) => found.push(PROVIDER),
            Name::Ours(PREREQUISITE) => found.push(PREREQUISITE),
            Name::OurVersion { interface: interface @ (PROVIDER | PREREQUISITE), found } => {
                return Err(Refusal::Version { interface: interface.to_owned(), found: found.to_owned() });
            }
            _ => {}
        }
    }
    match found[..] {
        [one] => Ok(one),
        _ => Err(Refusal::World { exports: exports.into_iter().map(str::to_owned).collect() }),
    }
}

/// Whether `text` matches the pattern: `*` is any text, the empty one too, `?` any one character.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last `*` stands, and where what it swallowed ends: the only place worth going back to.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == '*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == text[t]) {
            p += 1;
            t += 1;
        } else if let Some((star_p, star_t)) = star {
            star = Some((star_p, star_t + 1));
            p = star_p + 1;
            t = star_t + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: &str = "agentd:plugin/types@1.0.0";
    const LOG: &str = "agentd:plugin/log@1.0.0";
    const SHELL: &str = "agentd:plugin/shell-environment@1.0.0";
    const SCRIPT: &str = "agentd:plugin/script@1.0.0";

    #[test]
    fn what_is_requested_and_granted_is_admitted_and_nothing_more() {
        let all = Grant { login_shell: true, script: vec!["{config}/*".to_owned()], ..Grant::default() };
        assert_eq!(admit([TYPES, LOG], &all), Ok(vec![Capability::Log]));
        assert_eq!(admit([SHELL, SCRIPT], &all), Ok(vec![Capability::ShellEnvironment, Capability::Script]));
        assert_eq!(admit([LOG], &Grant::default()), Ok(vec![Capability::Log]));
    }

    #[test]
    fn what_is_not_granted_is_refused_by_the_name_of_the_import() {
        let shell_only = Grant { login_shell: true, ..Grant::default() };
        assert_eq!(
            admit([LOG, SHELL, SCRIPT], &shell_only),
            Err(Refusal::NotGranted { import: SCRIPT.to_owned(), capability: Capability::Script })
        );
        assert_eq!(
            admit([SHELL], &Grant::default()),
            Err(Refusal::NotGranted { import: SHELL.to_owned(), capability: Capability::ShellEnvironment })
        );
    }

    #[test]
    fn wasi_unknown_interfaces_and_other_versions_are_told_apart() {
        let grant = Grant::default();
        let wasi = "wasi:cli/environment@0.2.0";
        assert_eq!(admit([wasi], &grant), Err(Refusal::Wasi { import: wasi.to_owned() }));
        for unknown in
            ["agentd:plugin/teleport@1.0.0", "log", "evil:agentd/plugin/log@1.0.0", "agentd:pluginx/log@1.0.0"]
        {
            assert_eq!(admit([unknown], &grant), Err(Refusal::Unknown { import: unknown.to_owned() }), "{unknown}");
        }
        for (name, found) in [
            ("agentd:plugin/log@1.1.0", "1.1.0"),
            ("agentd:plugin/log", "none"),
            ("agentd:plugin/log@1.0.0-rc", "1.0.0-rc"),
        ] {
            assert_eq!(
                admit([name], &grant),
                Err(Refusal::Version { interface: "log".to_owned(), found: found.to_owned() })
            );
        }
    }

    #[test]
    fn a_component_is_of_exactly_one_world() {
        let provider = "agentd:plugin/environment-provider@1.0.0";
        let check = "agentd:plugin/prerequisite-check@1.0.0";
        assert_eq!(world([provider]), Ok(PROVIDER));
        assert_eq!(world([check, "other"]), Ok(PREREQUISITE));
        assert!(matches!(world([provider, check]), Err(Refusal::World { .. })));
        assert!(matches!(world(["run"]), Err(Refusal::World { .. })));
        assert!(matches!(world([]), Err(Refusal::World { .. })));
        assert!(matches!(world(["agentd:plugin/environment-provider@9.0.0"]), Err(Refusal::Version { .. })));
    }

    #[test]
    fn a_script_is_allowed_by_pattern_and_never_by_climbing() {
        let grant =
            Grant { script: vec!["{cwd}/*.sh".to_owned(), "/etc/agentd/env-?.sh".to_owned()], ..Grant::default() };
        for allowed in ["{cwd}/.agentd-env.sh", "{cwd}/a/b.sh", "/etc/agentd/env-1.sh"] {
            assert!(grant.permits(Capability::Script, allowed), "{allowed}");
        }
        for refused in ["{cwd}/x", "{session}/x.sh", "{cwd}/../x.sh", "/etc/agentd/env-12.sh", "{cwd}/a/../../x.sh", ""]
        {
            assert!(!grant.permits(Capability::Script, refused), "{refused}");
        }
    }

    #[test]
    fn a_pattern_with_many_stars_is_matched_in_little_time() {
        assert!(!matches(&"*a".repeat(40), &"a".repeat(39)));
        assert!(matches(&"*a".repeat(40), &"a".repeat(5000)));
        assert!(!matches(&format!("{}b", "*a".repeat(40)), &"a".repeat(5000)));
    }
}
