//! Implements `agentctl show`.

use agentd_api::context::ContextItem;
use agentd_api::event::PlaceHost;
use agentd_api::facts::Repository;
use agentd_api::isolation::Isolation;
use agentd_api::place::PlaceView;
use agentd_api::session::{AgentInfo, Phase, SessionView};
use jiff::Timestamp;

use super::{Context, label, print};
use crate::completion;
use crate::error::Error;
use crate::failure::Failure;
use crate::session::agent;
use agentd_screen::table::{Cut, Table, age};
use agentd_screen::terminal::Screen;

pub(super) async fn show(context: &Context, session: &str) -> Result<u8, Error> {
    let document = context.client.find(session).await?;
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    print(&describe(&document.value, Screen::stdout(), Timestamp::now()))?;
    let conditions = &document.value.status.conditions;
    if conditions.is_empty() {
        return Ok(0);
    }
    let mut table = Table::new(&[
        ("CONDITION", Cut::Never),
        ("STATUS", Cut::Never),
        ("REASON", Cut::Never),
        ("AGE", Cut::Never),
        ("MESSAGE", Cut::End),
    ]);
    let (screen, now) = (Screen::stdout(), Timestamp::now());
    for condition in conditions {
        table.row([
            format!("{:?}", condition.kind),
            format!("{:?}", condition.status),
            screen.line(&condition.reason),
            age(condition.last_transition_time, now),
            screen.line(&condition.message),
        ]);
    }
    print("\n")?;
    Context::table(&table)?;
    Ok(0)
}

fn missing_mark(item: &ContextItem) -> &'static str {
    if item.missing { " (missing)" } else { "" }
}

/// Returns how an agent introduced itself.
fn introduced(agent: &AgentInfo) -> String {
    let title = agent.title.as_ref().unwrap_or(&agent.name);
    format!("{title} {}", agent.version.as_deref().unwrap_or_default())
}

