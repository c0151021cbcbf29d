//! The first prompt has exactly one source.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::json;

use super::Run;
use crate::harness::ctl::{Said, end_of};

fn without() -> Run {
    Run::of(json!({ "workspace": "new" }), &[])
}

/// Runs with this text on standard input.
async fn fed(run: &Run, file: &str, input: &str) -> Said {
    let mut child = run.command(file).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    end_of(child).await
}

#[tokio::test]
async fn the_prompt_comes_from_the_specification_a_file_standard_input_or_the_environment() {
    let run = Run::of_prompt("say specification");
    assert_eq!(run.end().await.out, "specification\n");

    let mut run = without();
    fs::write(run.path("prompt"), "say file\n").unwrap();
    run.add("--prompt-file", run.path("prompt"));
    assert_eq!(run.end().await.out, "file\n");

    let mut run = without();
    run.add("--prompt-file", "-");
    assert_eq!(fed(&run, "spec.json", "say input").await.out, "input\n");

    let mut run = without();
    run.set("AGENTD_PROMPT", "say variable");
    assert_eq!(run.end().await.out, "variable\n");
    // The specification itself can be on standard input.
    let mut run = without();
    run.set("AGENTD_PROMPT", "hello");
    assert!(fed(&run, "-", "agent: demo\n").await.out.contains("You said: hello"));
}

#[tokio::test]
async fn no_prompt_and_two_prompts_are_mistakes_that_name_the_sources() {
    let no_prompt = without().end().await;
    assert_eq!(no_prompt.status, Some(2), "{no_prompt:?}");
    for name in ["initial_prompt", "--prompt-file", "AGENTD_PROMPT"] {
        assert!(no_prompt.err.contains(name), "{name} is not in {}", no_prompt.err);
    }
    let mut run = Run::of_prompt("say x");
    run.set("AGENTD_PROMPT", "say y");
    let two = run.end().await;
    assert_eq!(two.status, Some(2), "{two:?}");
    assert!(two.err.contains("two first prompts") && two.err.contains("the variable AGENTD_PROMPT"), "{two:?}");

    let mut run = without();
    run.add("--prompt-file", "-");
    let both = fed(&run, "-", "agent: demo").await;
    assert!(both.status == Some(2) && both.err.contains("standard input cannot be both"), "{both:?}");

    let mut run = without();
    run.add("--prompt-file", run.path("absent"));
    let absent = run.end().await;
    assert!(absent.status == Some(2) && absent.err.contains("cannot read the prompt"), "{absent:?}");
    fs::write(run.path("absent"), " \n").unwrap();
    let _ = fs::remove_dir_all(run.path("out"));
    let empty = run.end().await;
    assert!(empty.status == Some(2) && empty.err.contains("is empty"), "{empty:?}");
}

#[tokio::test]
async fn a_session_that_continues_another_one_gets_its_prompt_too() {
    let run = Run::of(json!({ "workspace": "new", "name": "first", "initial_prompt": "say 1" }), &[]);
    assert_eq!(run.end().await.status, Some(0));
    fs::rename(run.path("out"), run.path("first")).unwrap();
    fs::write(run.path("second.json"), json!({ "parent": "first", "initial_prompt": "remember" }).to_string()).unwrap();
    let said = end_of(run.command("second.json").spawn().unwrap()).await;
    assert!(said.status == Some(0) && said.out.contains("say 1"), "{said:?}");
}
