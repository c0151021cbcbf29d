//! All compiled patterns of a grant, of a plugin's wants or of the denials, and the decision about a call.

use super::command::CommandPattern;
use super::fronts::Fronts;
use super::network::{Host, NetworkPattern};
use super::path::{PathPattern, Places, RequestedPath};
use super::variables::{VariablePattern, Variables, granted};
use super::{Capability, Grant, PatternError};
use agentd_glob::Glob;

/// A grant in compiled form.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patterns {
    login_shell: bool,
    script: Vec<PathPattern>,
    command: Vec<CommandPattern>,
    /// Variables that may be set for each command, in the same order.
    of_command: Vec<Vec<VariablePattern>>,
    file: Vec<PathPattern>,
    network: Vec<NetworkPattern>,
    mount: Vec<PathPattern>,
    process: Vec<Glob>,
    secret: Vec<Glob>,
    /// Secrets that are granted by name and not by pattern.
    exact_secret: Vec<String>,
    pub(crate) variables: Variables,
}

impl Patterns {
    pub(crate) fn new(grant: &Grant) -> Result<Self, PatternError> {
        fn each<T>(
            key: &'static str,
            patterns: &[String],
            parse: impl Fn(&str) -> Result<T, &'static str>,
        ) -> Result<Vec<T>, PatternError> {
            let parse = |pattern: &String| {
                parse(pattern).map_err(|problem| PatternError { key, pattern: pattern.clone(), problem })
            };
            patterns.iter().map(parse).collect()
        }
        let of = |capability: Capability| (capability.as_str(), grant.patterns(capability));
        let paths = |capability| {
            let (key, patterns) = of(capability);
            each(key, &patterns, PathPattern::parse)
        };
        let names = |capability| {
            let (key, patterns) = of(capability);
            each(key, &patterns, name)
        };
        let variables = |patterns: &[String]| each("variables", patterns, VariablePattern::parse);
        let is_exact = |secret: &&String| !secret.contains(['*', '?']);
        Ok(Self {
            login_shell: grant.login_shell,
            script: paths(Capability::Script)?,
            command: each("command", &of(Capability::Command).1, CommandPattern::parse)?,
            of_command: grant.command.iter().map(|one| variables(&one.variables)).collect::<Result<_, _>>()?,
            file: paths(Capability::File)?,
            network: each("network", &grant.network, NetworkPattern::parse)?,
            mount: paths(Capability::Mount)?,
            process: names(Capability::Process)?,
            secret: names(Capability::Secret)?,
            exact_secret: grant.secret.iter().filter(is_exact).cloned().collect(),
            variables: Variables::Of(variables(grant.variables.as_deref().unwrap_or_default())?),
        })
    }

    /// Reports whether the patterns cover the capability completely.
    pub(crate) fn is_everything(&self, capability: Capability) -> bool {
        match capability {
            Capability::Log | Capability::Clock => false,
            Capability::ShellEnvironment => self.login_shell,
            Capability::Script => self.script.iter().any(PathPattern::is_everything),
            Capability::Command => self.command.iter().any(CommandPattern::is_everything),
            Capability::File => self.file.iter().any(PathPattern::is_everything),
            Capability::Network => self.network.iter().any(NetworkPattern::is_everything),
            Capability::Mount => self.mount.iter().any(PathPattern::is_everything),
            Capability::Process => self.process.iter().any(Glob::is_everything),
            Capability::Secret => self.secret.iter().any(Glob::is_everything),
        }
    }

    /// Reports whether some request for the capability can match both.
    pub(crate) fn may_overlap(&self, other: &Self, capability: Capability) -> bool {
        fn any<T>(mine: &[T], theirs: &[T], overlap: impl Fn(&T, &T) -> bool) -> bool {
            mine.iter().any(|mine| theirs.iter().any(|theirs| overlap(mine, theirs)))
        }
        match capability {
            Capability::Log | Capability::Clock => true,
            Capability::ShellEnvironment => self.login_shell && other.login_shell,
            Capability::Script => any(&self.script, &other.script, PathPattern::may_overlap),
            Capability::Command => any(&self.command, &other.command, CommandPattern::may_overlap),
            Capability::File => any(&self.file, &other.file, PathPattern::may_overlap),
            Capability::Network => any(&self.network, &other.network, NetworkPattern::may_overlap),
            Capability::Mount => any(&self.mount, &other.mount, PathPattern::may_overlap),
            Capability::Process => any(&self.process, &other.process, Glob::overlaps),
            Capability::Secret => any(&self.secret, &other.secret, Glob::overlaps),
        }
    }

