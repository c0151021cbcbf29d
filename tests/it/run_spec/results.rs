//! The results are delivered whatever the end of the session. Files that do not fit are named.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use agentd_api::Body;
use serde_json::{Value, json};

use super::Run;
use crate::harness::ctl::end_of;
use crate::harness::quote::quoted;
use crate::harness::{paths, require};

#[tokio::test]
async fn the_results_of_a_failed_session_are_delivered_like_those_of_a_completed_one() {
    for (last, status) in [("say done", 0), ("exit 3", 1), ("die", 1)] {
        let run = Run::of_prompt(&format!("do mkdir artifacts/sub && printf abc > artifacts/sub/a\n{last}"));
        let said = run.end().await;
        assert_eq!(said.status, Some(status), "{said:?}");
        assert_eq!(fs::read_to_string(run.path("out/artifacts/sub/a")).unwrap(), "abc");
        let (result, journal) = (run.result(), run.delivered());
        assert_eq!(result["completion"]["artifacts"][0]["path"], json!("sub/a"), "{result}");
        assert!(matches!(journal.last().unwrap().body, Body::SessionCompleted(_)), "{:?}", journal.last());
        assert!(fs::read_to_string(run.path("out/agentd.log")).unwrap().contains("agentd is ready"));
    }
}

#[tokio::test]
async fn a_temporary_state_is_removed_with_the_delivery_and_kept_without_it() {
    let mut run = Run::of_prompt("do printf abc > artifacts/a\nsay done");
    run.leave_out("--state");
    fs::create_dir(run.path("tmp")).unwrap();
    run.set("TMPDIR", run.path("tmp").to_str().unwrap());
    assert_eq!(run.end().await.status, Some(0));
    assert_eq!(fs::read_dir(run.path("tmp")).unwrap().count(), 0, "the temporary state is removed");
    assert_eq!(fs::read_to_string(run.path("out/artifacts/a")).unwrap(), "abc");

    run.leave_out("--artifacts");
    let said = run.end().await;
    let kept = fs::read_dir(run.path("tmp")).unwrap().next().expect("the state is kept").unwrap().path();
    assert!(said.err.contains(&format!("the session's files stay in {}", kept.display())), "{said:?}");
    let workspace = fs::read_dir(kept.join("state/workspaces")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(workspace.join("artifacts/a")).unwrap(), "abc");
}

#[tokio::test]
async fn the_results_of_another_run_stay_and_a_directory_that_cannot_be_written_stops_the_run_at_once() {
    let run = Run::of_prompt("say 1");
    assert_eq!(run.end().await.status, Some(0));
    let before = fs::read(run.path("out/result.json")).unwrap();
    let said = run.end().await;
    assert!(said.status == Some(8) && said.err.contains("already has a result.json"), "{said:?}");
    assert_eq!(fs::read(run.path("out/result.json")).unwrap(), before);

    let mut run = Run::of_prompt("say 1");
    run.leave_out("--artifacts");
    run.add("--artifacts", "/proc/nowhere");
    let said = run.end().await;
    assert!(said.status == Some(8) && said.err.contains("cannot write to the directory"), "{said:?}");
    assert!(!run.path("state").exists(), "nothing was started");
}

