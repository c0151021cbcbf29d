//! The layout's arrows (supervisor/DESIGN.md section 3), read off the code's `use` lines and the manifests.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Rust file below a directory, by its path from the root.
fn sources(directory: &str) -> Vec<(String, String)> {
    let (mut found, mut left) = (Vec::new(), vec![root().join(directory)]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "there is nothing in {directory}");
    found
}

/// Lines of code, without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

/// Files that name `word` though they are none of the `allowed` places.
fn offenders(directory: &str, word: &str, allowed: &[&str]) -> Vec<String> {
    sources(directory)
        .into_iter()
        .filter(|(name, _)| !allowed.iter().any(|place| name.starts_with(place)))
        .filter(|(_, text)| code(text).any(|line| line.contains(word)))
        .map(|(name, _)| name)
        .collect()
}

const NOBODY: [String; 0] = [];

#[test]
fn each_heavy_library_is_known_in_one_place() {
    let control = ["supervisor/daemon/src/control/", "supervisor/ctl/"];
    assert_eq!(offenders("supervisor", "hyper", &control), NOBODY);
    assert_eq!(offenders("supervisor", "wasmtime", &["supervisor/plugin-host/"]), NOBODY);
    assert_eq!(offenders("supervisor", "zbus", &["supervisor/daemon/src/launch/"]), NOBODY);
    let manager = ["supervisor/daemon/src/manager.rs", "supervisor/daemon/src/platform/"];
    assert_eq!(offenders("supervisor", "sd_notify", &manager), NOBODY);
    let schema = ["supervisor/daemon/src/acp/", "supervisor/ctl/src/demo_agent/"];
    assert_eq!(offenders("supervisor", "agent_client_protocol_schema", &schema), NOBODY);
}

#[test]
fn operating_systems_are_named_where_they_differ_and_nowhere_else() {
    let places = [
        "supervisor/api/src/paths.rs",
        "supervisor/daemon/src/platform/",
        "supervisor/daemon/src/launch/",
        "supervisor/darwin/",
        "supervisor/journal/src/reserve.rs",
        "supervisor/keeper/src/os/",
        "supervisor/plugin-host/src/code.rs",
    ];
    assert_eq!(offenders("supervisor", "target_os", &places), NOBODY);
}

#[test]
fn nobody_knows_who_calls_it() {
    let daemon = "supervisor/daemon/src";
    for (below, above) in [
        ("session", "crate::control"),
        ("prerequisite", "crate::session"),
        ("prerequisite", "crate::control"),
        ("env", "crate::prerequisite"),
        ("env", "crate::session"),
        ("env", "crate::control"),
        ("acp", "crate::"),
        ("launch", "crate::session"),
        ("launch", "crate::env"),
        ("capability", "crate::env"),
        ("capability", "crate::session"),
        ("capability", "crate::control"),
    ] {
        let own = format!("crate::{below}");
        let offenders: Vec<String> = sources(&format!("{daemon}/{below}"))
            .into_iter()
            .filter(|(_, text)| code(text).any(|line| line.contains(above) && !line.contains(&own)))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(offenders, NOBODY, "{below} names {above}");
    }
}

#[test]
fn the_sessions_rules_have_no_clock_and_touch_nothing() {
    for file in
        ["state.rs", "fold.rs", "dialogue.rs", "rules.rs", "next.rs", "note.rs", "verdict.rs", "exit.rs", "batch.rs"]
    {
        let path = root().join("supervisor/daemon/src/session").join(file);
        let text = fs::read_to_string(&path).unwrap();
        for word in ["Timestamp::now", "Instant", "SystemTime", "tokio", "std::fs", "async fn", "std::env", "getrandom"]
        {
            assert!(!code(&text).any(|line| line.contains(word)), "{file} has {word}");
        }
    }
}

#[test]
fn the_keeper_stays_small_and_the_guests_stay_apart() {
    for (manifest, forbidden) in [
        ("supervisor/keeper/Cargo.toml", &["tokio", "hyper", "wasmtime", "agentd-daemon", "tracing"][..]),
        ("supervisor/journal/Cargo.toml", &["tokio", "hyper", "wasmtime", "agentd-keeper"]),
        ("supervisor/api/Cargo.toml", &["tokio", "hyper", "wasmtime", "agentd-", "nix"]),
        ("supervisor/plugin-host/Cargo.toml", &["hyper", "agentd-", "zbus"]),
        ("supervisor/ctl/Cargo.toml", &["agentd-daemon", "agentd-keeper", "agentd-plugins", "wasmtime"]),
    ] {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        let manifest_toml: toml::Table = text.parse().unwrap();
        let dependencies = manifest_toml["dependencies"].as_table().unwrap();
        for name in dependencies.keys() {
            let hit = forbidden.iter().find(|word| name.starts_with(**word) && name != "agentd-api");
            assert_eq!(hit, None, "{manifest} depends on {name}");
        }
    }
}

#[test]
fn no_file_has_grown_past_the_point_where_a_wall_is_missing() {
    let long: Vec<String> = ["supervisor", "plugins", "plugin-sdk/rust"]
        .into_iter()
        .flat_map(sources)
        .filter(|(name, text)| !name.contains("bindings") && !name.contains("/target/") && text.lines().count() > 600)
        .map(|(name, text)| format!("{name}: {} lines", text.lines().count()))
        .collect();
    assert_eq!(long, NOBODY);
}