    /// Reports whether the secret is granted by its exact name.
    pub(crate) fn has_secret(&self, name: &str) -> bool {
        self.exact_secret.iter().any(|secret| secret == name)
    }

    /// Reports whether the secret matches a denial.
    pub(crate) fn denies_secret(&self, name: &str) -> bool {
        self.secret.iter().any(|pattern| pattern.matches(name))
    }

    pub(crate) fn has_network(&self) -> bool {
        !self.network.is_empty()
    }

    /// Returns the fixed fronts of paths that may be symbolic links. Mounts are left out: they are compared
    /// with the mount table, and accessing a mount of a dead server may block without a limit.
    pub(crate) fn fronts(&self) -> impl Iterator<Item = &str> {
        let paths = self.script.iter().chain(&self.file).filter_map(PathPattern::front);
        paths.chain(self.command.iter().filter_map(CommandPattern::front))
    }
}

/// Compiles a pattern of names.
fn name(pattern: &str) -> Result<Glob, &'static str> {
    match pattern {
        "" => Err("a name is not empty"),
        pattern if pattern.len() > 4096 => Err("a pattern of a name has at most 4096 bytes"),
        pattern if pattern.contains('\0') => Err("a name has no NUL byte"),
        pattern => Ok(Glob::flat(pattern)),
    }
}

/// Patterns together with the directories and links of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallPatterns<'a> {
    patterns: &'a Patterns,
    places: &'a Places,
    fronts: &'a Fronts,
}

impl CallPatterns<'_> {
    fn path(&self, patterns: &[PathPattern], path: &str) -> bool {
        let resolved =
            |pattern: &PathPattern| pattern.front().and_then(|front| self.fronts.get(front)).map(String::as_str);
        patterns.iter().any(|pattern| pattern.matches(path, self.places, resolved(pattern)))
    }

    pub(crate) fn login_shell(&self) -> bool {
        self.patterns.login_shell
    }

    pub(crate) fn script(&self, asked: &RequestedPath) -> bool {
        let patterns = &self.patterns.script;
        patterns.iter().any(|pattern| pattern.matches_written(&asked.written))
            || asked.absolute.as_ref().is_some_and(|path| self.path(patterns, path))
    }

    pub(crate) fn file(&self, path: &str) -> bool {
        self.path(&self.patterns.file, path)
    }

    /// Reports whether the command can match, whatever file the program resolves to.
    pub(crate) fn may_be_command(&self, program: &str, arguments: &[String]) -> bool {
        let fits = |pattern: &&CommandPattern| pattern.may_match_program(program);
        self.patterns.command.iter().filter(fits).any(|pattern| pattern.matches_arguments(arguments))
    }

    pub(crate) fn command(&self, program: &str, file: &str, arguments: &[String]) -> bool {
        let fits = |pattern: &&CommandPattern| {
            let resolved = pattern.front().and_then(|front| self.fronts.get(front)).map(String::as_str);
            pattern.matches_program(program, file, resolved)
        };
        self.patterns.command.iter().filter(fits).any(|pattern| pattern.matches_arguments(arguments))
    }

    /// Returns the names of variables that the plugin may not set for the command.
    ///
    /// Of all patterns that match the command, the most permissive one decides. Without a resolved file, the
    /// program matches by its name.
    pub(crate) fn not_for_command<'n>(
        &self,
        program: &str,
        file: Option<&str>,
        arguments: &[String],
        names: &[&'n str],
    ) -> Vec<&'n str> {
        let fits = |pattern: &CommandPattern| {
            let resolved = pattern.front().and_then(|front| self.fronts.get(front)).map(String::as_str);
            let is_program = match file {
                Some(file) => pattern.matches_program(program, file, resolved),
                None => pattern.may_match_program(program),
            };
            is_program && pattern.matches_arguments(arguments)
        };
        let both = self.patterns.command.iter().zip(&self.patterns.of_command);
        let left_out = both
            .filter(|(pattern, _)| fits(pattern))
            .map(|(_, variables)| names.iter().copied().filter(|name| !granted(variables, name)).collect::<Vec<_>>());
        left_out.min_by_key(Vec::len).unwrap_or_else(|| names.to_vec())
    }

    /// Reports whether the command matches a denial.
    pub(crate) fn denied_command(&self, program: &str, file: &str, arguments: &[String]) -> bool {
        let fits = |pattern: &&CommandPattern| {
            let resolved = pattern.front().and_then(|front| self.fronts.get(front)).map(String::as_str);
            pattern.denies_program(program, file, resolved)
        };
        self.patterns.command.iter().filter(fits).any(|pattern| pattern.matches_arguments(arguments))
    }

    pub(crate) fn exchange(&self, host: &Host, port: u16) -> bool {
        self.patterns.network.iter().any(|pattern| pattern.matches(host, port))
    }

    /// Reports whether the host and port match a denial.
    pub(crate) fn denied_exchange(&self, host: &Host, port: u16) -> bool {
        self.patterns.network.iter().any(|pattern| pattern.denies(host, port))
    }

    /// Reports whether some port of the host matches.
    pub(crate) fn host(&self, host: &Host) -> bool {
        self.patterns.network.iter().any(|pattern| pattern.matches_host(host))
    }

    /// Reports whether a denial matches every port of the host.
    pub(crate) fn whole_host(&self, host: &Host) -> bool {
        self.patterns.network.iter().any(|pattern| pattern.is_every_port() && pattern.denies_host(host))
    }

    pub(crate) fn mount(&self, path: &str) -> bool {
        self.path(&self.patterns.mount, path)
    }

    pub(crate) fn process(&self, name: &str) -> bool {
        self.patterns.process.iter().any(|pattern| pattern.matches(name))
    }

    pub(crate) fn secret(&self, name: &str) -> bool {
        self.patterns.secret.iter().any(|pattern| pattern.matches(name))
    }
}

