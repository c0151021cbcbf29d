use std::collections::BTreeMap;

use agentd_api::ByteString;
use agentd_plugin_host::{Change, Effect};
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

fn set(name: &str, value: &str) -> Change {
    Change::set(name, value)
}

fn unset(name: &str) -> Change {
    Change::unset(name, Some("because".to_owned()))
}

fn value<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
    environment.get(name).map(|value| std::str::from_utf8(value).unwrap())
}

#[test]
fn the_last_provider_that_set_a_variable_is_recorded() {
    let mut environment = Environment::default();
    environment.apply("a", 1, vec![set("X", "1"), set("Y", "1")]).unwrap();
    environment.apply("b", 2, vec![set("X", "2"), unset("Y")]).unwrap();
    let view = environment.view(Timestamp::UNIX_EPOCH, 1);
    assert_eq!(view.variables.len(), 1);
    assert_eq!((view.variables[0].provider.as_str(), view.variables[0].step), ("b", 2));
    assert_eq!(view.dropped[0].name, "Y");
    assert_eq!(view.dropped[0].reason.as_deref(), Some("because"));
}

#[test]
fn a_variable_that_comes_back_is_not_among_the_dropped() {
    let mut environment = Environment::default();
    environment.apply("a", 1, vec![unset("X")]).unwrap();
    environment.apply("b", 2, vec![set("X", "1")]).unwrap();
    assert_eq!(environment.dropped().count(), 0);
}

#[test]
fn a_path_entry_is_moved_and_not_doubled() {
    let mut environment = Environment::default();
    let entry = |text: &str| text.as_bytes().to_vec();
    environment.apply("a", 1, vec![set("PATH", "/a:/b:/a")]).unwrap();
    let name = || "PATH".to_owned();
    environment.apply("a", 1, vec![Effect::Prepend { name: name(), entry: entry("/b") }.into()]).unwrap();
    assert_eq!(value(&environment, "PATH"), Some("/b:/a:/a"));
    environment.apply("a", 1, vec![Effect::Append { name: name(), entry: entry("/a") }.into()]).unwrap();
    assert_eq!(value(&environment, "PATH"), Some("/b:/a"));
    environment.apply("a", 1, vec![Effect::Append { name: "NEW".to_owned(), entry: entry("/n") }.into()]).unwrap();
    assert_eq!(value(&environment, "NEW"), Some("/n"));
}

#[test]
fn a_change_that_no_environment_can_hold_changes_nothing() {
    for bad in [set("", "x"), set("A=B", "x"), set("A\0", "x"), set("A", "x\0y")] {
        let mut environment = Environment::default();
        assert!(environment.apply("a", 1, vec![set("FINE", "1"), bad]).is_err());
        assert_eq!(environment.count(), 0);
    }
}

#[test]
fn a_secret_value_is_in_no_view() {
    let mut environment = Environment::default();
    let url = set("DATABASE", "postgres://me:hunter22@db/x");
    environment.apply("a", 1, vec![set("API_KEY", "hunter22"), url, set("PLAIN", "shown")]).unwrap();
    environment.apply("secrets", 2, vec![set("CALLED_ANYTHING", "hunter22")]).unwrap();
    let view = environment.view(Timestamp::UNIX_EPOCH, 1);
    let json = serde_json::to_string(&view).unwrap();
    assert!(!json.contains("hunter22") && json.contains("shown"), "{json}");
    environment.apply("a", 1, vec![set("API_KEY", "another one")]).unwrap();
    assert_eq!(environment.view(Timestamp::UNIX_EPOCH, 1).digest, view.digest, "the digest is of what is stored");
}

#[test]
fn every_step_of_a_variable_records_the_replaced_value() {
    let mut environment = Environment::default();
    environment.apply("snapshot", 1, vec![set("EDITOR", "ed"), set("API_KEY", "hunter22")]).unwrap();
    environment.apply("script", 3, vec![set("EDITOR", "vi"), set("API_KEY", "hunter33")]).unwrap();
    let view = environment.view(Timestamp::UNIX_EPOCH, 1);
    let of = |name: &str| view.variables.iter().find(|variable| variable.name == name).unwrap();
    let steps: Vec<_> = of("EDITOR").history.iter().map(|s| (s.provider.as_str(), s.value.as_ref())).collect();
    assert_eq!(steps, [("snapshot", Some(&ByteString::from("ed"))), ("script", None)]);
    assert!(of("API_KEY").history.iter().all(|step| step.value.is_none() && step.digest.is_none()));
}

#[test]
fn a_replaced_value_that_looks_like_a_secret_is_hidden() {
    let mut environment = Environment::default();
    environment.apply("snapshot", 1, vec![set("HTTP_PROXY", "http://me:hunter22@proxy")]).unwrap();
    environment.apply("script", 3, vec![set("HTTP_PROXY", "http://proxy")]).unwrap();
    let full = environment.full_view(Timestamp::UNIX_EPOCH, 1);
    for view in [environment.view(Timestamp::UNIX_EPOCH, 1), without_secrets(full)] {
        let json = serde_json::to_string(&view).unwrap();
        assert!(!json.contains("hunter22") && json.contains("http://proxy"), "{json}");
    }
}

