//! Contains the projects that `agentctl plugin new` writes, from `plugin-sdk/templates/`. They are part of this
//! program, so an author needs no other files of agentd.
//!
//! `LANGUAGE/common` and `LANGUAGE/WORLD` become the project's directory, `cases/WORLD` becomes its `tests`. A
//! Rust project also contains the SDK, because no registry has it.

use crate::args::plugin::{Language, World};

/// Name, text and executable flag of every file, from the build script.
const FILES: &[(&str, &str, bool)] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

const INTERFACE: &str = include_str!("../../../../../plugin-sdk/wit/1.0.0/agentd-plugin.wit");

/// File of a project, with its path in the project.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) path: String,
    pub(super) text: &'static str,
    pub(super) executable: bool,
}

/// Returns all files of a project.
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
            // Under its own name the file would be in force in the template's directory.
            let below = if below == "gitignore" { ".gitignore" } else { below };
            parts.push(Part { path: format!("{directory}{below}"), text, executable: *executable });
        }
    }
    parts
}
