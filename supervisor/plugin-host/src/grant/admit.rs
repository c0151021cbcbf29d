//! Admission: compares the requests of a plugin with its grant and with the denials.
//!
//! The comparison is pure. It runs twice: before any of the plugin's code runs, and after the plugin has
//! declared its wants.

use super::patterns::Patterns;
use super::version::{Name, parse};
use super::{Capability, Grant, PatternError, Want};

/// Maximum number of wants of a plugin.
const WANTS: usize = 64;
/// Maximum number of patterns in all wants.
const PATTERNS: usize = 256;
/// Maximum size of all patterns in bytes.
const BYTES: usize = 16 << 10;

/// Requests of a component.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComponentRequests {
    /// Names of the component's imports.
    pub imports: Vec<String>,
    /// Wants from the component's description. `None` before the component has described itself.
    pub wants: Option<Vec<Want>>,
}

/// Result of the comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// Capabilities that are requested, granted and not denied.
    pub linked: Vec<Capability>,
    /// Reasons why the plugin cannot be loaded.
    pub refused: Vec<Refusal>,
    /// Wanted patterns that the plugin does not get, although it is loaded.
    pub narrowed: Vec<UncoveredPattern>,
}

/// A wanted pattern that no grant covers even in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncoveredPattern {
    /// The capability.
    pub capability: Capability,
    /// The pattern.
    pub pattern: String,
    /// Why the plugin wants the pattern.
    pub reason: String,
    /// Whether the administrator denies a pattern that is otherwise granted.
    pub denied: bool,
}

/// Why a component is not loaded. The message follows the component's name. Names of imports and exports are
/// the component's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The grant does not include the imported capability.
    #[error("imports {import:?}, which it is not granted")]
    NotGranted { import: String, capability: Capability },
    /// The administrator denies the imported capability.
    #[error("imports {import:?}, which the administrator denies")]
    Denied { import: String, capability: Capability },
    /// The component imports a capability without declaring a want for it.
    #[error("imports {import:?} but declares no want for it")]
    NotWanted { import: String, capability: Capability },
    /// The component imports a WASI interface.
    #[error("imports {import:?}, but agentd does not provide WASI")]
    Wasi { import: String },
    /// The component imports an unknown interface.
    #[error("imports {import:?}, which agentd does not provide")]
    Unknown { import: String },
    /// The component uses a version of the plugin interface that this host does not support.
    #[error(
        "is built for version {found} of agentd:plugin/{interface}, but this agentd supports {}",
        super::version::list()
    )]
    Version { interface: String, found: String },
    /// The component does not export exactly one of the two plugin interfaces.
    #[error("is neither a provider nor a prerequisite: it exports {}", list(exports))]
    World { exports: Vec<String> },
    /// A pattern in the grant is invalid.
    #[error("has an invalid pattern in its grant: {0}")]
    Grant(PatternError),
    /// A pattern in the denials is invalid.
    #[error("is refused because a denied pattern is invalid: {0}")]
    Deny(PatternError),
    /// A pattern in the plugin's wants is invalid.
    #[error("has an invalid pattern in its wants: {0}")]
    Want(PatternError),
    /// The plugin declares too many wants.
    #[error("declares more than {WANTS} wants, {PATTERNS} patterns or {BYTES} bytes of patterns")]
    Wants,
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

