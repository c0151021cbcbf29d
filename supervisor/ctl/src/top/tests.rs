//! The view without a daemon: what is drawn, and what the keys do.

use agentd_api::feed::SessionBrief;
use agentd_api::session::SessionView;
use agentd_client::{Document, Next};
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::*;

const PLAIN: Screen = Screen { terminal: true, colour: false };
const COLOURED: Screen = Screen { terminal: true, colour: true };

/// A view whose daemon does not exist.
fn top(screen: Screen) -> Top {
    let (_, updates) = mpsc::channel(1);
    Top::with(Client::new("/nowhere"), None, screen, updates, Filter::default())
}

fn brief(id: &str, phase: &str, more: &Value) -> SessionBrief {
    let mut brief = json!({ "id": id, "directory": format!("/src/{id}"), "phase": phase, "agent": "claude" });
    brief.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(brief).unwrap()
}

fn needing(id: &str) -> SessionBrief {
    let condition = json!({ "type": "NeedsAttention", "status": "True", "reason": "PermissionRequested" });
    brief(id, "busy", &json!({ "conditions": [condition] }))
}

/// One session of each group.
fn five() -> Vec<SessionBrief> {
    let waiting = json!({ "message": "board (fail): silent", "name": "later" });
    vec![
        brief("e", "failed", &json!({})),
        brief("d", "waiting", &waiting),
        brief("c", "idle", &json!({})),
        brief("b", "busy", &json!({})),
        needing("a"),
    ]
}

/// Gives the selected session this last record, and these records.
fn talk(top: &mut Top, records: &[(&str, Value)]) {
    top.settle();
    let time = "2026-01-01T00:00:00Z";
    let id = top.followed.as_ref().unwrap().id.to_string();
    let value: SessionView = serde_json::from_value(json!({
        "id": id, "generation": 1, "created": time, "spec": { "directory": "/" },
        "status": { "phase": "busy", "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": 0,
            "updated": time, "title": "Fix the \u{1b}[31mbuild" },
    }))
    .unwrap();
    top.news(News::Opened(Ok(Box::new(Document { value, raw: bytes::Bytes::new() }))));
    for (seq, (kind, data)) in (1..).zip(records) {
        let line = json!({ "seq": seq, "time": time, "kind": kind, "data": data }).to_string().into_bytes();
        top.news(News::Next(Some(Next::Record { seq, line })));
    }
}

fn said(text: &str) -> (&'static str, Value) {
    let update = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
    ("agent.out", json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } }))
}

fn asked(command: &str) -> (&'static str, Value) {
    let option = |id: &str, kind: &str| json!({ "id": id, "name": id, "kind": kind });
    let request = json!({
        "id": "p1", "title": "tidy up", "tool_kind": "execute", "details": { "command": command },
        "options": [option("yes", "allow_once"), option("no", "reject_once")],
    });
    ("permission.requested", json!({ "rpc": 1, "request": request }))
}

/// Returns a time before now.
fn ago(seconds: u64) -> Instant {
    Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap()
}

/// Draws at this size, and returns the rows.
fn drawn(top: &mut Top, columns: u16, rows: u16) -> Vec<String> {
    top.settle();
    let mut terminal = ratatui::Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw::draw(frame, top)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..rows).map(row).collect()
}

fn press(top: &mut Top, keys: &str) -> Option<Outcome> {
    keys.chars().find_map(|c| {
        let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
        match top.key(KeyEvent::new(code, KeyModifiers::NONE)) {
            Reaction::Leave(outcome) => Some(outcome),
            _ => None,
        }
    })
}

#[tokio::test]
async fn the_groups_have_titles_counts_and_marks_without_any_colour() {
    let mut top = top(PLAIN);
    top.update(Update::All(five()));
    let rows = drawn(&mut top, 80, 24);
    assert!(rows[0].starts_with(" agentd · 5 sessions · 1 needs you"), "{rows:#?}");
    assert!(rows[0].ends_with("connected"), "{rows:#?}");
    assert_eq!(rows[1], "needs you (1)");
    assert!(rows[2].starts_with(">!a") && rows[2].contains("busy: permission requested"), "{rows:#?}");
    assert_eq!(rows[3], "working (1)");
    assert!(rows[4].starts_with("  b") && rows[4].contains("claude") && rows[4].ends_with("/src/b"), "{rows:#?}");
    assert_eq!((rows[5].as_str(), rows[7].as_str()), ("idle (1)", "waiting for its world (1)"));
    assert!(rows[23].contains("? help") && rows[23].contains("q quit"), "{rows:#?}");
    let rows = drawn(&mut top, 200, 60);
    assert_eq!(rows[9], "ended (1)");
    assert!(rows[8].contains("later") && rows[8].contains("board (fail): silent"), "{rows:#?}");
}

