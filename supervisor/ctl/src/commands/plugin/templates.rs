//! The projects that `agentctl plugin new` writes, as they lie in `plugin-sdk/templates/`: they are in this program, so that an author
//! needs nothing else of agentd.
//!
//! `LANGUAGE/common` and `LANGUAGE/WORLD` are the project's own directory, `cases/WORLD` its `tests`. A project in Rust has the SDK
//! too, since that is on no registry.

use crate::args::plugin::{Language, World};

/// Every file: its name, its text, and whether it can be run. The build script lists them.
const FILES: &[(&str, &str, bool)] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

const INTERFACE: &str = include_str!("../../../../../plugin-sdk/wit/1.0.0/agentd-plugin.wit");

/// One file of a project, with its path in it.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) path: String,
    pub(super) text: &'static str,
    pub(super) executable: bool,
}

/// All files of a project.
pub(super) fn parts(language: Language, world: World) -> Vec<Part> {
    let language = match language {
        Language::Rust => "rust",
        Language::Python => "python",
        Language::JavaScript => "javascript",
    };
    let world = match world {
        World::Provider => "provider",
        World::Prerequisite => "prerequisite",
    };
    let mut places = vec![
        (format!("{language}/common/"), ""),
        (format!("{language}/{world}/"), ""),
        (format!("cases/{world}/"), "tests/"),
    ];
    if language == "rust" {
        places.push(("sdk/".to_owned(), "sdk/"));
    }
    let mut parts =
        vec![Part { path: "wit/deps/agentd-plugin/agentd-plugin.wit".to_owned(), text: INTERFACE, executable: false }];
    for (name, text, executable) in FILES {
        let below = places.iter().find_map(|(place, directory)| Some((name.strip_prefix(place.as_str())?, *directory)));
        if let Some((below, directory)) = below {
            // Under its own name it would be in force where the template lies.
            let below = if below == "gitignore" { ".gitignore" } else { below };
            parts.push(Part { path: format!("{directory}{below}"), text, executable: *executable });
        }
    }
    parts
}