/// Why a call is refused. The message follows a description of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Outside {
    #[error("is denied by the administrator")]
    Denied,
    #[error("is outside of this plugin's grant")]
    Granted,
    #[error("is outside of this plugin's wants")]
    Wanted,
    #[error("is granted, but not with these variables")]
    Variables,
    #[error("is not available before the plugin has described itself")]
    NotDescribed,
}

/// The rules that decide about every call of a plugin.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    pub(crate) granted: Patterns,
    pub(crate) denied: Patterns,
    /// The plugin's wants. `None` before the plugin has described itself.
    pub(crate) wanted: Option<Patterns>,
}

/// The resolved fronts of all patterns, for one call.
#[derive(Debug, Default)]
pub(crate) struct ResolvedFronts {
    /// Fronts of grants and wants, resolved through links that root owns.
    pub(crate) trusted: Fronts,
    /// Fronts of denials, resolved through all links, because a denial covers every name of a file.
    pub(crate) denied: Fronts,
}

impl Rules {
    /// Reports whether a symbolic link can affect any pattern.
    pub(crate) fn has_fronts(&self) -> bool {
        [&self.granted, &self.denied].into_iter().chain(&self.wanted).any(|patterns| patterns.fronts().next().is_some())
    }

    /// Reports whether an address with this port is denied.
    pub(crate) fn denies(&self, address: &Host, port: u16) -> bool {
        self.denied.network.iter().any(|pattern| pattern.denies(address, port))
    }