#[tokio::test]
async fn sessions_on_a_place_have_its_name_in_a_column_and_above_the_conversation() {
    let mut top = top(PLAIN);
    top.update(Update::All(five()));
    talk(&mut top, &[]);
    assert!(!drawn(&mut top, 80, 24).iter().any(|row| row.contains("farm")));
    top.update(Update::Changed(Box::new(brief("a", "busy", &json!({ "place": "farm" })))));
    for (columns, rows) in [(80, 24), (200, 60)] {
        let shown = drawn(&mut top, columns, rows);
        let row = |id: &str| shown.iter().find(|row| row.contains(&format!("/src/{id}"))).unwrap();
        let cells = |id: &str| row(id).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(cells("a"), [">", "a", "busy", "claude", "farm", "/src/a"], "{shown:#?}");
        assert_eq!(row("a").find("/src"), row("b").find("/src"), "{shown:#?}");
        assert!(shown.iter().any(|row| row.starts_with(" a · busy · on farm · Fix the")), "{shown:#?}");
    }
}

#[tokio::test]
async fn a_selected_session_is_always_on_the_screen() {
    let mut top = top(PLAIN);
    top.update(Update::All((0..100).map(|n| brief(&format!("s{n:02}"), "idle", &json!({}))).collect()));
    for step in [1, 1, 50, -30, 100, -1, -200] {
        top.sessions.step(step);
        let rows = drawn(&mut top, 80, 24);
        assert!(rows.iter().any(|row| row.starts_with('>')), "{step}: {rows:#?}");
    }
    assert_eq!(drawn(&mut top, 80, 24)[1], "idle (100)");
}

#[tokio::test]
async fn no_size_fails() {
    for screen in [PLAIN, COLOURED] {
        let mut top = top(screen);
        top.update(Update::All(five()));
        talk(&mut top, &[said("日本語 and more\n"), asked("rm -rf build")]);
        for columns in (0..12).chain([40, 80, 300]) {
            for rows in (0..12).chain([24, 60]) {
                drawn(&mut top, columns, rows);
            }
        }
        press(&mut top, "?");
        drawn(&mut top, 3, 3);
    }
}

#[tokio::test]
async fn a_conversation_and_a_question_with_its_command_are_below_the_list() {
    let mut top = top(PLAIN);
    top.update(Update::All(five()));
    talk(&mut top, &[said("I tidy up.\n"), asked("rm -rf build")]);
    let rows = drawn(&mut top, 80, 24);
    let text = rows.join("\n");
    assert!(text.contains(" a · busy: permission requested · Fix the ␛[31mbuild"), "{text}");
    for part in ["I tidy up.", "? the agent asks to: tidy up (execute)", "    $ rm -rf build", "  1) yes", "  2) no"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains(crate::asking::PAUSE), "{text}");
}

#[tokio::test]
async fn a_key_answers_a_question_only_after_a_pause_and_once_all_of_it_was_seen() {
    let mut top = top(PLAIN);
    top.update(Update::All(five()));
    let command: Vec<String> = (1..=40).map(|n| format!("step {n}")).collect();
    talk(&mut top, &[asked(&command.join("\n"))]);
    assert!(drawn(&mut top, 80, 24).join("\n").contains("PgDn shows the rest of the question"));
    top.asked.as_mut().unwrap().quiet = Quiet::since(ago(1));
    press(&mut top, "y");
    assert!(top.calls.is_empty() && top.message.as_ref().unwrap().text.contains("PgDn"));
    for _ in 0..12 {
        press(&mut top, " ");
        top.asked.as_mut().unwrap().quiet = Quiet::since(ago(1));
        drawn(&mut top, 80, 24);
    }
    let rows = drawn(&mut top, 80, 24).join("\n");
    assert!(rows.contains("step 40") && rows.contains("press 1 to 2, or y allows and n denies"), "{rows}");
    press(&mut top, "y");
    assert_eq!(top.calls.len(), 1);
    assert!(top.question().is_none(), "a question is answered once");
    top.settle();
    let refused = top.calls.join_next().await.unwrap().unwrap();
    assert!(refused.result.is_err());
    top.done(refused);
    top.settle();
    assert!(top.question().is_some() && top.message.as_ref().unwrap().is_error);
    press(&mut top, "y");
    assert!(top.calls.is_empty(), "the question is on the screen for too short a time");
}

#[tokio::test]
async fn stop_asks_first_and_ended_sessions_are_not_attached_to() {
    let mut top = top(PLAIN);
    top.update(Update::All(five()));
    press(&mut top, "sn");
    assert!(top.calls.is_empty());
    press(&mut top, "s");
    assert!(drawn(&mut top, 80, 24)[23].starts_with("stop a? "));
    press(&mut top, "y");
    assert_eq!(top.calls.len(), 1);
    assert!(matches!(press(&mut top, "a"), Some(Outcome::Attach(id)) if id.as_str() == "a"));
    assert!(press(&mut top, "jjjja").is_none());
    assert!(drawn(&mut top, 80, 24)[23].contains("e is failed: r resumes it"));
    assert!(matches!(press(&mut top, "q"), Some(Outcome::Quit(0))));
}

