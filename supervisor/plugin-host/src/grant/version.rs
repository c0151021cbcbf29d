//! The versions of the interface, read from the names of what a component imports and exports, before any of it runs.

use super::admit::Refusal;

const PACKAGE: &str = "agentd:plugin/";

/// The versions that this host speaks, the latest last. Each is frozen: a copy of its text is in `plugin-sdk/wit`, and a component that
/// was built against it in `tests/fixtures/plugins`.
const SUPPORTED: [&str; 1] = ["1.0.0"];

/// The interface that a provider exports, and the one of a prerequisite.
pub(crate) const PROVIDER: &str = "environment-provider";
pub(crate) const PREREQUISITE: &str = "prerequisite-check";

/// What a name of an import or export is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name<'a> {
    /// An interface of our package, of a version we speak.
    Ours(&'a str),
    OurVersion {
        interface: &'a str,
        found: &'a str,
    },
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

/// The version to build against.
pub(super) fn latest() -> &'static str {
    SUPPORTED[SUPPORTED.len() - 1]
}

/// All of them, for a message.
pub(super) fn list() -> String {
    SUPPORTED.join(", ")
}

/// What a component is, by its exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    /// [`PROVIDER`] or [`PREREQUISITE`].
    pub(crate) interface: &'static str,
    /// The version that it is made for.
    pub(crate) version: &'static str,
}

/// The one of our interfaces that a component exports. Exports beside it are no harm: nobody calls them.
pub(crate) fn made_for<'a>(exports: impl IntoIterator<Item = &'a str>) -> Result<Made, Refusal> {
    let exports: Vec<&str> = exports.into_iter().collect();
    let mut found = Vec::new();
    for export in &exports {
        match parse(export) {
            Name::Ours(interface @ (PROVIDER | PREREQUISITE)) => {
                let interface = if interface == PROVIDER { PROVIDER } else { PREREQUISITE };
                let version = SUPPORTED.into_iter().find(|version| export.ends_with(version)).unwrap_or(SUPPORTED[0]);
                found.push(Made { interface, version });
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
        assert_eq!(made_for([provider]), Ok(Made { interface: PROVIDER, version: "1.0.0" }));
        assert_eq!(made_for([check, "other"]), Ok(Made { interface: PREREQUISITE, version: "1.0.0" }));
        assert!(matches!(made_for([provider, check]), Err(Refusal::World { .. })));
        assert!(matches!(made_for(["run"]), Err(Refusal::World { .. })));
        assert!(matches!(made_for([]), Err(Refusal::World { .. })));
    }

    #[test]
    fn any_version_but_those_in_the_table_is_refused_by_its_name() {
        for found in ["0.1.0", "1.1.0", "2.0.0", "1.0.0-rc", "1.0.1", "1", "01.0.0", ""] {
            let error = made_for([format!("agentd:plugin/environment-provider@{found}").as_str()]).unwrap_err();
            assert_eq!(error, Refusal::Version { interface: PROVIDER.to_owned(), found: found.to_owned() });
        }
        let none = made_for(["agentd:plugin/environment-provider"]).unwrap_err();
        assert_eq!(
            none.to_string(),
            "is made for version none of agentd:plugin/environment-provider, and this is version 1.0.0"
        );
    }

    #[test]
    fn the_text_of_every_version_in_the_table_is_kept() {
        for version in SUPPORTED {
            let path = format!("{}/../../plugin-sdk/wit/{version}/agentd-plugin.wit", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(&format!("\npackage agentd:plugin@{version};\n")), "{path}");
        }
    }
}