    /// Returns the granted patterns for one call.
    pub(crate) fn granted<'a>(&'a self, places: &'a Places, led: &'a ResolvedFronts) -> CallPatterns<'a> {
        CallPatterns { patterns: &self.granted, places, fronts: &led.trusted }
    }

    /// Decides about a request: it must be granted, wanted and not denied. `within` reports whether the request
    /// matches a set of patterns.
    pub(crate) fn judge(
        &self,
        places: &Places,
        led: &ResolvedFronts,
        within: impl Fn(CallPatterns<'_>) -> bool,
    ) -> Result<(), Outside> {
        self.judge_apart(places, led, &within, &within)
    }

    /// Decides about a request for which a denial is matched in another way than a grant.
    pub(crate) fn judge_apart(
        &self,
        places: &Places,
        led: &ResolvedFronts,
        within: impl Fn(CallPatterns<'_>) -> bool,
        denied: impl Fn(CallPatterns<'_>) -> bool,
    ) -> Result<(), Outside> {
        let wanted = self.wanted.as_ref().ok_or(Outside::NotDescribed)?;
        if denied(CallPatterns { patterns: &self.denied, places, fronts: &led.denied }) {
            return Err(Outside::Denied);
        }
        let of_call = |patterns| CallPatterns { patterns, places, fronts: &led.trusted };
        if !within(of_call(&self.granted)) {
            return Err(Outside::Granted);
        }
        if !within(of_call(wanted)) {
            return Err(Outside::Wanted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(grant: &Grant) -> Patterns {
        Patterns::new(grant).unwrap()
    }

    fn files(patterns_of: &[&str]) -> Patterns {
        patterns(&Grant { file: patterns_of.iter().map(|&p| p.to_owned()).collect(), ..Grant::default() })
    }

    fn judge(granted: &[&str], wanted: &[&str], denied: &[&str], path: &str) -> Result<(), Outside> {
        let rules = Rules { granted: files(granted), wanted: Some(files(wanted)), denied: files(denied) };
        rules.judge(&Places::default(), &ResolvedFronts::default(), |p| p.file(path))
    }

    #[test]
    fn what_is_granted_and_wanted_and_not_denied_is_allowed_and_nothing_else() {
        assert_eq!(judge(&["/a/*"], &["/*/b"], &[], "/a/b"), Ok(()));
        assert_eq!(judge(&["/a/*"], &["/*/b"], &[], "/a/c"), Err(Outside::Wanted));
        assert_eq!(judge(&["/a/*"], &["/*/b"], &[], "/c/b"), Err(Outside::Granted));
        assert_eq!(judge(&["/a/*"], &["*"], &["/**/b"], "/a/b"), Err(Outside::Denied));
        assert_eq!(judge(&["/a/*"], &["*"], &["/**/b"], "/a/c"), Ok(()));
        assert_eq!(judge(&[], &["*"], &[], "/a"), Err(Outside::Granted));
        let undescribed = Rules { granted: files(&["*"]), ..Rules::default() };
        let verdict = undescribed.judge(&Places::default(), &ResolvedFronts::default(), |p| p.file("/a"));
        assert_eq!(verdict, Err(Outside::NotDescribed));
    }

    #[test]
    fn a_front_of_what_is_granted_and_one_of_what_is_denied_lead_by_links_of_their_own() {
        let rules =
            Rules { granted: files(&["/lib/*"]), wanted: Some(files(&["*"])), denied: files(&["/home/u/link/*"]) };
        let led = ResolvedFronts {
            trusted: [("/lib".to_owned(), "/usr/lib".to_owned())].into_iter().collect(),
            denied: [("/home/u/link".to_owned(), "/usr/lib".to_owned())].into_iter().collect(),
        };
        let verdict = |led: &ResolvedFronts| rules.judge(&Places::default(), led, |p| p.file("/usr/lib/x"));
        assert_eq!(verdict(&led), Err(Outside::Denied));
        assert_eq!(verdict(&ResolvedFronts { trusted: led.trusted.clone(), ..ResolvedFronts::default() }), Ok(()));
        assert_eq!(verdict(&ResolvedFronts::default()), Err(Outside::Granted));
    }

    #[test]
    fn a_host_is_resolved_by_the_hosts_of_the_patterns_and_denied_only_with_all_its_ports() {
        let network =
            |of: &[&str]| patterns(&Grant { network: of.iter().map(|&p| p.to_owned()).collect(), ..Grant::default() });
        let rules = |denied: &[&str]| Rules {
            granted: network(&["*.corp:443"]),
            wanted: Some(network(&["*"])),
            denied: network(denied),
        };
        let resolve = |rules: &Rules, host: &str| {
            let host = Host::parse(host).unwrap();
            rules.judge_apart(
                &Places::default(),
                &ResolvedFronts::default(),
                |p| p.host(&host),
                |p| p.whole_host(&host),
            )
        };
        assert_eq!(resolve(&rules(&[]), "a.corp"), Ok(()));
        assert_eq!(resolve(&rules(&[]), "a.other"), Err(Outside::Granted));
        assert_eq!(resolve(&rules(&["*:25"]), "a.corp"), Ok(()));
        assert_eq!(resolve(&rules(&["a.corp:*"]), "a.corp"), Err(Outside::Denied));
    }

    #[test]
    fn a_capability_is_denied_as_a_whole_only_by_a_pattern_of_everything() {
        let whole = Grant {
            login_shell: true,
            script: vec!["**".into()],
            command: vec!["**".into()],
            file: vec!["*".into()],
            network: vec!["*:*".into()],
            mount: vec!["/**".into()],
            process: vec!["*".into()],
            secret: vec!["*".into()],
            variables: None,
        };
        let part = Grant {
            login_shell: false,
            script: vec!["/*".into()],
            command: vec!["*".into()],
            file: vec!["/home/**".into()],
            network: vec!["*:1-1024".into()],
            mount: vec!["{cwd}".into()],
            process: vec!["?*".into()],
            secret: vec!["a*".into()],
            variables: None,
        };
        for capability in Capability::ALL {
            let always = matches!(capability, Capability::Log | Capability::Clock);
            assert_eq!(patterns(&whole).is_everything(capability), !always, "{capability}");
            assert!(!patterns(&part).is_everything(capability), "{capability}");
            assert!(
                patterns(&part).may_overlap(&patterns(&whole), capability)
                    || capability == Capability::ShellEnvironment
            );
        }
    }
}