impl Refusal {
    /// Returns a stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotGranted { .. } => "plugin-not-granted",
            Self::Denied { .. } => "plugin-denied",
            Self::NotWanted { .. } => "plugin-not-wanted",
            Self::Wasi { .. } => "plugin-wasi",
            Self::Unknown { .. } => "plugin-unknown-import",
            Self::Version { .. } => "plugin-version",
            Self::World { .. } => "plugin-wrong-world",
            Self::Grant(_) | Self::Deny(_) => "plugin-grant",
            Self::Want(_) | Self::Wants => "plugin-wants",
        }
    }

    /// Returns what the user can do about the refusal, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotGranted { capability, .. } => capability
                .grant_line()
                .map(|line| format!("if you trust the plugin, grant this in its configuration: {line}")),
            Self::Denied { .. } => Some("ask the administrator: [plugin_policy] in /etc/agentd denies it".to_owned()),
            Self::NotWanted { capability, .. } => {
                Some(format!("the plugin's author must add a want for {capability} to its description"))
            }
            Self::Wasi { .. } => {
                Some("build it for wasm32-unknown-unknown, or have its toolchain stub WASI (--stub-wasi)".to_owned())
            }
            Self::Version { .. } => Some(format!("build it against agentd:plugin@{}", super::version::latest())),
            Self::Grant(_) => Some("correct the pattern in its configuration".to_owned()),
            Self::Unknown { .. } | Self::World { .. } | Self::Deny(_) | Self::Want(_) | Self::Wants => None,
        }
    }
}

/// Compares a plugin's request with its grant.
///
/// `deny` lists what the administrator denies to plugins that other users declare.
pub fn admit(requested: &ComponentRequests, grant: &Grant, deny: Option<&Grant>) -> Admission {
    let mut admission = Admission::default();
    let mut compiled = |grant: Option<&Grant>, refusal: fn(PatternError) -> Refusal| match grant.map(Patterns::new) {
        None => Patterns::default(),
        Some(Ok(patterns)) => patterns,
        Some(Err(error)) => {
            admission.refused.push(refusal(error));
            Patterns::default()
        }
    };
    let granted = compiled(Some(grant), Refusal::Grant);
    let denied = compiled(deny, Refusal::Deny);
    for import in &requested.imports {
        match capability(import) {
            Ok(None) => {} // types only, nothing to call
            Ok(Some(capability)) if !grant.allows(capability) => {
                admission.refused.push(Refusal::NotGranted { import: import.clone(), capability });
            }
            Ok(Some(capability)) if denied.is_everything(capability) => {
                admission.refused.push(Refusal::Denied { import: import.clone(), capability });
            }
            Ok(Some(capability)) => admission.linked.push(capability),
            Err(refusal) => admission.refused.push(refusal),
        }
    }
    if let Some(wants) = &requested.wants {
        compare(requested, wants, &granted, &denied, &mut admission);
    }
    admission
}

/// Returns the capability that an import belongs to, or `None` for the interface of shared types.
fn capability(import: &str) -> Result<Option<Capability>, Refusal> {
    let unknown = || Refusal::Unknown { import: import.to_owned() };
    match parse(import) {
        Name::Ours("types") => Ok(None),
        Name::Ours(interface) => {
            let found = Capability::ALL.into_iter().find(|capability| capability.as_str() == interface);
            found.map(Some).ok_or_else(unknown)
        }
        Name::OurVersion { interface, found } => {
            Err(Refusal::Version { interface: interface.to_owned(), found: found.to_owned() })
        }
        Name::Foreign if import.starts_with("wasi:") => Err(Refusal::Wasi { import: import.to_owned() }),
        Name::Foreign => Err(unknown()),
    }
}

