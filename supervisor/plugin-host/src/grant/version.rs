//! Versions of the plugin interface. They are read from the names of imports and exports before any code of the
//! component runs.

use super::admit::Refusal;

/// Prefix of the interfaces of the WIT package.
const PACKAGE: &str = "agentd:plugin/";

/// Versions that this host supports, oldest first. Each is frozen: `plugin-sdk/wit` has a copy of its text, and
/// `tests/fixtures/plugins` a component that was built with it.
const SUPPORTED: [&str; 1] = ["1.0.0"];

/// Name of the interface that a provider exports.
pub(crate) const PROVIDER: &str = "environment-provider";
/// Name of the interface that a prerequisite exports.
pub(crate) const PREREQUISITE: &str = "prerequisite-check";

/// Meaning of the name of an import or export.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name<'a> {
    /// An interface of this package, in a supported version.
    Ours(&'a str),
    /// An interface of this package, in another version.
    OurVersion { interface: &'a str, found: &'a str },
    /// An interface of another package.
    Foreign,
}

pub(super) fn parse(name: &str) -> Name<'_> {
    let Some(interface) = name.strip_prefix(PACKAGE) else { return Name::Foreign };
    match interface.split_once('@') {
        Some((interface, version)) if SUPPORTED.contains(&version) => Name::Ours(interface),
        Some((interface, found)) => Name::OurVersion { interface, found },
        None => Name::OurVersion { interface, found: "none" },
    }
}

/// Returns the version to build new plugins with.
pub(super) fn latest() -> &'static str {
    SUPPORTED[SUPPORTED.len() - 1]
}

/// Returns all supported versions for a message.
pub(super) fn list() -> String {
    SUPPORTED.join(", ")
}

/// The plugin interface that a component exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// Either [`PROVIDER`] or [`PREREQUISITE`].
    pub(crate) interface: &'static str,
    /// Version of the interface.
    pub(crate) version: &'static str,
}

/// Finds the plugin interface among a component's exports. Other exports are ignored.
pub(crate) fn target_of<'a>(exports: impl IntoIterator<Item = &'a str>) -> Result<Target, Refusal> {
    let exports: Vec<&str> = exports.into_iter().collect();
    let mut found = Vec::new();
    for export in &exports {
        match parse(export) {
            Name::Ours(interface @ (PROVIDER | PREREQUISITE)) => {
                let interface = if interface == PROVIDER { PROVIDER } else { PREREQUISITE };
                let version = SUPPORTED.into_iter().find(|version| export.ends_with(version)).unwrap_or(SUPPORTED[0]);
                found.push(Target { interface, version });
            }
            Name::OurVersion { interface: interface @ (PROVIDER | PREREQUISITE), found } => {
                return Err(Refusal::Version { interface: interface.to_owned(), found: found.to_owned() });
            }
            Name::Ours(_) | Name::OurVersion { .. } | Name::Foreign => {}
        }
    }
    match found[..] {
        [one] => Ok(one),
        _ => Err(Refusal::World { exports: exports.into_iter().map(str::to_owned).collect() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_of_exactly_one_world() {
        let provider = "agentd:plugin/environment-provider@1.0.0";
        let check = "agentd:plugin/prerequisite-check@1.0.0";
        assert_eq!(target_of([provider]), Ok(Target { interface: PROVIDER, version: "1.0.0" }));
        assert_eq!(target_of([check, "other"]), Ok(Target { interface: PREREQUISITE, version: "1.0.0" }));
        assert!(matches!(target_of([provider, check]), Err(Refusal::World { .. })));
        assert!(matches!(target_of(["run"]), Err(Refusal::World { .. })));
        assert!(matches!(target_of([]), Err(Refusal::World { .. })));
    }

    #[test]
    fn any_version_but_those_in_the_table_is_refused_by_its_name() {
        for found in ["0.1.0", "1.1.0", "2.0.0", "1.0.0-rc", "1.0.1", "1", "01.0.0", ""] {
            let error = target_of([format!("agentd:plugin/environment-provider@{found}").as_str()]).unwrap_err();
            assert_eq!(error, Refusal::Version { interface: PROVIDER.to_owned(), found: found.to_owned() });
        }
        let none = target_of(["agentd:plugin/environment-provider"]).unwrap_err();
        assert_eq!(
            none.to_string(),
            "is built for version none of agentd:plugin/environment-provider, but this agentd supports 1.0.0"
        );
    }

    #[test]
    fn the_text_of_every_version_in_the_table_is_kept() {
        for version in SUPPORTED {
            let path = format!("../../plugin-sdk/wit/{version}/agentd-plugin.wit");
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(&format!("\npackage agentd:plugin@{version};\n")), "{path}");
        }
    }
}
