//! `agentctl top` in tmux: the groups, the conversation, the keys, and a daemon that is killed under it.

use agentd_api::Body;
use agentd_api::event::AnsweredBy;
use agentd_api::session::{Phase, SessionSpec};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::harness::ctl::{agentctl, ctl};
use crate::harness::tmux::Tmux;
use crate::harness::{Daemon, Session, require, until};

/// The smallest supported size, and a large one.
const SIZES: [(u16, u16); 2] = [(80, 24), (200, 60)];

async fn named(daemon: &Daemon, name: &str) -> Session {
    daemon.session(&SessionSpec { name: Some(name.parse().unwrap()), ..daemon.scripted(&[]) }).await
}

/// Runs `agentctl top` with these arguments, and waits until it is connected.
async fn top(daemon: &Daemon, arguments: &[&str], (columns, rows): (u16, u16)) -> Tmux {
    let screen = Tmux::run(&agentctl(daemon, &[&["top"], arguments].concat()), columns, rows);
    screen.shows("connected").await;
    screen
}

/// Asks for a permission with this command.
async fn ask(session: &Session, command: &str) {
    let input = json!({ "command": command });
    let call = json!({ "toolCallId": "1", "title": "Tidy up", "kind": "execute", "rawInput": input });
    session.prompt(&format!("ask-for {}", json!({ "call": call }))).await;
    session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
}

/// Returns the row of the list with this session.
fn row<'a>(screen: &'a str, name: &str) -> &'a str {
    let is_it = |row: &&str| row.get(2..).is_some_and(|row| row.split(' ').next() == Some(name));
    screen.lines().find(is_it).unwrap_or_else(|| panic!("{name} is not listed: {screen}"))
}

