//! The entry for the public registry of the Agent Client Protocol, `units/registry/agentd/`. The rules are those of
//! agentclientprotocol/registry: `FORMAT.md`, `agent.schema.json` and the check in `build_registry.py`.

use std::path::PathBuf;

use serde_json::Value;

use crate::harness::paths;

/// The target of each platform of the registry, as `.ci/archive` names it.
const PLATFORMS: [(&str, &str); 4] = [
    ("darwin-aarch64", "aarch64-apple-darwin"),
    ("darwin-x86_64", "x86_64-apple-darwin"),
    ("linux-aarch64", "aarch64-unknown-linux-gnu"),
    ("linux-x86_64", "x86_64-unknown-linux-gnu"),
];

fn file(name: &str) -> String {
    let path: PathBuf = paths::checkout().join("units/registry/agentd").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the first rule that an icon breaks.
fn wrong_icon(icon: &str) -> Option<String> {
    let head = icon.split_once('>').map_or("", |(head, _)| head);
    for (part, rule) in [("<svg ", "the root is svg"), (" width=\"16\"", "16 wide"), (" height=\"16\"", "16 high")] {
        if !head.contains(part) {
            return Some(rule.to_owned());
        }
    }
    // A style could set a colour in forms that this test does not read.
    for part in ["<!--", "style", "<script", "<image"] {
        if icon.contains(part) {
            return Some(format!("has {part}"));
        }
    }
    let values = |name: &str| {
        let mark = format!(" {name}=\"");
        let parts = icon.split(&mark).skip(1).filter_map(|rest| rest.split('"').next());
        parts.map(str::to_lowercase).collect::<Vec<_>>()
    };
    let colours = [values("fill"), values("stroke")].concat();
    let fixed = colours.iter().find(|colour| !["currentcolor", "none", "inherit"].contains(&colour.as_str()));
    match fixed {
        Some(colour) => Some(format!("has the colour {colour}")),
        None if colours.iter().any(|colour| colour == "currentcolor") => None,
        None => Some("does not use currentColor".to_owned()),
    }
}

#[test]
fn the_entry_for_the_registry_has_its_form_and_the_archives_of_this_version() {
    let entry: Value = serde_json::from_str(&file("agent.json")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((entry["id"].as_str(), entry["version"].as_str()), (Some("agentd"), Some(version)));
    assert_eq!(entry["license"], env!("CARGO_PKG_LICENSE"));
    assert_eq!(entry["repository"], env!("CARGO_PKG_REPOSITORY"));
    assert!(["name", "description"].iter().all(|field| entry[field].as_str().is_some_and(|text| !text.is_empty())));
    // The build of the registry sets `icon`.
    let known = ["id", "name", "version", "description", "repository", "website", "authors", "license", "distribution"];
    let unknown: Vec<&String> =
        entry.as_object().unwrap().keys().filter(|key| !known.contains(&key.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert_eq!(entry["distribution"].as_object().unwrap().keys().collect::<Vec<_>>(), ["binary"]);
    let binary = entry["distribution"]["binary"].as_object().unwrap();
    let named: Vec<&String> = binary.keys().collect();
    assert_eq!(named, PLATFORMS.map(|(platform, _)| platform));
    for (platform, target) in PLATFORMS {
        let name = format!("agentd-{version}-{target}");
        let archive = format!("{}/releases/download/v{version}/{name}.tar.gz", env!("CARGO_PKG_REPOSITORY"));
        let expected = serde_json::json!({
            "archive": archive, "cmd": format!("./{name}/bin/agentctl"), "args": ["acp"],
        });
        assert_eq!(binary[platform], expected, "{platform}");
    }
}

#[test]
fn the_icon_for_the_registry_is_a_square_of_sixteen_in_the_colour_of_the_text() {
    let icon = file("icon.svg");
    assert_eq!(wrong_icon(&icon), None);
    for (from, to) in [
        ("width=\"16\" height", "width=\"24\" height"),
        ("stroke=\"currentColor\"", "stroke=\"#123456\""),
        ("<circle", "<!-- a note --><circle"),
        ("currentColor", "none"),
        ("<svg ", "<g "),
    ] {
        let broken = icon.replace(from, to);
        assert_ne!(broken, icon, "{from}");
        assert!(wrong_icon(&broken).is_some(), "{to} is not noticed");
    }
}
