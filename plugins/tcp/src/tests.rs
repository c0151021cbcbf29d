use super::*;
use agentd_plugin_sdk::Outcome;
use agentd_plugin_sdk::fake::{Call, Host, exchanged};
use agentd_plugin_sdk::network::{NameService, Way};

fn host(listener: impl FnMut(&[Step]) -> Result<Exchanged, Problem> + 'static) -> Host {
    Host::new()
        .setting("host", ["ssh.corp.example"])
        .setting("port", ["22"])
        .name_service(NameService { servers: vec!["10.0.0.53".to_owned()], search: Vec::new() })
        .resolves("ssh.corp.example", Ok(vec!["10.1.2.3".to_owned()]))
        .way_to("10.1.2.3", Some(Way { via: Some("eth0".to_owned()), source: "10.1.0.9".to_owned() }))
        .listens("ssh.corp.example", 22, listener)
}

fn facts(report: &Report) -> Vec<&str> {
    report.facts.iter().map(|fact| fact.name.as_str()).collect()
}

#[test]
fn who_accepts_answers_where_no_banner_is_expected() {
    let host = host(|steps| {
        assert_eq!(steps, []);
        Ok(exchanged("10.1.2.3", [""; 0]))
    });
    let report = host.check_without_session::<Tcp>().unwrap();
    let expected =
        Report::pass("ssh.corp.example port 22 answers").fact("address", "10.1.2.3").fact("connected after", "1 ms");
    assert_eq!(report, expected);
    let [Call::Exchange { time, .. }] = &host.calls()[..] else { panic!("{:?}", host.calls()) };
    assert_eq!(*time, DEFAULT_TIME);
}

/// A problem with the expected summary, facts and remedy.
type Case = (fn(String) -> Problem, &'static str, &'static [&'static str], &'static str);

#[test]
fn a_connection_that_does_not_come_about_is_told_with_its_own_reason_facts_and_remedy() {
    let way = &["error", "addresses", "route to 10.1.2.3"][..];
    let name = &["error", "name servers"][..];
    let kinds: [Case; 5] = [
        (Problem::NoSuchHost, "the name ssh.corp.example is unknown", name, "connect to the network"),
        (Problem::NotResolved, "the name service did not resolve ssh.corp.example", name, "name servers"),
        (Problem::Refused, "ssh.corp.example port 22 refuses the connection", way, "start the service"),
        (Problem::Unreachable, "there is no route to ssh.corp.example", way, "connect to the network"),
        (Problem::TimedOut, "ssh.corp.example port 22 does not answer within 3 s", way, "firewall"),
    ];
    for (problem, summary, names, remedy) in kinds {
        let report = host(move |_| Err(problem("what the host said".to_owned()))).check::<Tcp>().unwrap();
        assert_eq!((report.outcome, report.summary.as_str()), (Outcome::Fail, summary));
        assert_eq!((facts(&report), report.facts[0].value.as_str()), (names.to_vec(), "what the host said"));
        assert!(report.remedy.is_some_and(|text| text.contains(remedy)), "{summary}");
    }
}

#[test]
fn what_is_not_granted_is_no_report() {
    let host = host(|_| panic!("it is asked")).grant(Capability::Network, ["*.other.example:*"]);
    assert!(matches!(host.check::<Tcp>(), Err(Failure::NotGranted(_))));
}

#[test]
fn a_banner_must_be_in_the_first_bytes() {
    let with = |received: &'static [u8], ending: Ending| {
        let host = host(move |steps| {
            assert_eq!(steps, [Step::send("hello\r\n").receive(FIRST).until("SSH-2.0")]);
            Ok(Exchanged { ending, ..exchanged("10.1.2.3", [received]) })
        });
        let host = host.setting("banner", ["SSH-2.0"]).setting("send", ["hello\r\n"]).setting("timeout", ["500ms"]);
        host.check::<Tcp>().unwrap()
    };
    for ending in [Ending::Complete, Ending::Closed, Ending::TimedOut] {
        let report = with(b"\r\nSSH-2.0-OpenSSH\r\n", ending);
        assert_eq!(
            (report.outcome, report.summary.as_str()),
            (Outcome::Pass, "ssh.corp.example port 22 answers with the expected banner")
        );
    }
    let silent = "accepts the connection but sends nothing within 500 ms";
    for (received, ending, words, names) in [
        (&b""[..], Ending::TimedOut, silent, &["address", "connected after", "expected"][..]),
        (b"", Ending::Closed, "closes it without sending anything", &["address", "connected after", "expected"]),
        (
            b"HTTP/1.1",
            Ending::TimedOut,
            "does not send the expected banner",
            &["address", "connected after", "expected", "received"],
        ),
        (
            b"SSH-2",
            Ending::Closed,
            "does not send the expected banner",
            &["address", "connected after", "expected", "received"],
        ),
    ] {
        let report = with(received, ending);
        assert_eq!((report.outcome, facts(&report)), (Outcome::Fail, names.to_vec()));
        assert!(report.summary.contains(words), "{}", report.summary);
        assert!(report.remedy.is_some());
    }
    assert_eq!(with(b"\x1b[2J", Ending::Closed).facts[3].value, r#""\x1b[2J""#);
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    for (key, value) in [
        ("host", "a:b:c"),
        ("host", ""),
        ("port", "0"),
        ("port", "65536"),
        ("port", "ssh"),
        ("timeout", "3"),
        ("send", "x"),
    ] {
        let refused = host(|_| panic!("it is asked")).setting(key, [value]).check::<Tcp>();
        assert!(
            matches!(&refused, Err(Failure::Configuration(error)) if error.key == key),
            "{key} {value}: {refused:?}"
        );
    }
}
