//! A plugin that does its worst is named, with the limit it met, and takes nothing else down.

use std::fs;

use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase};

use crate::guest::{Guest, LOGIN};
use crate::harness::Daemon;
use crate::harness::digest::sha256;

/// Returns a daemon whose pipeline ends with this component. One variable is granted.
fn daemon_with(component: &[u8], pin: &str) -> Daemon {
    let daemon = Daemon::prepare();
    let file = daemon.root().join("config/hostile.wasm");
    fs::write(&file, component).unwrap();
    daemon.configure(|config| {
        let environment = "[environment]\ndeadline = \"500ms\"\nproviders = [\"snapshot\", \"whitelist\", \"hostile\"]";
        config.replace("[environment]", environment)
            + &format!(
                "\n[plugins.hostile]\nfile = '{}'\nsha256 = \"{pin}\"\ngrant.variables = [\"NAME\"]\n\
                 limits = {{ memory = 8_388_608 }}\n",
                file.display()
            )
    });
    daemon
}

/// Returns the condition of a session that this component lets fail.
async fn comes_to(component: &[u8], pin: &str) -> Condition {
    let mut daemon = daemon_with(component, pin);
    daemon.run().await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    daemon.client.get("/healthz").await.expect::<serde_json::Value>(200);
    // The daemon did not restart, and still answers requests.
    assert!(fs::exists(format!("/proc/{}", daemon.pid())).unwrap());
    let condition =
        view.status.conditions.into_iter().find(|condition| condition.kind == ConditionType::EnvironmentReady);
    let condition = condition.expect("the step that failed has a condition");
    assert_eq!(condition.status, ConditionStatus::False);
    condition
}

async fn of(guest: &Guest<'_>) -> String {
    let component = guest.provider();
    comes_to(&component, &sha256(&component)).await.message
}

#[tokio::test]
async fn an_import_that_was_not_granted_is_refused_by_name() {
    let message = of(&Guest { imports: LOGIN, provide: "(call $login (i32.const 512))", ..Guest::default() }).await;
    assert!(message.contains("hostile") && message.contains("agentd:plugin/shell-environment"), "{message}");
}

#[tokio::test]
async fn a_plugin_that_loops_ends_at_its_time_and_is_named_with_it() {
    let message = of(&Guest { provide: "(loop $again (br $again))", ..Guest::default() }).await;
    assert!(message.contains("plugin \"hostile\" took longer than its 2 s"), "{message}");
}

#[tokio::test]
async fn a_plugin_that_eats_memory_ends_at_its_limit_and_is_named_with_it() {
    let provide = "(loop $again (drop (memory.grow (i32.const 16))) (br $again))";
    let message = of(&Guest { provide, ..Guest::default() }).await;
    assert!(message.contains("plugin \"hostile\" used more than its 8 MiB of memory"), "{message}");
}

#[tokio::test]
async fn a_file_that_is_not_the_one_that_was_pinned_is_refused_with_both_hashes() {
    let component = Guest::default().provider();
    let (pin, found) = ("0".repeat(64), sha256(&component));
    let message = comes_to(&component, &pin).await.message;
    assert!(message.contains(&pin) && message.contains(&found), "{message}");
}

#[tokio::test]
async fn a_session_gets_what_a_plugin_of_the_admins_contributes() {
    // One change, at 256: set NAME (at 144, 4 bytes) to the same four bytes; the answer at 64 is Ok with that list.
    let provide = "(i32.store (i32.const 68) (i32.const 256)) (i32.store (i32.const 72) (i32.const 1)) \
        (i32.store (i32.const 260) (i32.const 144)) (i32.store (i32.const 264) (i32.const 4)) \
        (i32.store (i32.const 268) (i32.const 144)) (i32.store (i32.const 272) (i32.const 4))";
    let component = Guest { provide, ..Guest::default() }.provider();
    let mut daemon = daemon_with(&component, &sha256(&component));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let environment = session.turn("env").await.text;
    let environment: serde_json::Value = serde_json::from_str(&environment).unwrap();
    assert_eq!(environment["NAME"], "NAME");
}
