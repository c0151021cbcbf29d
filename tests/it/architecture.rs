//! The walls between the crates (docs/internals/layout.md), read from the manifests.

use std::fs;
use std::path::PathBuf;

use crate::harness::paths;

fn root() -> PathBuf {
    paths::checkout().to_owned()
}

/// Returns the text of every Rust file below a directory, by its path from the root.
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

/// Files that name `word` outside of the `allowed` places.
fn offenders(directory: &str, word: &str, allowed: &[&str]) -> Vec<String> {
    sources(directory)
        .into_iter()
        .filter(|(name, _)| !allowed.iter().any(|place| name.starts_with(place)))
        .filter(|(_, text)| code(text).any(|line| line.contains(word)))
        .map(|(name, _)| name)
        .collect()
}

const NO_FILE: [String; 0] = [];

/// The folders of the workspace's crates, with each crate's manifest.
fn crates() -> Vec<(String, toml::Table)> {
    let read = |path: &str| -> toml::Table {
        let path = root().join(path).join("Cargo.toml");
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).parse().unwrap()
    };
    let members = read("")["workspace"]["members"].as_array().unwrap().clone();
    members.iter().map(|member| member.as_str().unwrap()).map(|member| (member.to_owned(), read(member))).collect()
}

/// The dependencies that a build of the crate's own code has, on every system. Those of tests are left out.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let of = |table: Option<&toml::Value>| -> Vec<String> {
        table.and_then(toml::Value::as_table).map(|table| table.keys().cloned().collect()).unwrap_or_default()
    };
    let targets = manifest.get("target").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    let mut all = of(manifest.get("dependencies"));
    all.extend(targets.values().flat_map(|target| of(target.get("dependencies"))));
    all
}

#[test]
fn each_heavy_library_is_a_dependency_of_the_crates_that_own_it() {
    let owners = [
        ("hyper", &["client", "control", "hooks", "traces", "ui"][..]),
        ("wasmtime", &["plugin-host"]),
        ("zbus", &["hooks", "session"]),
        ("sd-notify", &["host"]),
        ("agent-client-protocol-schema", &["ctl", "decide", "demo"]),
        ("clap", &["ctl", "supervisor"]),
        ("tokio-tungstenite", &["control"]),
        ("ratatui", &["ctl"]),
        ("rmcp", &["ctl"]),
        ("minijinja", &["note"]),
        ("jsonschema", &["answer"]),
        ("prometheus-client", &["metrics"]),
        ("tracing-opentelemetry", &["traces"]),
        ("tokio-rustls", &["hooks"]),
    ];
    for (library, expected) in owners {
        let users: Vec<String> = crates()
            .into_iter()
            .filter(|(_, manifest)| dependencies(manifest).iter().any(|name| name == library))
            .map(|(folder, _)| folder.rsplit('/').next().unwrap().to_owned())
            .collect();
        let others: Vec<_> = users.iter().filter(|user| !expected.contains(&user.as_str())).collect();
        assert!(
            others.is_empty() && !users.is_empty(),
            "{library} is a dependency of {users:?}, not only of {expected:?}"
        );
    }
}

#[test]
fn operating_systems_are_named_where_they_differ_and_nowhere_else() {
    let places = [
        "supervisor/api/src/paths.rs",
        "supervisor/host/src/platform/",
        "supervisor/session/src/launch/",
        "supervisor/caller/src/os/",
        "supervisor/darwin/",
        "supervisor/journal/src/reserve.rs",
        "supervisor/keeper/src/os/",
        "supervisor/plugin-host/src/code.rs",
    ];
    assert_eq!(offenders("supervisor", "target_os", &places), NO_FILE);
}

/// The lines of each crate's sources, by its folder.
fn lines() -> Vec<(String, usize)> {
    let of = |folder: &str| sources(folder).iter().map(|(_, text)| text.lines().count()).sum();
    crates()
        .into_iter()
        .filter(|(folder, _)| folder != "supervisor")
        .map(|(folder, _)| (of(&folder), folder))
        .map(|(lines, folder)| (folder, lines))
        .collect()
}

#[test]
fn no_crate_has_more_than_a_fifth_of_the_lines() {
    let lines = lines();
    let all: usize = lines.iter().map(|(_, lines)| lines).sum();
    let (folder, most) = lines.iter().max_by_key(|(_, lines)| *lines).unwrap();
    assert!(most * 5 <= all, "{folder} has {most} of {all} lines");
}

#[test]
fn what_is_small_or_pure_depends_on_nothing_that_acts() {
    let crates = crates();
    // Each crate with the beginnings of forbidden names, and its exceptions.
    for (folder, forbidden, allowed) in [
        ("supervisor/keeper", &["tokio", "tracing"][..], &[][..]),
        ("supervisor/journal", &["tokio", "agentd-keeper"], &[]),
        ("supervisor/api", &["tokio", "agentd-", "nix"], &[]),
        ("supervisor/permission", &["tokio", "nix"], &[]),
        ("supervisor/config", &["tokio", "tracing"], &[]),
        ("supervisor/note", &["tokio", "tracing", "nix", "agentd-"], &["agentd-api"]),
        ("supervisor/remote", &["tracing", "hyper", "agentd-"], &["agentd-api"]),
        ("supervisor/client", &["tracing", "clap", "agentd-"], &["agentd-api"]),
        ("supervisor/caller", &["tokio", "tracing", "agentd-"], &["agentd-api", "agentd-darwin"]),
        ("supervisor/ui", &["tracing", "clap", "agentd-"], &["agentd-api", "agentd-caller", "agentd-client"]),
        ("supervisor/place", &["tokio", "tracing", "nix", "agentd-"], &["agentd-api"]),
        ("supervisor/schedule", &["tokio", "tracing", "nix", "agentd-"], &["agentd-api"]),
        ("supervisor/plugin-host", &["agentd-"], &["agentd-directory", "agentd-glob"]),
        ("supervisor/decide", &["tokio", "tracing", "nix", "agentd-host", "agentd-environment", "agentd-journal"], &[]),
        (
            "supervisor/ctl",
            &["agentd-"],
            &[
                "agentd-api",
                "agentd-client",
                "agentd-demo",
                "agentd-describe",
                "agentd-directory",
                "agentd-glob",
                "agentd-remote",
                "agentd-screen",
                "agentd-secret-names",
                "agentd-specs",
                "agentd-ui",
            ],
        ),
    ] {
        let (_, manifest) =
            crates.iter().find(|(name, _)| name == folder).unwrap_or_else(|| panic!("no crate {folder}"));
        for name in dependencies(manifest).iter().filter(|name| !allowed.contains(&name.as_str())) {
            let hit = forbidden.iter().find(|word| name.starts_with(**word));
            assert_eq!(hit, None, "{folder} depends on {name}");
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
    assert_eq!(long, NO_FILE);
}
