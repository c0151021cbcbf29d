//! Limits of an agent, which are its time without a daemon, output, memory and processes; and the journal's segments.

use agentd_keeper::protocol::{Limits, Rate};

use super::*;

#[test]
fn an_agent_that_no_daemon_comes_back_for_is_stopped_in_order_and_says_why() {
    let keeper = Keeper::start_with(&["--orphan-ttl", "1"]);
    // With a daemon, the agent's run time has no limit.
    let daemon = keeper.launch(script(r#"sleep 1.5; echo '{"n":1}'; read x; echo '{"n":2}'"#));
    keeper.wait_for_out(1);
    let left = Instant::now();
    drop(daemon);
    let (exited, journal) = keeper.ended();
    assert!(left.elapsed() >= Duration::from_secs(1));
    assert_eq!(exited.reason.as_deref(), Some("no daemon was connected for 1 s"));
    assert_eq!((exited.status, exited.requested), (Some(0), false), "it was asked, and obeyed");
    assert!(journal.iter().any(|event| matches!(&event.body, Body::AgentOut(data) if data.get() == r#"{"n":2}"#)));
}

#[test]
fn output_over_the_rate_comes_later_and_nothing_of_it_is_lost() {
    let record = LaunchRecord {
        output_rate: Some(Rate { bytes_per_second: 50_000, burst: 50_000 }),
        ..script(r#"i=0; while [ $i -lt 2500 ]; do i=$((i+1)); printf '{"n":%94d}\n' $i; done"#)
    };
    let begun = Instant::now();
    let (keeper, _daemon) = Keeper::with(record);
    let (exited, journal) = keeper.ended();
    assert_eq!(exited.status, Some(0));
    let lines: Vec<_> = journal.iter().filter(|event| matches!(event.body, Body::AgentOut(_))).collect();
    assert_eq!(lines.len(), 2500);
    // The agent writes 250 kB. Of these, 50 kB pass at once. One read may exceed the rate by 64 kB, and 64 kB remain in
    // the pipe at the agent's end.
    assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn a_flood_of_stderr_is_cut_counted_and_slows_nobody() {
    let record = LaunchRecord {
        stderr_rate: Some(Rate { bytes_per_second: 1000, burst: 10_000 }),
        ..script(concat!(
            r"i=0; while [ $i -lt 10000 ]; do i=$((i+1)); printf '%099d\n' $i >&2; done; ",
            r#"echo '{"done":1}'; read x; echo last >&2"#,
        ))
    };
    let (keeper, mut daemon) = Keeper::with(record);
    keeper.wait_for_out(1);
    daemon.stop(PATIENT);
    let (_, journal) = keeper.ended();
    let (mut kept, mut cut, mut records) = (0, 0, 0);
    for event in journal {
        if let Body::AgentStderr(text) = event.body {
            records += 1;
            match text.cut {
                0 => kept += text.text.as_bytes().len() + 1,
                _ => cut += usize::try_from(text.cut).unwrap(),
            }
        }
    }
    assert_eq!(kept + cut, 10_000 * 100 + "last\n".len(), "{kept} kept and {cut} counted");
    assert!(cut > 900_000 && records < 400, "{records} records, {cut} cut");
}

#[test]
#[cfg(target_os = "linux")]
fn an_agent_with_more_memory_than_it_may_is_killed_and_says_so() {
    let limits = Limits { memory_bytes: Some(40 << 20), processes: None };
    let greedy = "x=$(head -c 60000000 /dev/zero | tr '\\0' x); echo '{\"big\":1}'; trap '' TERM; \
                  while :; do read y; sleep 1; done";
    let (keeper, _daemon) = Keeper::with(LaunchRecord { limits, ..script(greedy) });
    let (exited, _) = keeper.ended();
    let reason = exited.reason.unwrap();
    assert!(reason.ends_with("KiB of memory, and 40960 KiB are allowed"), "{reason}");
    assert!(!exited.requested);
}

#[test]
fn an_agent_with_more_processes_than_it_may_is_killed_with_all_of_them() {
    let limits = Limits { memory_bytes: Some(1 << 40), processes: Some(5) };
    let forks = "for i in 1 2 3 4 5 6 7 8; do setsid sleep 600 & done; wait";
    let (keeper, _daemon) = Keeper::with(LaunchRecord { limits, ..script(forks) });
    let (exited, _) = keeper.ended();
    assert_eq!(exited.reason.as_deref(), Some("it has 9 processes, and 5 are allowed"));
    assert_eq!(exited.killed, 8);
}

#[test]
fn a_keeper_puts_full_segments_of_its_journal_aside() {
    let keeper = Keeper::start_with(&["--rotate", "5000", "--sync", "always"]);
    let mut following = Reader::open(&keeper.directory(), 0).unwrap();
    let mut daemon =
        keeper.launch(script(r#"i=0; while [ $i -lt 500 ]; do i=$((i+1)); echo "{\"n\":$i}"; read x; done; read x"#));
    for n in 1..=500 {
        keeper.wait_for_out(n);
        assert!(matches!(daemon.say(&json!(n)), FromKeeper::Appended(_)));
    }
    daemon.stop(PATIENT);
    let directory = keeper.directory();
    let aside = || {
        std::fs::read_dir(&directory)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("journal-"))
    };
    assert!(aside().count() > 10);
    let mut seen = 0;
    while let Some(line) = following.next().unwrap() {
        seen += 1;
        assert_eq!(line.seq, seen);
    }
    assert!(seen >= 1002, "{seen}");
    keeper.ended();
}

#[test]
fn an_agent_inherits_what_its_login_shell_had_as_far_as_the_service_may_give_it() {
    use agentd_keeper::protocol::{Attributes, Limit};

    let limit = |name: &str, soft| Limit { name: name.to_owned(), soft: Some(soft), hard: None };
    let attributes = Attributes { umask: 0o27, nice: Some(5), limits: vec![limit("nofile", 200), limit("core", 0)] };
    let text = "printf '{\"n\":\"%s\"}\\n' \"$(umask) $(ulimit -S -n) $(ulimit -S -c) $(nice)\"";
    let record = LaunchRecord { attributes: Some(attributes), ..script(text) };
    let (keeper, _daemon) = Keeper::with(record);
    let (_, journal) = keeper.ended();
    let expected = r#"{"n":"0027 200 0 5"}"#;
    let printed: Vec<_> = journal.iter().map(|event| &event.body).collect();
    assert!(printed.iter().any(|body| matches!(body, Body::AgentOut(data) if data.get() == expected)), "{printed:?}");
}
