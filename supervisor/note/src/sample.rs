//! Examples of variables. A template is rendered with each when the configuration is loaded, so that its mistakes
//! show before a note is needed.

use agentd_api::note::{
    NoteContextSet, NoteFinding, NoteMissing, NotePrerequisite, NoteRepositoryChange, NoteScript, NoteToolCall,
    NoteVariableChange, NoteVariables,
};
use agentd_api::session::ResumeNote;

use crate::derive::derive;

/// Returns variables in which every text and every list has a value.
pub fn full_sample() -> NoteVariables {
    let text = |text: &str| Some(text.to_owned());
    derive(NoteVariables {
        mode: ResumeNote::Full,
        resumed: true,
        restarted: false,
        crash: text("the agent exited with status 1"),
        away: text("3 days"),
        away_seconds: Some(3 * 86_400),
        changed: true,
        shell_state_lost: true,
        new_conversation: true,
        directory: "/work".to_owned(),
        hint: text("\"the board is in slot 3\""),
        context: vec![NoteContextSet {
            name: "files".to_owned(),
            items: vec!["/work/top.v".to_owned()],
            text: "files: /work/top.v".to_owned(),
        }],
        environment: vec![NoteVariableChange {
            name: "PATH".to_owned(),
            change: "changed".to_owned(),
            before: text("snapshot"),
            after: text("env-script"),
            text: "PATH changed by env-script".to_owned(),
        }],
        prerequisites: vec![NotePrerequisite {
            name: "vpn".to_owned(),
            outcome: "fail".to_owned(),
            text: "vpn (fail)".to_owned(),
        }],
        forced_by: text("user 1000"),
        scripts: vec![NoteScript {
            path: "/work/.agentd-env.sh".to_owned(),
            change: "changed".to_owned(),
            text: "/work/.agentd-env.sh (changed)".to_owned(),
        }],
        tool_calls: vec![NoteToolCall {
            title: "\"make test\"".to_owned(),
            kind: text("execute"),
            text: "\"make test\" (execute)".to_owned(),
        }],
        repository: vec![NoteRepositoryChange {
            what: "branch".to_owned(),
            before: text("main"),
            now: text("topic"),
            text: "the branch was main and is topic".to_owned(),
        }],
        findings: vec![NoteFinding {
            kind: "unused".to_owned(),
            text: "the session was unused for 20 days".to_owned(),
        }],
        missing: vec![NoteMissing {
            kind: "provider".to_owned(),
            name: "modules".to_owned(),
            text: "the provider modules".to_owned(),
        }],
        degraded_by: text("user 1000"),
        check_first: Vec::new(),
    })
}

/// Returns variables for which a template must render: full and empty, brief and long, after a resume and after a
/// crash.
pub fn samples() -> Vec<NoteVariables> {
    let full = full_sample();
    let empty = derive(NoteVariables { directory: "/work".to_owned(), ..NoteVariables::default() });
    let mut samples = Vec::new();
    for mode in [ResumeNote::Brief, ResumeNote::Full] {
        for (resumed, restarted) in [(true, false), (false, true), (false, false)] {
            let shell_state_lost = resumed || restarted;
            samples.push(NoteVariables { mode, resumed, restarted, shell_state_lost, ..full.clone() });
            samples.push(NoteVariables { mode, resumed, restarted, shell_state_lost, ..empty.clone() });
        }
    }
    samples
}
