//! Plugin files that are damaged or contain no plugin, with a correct pin. The daemon refuses each with the plugin's
//! name. Plugins that run continue, and the daemon's memory does not grow.

use std::fmt::Write as _;

use super::*;
use crate::guest::{WIT, component_of};
use crate::harness::random::{Random, flipped, truncated};

/// Maximum growth of the daemon's memory in KiB, from refusals and from damaged files that are still valid plugins.
const GROWTH: u64 = 6 << 10;

/// Returns a component of this version of the interface.
fn of_version(version: &str) -> Vec<u8> {
    let other = |text: &str| text.replace("@1.0.0", version);
    component_of(&other(WIT), "provider", &other(&Guest::default().module()))
}

/// Declares a plugin with these bytes instead of the configured plugin, and reloads. Returns the first mistake.
async fn offered(daemon: &Daemon, plain: &str, bytes: &[u8]) -> Result<(), Mistake> {
    let declared = place(daemon, "damaged", bytes);
    fs::write(file(daemon), with(plain, "damaged", &declared)).unwrap();
    reload(daemon).await.mistakes.into_iter().next().map_or(Ok(()), Err)
}

/// Returns a daemon in whose sessions a plugin sets NAME, and its configuration without this plugin.
async fn running() -> (Daemon, String) {
    let daemon = Daemon::start().await;
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let declared = place(&daemon, "toolchain", &giving("one"));
    fs::write(file(&daemon), with(&plain, "toolchain", &declared)).unwrap();
    reload(&daemon).await;
    (daemon, plain)
}

/// Asserts that the plugin with these bytes is left out, and that the mistake contains `words`.
async fn is_refused(daemon: &Daemon, plain: &str, bytes: &[u8], words: &str) {
    let told = offered(daemon, plain, bytes).await.unwrap_err();
    assert_eq!((told.key.as_str(), told.consequence), ("plugins.damaged", Consequence::LeftOut), "{told:?}");
    assert!(told.message.contains(words), "{words}: {told:?}");
    assert_eq!(plugin(daemon, "damaged").await.state, PluginState::Failed);
}

#[tokio::test]
async fn a_file_that_is_no_plugin_of_this_version_is_refused_by_what_it_is_and_what_ran_runs() {
    let (daemon, plain) = running().await;
    let (good, kept) = (daemon.session(&daemon.scripted(&[])).await, fs::read_to_string(file(&daemon)).unwrap());
    let whole = giving("two");
    let module = wat::parse_str("(module)").unwrap();
    let made_for = |version: &str| format!("is built for version {version} of agentd:plugin/environment-provider");
    for (bytes, words) in [
        (of_version("@0.9.0"), made_for("0.9.0")),
        (of_version("@1.1.0"), made_for("1.1.0")),
        (of_version("@2.0.0"), made_for("2.0.0")),
        (of_version(""), made_for("none")),
        (module, "is a core module, not a WebAssembly component".to_owned()),
        (b"#!/bin/sh\n".to_vec(), "not a WebAssembly component".to_owned()),
        (Vec::new(), "not a WebAssembly component".to_owned()),
        (whole[..whole.len() / 2].to_vec(), "could not be compiled".to_owned()),
        (whole[..whole.len() - 1].to_vec(), "could not be compiled".to_owned()),
    ] {
        is_refused(&daemon, &plain, &bytes, &words).await;
        assert_eq!(name_of(&good).await.as_deref(), Some("one"));
    }
    fs::write(file(&daemon), &kept).unwrap();
    assert_eq!(reload(&daemon).await.mistakes, []);
    assert_eq!(name_now(&daemon).await.as_deref(), Some("one"));
}

#[tokio::test]
async fn truncated_and_flipped_plugins_are_refused_or_other_plugins_and_harm_nobody() {
    let mut random = Random::from_environment("AGENTD_DAMAGE_SEED");
    let (daemon, plain) = running().await;
    let good = daemon.session(&daemon.scripted(&[])).await;
    let kept = fs::read_to_string(file(&daemon)).unwrap();
    let whole = giving("two");
    let mut refused = 0;
    // The first round is not measured, because the first refusal of each kind allocates memory that remains in use.
    let mut weight = 0;
    for round in 0..4 {
        let cut: Vec<_> = (0..4).map(|_| truncated(&whole, &mut random)).collect();
        let flipped: Vec<_> = (0..8).map(|_| flipped(&whole, &mut random)).collect();
        for damaged in cut.into_iter().chain(flipped) {
            if let Err(told) = offered(&daemon, &plain, &damaged).await {
                assert_eq!(
                    (told.key.as_str(), told.consequence),
                    ("plugins.damaged", Consequence::LeftOut),
                    "{told:?}"
                );
                assert_eq!(plugin(&daemon, "damaged").await.state, PluginState::Failed);
                refused += 1;
            } else {
                // Custom sections, whose id is 0 (WebAssembly, "Custom Section"), can be cut off.
                assert!(whole.get(damaged.len()).is_none_or(|&id| id == 0), "{} bytes are a plugin", damaged.len());
                // The file is another valid plugin, or the original plugin with a change in an unused place.
                let session = daemon.create(&daemon.scripted(&[])).await;
                within("the session is ready or failed", async {
                    while !matches!(session.view().await.status.phase, Phase::Idle | Phase::Failed) {
                        tokio::task::yield_now().await;
                    }
                })
                .await;
                fs::write(file(&daemon), &kept).unwrap();
                reload(&daemon).await;
            }
            assert_eq!(name_of(&good).await.as_deref(), Some("one"));
        }
        if round == 0 {
            weight = process::resident(daemon.pid());
        }
    }
    let grown = process::resident(daemon.pid()).saturating_sub(weight);
    assert!(grown < GROWTH, "the daemon grew by {grown} KiB from {weight} KiB");
    assert!(refused > 0, "no flip was noticed at all");
    fs::write(file(&daemon), &kept).unwrap();
    reload(&daemon).await;
    assert_eq!(name_now(&daemon).await.as_deref(), Some("one"));
}

#[tokio::test]
async fn a_daemon_that_starts_beside_damaged_files_names_each_and_works_without_them() {
    let mut daemon = Daemon::prepare();
    let plain = fs::read_to_string(file(&daemon)).unwrap();
    let whole = giving("two");
    let damages = [
        ("half", whole[..whole.len() / 2].to_vec(), "plugin-not-compiled"),
        ("newer", of_version("@2.0.0"), "plugin-version"),
        ("text", b"#!/bin/sh\n".to_vec(), "plugin-not-a-component"),
    ];
    let mut text =
        plain.replace("[environment]", "[environment]\nproviders = [\"half\", \"newer\", \"text\", \"toolchain\"]");
    for (name, bytes, _) in &damages {
        write!(text, "\n{}on_failure = \"skip\"\n", place(&daemon, name, bytes)).unwrap();
    }
    write!(text, "\n{}", place(&daemon, "toolchain", &giving("one"))).unwrap();
    fs::write(file(&daemon), text).unwrap();
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let condition = environment_of(&session.view().await);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::True, "ProviderSkipped"));
    for (name, _, code) in damages {
        let view = plugin(&daemon, name).await;
        assert_eq!((view.state, view.calls), (PluginState::Failed, 0), "{view:?}");
        assert_eq!(view.problem.unwrap().code, code);
        assert!(condition.message.contains(name), "{name}: {condition:?}");
    }
    assert_eq!(name_of(&session).await.as_deref(), Some("one"));
}