#[tokio::test]
async fn a_filter_takes_effect_as_it_is_typed() {
    let mut top = top(PLAIN);
    top.update(Update::All(five()));
    press(&mut top, "/idle q");
    let rows = drawn(&mut top, 80, 24);
    assert!(rows[23].starts_with("filter: idle q"), "{rows:#?}");
    assert_eq!(rows[1], "no session matches the filter");
    top.key(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE));
    press(&mut top, "\n");
    let rows = drawn(&mut top, 80, 24);
    assert!(rows[0].contains("filter: idle") && rows[1] == "idle (1)", "{rows:#?}");
    top.key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
    assert_eq!(drawn(&mut top, 80, 24)[1], "needs you (1)");
}

#[tokio::test]
async fn the_connection_is_shown_in_the_header_and_beside_the_conversation() {
    let mut top = top(PLAIN);
    assert!(drawn(&mut top, 80, 24)[0].ends_with("connecting"));
    top.update(Update::All(five()));
    talk(&mut top, &[]);
    let title = |rows: &[String]| rows.iter().find(|row| row.starts_with(" a ·")).unwrap().clone();
    assert!(title(&drawn(&mut top, 80, 24)).ends_with("live"));
    top.link = Link::Live { sign: ago(25) };
    assert!(drawn(&mut top, 80, 24)[0].ends_with("no sign of agentd for 25 s"));
    top.update(Update::Away { reason: "connection refused".to_owned() });
    top.link = Link::Away { since: ago(3), reason: "connection refused".to_owned() };
    top.update(Update::Away { reason: "still refused".to_owned() });
    let rows = drawn(&mut top, 80, 24);
    assert!(rows[0].ends_with("agentd is away, 3 s") && title(&rows).ends_with("agentd is away"), "{rows:#?}");
    assert_eq!(rows[23], "still refused");
    top.update(Update::Away { reason: "words ".repeat(60) });
    let rows = drawn(&mut top, 80, 24);
    assert!(rows[21..].iter().all(|row| row.starts_with("words")) && !rows[20].contains("words"), "{rows:#?}");
    top.update(Update::Alive { trouble: Some("the disk is full".to_owned()) });
    assert_eq!(drawn(&mut top, 80, 24)[23], "the disk is full");
    top.update(Update::Alive { trouble: None });
    assert!(drawn(&mut top, 80, 24)[0].ends_with("connected"));
}

#[tokio::test]
async fn hostile_text_does_nothing_and_stays_in_its_place() {
    let evil = "\u{1b}[2J\u{1b}]0;gotcha\u{7}\u{202e}fdp\u{9b}31m\r\n";
    let mut top = top(COLOURED);
    let hostile = json!({ "message": evil, "labels": { "a": "b" }, "directory": format!("/{evil}") });
    top.update(Update::All(vec![brief("a", "busy", &hostile)]));
    let long = format!("{}\n", "x".repeat(10 << 20));
    talk(&mut top, &[said(evil), said(&long), asked(&format!("rm {evil}"))]);
    for (columns, rows) in [(80, 24), (200, 60)] {
        let text = drawn(&mut top, columns, rows).join("\n");
        let is_active = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202a}'..='\u{202e}');
        assert!(!text.contains(is_active), "{text:?}");
        assert!(text.contains("␛") && text.contains("more bytes"), "{text}");
    }
}

#[tokio::test]
async fn the_colours_are_those_of_a_terminal_that_has_them() {
    for (screen, expected) in [(PLAIN, false), (COLOURED, true)] {
        let mut top = top(screen);
        top.update(Update::All(five()));
        top.sessions.step(1);
        talk(&mut top, &[asked("ls")]);
        let mut terminal = ratatui::Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw::draw(frame, &mut top)).unwrap();
        let cells = terminal.backend().buffer().content();
        let reset = ratatui::style::Color::Reset;
        assert_eq!(cells.iter().any(|cell| cell.fg != reset || cell.bg != reset), expected);
    }
}

#[tokio::test]
async fn a_flood_of_records_takes_bounded_memory() {
    let mut top = top(PLAIN);
    top.update(Update::All(five()));
    talk(&mut top, &[]);
    let update = json!({ "sessionUpdate": "agent_message_chunk",
        "content": { "type": "text", "text": "y".repeat(400) + "\n" } });
    let data = json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } });
    for seq in 1..=30_000 {
        let line = json!({ "seq": seq, "time": "2026-01-01T00:00:00Z", "kind": "agent.out", "data": data });
        top.news(News::Next(Some(Next::Record { seq, line: line.to_string().into_bytes() })));
    }
    let transcript = top.followed.as_mut().unwrap().transcript();
    assert!(transcript.trimmed_to() > Some(25_000), "{:?}", transcript.trimmed_to());
}