/// Runs in a mount namespace in which the directory of the results has this size. Returns the status with the texts,
/// the result and the list of delivered files.
async fn on_a_small_disk(run: &Run, size: &str) -> (crate::harness::ctl::Said, Option<Value>, Vec<String>) {
    let out = quoted(run.path("out"));
    let words: Vec<String> = run.arguments.iter().map(quoted).collect();
    let script = format!(
        "mkdir -p {out} && mount -t tmpfs -o size={size} none {out} && {{ {} run-spec {} spec.json; status=$?; \
         cp -R {out} {}; exit $status; }}",
        quoted(paths::agentd()),
        words.join(" "),
        quoted(run.path("copy")),
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "/bin/sh", "-c", &script]).env_clear().envs(run.environment.iter().cloned());
    command.current_dir(run.path("")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = end_of(command.spawn().unwrap()).await;
    let result = fs::read_to_string(run.path("copy/result.json")).ok();
    let artifacts = fs::read_dir(run.path("copy/artifacts")).into_iter().flatten().flatten();
    let mut names: Vec<String> = artifacts.map(|one| one.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    (said, result.map(|text| serde_json::from_str(&text).unwrap()), names)
}

#[tokio::test]
async fn a_full_disk_leaves_out_what_does_not_fit_and_the_result_names_it() {
    let Some(()) = require::root("a small file system") else { return };
    let large = "do head -c 100000 /dev/zero > artifacts/large && printf abc > artifacts/small\nsay done";
    let run = Run::of_prompt(large);
    let (said, result, names) = on_a_small_disk(&run, "96k").await;
    assert_eq!((said.status, &names[..]), (Some(8), &["small".to_owned()][..]), "{said:?}");
    let result = result.expect("the result has its place");
    assert_eq!(result["completion"]["outcome"], json!("completed"), "{result}");
    let undelivered = result["undelivered"].to_string();
    assert!(undelivered.contains("artifacts/large") && undelivered.contains("No space left"), "{undelivered}");
    assert!(said.err.contains("not delivered: ") && said.err.contains("the file stays in"), "{said:?}");
    // The text names a place in which the file is.
    let workspace = fs::read_dir(run.path("state/state/workspaces")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::metadata(workspace.join("artifacts/large")).unwrap().len(), 100_000);

    // The status of a failed session is that of its failure.
    let run = Run::of_prompt(&large.replace("say done", "exit 3"));
    let (said, ..) = on_a_small_disk(&run, "96k").await;
    assert!(said.status == Some(1) && said.err.contains("not delivered: "), "{said:?}");

    // Not even the result fits.
    let run = Run::of_prompt("bigline 5000");
    let (said, result, _) = on_a_small_disk(&run, "4k").await;
    assert!(said.status == Some(8) && result.is_none(), "{said:?} {result:?}");
    assert!(said.err.contains("not delivered: result.json"), "{said:?}");
    assert_eq!(said.out.len(), 5001, "the answer is printed in any case");
}

#[tokio::test]
async fn a_reader_of_the_output_that_is_gone_changes_nothing() {
    for closing in [">&- 2>&-", ">/dev/full 2>/dev/full", "| true", "2>&1 | true", "<&- >&- 2>&-"] {
        let run = Run::of_prompt("say done");
        let words: Vec<String> = run.arguments.iter().map(quoted).collect();
        let line = format!("{} run-spec {} spec.json {closing}", quoted(paths::agentd()), words.join(" "));
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &line]).env_clear().envs(run.environment.iter().cloned()).current_dir(run.path(""));
        let status =
            end_of(shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()).await;
        assert_eq!((status.status, run.result()["exit_status"].clone()), (Some(0), json!(0)), "{closing}");
    }
}

#[tokio::test]
async fn events_are_one_json_object_a_line_and_the_result_is_the_last() {
    let mut run = Run::of_prompt("say done");
    run.arguments.push("--json".to_owned());
    let said = run.end().await;
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "{said:?}");
    let lines: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (result, events) = lines.split_last().unwrap();
    assert_eq!((&result["result"]["outcome"], events.len()), (&json!("completed"), run.delivered().len()));
    assert!(events.iter().zip(1..).all(|(event, seq)| event["seq"] == json!(seq)));
}

#[tokio::test]
async fn a_variable_passes_only_by_name_and_a_secret_only_from_its_file() {
    let spec = json!({
        "workspace": "new", "initial_prompt": "env",
        "environment": { "allow": ["ACME_REGION"], "env": { "GIVEN": "yes" } },
    });
    let mut run = Run::of(spec, &[]);
    for (name, value) in [("ACME_REGION", "eu"), ("ACME_OTHER", "dropped"), ("GH_TOKEN", "from-the-container")] {
        run.set(name, value);
    }
    let key = "sk-value-of-the-secret-file";
    fs::write(run.path("key"), format!("{key}\n")).unwrap();
    fs::set_permissions(run.path("key"), fs::Permissions::from_mode(0o400)).unwrap();
    let config = format!("[secrets.MODEL_KEY]\nfile = {:?}\n", run.path("key"));
    fs::write(run.path("agentd.toml"), config).unwrap();
    let said = run.end().await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let has = |text: &str| said.out.contains(text);
    assert!(has(r#""ACME_REGION":"eu""#) && has(r#""GIVEN":"yes""#) && has(r#""MODEL_KEY":"#), "{}", said.out);
    assert!(!has("ACME_OTHER") && !has("GH_TOKEN") && !has("from-the-container") && !has(key), "{}", said.out);
    for file in ["out/result.json", "out/journal.jsonl", "out/agentd.log"] {
        let text = fs::read_to_string(run.path(file)).unwrap();
        assert!(!text.contains(key) && !text.contains("from-the-container"), "{file} has a secret");
    }
}