fn describe(view: &SessionView, screen: Screen, now: Timestamp) -> String {
    let status = &view.status;
    let mut fields: Vec<(&str, String)> = vec![("id", view.id.to_string())];
    let mut field = |name: &'static str, value: Option<String>| {
        fields.extend(value.map(|value| (name, screen.line(&value))));
    };
    field("name", view.spec.name.as_ref().map(ToString::to_string));
    let labels: Vec<String> = view.spec.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    field("labels", (!labels.is_empty()).then(|| labels.join(", ")));
    field("title", status.title.clone());
    field("phase", Some(status.phase.as_str().to_owned()));
    field("limited until", status.limited_until.map(|at| format!("{at} (in {})", age(now, at))));
    field("next restart", status.next_restart_at.map(|at| format!("{at} (in {})", age(now, at))));
    field("message", status.message.clone());
    let failure = Failure::of(view);
    let may_help = status.phase == Phase::Failed && failure.is_degradable();
    field("remedy", may_help.then(|| failure.remedy(&label(view), false)));
    if !status.interactive {
        field("interactive", Some("no: the session completes when its prompts are done".to_owned()));
    }
    for (name, value) in status.completion.iter().flat_map(|done| completion::described(done)) {
        field(name, Some(value));
    }
    field("cost", status.cost.as_ref().map(ToString::to_string));
    field("directory", Some(view.spec.directory.display().to_string()));
    for directory in &view.spec.directories {
        field("also in", Some(directory.display().to_string()));
    }
    field("agent", Some(agent(view)));
    field("introduced as", status.agent.as_ref().map(introduced));
    field("mode", status.mode.clone());
    field("model", status.model.clone());
    for launched in &status.mcp {
        let missing = launched.missing.as_ref().map(|why| format!("; left out: {why}")).unwrap_or_default();
        field("mcp server", Some(format!("{}: {}{missing}", launched.name, launched.server.describe())));
    }
    for method in &status.login_methods {
        field("login", Some(format!("{} ({}): {}", method.id, method.kind.as_str(), method.name)));
    }
    field("conversation", status.conversation.clone());
    field("permissions", Some(format!("{:?}", view.spec.permissions).to_lowercase()));
    field("created by", view.parent.as_ref().map(|parent| format!("the session {parent}")));
    field("continues", view.spec.parent.as_ref().map(|parent| format!("the session {parent}")));
    for (name, value) in [("isolation", isolation(view))].into_iter().chain(status.place.iter().flat_map(of_place)) {
        field(name, Some(value));
    }
    field("created", Some(format!("{} ({} ago)", view.created, age(view.created, now))));
    field("updated", Some(format!("{} ({} ago)", status.updated, age(status.updated, now))));
    field("last observed", status.last_observed_at.map(|at| format!("{at} ({} ago)", age(at, now))));
    field("idle since", status.idle_since.map(|at| format!("{at} ({})", age(at, now))));
    field("hint", status.hint.clone());
    let proposal = status.script_proposal.as_ref().map(|proposed| {
        let why = proposed.explanation.as_ref().map(|text| format!("{text}; ")).unwrap_or_default();
        format!("{why}see it with: agentctl env allow --session {}", label(view))
    });
    field("proposal", proposal);
    for (set, items) in status.context.iter().flat_map(|context| &context.sets) {
        let items: Vec<String> = items.iter().map(|item| item.value.clone() + missing_mark(item)).collect();
        field("context", Some(format!("{set}: {}", items.join(", "))));
    }
    field("applet url", status.context.as_ref().and_then(|context| context.applet_url.clone()));
    let percent = |percent: Option<u8>| percent.map(|percent| format!(" ({percent} %)")).unwrap_or_default();
    field("progress", status.progress.as_ref().map(|done| format!("{}{}", done.message, percent(done.percent))));
    field("agent pid", status.agent_pid.map(|pid| pid.to_string()));
    field("keeper pid", status.keeper_pid.map(|pid| pid.to_string()));
    field("launches", Some(status.launches.to_string()));
    for part in &status.degraded {
        field("without", Some(part.to_string()));
    }
    field("events", Some(status.last_seq.to_string()));
    for (name, value) in status.facts.iter().flat_map(|facts| of_repository(&facts.repository)) {
        field(name, Some(value));
    }
    for repository in &status.repos {
        field("repo", Some(crate::repository::line(repository)));
    }
    field("workflow", crate::workflow::line(view));
    for finding in &status.staleness {
        let (kind, policy) = (finding.kind.as_str(), finding.policy.as_str());
        field("stale", Some(format!("{kind} ({policy}): {}", finding.message)));
    }
    field("turn", status.turn.as_ref().map(|turn| format!("{}: {}", turn.id, turn.prompt)));
    for waiting in &status.queue {
        field("waiting", Some(format!("{}: {}", waiting.id, waiting.prompt)));
    }
    for request in &status.permissions {
        let options: Vec<_> = request.options.iter().map(|option| format!("{} ({})", option.id, option.name)).collect();
        field("question", Some(format!("{}: {} [{}]", request.id, request.title, options.join(", "))));
    }
    let mut lines: Vec<String> = Vec::new();
    lines.extend(fields.iter().map(|(name, value)| format!("{:<15}{value}\n", format!("{name}:"))));
    for request in &status.permissions {
        let details = crate::details::lines(request, screen);
        lines.extend(details.first().map(|_| format!("\n{} is for:\n", request.id)));
        lines.extend(details.iter().map(|line| format!("    {line}\n")));
    }
    if let Some(request) = status.permissions.first() {
        let answers = crate::render::answers(request);
        lines.push(format!("\nanswer with: agentctl answer {} {} {answers}\n", label(view), request.id));
    }
    lines.concat()
}

/// Returns the facts about the repository of the session's directory, each with its name.
fn of_repository(repository: &Repository) -> Vec<(&'static str, String)> {
    match repository {
        Repository::None => vec![("repository", "none".to_owned())],
        Repository::Unread(unread) => vec![("repository", format!("not read: {}", unread.message))],
        Repository::Unknown => Vec::new(),
        Repository::Found(facts) => {
            let changes = match facts.dirty {
                Some(true) => " (with changes)",
                Some(false) => "",
                None => " (changes unknown)",
            };
            let branch = facts.branch.as_deref().unwrap_or("none");
            let head = facts.head.as_deref().map_or("no commit", |head| head.get(..12).unwrap_or(head));
            let mut lines = vec![
                ("repository", facts.root.display().to_string()),
                ("branch", format!("{branch} at {head}{changes}")),
            ];
            let remotes = facts.remotes.iter().map(|(name, urls)| ("remote", format!("{name} {}", urls.join(" "))));
            lines.extend(remotes);
            lines
        }
    }
}

/// Returns the place of the last agent, and the machine there.
fn of_place(place: &PlaceView) -> Vec<(&'static str, String)> {
    let job = place.job.as_ref().map(|job| format!(", job {job}")).unwrap_or_default();
    let words: Vec<&str> = place.reason.iter().chain(&place.message).map(String::as_str).collect();
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
    let mut lines = vec![("place", format!("{} ({}{job}){words}", place.name, place.state.as_str()))];
    if let Some(host) = &place.host {
        let PlaceHost { host, user, uid, architecture, system, .. } = host;
        lines.push(("place host", format!("{host} as user {user} ({uid}), {system} on {architecture}")));
    }
    let home = place.host.as_ref().and_then(|host| host.home.as_ref());
    lines.extend(home.map(|home| ("place home", home.display().to_string())));
    lines
}

