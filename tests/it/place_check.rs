//! The list and the check of places, and specifications that a place cannot fulfil.

use std::time::{Duration, Instant};

use agentd_api::Code;
use agentd_api::place::{PlaceCheck, PlaceList, PlaceSummary};
use serde_json::{Value, json};

use crate::harness::ctl::ctl;
use crate::harness::{Daemon, paths};

/// Returns the place `near`, whose client is agentd-keeper on this machine, and the place `gone` without a client.
pub(crate) fn places() -> String {
    let keeper = paths::keeper();
    format!(
        "\n[places.near]\nkind = \"command\"\nkeeper = {keeper:?}\nclient = [\"{{keeper}}\", \"enter\"]\n\
         [places.gone]\nkind = \"command\"\nclient = [\"/no/such/client\"]\n\
         [places.mute]\nkind = \"command\"\nclient = [\"/bin/false\"]\n"
    )
}

async fn daemon() -> Daemon {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + &places());
    daemon.run().await;
    daemon
}

fn names(check: &PlaceCheck) -> Vec<(&str, bool)> {
    check.steps.iter().map(|step| (step.name.as_str(), step.ok)).collect()
}

#[tokio::test]
async fn the_places_of_the_configuration_are_listed() {
    let daemon = daemon().await;
    let list: PlaceList = daemon.client.get("/v1/places").await.expect(200);
    let summary = |one: &PlaceSummary| (one.name.to_string(), one.target.clone().unwrap(), one.sessions);
    let shown: Vec<_> = list.places.iter().map(summary).collect();
    let expected = [("gone", "/no/such/client"), ("mute", "/bin/false"), ("near", "{keeper}")];
    assert_eq!(shown, expected.map(|(name, target)| (name.to_owned(), target.to_owned(), 0)));
    assert!(list.places.iter().all(|place| place.kind == "command"));
    let (status, out, error) = ctl(&daemon, &["place", "ls"]).await.parts();
    assert_eq!((status, out.lines().count()), (Some(0), 4), "{out}{error}");
    assert!(out.starts_with("NAME  KIND     TARGET"), "{out}");
}

#[tokio::test]
async fn a_check_reaches_the_place_and_tells_its_host() {
    let daemon = daemon().await;
    let check: PlaceCheck = daemon.client.call("POST", "/v1/places/near/check", "").await.expect(200);
    assert_eq!(names(&check), [("program", true), ("answer", true), ("keeper", true)], "{check:?}");
    let host = check.host.expect("the host answers");
    assert_eq!((host.uid, host.version.as_str()), (nix::unistd::getuid().as_raw(), env!("CARGO_PKG_VERSION")));
    let (status, out, error) = ctl(&daemon, &["place", "check", "near"]).await.parts();
    assert_eq!(status, Some(0), "{out}{error}");
    assert!(out.contains("answer   ok") && out.contains(&host.host), "{out}");
}

#[tokio::test]
async fn a_check_names_the_step_that_failed() {
    let daemon = daemon().await;
    for (place, expected, message) in [
        ("gone", &[("program", false)][..], "/no/such/client is no executable file"),
        ("mute", &[("program", true), ("answer", false)], "place \"mute\""),
    ] {
        let check: PlaceCheck = daemon.client.call("POST", &format!("/v1/places/{place}/check"), "").await.expect(200);
        assert!(!check.ok && check.host.is_none());
        assert_eq!(names(&check), expected, "{check:?}");
        let last = &check.steps.last().unwrap().message;
        assert!(last.contains(message), "{last}");
        let (status, out, error) = ctl(&daemon, &["place", "check", place]).await.parts();
        assert_eq!(status, Some(1), "{out}{error}");
        assert!(out.contains("FAILED") && out.contains(message), "{out}");
    }
    let answer = daemon.client.call("POST", "/v1/places/moon/check", "").await;
    assert_eq!(answer.problem().code, Code::NoSuchPlace);
    let (status, _, error) = ctl(&daemon, &["place", "check", "moon"]).await.parts();
    assert!(status != Some(0) && error.contains("agentctl place ls"), "{error}");
}

#[tokio::test]
async fn a_check_ends_at_the_time_limit_of_its_caller() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + "\n[places.silent]\nkind = \"command\"\nclient = [\"/bin/sleep\", \"1000\"]\n");
    daemon.run().await;
    let begun = Instant::now();
    let (status, out, error) = ctl(&daemon, &["place", "check", "silent", "--timeout", "500ms"]).await.parts();
    assert_eq!(status, Some(1), "{out}{error}");
    assert!(out.contains("answer   FAILED"), "{out}");
    // Without the option, a place has a minute.
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
    let (status, _, error) = ctl(&daemon, &["place", "check", "silent", "--timeout", "11m"]).await.parts();
    assert!(status != Some(0) && error.contains("from 0 to 600 seconds"), "{error}");
}

#[tokio::test]
async fn a_specification_that_a_place_cannot_fulfil_is_refused() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        let at = daemon_directory();
        format!("{config}{}\n[directories.{at:?}]\nplace = \"near\"\n", places())
    });
    daemon.run().await;
    let spec = |more: Value| {
        let mut spec = serde_json::to_value(daemon.scripted(&[])).unwrap();
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    };
    let refused = async |more: Value| daemon.client.post("/v1/sessions", &spec(more)).await.problem();
    let problem = refused(json!({ "place": "moon" })).await;
    assert_eq!(problem.code, Code::NoSuchPlace);
    assert!(problem.detail.contains("\"moon\"") && problem.detail.contains("gone, mute, near"), "{problem:?}");
    for (more, part) in [
        (json!({ "place": "near", "isolation": "guard" }), "the isolation \"guard\""),
        (json!({ "place": "near", "repos": [{ "url": "https://h/a" }] }), "repositories"),
        (json!({ "place": "near", "workspace": "new", "directory": "" }), "a workspace"),
        (json!({ "place": "near", "workflow": { "directory": daemon.work() } }), "a workflow"),
        // The directory chooses the place.
        (json!({ "directory": daemon_directory(), "isolation": "guard" }), "the isolation \"guard\""),
    ] {
        let problem = refused(more.clone()).await;
        assert_eq!(problem.code, Code::InvalidRequest, "{more}: {problem:?}");
        assert!(problem.detail.contains(part) && problem.detail.contains("place \"near\""), "{problem:?}");
    }
    let here = spec(json!({ "directory": daemon_directory(), "place": "here", "workspace": null }));
    assert_eq!(daemon.client.post("/v1/sessions", &here).await.status, 202);
}

/// A directory that exists on every machine.
fn daemon_directory() -> &'static str {
    "/usr"
}

#[tokio::test]
async fn a_place_is_changed_like_other_fields_and_a_wrong_one_is_refused() {
    let daemon = daemon().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.stop().await;
    let (status, _, error) = ctl(&daemon, &["set", session.id.as_str(), "place=moon"]).await.parts();
    assert!(status != Some(0) && error.contains("no place \"moon\""), "{error}");
    let (status, out, error) = ctl(&daemon, &["set", session.id.as_str(), "place=near"]).await.parts();
    assert_eq!(status, Some(0), "{out}{error}");
    assert_eq!(session.view().await.spec.place.as_deref(), Some("near"));
}
