//! The calls of tests/it/boundary.rs, made inside a session that is a systemd unit.

use std::fs;
use std::path::{Path, PathBuf};

use crate::boundary::table::{self, Plan};
use crate::harness::lab::Lab;
use crate::harness::{require, until};

#[tokio::test]
async fn an_agent_in_a_unit_may_look_at_its_own_session_and_do_nothing_else() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    lab.write("/home/worker/trap/.agentd-env.sh", "touch /home/worker/canary\n");
    let victim = lab.session_in("/home/worker/project", &["--name", "victim"]);
    lab.worker(&["agentctl", "prompt", "--no-wait", victim.as_str(), "ask"]);
    let session = lab.session();
    lab.write("/home/worker/attack/begun", "");
    let attack = "do /home/worker/.local/bin/scripted-agent attack /home/worker/attack/table /home/worker/attack 2 \
                  </dev/null >/dev/null 2>&1 &\nask";
    lab.worker(&["agentctl", "prompt", "--no-wait", session.as_str(), attack]);
    for id in [&victim, &session] {
        lab.journal_shows(id, "it asks", |journal| journal.contains("\"kind\":\"permission.requested\"")).await;
    }
    let plan = Plan {
        own: session.as_str(),
        request: "p1",
        victim: victim.as_str(),
        victims_request: "p1",
        trap: Path::new("/home/worker/trap"),
        canary: Path::new("/home/worker/canary"),
        secret: "no-secret-is-configured-here",
    };
    let runtime = Path::new("/run/user/4711/agentd");
    let keepers: Vec<PathBuf> = [&victim, &session].map(|id| runtime.join(id.as_str()).join("keeper.sock")).into();
    let outside = lab.path("/home/worker/attack");
    plan.write(&outside.join("table"), &runtime.join("control.sock"), &keepers);
    for round in 1..=2 {
        fs::write(outside.join(format!("{round}.go")), "").expect("root may");
        until("the attack is over", || table::is_over(&outside, round)).await;
        plan.check(&outside, round, &keepers);
        // The next daemon adopts the sessions.
        lab.systemctl(&["restart", "agentd.service"]);
        lab.agentctl(&["show", session.as_str()]);
    }
    assert!(!lab.path("/home/worker/canary").exists());
    for id in [&victim, &session] {
        lab.worker(&["agentctl", "answer", id.as_str(), "p1", "allow"]);
        lab.journal_shows(id, "the owner's answer comes", |journal| journal.contains("chosen yes-and-watch")).await;
    }
}