/// Compares the wants with the imports and the grant.
fn compare(
    requested: &ComponentRequests,
    wants: &[Want],
    granted: &Patterns,
    denied: &Patterns,
    admission: &mut Admission,
) {
    let patterns = || wants.iter().flat_map(|want| &want.patterns);
    if wants.len() > WANTS || patterns().count() > PATTERNS || patterns().map(String::len).sum::<usize>() > BYTES {
        admission.refused.push(Refusal::Wants);
        return; // do not spend time on comparing them
    }
    for import in &requested.imports {
        let Ok(Some(capability)) = capability(import) else { continue };
        let always = matches!(capability, Capability::Log | Capability::Clock);
        if !always && !wants.iter().any(|want| want.capability == capability) {
            admission.refused.push(Refusal::NotWanted { import: import.clone(), capability });
        }
    }
    for want in wants {
        let each = |pattern: &str| Want { patterns: vec![pattern.to_owned()], ..want.clone() };
        let parts = match want.capability {
            Capability::ShellEnvironment => vec![(String::new(), want.clone())],
            _ => want.patterns.iter().map(|pattern| (pattern.clone(), each(pattern))).collect(),
        };
        for (pattern, part) in parts {
            let capability = want.capability;
            let wanted = match Patterns::new(&Grant::wanted(&[part])) {
                Ok(wanted) => wanted,
                Err(error) => {
                    admission.refused.push(Refusal::Want(error));
                    continue;
                }
            };
            let linked = admission.linked.contains(&capability);
            let denied = denied.is_everything(capability);
            if linked && (denied || !granted.may_overlap(&wanted, capability)) {
                admission.narrowed.push(UncoveredPattern { capability, pattern, reason: want.reason.clone(), denied });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: &str = "agentd:plugin/types@1.0.0";
    const LOG: &str = "agentd:plugin/log@1.0.0";
    const SHELL: &str = "agentd:plugin/shell-environment@1.0.0";
    const SCRIPT: &str = "agentd:plugin/script@1.0.0";
    const FILE: &str = "agentd:plugin/file@1.0.0";

    fn imports(imports: &[&str]) -> ComponentRequests {
        ComponentRequests { imports: imports.iter().map(|&import| import.to_owned()).collect(), wants: None }
    }

    fn want(capability: Capability, patterns: &[&str]) -> Want {
        let patterns = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        Want { capability, patterns, reason: "to try".to_owned() }
    }

    fn files(patterns: &[&str]) -> Grant {
        Grant { file: patterns.iter().map(|&pattern| pattern.to_owned()).collect(), ..Grant::default() }
    }

    fn linked(linked: &[Capability]) -> Admission {
        Admission { linked: linked.to_vec(), ..Admission::default() }
    }

    #[test]
    fn what_is_requested_and_granted_is_admitted_and_nothing_more() {
        let all = Grant { login_shell: true, script: vec!["{config}/*".to_owned()], ..Grant::default() };
        assert_eq!(admit(&imports(&[TYPES, LOG]), &all, None), linked(&[Capability::Log]));
        let both = linked(&[Capability::ShellEnvironment, Capability::Script]);
        assert_eq!(admit(&imports(&[SHELL, SCRIPT]), &all, None), both);
        assert_eq!(admit(&imports(&[LOG]), &Grant::default(), None), linked(&[Capability::Log]));
    }

    #[test]
    fn every_import_that_is_not_granted_is_refused_by_its_name() {
        let shell_only = Grant { login_shell: true, ..Grant::default() };
        let admission = admit(&imports(&[LOG, SHELL, SCRIPT, FILE]), &shell_only, None);
        assert_eq!(admission.linked, [Capability::Log, Capability::ShellEnvironment]);
        let not_granted = |import: &str, capability| Refusal::NotGranted { import: import.to_owned(), capability };
        let expected = [not_granted(SCRIPT, Capability::Script), not_granted(FILE, Capability::File)];
        assert_eq!(admission.refused, expected);
    }

    #[test]
    fn what_is_denied_as_a_whole_is_refused_whatever_is_granted() {
        let admission = admit(&imports(&[FILE]), &files(&["*"]), Some(&files(&["**"])));
        assert_eq!(admission.refused, [Refusal::Denied { import: FILE.to_owned(), capability: Capability::File }]);
        assert!(admission.linked.is_empty());
        let part = admit(&imports(&[FILE]), &files(&["*"]), Some(&files(&["/home/**"])));
        assert_eq!(part, linked(&[Capability::File]));
        let shell = Grant { login_shell: true, ..Grant::default() };
        assert_eq!(admit(&imports(&[SHELL]), &shell, Some(&shell)).refused.len(), 1);
    }

    #[test]
    fn wasi_unknown_interfaces_and_other_versions_are_told_apart() {
        let refused = |import: &str| admit(&imports(&[import]), &Grant::default(), None).refused;
        let wasi = "wasi:cli/environment@0.2.0";
        assert_eq!(refused(wasi), [Refusal::Wasi { import: wasi.to_owned() }]);
        for unknown in
            ["agentd:plugin/teleport@1.0.0", "log", "evil:agentd/plugin/log@1.0.0", "agentd:pluginx/log@1.0.0"]
        {
            assert_eq!(refused(unknown), [Refusal::Unknown { import: unknown.to_owned() }], "{unknown}");
        }
        for (name, found) in [("agentd:plugin/log@1.1.0", "1.1.0"), ("agentd:plugin/log", "none")] {
            assert_eq!(refused(name), [Refusal::Version { interface: "log".to_owned(), found: found.to_owned() }]);
        }
    }

    #[test]
    fn an_import_without_a_want_is_refused_and_log_needs_none() {
        let requested = ComponentRequests { wants: Some(vec![]), ..imports(&[LOG, FILE]) };
        let admission = admit(&requested, &files(&["*"]), None);
        assert_eq!(admission.refused, [Refusal::NotWanted { import: FILE.to_owned(), capability: Capability::File }]);
        // A plugin may want only the facts of the network, and so no host.
        let wanted = ComponentRequests { wants: Some(vec![want(Capability::File, &[])]), ..requested };
        assert_eq!(admit(&wanted, &files(&["*"]), None).refused, []);
    }

    #[test]
    fn a_want_that_no_grant_covers_at_all_is_told_and_keeps_nobody_out() {
        let wants =
            vec![want(Capability::File, &["/etc/a/*", "/opt/**", "*"]), want(Capability::ShellEnvironment, &[])];
        let requested = ComponentRequests { wants: Some(wants), ..imports(&[FILE]) };
        let admission = admit(&requested, &files(&["/etc/*/x"]), None);
        assert_eq!((admission.linked, admission.refused), (vec![Capability::File], vec![]));
        // The plugin does not import the login shell, so it loses nothing.
        assert_eq!(
            admission.narrowed,
            [UncoveredPattern {
                capability: Capability::File,
                pattern: "/opt/**".to_owned(),
                reason: "to try".to_owned(),
                denied: false
            }]
        );
    }

    #[test]
    fn patterns_that_are_none_are_refused_by_who_wrote_them() {
        let wanting = |patterns: &[&str]| ComponentRequests {
            wants: Some(vec![want(Capability::File, patterns)]),
            ..imports(&[FILE])
        };
        let refused = |requested: &ComponentRequests, grant: &Grant, deny: Option<&Grant>| {
            admit(requested, grant, deny).refused.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let good = files(&["*"]);
        let is = "file \"a/b\": a pattern of paths is absolute, begins with {cwd}, {session}, {config} or {home}, \
            or is \"*\"";
        assert_eq!(refused(&wanting(&["a/b"]), &good, None), [format!("has an invalid pattern in its wants: {is}")]);
        assert_eq!(
            refused(&wanting(&["*"]), &files(&["a/b"]), None),
            [format!("has an invalid pattern in its grant: {is}")]
        );
        let deny = refused(&wanting(&["*"]), &good, Some(&files(&["a/b"])));
        assert_eq!(deny, [format!("is refused because a denied pattern is invalid: {is}")]);
    }

    #[test]
    fn more_wants_than_anybody_reads_are_refused() {
        let good = files(&["*"]);
        let refused = |wants| {
            let requested = ComponentRequests { wants: Some(wants), ..imports(&[FILE]) };
            admit(&requested, &good, None).refused
        };
        assert_eq!(refused(vec![want(Capability::File, &["*"]); 65]), [Refusal::Wants]);
        assert_eq!(refused(vec![want(Capability::File, &["*"; 257])]), [Refusal::Wants]);
        let long = format!("/{}", "a".repeat(4000));
        assert_eq!(refused(vec![want(Capability::File, &[long.as_str(); 5])]), [Refusal::Wants]);
        assert_eq!(refused(vec![want(Capability::File, &[long.as_str(); 4])]), []);
    }
}