#[tokio::test]
async fn sessions_are_in_their_groups_and_move_as_they_change() {
    if require::tmux().is_none() {
        return;
    }
    let daemon = Daemon::start().await;
    let (asking, busy, idle) =
        (named(&daemon, "asks").await, named(&daemon, "works").await, named(&daemon, "rests").await);
    let (limited, stopped) = (named(&daemon, "limited").await, named(&daemon, "gone").await);
    ask(&asking, "rm -rf build").await;
    busy.prompt("hang").await;
    busy.wait_for_phase(Phase::Busy).await;
    limited
        .prompt(r#"limit 1 {"code":-32603,"message":"You have hit your limit","data":{"errorKind":"rate_limit"}}"#)
        .await;
    limited.wait_for_phase(Phase::Limited).await;
    stopped.stop().await;
    for size in SIZES {
        let screen = top(&daemon, &[], size).await;
        let seen = screen
            .sees("all groups", |screen| screen.contains("needs you (1)") && screen.contains("$ rm -rf build"))
            .await;
        assert!(seen.contains("5 sessions · 1 needs you"), "{seen}");
        assert!(
            row(&seen, "asks").starts_with(">!asks") && row(&seen, "asks").contains("permission requested"),
            "{seen}"
        );
        assert!(seen.contains("working (1)") && row(&seen, "works").contains("busy"), "{seen}");
        if size.1 > 24 {
            for (title, name) in
                [("idle (1)", "rests"), ("waiting for its world (1)", "limited"), ("ended (1)", "gone")]
            {
                let after = seen.split_once(title).unwrap_or_else(|| panic!("{title}: {seen}")).1;
                assert!(row(after.split_once('\n').unwrap().1, name).starts_with("  "), "{seen}");
            }
        }
        // The words of the filter are typed, and take effect at once.
        screen.keys(&["/"]);
        screen.keys(&["-l", "rests"]);
        screen.sees("the filter", |screen| !screen.contains("works") && screen.contains("idle (1)")).await;
        screen.keys(&["Escape"]);
        screen.shows("works").await;
        screen.keys(&["?"]);
        screen.shows("select the next session that needs you").await;
        screen.keys(&["?"]);
    }
    let screen = top(&daemon, &["rests"], SIZES[0]).await;
    let seen = screen.sees("one session", |screen| screen.contains("rests") && !screen.contains("works")).await;
    assert!(seen.contains("filter: rests"), "{seen}");
    idle.prompt("hang").await;
    screen.shows("working (1)").await;
}

#[tokio::test]
async fn a_question_is_answered_by_a_key_with_its_command_in_view() {
    if require::tmux().is_none() {
        return;
    }
    let daemon = Daemon::start().await;
    for (name, size, key, option) in [("small", SIZES[0], "1", "Yes"), ("large", SIZES[1], "n", "No")] {
        let session = named(&daemon, name).await;
        ask(&session, "rm -rf build").await;
        let screen = top(&daemon, &[name], size).await;
        let seen = screen.shows("press 1 to 2, or y allows and n denies").await;
        assert!(seen.contains("? the agent asks to: Tidy up (execute)") && seen.contains("$ rm -rf build"), "{seen}");
        screen.keys(&[key]);
        screen.shows(&format!("{option}: Tidy up")).await;
        screen.shows("idle (1)").await;
        let journal = session.journal();
        let answered = journal.iter().find_map(|event| match &event.body {
            Body::PermissionResolved(resolved) => Some(resolved.by),
            _ => None,
        });
        assert_eq!(answered, Some(AnsweredBy::Client), "{journal:#?}");
    }
}

#[tokio::test]
async fn a_turn_is_cancelled_and_a_session_stopped_and_resumed_by_keys() {
    if require::tmux().is_none() {
        return;
    }
    let daemon = Daemon::start().await;
    let session = named(&daemon, "fix").await;
    let accepted = session.prompt("hang").await;
    let screen = top(&daemon, &[], SIZES[0]).await;
    screen.shows("working (1)").await;
    screen.keys(&["c"]);
    screen.shows("cancelled").await;
    assert_eq!(session.end_of(&accepted).await.ended.stop_reason.as_deref(), Some("cancelled"));
    screen.shows("idle (1)").await;
    screen.keys(&["s"]);
    screen.shows("stop fix? Its agent and all its processes end.").await;
    screen.keys(&["y"]);
    screen.shows("ended (1)").await;
    session.wait_for_phase(Phase::Stopped).await;
    screen.keys(&["r"]);
    screen.shows("idle (1)").await;
    // The daemon's refusal is shown with its hint.
    screen.keys(&["c"]);
    screen.sees("the refusal", |screen| screen.lines().last().is_some_and(|row| row.contains("no turn"))).await;
}

#[tokio::test]
async fn a_daemon_that_is_killed_under_it_loses_and_doubles_nothing() {
    if require::tmux().is_none() {
        return;
    }
    let mut daemon = Daemon::start().await;
    let session = named(&daemon, "fix").await;
    named(&daemon, "other").await;
    let screen = top(&daemon, &["fix"], SIZES[1]).await;
    let accepted = session.prompt("count 40 100").await;
    screen.sees("the first numbers", |screen| screen.lines().any(|row| row == "3")).await;
    daemon.kill9();
    let seen = screen.shows("the session continues").await;
    assert!(seen.lines().next().unwrap().contains("agentd is away") && seen.contains("working (1)"), "{seen}");
    daemon.run().await;
    screen.shows("connected").await;
    session.end_of(&accepted).await;
    let seen = screen.sees("the last number", |screen| screen.lines().any(|row| row == "40")).await;
    let numbers: Vec<u32> = seen.lines().filter_map(|row| row.parse().ok()).collect();
    assert_eq!(numbers, (1..=40).collect::<Vec<_>>(), "{seen}");
    assert_eq!(seen.matches("recovered: agentd").count(), 1, "{seen}");
    screen.shows("idle (1)").await;
    // A session that the daemon did not have before is there too.
    screen.keys(&["Escape"]);
    named(&daemon, "later").await;
    screen.shows("later").await;
    daemon.terminate().await;
    screen.shows("agentd is away").await;
    daemon.run().await;
    screen.shows("connected").await;
}

#[tokio::test]
async fn earlier_pages_are_read_by_scrolling_and_the_place_is_kept() {
    if require::tmux().is_none() {
        return;
    }
    let daemon = Daemon::start().await;
    let session = named(&daemon, "fix").await;
    session.turn("count 900 0").await;
    let screen = top(&daemon, &[], SIZES[0]).await;
    screen.sees("the end", |screen| screen.lines().any(|row| row == "900")).await;
    // Each press goes to the first row that was read, and reads the page before.
    until("the first number", || {
        screen.keys(&["Home"]);
        screen.screen().lines().any(|row| row == "1")
    })
    .await;
    let seen = screen.shows("End shows the end").await;
    session.turn("say something new").await;
    let now = screen.screen();
    let talk = |screen: &str| screen.lines().filter_map(|row| row.parse::<u32>().ok()).collect::<Vec<_>>();
    assert_eq!(talk(&now), talk(&seen), "{now}");
    screen.keys(&["End"]);
    screen.shows("something new").await;
}

#[tokio::test]
async fn colours_and_hostile_text_change_nothing_but_the_colours() {
    if require::tmux().is_none() {
        return;
    }
    let daemon = Daemon::start().await;
    let session = named(&daemon, "fix").await;
    let evil = r"\u001b]0;gotcha\u0007\u001b[2J\u009b31m\u202efdp 日本語";
    let chunk = |text: &str| {
        format!(r#"update {{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}"#)
    };
    session.turn(&format!("bigline 10000000\n{}", chunk(&format!("\\n{evil}\\nthe end\\n")))).await;
    ask(&session, "rm \u{1b}[2J\u{202e}x").await;
    for size in SIZES {
        for no_color in [true, false] {
            let mut command = agentctl(&daemon, &["top"]);
            command.env("NO_COLOR", if no_color { "1" } else { "" });
            let screen = Tmux::run(&command, size.0, size.1);
            let seen = screen.shows("press 1 to 2").await;
            assert!(seen.contains("the end") && seen.contains("日本語") && seen.contains("more bytes"), "{seen}");
            assert!(!seen.contains('\u{202e}') && seen.contains("needs you (1)"), "{seen}");
            assert_eq!(screen.format("#{pane_title}").matches("gotcha").count(), 0);
            let painted = screen.painted();
            let styles = painted.split("\u{1b}[").skip(1).filter_map(|part| part.split_once('m'));
            let is_colour = |code: &str| code.len() == 2 && (code.starts_with('3') || code.starts_with('4'));
            let coloured = styles
                .into_iter()
                .any(|(style, _)| style.split(';').any(|code| is_colour(code) && code != "39" && code != "49"));
            assert_eq!(coloured, !no_color, "{painted:?}");
        }
    }
}

#[tokio::test]
async fn every_way_out_gives_the_terminal_back() {
    if require::tmux().is_none() {
        return;
    }
    let daemon = Daemon::start().await;
    named(&daemon, "fix").await;
    let back = |screen: &Tmux| screen.format("#{alternate_on} #{cursor_flag}") == "0 1";
    for way in ["q", "C-c", "C-z", "term", "int"] {
        let screen = top(&daemon, &[], SIZES[0]).await;
        assert!(!back(&screen), "{way}");
        match way {
            "term" => kill(screen.program(), Signal::SIGTERM).unwrap(),
            "int" => kill(screen.program(), Signal::SIGINT).unwrap(),
            key => screen.keys(&[key]),
        }
        until(&format!("{way} gives the terminal back"), || back(&screen)).await;
        screen.keys(&["-l", "stty -a | tr ' ;' '\\n\\n' | grep -x -e echo -e icanon | xargs echo modes"]);
        screen.keys(&["Enter"]);
        screen.sees("echo", |screen| screen.lines().any(|row| row == "modes icanon echo")).await;
        if way == "C-z" {
            screen.keys(&["-l", "fg"]);
            screen.keys(&["Enter"]);
            screen.sees("the view again", |screen| screen.contains("connected") && screen.contains("idle (1)")).await;
            screen.keys(&["q"]);
            until("the terminal is given back", || back(&screen)).await;
        }
    }
    let refused = ctl(&daemon, &["top"]).await;
    assert_eq!((refused.status, refused.out.as_str()), (Some(2), ""), "{refused:?}");
    assert!(
        refused.err.contains("standard output is no terminal") && refused.err.contains("ls --watch"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn attaching_comes_back_and_any_size_is_survived() {
    if require::tmux().is_none() {
        return;
    }
    let daemon = Daemon::start().await;
    let session = named(&daemon, "fix").await;
    let screen = top(&daemon, &[], SIZES[0]).await;
    screen.shows("idle (1)").await;
    for round in ["first", "second"] {
        screen.keys(&["a"]);
        screen.shows("ready").await;
        screen.keys(&["-l", &format!("say the {round} word")]);
        screen.keys(&["Enter"]);
        screen.sees("the answer", |screen| screen.lines().any(|row| row == format!("the {round} word"))).await;
        session.wait_for_phase(Phase::Idle).await;
        screen.keys(&["C-d"]);
        screen.sees("the view again", |screen| screen.contains("connected") && screen.contains("idle (1)")).await;
        // The first key after the attachment is the view's.
        screen.keys(&["?"]);
        screen.shows("any key goes back").await;
        screen.keys(&["Space"]);
    }
    for (columns, rows) in [(20, 6), (8, 3), (2, 2), (1, 1), (300, 10), (80, 24)] {
        screen.resize(columns, rows);
        until("tmux has the size", || screen.format("#{pane_width} #{pane_height}") == format!("{columns} {rows}"))
            .await;
    }
    screen.sees("the view", |screen| screen.contains("connected") && screen.contains("the second word")).await;
}