#[test]
fn a_removed_variable_keeps_its_name_and_loses_its_value() {
    let mut environment = Environment::default();
    environment.apply("snapshot", 1, vec![set("ODD", "sensitive")]).unwrap();
    environment.apply("whitelist", 2, vec![unset("ODD")]).unwrap();
    let dropped = &environment.full_view(Timestamp::UNIX_EPOCH, 1).dropped[0];
    let steps: Vec<_> = dropped.history.iter().map(|s| (s.provider.as_str(), s.removed)).collect();
    assert_eq!(steps, [("snapshot", false), ("whitelist", true)]);
    environment.apply("script", 3, vec![set("ODD", "plain")]).unwrap();
    let json = serde_json::to_string(&environment.full_view(Timestamp::UNIX_EPOCH, 1)).unwrap();
    assert!(!json.contains("sensitive") && json.contains("because") && json.contains("plain"), "{json}");
}

#[test]
fn an_unstored_secret_is_missing_until_it_is_restored() {
    let mut environment = Environment::default();
    environment.apply("a", 1, vec![set("API_KEY", "hunter22"), set("PLAIN", "x")]).unwrap();
    environment.apply("secrets", 4, vec![set("DATABASE", "hunter33")]).unwrap();
    let stored = environment.view(Timestamp::UNIX_EPOCH, 1);
    assert!(!serde_json::to_string(&stored).unwrap().contains("hunter"));
    let mut again = Environment::from_view(&stored);
    assert_eq!(again.missing().collect::<Vec<_>>(), ["API_KEY", "DATABASE"]);
    again.restore(&BTreeMap::from([("API_KEY".to_owned(), b"hunter22".to_vec())]));
    // A secret that is still missing stays listed after the next launch.
    let mut again = Environment::from_view(&again.view(Timestamp::UNIX_EPOCH, 2));
    assert_eq!(again.missing().collect::<Vec<_>>(), ["API_KEY", "DATABASE"]);
    let both = [("API_KEY", "hunter22"), ("DATABASE", "hunter33"), ("PLAIN", "not this")];
    again.restore(&both.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).into());
    assert_eq!(again, environment);
}

fn file(name: &str, file_name: &str, content: &str) -> Change {
    let content = content.as_bytes().to_vec();
    Effect::File { name: name.to_owned(), file_name: file_name.to_owned(), content }.into()
}

fn secret(name: &str, secret: &str) -> Change {
    Effect::Secret { name: name.to_owned(), secret: secret.to_owned() }.into()
}

fn limited(change: Change, seconds: u64) -> Change {
    Change { valid_for: Some(std::time::Duration::from_secs(seconds)), ..change }
}

fn files(environment: &Environment) -> Vec<(&str, &str)> {
    environment.files().map(|(_, name, content)| (name, std::str::from_utf8(content).unwrap())).collect()
}

#[test]
fn a_files_variable_has_its_path_and_no_view_its_content() {
    let mut environment = Environment::with_files_in("/run/s/files".into());
    environment.apply("corp", 1, vec![file("NPM_TOKEN", "npmrc", "planted content")]).unwrap();
    assert_eq!(value(&environment, "NPM_TOKEN"), Some("/run/s/files/npmrc"));
    assert_eq!(files(&environment), [("npmrc", "planted content")]);
    let full = environment.full_view(Timestamp::UNIX_EPOCH, 1);
    let json = serde_json::to_string(&full).unwrap();
    assert!(!json.contains("planted content") && json.contains("/run/s/files/npmrc"), "{json}");
    assert!(!full.variables[0].secret, "a path is none, whatever the variable is called");
    assert_eq!(full.variables[0].file.as_ref().unwrap().size, 15);
    assert_eq!(without_secrets(full.clone()), full);
    let again = Environment::from_view(&full).full_view(Timestamp::UNIX_EPOCH, 1);
    assert_eq!(again, full);
}

#[test]
fn file_names_are_unique_and_unreferenced_files_are_dropped() {
    let mut environment = Environment::with_files_in("/run/s/files".into());
    environment.apply("a", 1, vec![file("A", "token", "1"), file("B", "other", "2")]).unwrap();
    let refused = environment.apply("b", 2, vec![file("C", "token", "3")]).unwrap_err().to_string();
    assert!(refused.contains("\"a\" and by \"b\""), "{refused}");
    let twice = environment.apply("b", 2, vec![file("C", "new", "3"), file("D", "new", "3")]).unwrap_err();
    assert!(matches!(twice, InvalidChange::FileTwice { .. }), "{twice}");
    for bad in ["", ".hidden", "../x", "a/b", "a b", &"x".repeat(65)] {
        let refused = environment.apply("b", 2, vec![file("C", bad, "3")]).unwrap_err();
        assert!(matches!(refused, InvalidChange::FileName { .. }), "{refused}");
    }
    environment.apply("b", 2, vec![set("A", "mine"), unset("B")]).unwrap();
    assert_eq!(files(&environment), []);
}