/// Returns the agent's isolation and its missing parts. Before an agent runs, returns the requested level.
fn isolation(view: &SessionView) -> String {
    let Some(held) = &view.status.isolation else {
        return view.spec.isolation.map_or("as the agent is configured", Isolation::as_str).to_owned();
    };
    let without = held.missing.iter().map(|missing| format!("; without {}: {}", missing.part.as_str(), missing.reason));
    without.fold(held.level.as_str().to_owned(), |text, without| text + &without)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_degraded_session_names_what_it_goes_without_and_a_failed_one_the_degraded_launch() {
        let time = "2026-01-01T00:00:00Z";
        let session = |phase: &str, reason: &str, message: &str, degraded: serde_json::Value| -> SessionView {
            serde_json::from_value(serde_json::json!({
                "id": "abc", "generation": 1, "created": time, "spec": { "directory": "/d", "name": "fix" },
                "status": {
                    "phase": phase, "observed_generation": 1, "launches": 1, "last_seq": 9, "updated": time,
                    "message": message, "degraded": degraded,
                    "conditions": [{
                        "type": "EnvironmentReady", "status": "False", "reason": reason, "message": message,
                        "last_transition_time": time, "observed_generation": 1,
                    }],
                },
            }))
            .unwrap()
        };
        let (screen, now) = (Screen { terminal: true, colour: false }, time.parse().unwrap());
        let parts = serde_json::json!([
            { "kind": "script", "name": "/s.sh", "message": "it failed" },
            { "kind": "prerequisite", "name": "vpn", "message": "no route" },
        ]);
        let degraded = session("idle", "BuiltWithout", "m", parts);
        let text = describe(&degraded, screen, now);
        assert!(text.contains("without:       script /s.sh: it failed\n"), "{text}");
        assert!(text.contains("without:       prerequisite vpn: no route\n") && !text.contains("remedy:"), "{text}");

        let remedy = |reason: &str, message: &str| {
            describe(&session("failed", reason, message, serde_json::json!([])), screen, now)
        };
        let text = remedy("ScriptFailed", "it failed");
        assert!(text.contains("remedy:") && text.contains("agentctl resume fix --degraded\n"), "{text}");
        assert!(!remedy("DirectoryGone", "no directory").contains("--degraded"));
        let refused = format!("whitelist failed; {}", agentd_api::degraded::NOT_LEFT_OUT);
        assert!(!remedy("ProviderFailed", &refused).contains("--degraded"));
    }

    #[test]
    fn a_session_on_a_place_shows_the_machine_there() {
        let time = "2026-01-01T00:00:00Z";
        let view: SessionView = serde_json::from_value(serde_json::json!({
            "id": "abc", "generation": 1, "created": time, "spec": { "directory": "/d" },
            "status": {
                "phase": "idle", "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": 9,
                "updated": time,
                "place": { "name": "farm", "state": "ending", "reason": "TimeLimit", "job": "12", "host": {
                    "host": "node7", "user": "kim", "uid": 1000, "home": "/home/kim", "architecture": "x86_64",
                    "system": "Linux", "version": "0.1.0",
                }},
            },
        }))
        .unwrap();
        let text = describe(&view, Screen { terminal: true, colour: false }, time.parse().unwrap());
        for line in [
            "place:         farm (ending, job 12): TimeLimit\n",
            "place host:    node7 as user kim (1000), Linux on x86_64\n",
            "place home:    /home/kim\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in:\n{text}");
        }
    }

    #[test]
    fn show_tells_how_to_answer_a_question_that_waits() {
        let time = "2026-01-01T00:00:00Z";
        let view: SessionView = serde_json::from_value(serde_json::json!({
            "id": "abc", "generation": 1, "created": time, "spec": { "directory": "/d", "name": "fix" },
            "status": {
                "phase": "busy", "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": 9,
                "updated": time,
                "turn": { "id": "t1", "prompt": "two\nlines" },
                "permissions": [{
                    "id": "p1", "title": "rm", "details": { "command": "rm -rf \
                         x" }, "options": [{ "id": "x", "name": "Yes", "kind": "allow_once" }],
                }],
            },
        }))
        .unwrap();
        let text = describe(&view, Screen { terminal: true, colour: false }, time.parse().unwrap());
        for line in [
            "turn:          t1: two lines\n",
            "question:      p1: rm [x (Yes)]\n",
            "p1 is for:\n    $ rm -rf x\n",
            "agentctl answer fix p1 ",
        ] {
            assert!(text.contains(line), "{line:?} is not in:\n{text}");
        }
    }
}