#[test]
fn a_named_secret_is_filled_in_at_the_end_and_seen_by_no_step() {
    let mut environment = Environment::default();
    let changes = vec![
        secret("GIVEN", "one"),
        secret("LOST", "two"),
        secret("PLAIN", "one"),
        set("OLD", "x"),
        secret("OLD", "one"),
    ];
    environment.apply("corp", 1, changes).unwrap();
    environment.apply("later", 2, vec![set("PLAIN", "mine")]).unwrap();
    assert_eq!((value(&environment, "GIVEN"), value(&environment, "PLAIN")), (None, Some("mine")));
    let mut named: Vec<_> = environment.named_secrets().collect();
    named.sort_unstable();
    assert_eq!(named, [("one", "corp"), ("one", "corp"), ("two", "corp")]);
    environment.fill(|name| (name == "one").then_some(&b"hunter22"[..]));
    assert_eq!((value(&environment, "GIVEN"), value(&environment, "LOST")), (Some("hunter22"), None));
    assert!(environment.secret_pairs().any(|(name, _)| name == "GIVEN"));
    let full = environment.full_view(Timestamp::UNIX_EPOCH, 1);
    assert!(!serde_json::to_string(&full).unwrap().contains("hunter22"), "not even where it is sealed");
    assert!(full.dropped[0].reason.as_deref().unwrap().contains("\"two\""), "{:?}", full.dropped);
    // The secret is filled in again after the environment is restored.
    let mut again = Environment::from_view(&full);
    assert_eq!(again.missing().count(), 0);
    again.fill(|_| Some(&b"hunter33"[..]));
    assert_eq!((value(&again, "GIVEN"), value(&again, "PLAIN")), (Some("hunter33"), Some("mine")));
}

#[test]
fn a_list_expires_with_its_first_expiring_part() {
    let mut environment = Environment::default();
    let at = |second| Timestamp::from_second(second).unwrap();
    let prepend =
        |text: &str| Change::from(Effect::Prepend { name: "PATH".to_owned(), entry: text.as_bytes().to_vec() });
    assert_eq!(environment.expiry(), None);
    environment.apply_at("a", 1, vec![limited(prepend("/a"), 50), limited(set("X", "1"), 70)], at(100)).unwrap();
    environment.apply_at("b", 2, vec![prepend("/b")], at(100)).unwrap();
    assert_eq!(environment.expiry(), Some((2, at(150))));
    environment.apply_at("c", 3, vec![set("PATH", "/c")], at(100)).unwrap();
    assert_eq!(environment.expiry(), Some((1, at(170))));
    let view = environment.view(at(100), 1);
    assert_eq!(view.variables[0].history[0].expires_at, Some(at(150)));
    assert_eq!(view.variables[1].expires_at, Some(at(170)));
    assert_eq!(Environment::from_view(&view), environment);
}

proptest! {
    #[test]
    fn applying_in_one_step_or_in_many_gives_the_same_variables(
        changes in proptest::collection::vec(("[A-D]", proptest::option::of("[a-z:]{0,4}"), 0..4_u8), 0..30),
        cut in 0..30_usize,
    ) {
        let changes: Vec<Change> = changes.into_iter().map(|(name, text, kind)| match (text, kind) {
            (None, _) => unset(&name),
            (Some(text), 0 | 1) => set(&name, &text),
            (Some(text), 2) => Effect::Prepend { name, entry: text.into_bytes() }.into(),
            (Some(text), _) => Effect::Append { name, entry: text.into_bytes() }.into(),
        }).collect();
        let mut whole = Environment::default();
        whole.apply("p", 1, changes.clone()).unwrap();
        let cut = cut.min(changes.len());
        let mut parts = Environment::default();
        parts.apply("p", 1, changes[..cut].to_vec()).unwrap();
        parts.apply("p", 1, changes[cut..].to_vec()).unwrap();
        prop_assert_eq!(whole, parts);
    }

    #[test]
    fn a_stored_environment_is_restored_unchanged(
        changes in proptest::collection::vec(("[A-D]|API_KEY", proptest::option::of("[a-z:]{0,4}"), 1..4_u32), 0..30),
    ) {
        let mut environment = Environment::default();
        for (name, text, step) in changes {
            let change = text.map_or_else(|| unset(&name), |text| set(&name, &text));
            environment.apply(&format!("p{step}"), step, vec![change]).unwrap();
        }
        let full = environment.full_view(Timestamp::UNIX_EPOCH, 1);
        prop_assert_eq!(&Environment::from_view(&full), &environment);
        // The shown view is the same before and after storing.
        prop_assert_eq!(without_secrets(full), environment.view(Timestamp::UNIX_EPOCH, 1));
    }
}
