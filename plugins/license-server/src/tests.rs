use super::*;
use agentd_plugin_sdk::Outcome;
use agentd_plugin_sdk::fake::{Call, Host, exchanged};
use agentd_plugin_sdk::network::{NameService, Problem};

type Kind = fn(String) -> Problem;

/// Makes a machine with these servers. A server without a problem answers.
fn machine(servers: &[(&str, u16, Option<Kind>)]) -> Host {
    let host = Host::new()
        .variable("PATH", "/bin")
        .name_service(NameService { servers: vec!["10.0.0.53".to_owned()], search: Vec::new() });
    servers.iter().fold(host, |host, &(name, port, problem)| {
        let host = host.resolves(name, Ok(vec!["10.1.0.5".to_owned()])).way_to("10.1.0.5", None);
        host.listens(name, port, move |_| match problem {
            None => Ok(exchanged("10.1.0.5", [""; 0])),
            Some(problem) => Err(problem("host's words".to_owned())),
        })
    })
}

fn told(report: &Report) -> (Outcome, &str) {
    (report.outcome, report.summary.as_str())
}

fn facts(report: &Report) -> Vec<String> {
    report.facts.iter().map(|fact| format!("{}: {}", fact.name, fact.value)).collect()
}

fn asked(host: &Host) -> Vec<(String, u16)> {
    let exchange = |call: &Call| match call {
        Call::Exchange { host, port, .. } => Some((host.clone(), *port)),
        _ => None,
    };
    host.calls().iter().filter_map(exchange).collect()
}

const REFUSED: Option<Kind> = Some(Problem::Refused);
const TIMED_OUT: Option<Kind> = Some(Problem::TimedOut);

#[test]
fn one_of_a_list_is_enough_and_one_that_does_not_answer_is_told() {
    for (one, other, outcome, summary) in [
        (None, None, Outcome::Pass, "the licence servers of LM_LICENSE_FILE answer"),
        (
            REFUSED,
            None,
            Outcome::Warn,
            "licence servers of LM_LICENSE_FILE answer, and not all of them: 27000@lic1 (LM_LICENSE_FILE) \
                refuses the connection",
        ),
        (
            REFUSED,
            TIMED_OUT,
            Outcome::Fail,
            "no licence server of LM_LICENSE_FILE answers: 27000@lic1 (LM_LICENSE_FILE) refuses the connection; \
             1717@lic2 (LM_LICENSE_FILE) does not answer within 4 s",
        ),
    ] {
        let host = machine(&[("lic1", 27000, one), ("lic2", 1717, other)]);
        let report = host.variable("LM_LICENSE_FILE", "27000@lic1:1717@lic2").check::<LicenseServer>().unwrap();
        assert_eq!(told(&report), (outcome, summary));
        assert_eq!(report.remedy.is_some(), outcome != Outcome::Pass);
        assert!(facts(&report).last().unwrap().starts_with("checked: whether a connection opens"));
    }
}

#[test]
fn what_does_not_answer_is_told_first_then_what_does_then_the_network() {
    let host = machine(&[("lic1", 27000, None), ("lic2", 27000, REFUSED)]);
    let report = host.variable("LM_LICENSE_FILE", "27000@lic1:27000@lic2:nonsense@:/absent.lic");
    let report = report.nothing_at("/absent.lic").check::<LicenseServer>().unwrap();
    assert_eq!(
        facts(&report)[..7],
        [
            "27000@lic2 (LM_LICENSE_FILE): refuses the connection",
            "LM_LICENSE_FILE: entry 3 is neither port@host, nor three of them with commas, nor the path of a \
                licence file",
            "LM_LICENSE_FILE: there is no /absent.lic",
            "27000@lic1 (LM_LICENSE_FILE): answers at 10.1.0.5 port 27000",
            "error: host's words",
            "addresses: 10.1.0.5",
            "route to 10.1.0.5: none",
        ]
    );
    assert_eq!(report.outcome, Outcome::Warn);
}

#[test]
fn a_triad_answers_when_two_of_its_three_servers_do() {
    for (up, outcome) in [(0, Outcome::Fail), (1, Outcome::Fail), (2, Outcome::Warn), (3, Outcome::Pass)] {
        let of = |number| if number <= up { None } else { TIMED_OUT };
        let host = machine(&[("a", 1, of(1)), ("b", 2, of(2)), ("c", 3, of(3))]);
        let report = host.variable("LM_LICENSE_FILE", "1@a,2@b,3@c").check::<LicenseServer>().unwrap();
        assert_eq!(report.outcome, outcome, "{}", report.summary);
        let triad = format!("triad (LM_LICENSE_FILE): {up} of 3 answer; 2 must");
        assert!(facts(&report).contains(&triad), "{:?}", facts(&report));
    }
}

#[test]
fn each_server_is_asked_once_and_who_answers_at_once_leaves_his_time_to_the_others() {
    let host =
        machine(&[("lic1", 27000, None), ("lic2", 27000, None)]).variable("A_LICENSE_FILE", "27000@lic1:27000@lic2");
    let host = host.variable("LM_LICENSE_FILE", "27000@lic1").setting("timeout", ["3s"]);
    assert_eq!(host.check::<LicenseServer>().unwrap().outcome, Outcome::Pass);
    let times: Vec<Duration> = host
        .calls()
        .iter()
        .filter_map(|call| if let Call::Exchange { time, .. } = call { Some(*time) } else { None })
        .collect();
    assert_eq!(times, [Duration::from_millis(1500), Duration::from_secs(3)]);
    // A name without an address is not resolved again for another port.
    let host =
        machine(&[("lic", 1, Some(Problem::NoSuchHost)), ("lic", 2, None)]).variable("LM_LICENSE_FILE", "1@lic:2@lic");
    let report = host.check::<LicenseServer>().unwrap();
    assert_eq!((report.outcome, asked(&host)), (Outcome::Fail, vec![("lic".to_owned(), 1)]));
    assert!(facts(&report).contains(&"name servers: 10.0.0.53".to_owned()));
    // The number of connections is limited.
    let many: Vec<String> = (0..100).map(|n| format!("27000@lic{n}")).collect();
    let host = (0..100)
        .fold(machine(&[]), |host, n| host.listens(&format!("lic{n}"), 27000, |_| Ok(exchanged("10.1.0.5", [""; 0]))));
    let host = host.variable("LM_LICENSE_FILE", many.join(":"));
    assert_eq!((host.check::<LicenseServer>().unwrap().outcome, asked(&host).len()), (Outcome::Warn, 32));
}

#[test]
fn a_port_that_is_left_out_is_looked_for_where_the_manager_listens() {
    let refusing: Vec<(&str, u16, Option<Kind>)> = (27000..=27009).map(|port| ("lic", port, REFUSED)).collect();
    let host = machine(&refusing).variable("LM_LICENSE_FILE", "@lic");
    let report = host.check::<LicenseServer>().unwrap();
    assert_eq!((report.outcome, asked(&host).len()), (Outcome::Fail, 10));
    assert_eq!(facts(&report)[0], "27000-27009@lic (LM_LICENSE_FILE): refuses the connection");
    let host = host.listens("lic", 27002, |_| Ok(exchanged("10.1.0.5", [""; 0])));
    let report = host.check::<LicenseServer>().unwrap();
    assert_eq!(facts(&report)[0], "27000-27009@lic (LM_LICENSE_FILE): answers at 10.1.0.5 port 27002");
    for (variable, manager, port) in
        [("RLM_LICENSE", None, 5053), ("LM_LICENSE_FILE", Some("rlm"), 5053), ("RLM_LICENSE", Some("flexlm"), 27000)]
    {
        let host = machine(&[("lic", port, None)]).variable(variable, "@lic");
        let host = manager.into_iter().fold(host, |host, manager| host.setting("manager", [manager]));
        assert_eq!(host.check::<LicenseServer>().unwrap().outcome, Outcome::Pass, "{variable} {manager:?}");
        assert_eq!(asked(&host), [("lic".to_owned(), port)]);
    }
}

#[test]
fn a_licence_file_is_as_good_as_its_server_lines() {
    const ONE: &str = "SERVER lic1 ANY 27000\nVENDOR snpslmd PORT=27001\nUSE_SERVER\n";
    const THREE: &str = "SERVER a 1 1\nSERVER b 2 2\nSERVER c 3 3\nVENDOR v\n";
    const MANY: &str = "SERVER lic1 ANY 27000\nSERVER a 1 1\n";
    let all = |server: Option<Kind>, vendor: Option<Kind>| {
        let host = machine(&[
            ("lic1", 27000, server),
            ("lic1", 27001, vendor),
            ("a", 1, None),
            ("b", 2, None),
            ("c", 3, TIMED_OUT),
        ]);
        host.file("/l/one.lic", ONE)
            .file("/l/three.lic", THREE)
            .file("/l/many.lic", MANY)
            .file("/l/no.txt", "hello")
            .file("/l/local.lic", "FEATURE x v 1 permanent uncounted")
            .directory("/l", ["one.lic", "no.txt"])
            .directory("/e", ["no.txt"])
            .file("/work/rel.lic", ONE)
            .file("/l/secret.lic", Failure::unavailable("may not be read"))
            .nothing_at("/gone")
    };
    for (text, server, vendor, outcome, fact) in [
        ("/l/one.lic", None, None, Outcome::Pass, "snpslmd, 27001@lic1 (/l/one.lic): answers at 10.1.0.5 port 27001"),
        ("/l/one.lic", None, REFUSED, Outcome::Fail, "snpslmd, 27001@lic1 (/l/one.lic): refuses the connection"),
        ("/l/one.lic", REFUSED, None, Outcome::Fail, "27000@lic1 (/l/one.lic): refuses the connection"),
        ("/l", None, None, Outcome::Pass, "27000@lic1 (/l/one.lic): answers at 10.1.0.5 port 27000"),
        ("rel.lic", None, None, Outcome::Pass, "27000@lic1 ({cwd}/rel.lic): answers at 10.1.0.5 port 27000"),
        ("/l/three.lic", None, None, Outcome::Warn, "triad (/l/three.lic): 2 of 3 answer; 2 must"),
        ("/l/many.lic", REFUSED, None, Outcome::Warn, "27000@lic1 (/l/many.lic): refuses the connection"),
        ("/l/local.lic", None, None, Outcome::Pass, "LM_LICENSE_FILE: /l/local.lic names no server, so none is needed"),
        ("/l/no.txt", None, None, Outcome::Fail, "LM_LICENSE_FILE: /l/no.txt is not a licence file"),
        ("/e", None, None, Outcome::Fail, "LM_LICENSE_FILE: there is no *.lic in /e"),
        ("/gone", None, None, Outcome::Fail, "LM_LICENSE_FILE: there is no /gone"),
        ("/gone:/l/one.lic", None, None, Outcome::Warn, "LM_LICENSE_FILE: there is no /gone"),
        ("/l/secret.lic", None, None, Outcome::Unknown, "LM_LICENSE_FILE: may not be read"),
    ] {
        let report = all(server, vendor).variable("LM_LICENSE_FILE", text).check::<LicenseServer>().unwrap();
        assert_eq!(report.outcome, outcome, "{text}: {}", report.summary);
        assert!(facts(&report).contains(&fact.to_owned()), "{text}: {:?}", facts(&report));
    }
}

#[test]
fn a_variable_that_is_named_must_have_its_server_and_of_those_that_are_found_one_must() {
    let host = |settings: &[&str], one: Option<Kind>, other: Option<Kind>| {
        let host = machine(&[("lic1", 1, one), ("lic2", 2, other)]).variable("LM_LICENSE_FILE", "1@lic1");
        let host = host
            .variable("XILINXD_LICENSE_FILE", "2@lic2")
            .variable("OTHER", "3@lic3")
            .variable("EMPTY_LICENSE_FILE", " ");
        if settings.is_empty() { host } else { host.setting("variables", settings.iter().copied()) }
    };
    for (settings, one, other, outcome, asked_for) in [
        (&[][..], None, None, Outcome::Pass, 2),
        (&[], None, REFUSED, Outcome::Warn, 2),
        (&[], REFUSED, REFUSED, Outcome::Fail, 2),
        (&["*_LICENSE_FILE"], None, REFUSED, Outcome::Warn, 2),
        (&["XILINXD_LICENSE_FILE", "*_LICENSE_FILE"], None, REFUSED, Outcome::Fail, 2),
        (&["XILINXD_LICENSE_FILE", "*_LICENSE_FILE"], REFUSED, None, Outcome::Fail, 2),
        (&["XILINXD_LICENSE_FILE"], REFUSED, None, Outcome::Pass, 1),
        (&["LM_LICENSE_FILE", "ABSENT"], None, None, Outcome::Pass, 1),
    ] {
        let host = host(settings, one, other);
        let report = host.check::<LicenseServer>().unwrap();
        assert_eq!((report.outcome, asked(&host).len()), (outcome, asked_for), "{settings:?}: {}", report.summary);
    }
    let failed = host(&["XILINXD_LICENSE_FILE", "LM_LICENSE_FILE"], None, REFUSED).check::<LicenseServer>().unwrap();
    assert!(
        failed.summary.starts_with("no licence server of XILINXD_LICENSE_FILE answers: 2@lic2"),
        "{}",
        failed.summary
    );
}

#[test]
fn without_a_variable_nothing_can_be_told_and_before_the_environment_servers_are_a_setting() {
    let none = machine(&[]).check::<LicenseServer>().unwrap();
    assert_eq!(told(&none), (Outcome::Unknown, "no variable of the session names a licence server"));
    assert!(none.remedy.is_some());
    let before = Host::new().check_without_session::<LicenseServer>();
    assert!(matches!(before, Err(Failure::Configuration(error)) if error.key == "servers"));
    let servers = machine(&[("a", 1, None), ("b", 2, None), ("c", 3, None), ("lic", 27000, None)])
        .setting("servers", ["27000@lic", "1@a,2@b,3@c"])
        .variable("LM_LICENSE_FILE", "9@other");
    let report = servers.check_without_session::<LicenseServer>().unwrap();
    assert_eq!(told(&report), (Outcome::Pass, "the licence servers of the settings answer"));
}

#[test]
fn what_may_not_be_asked_is_not_down() {
    let host = machine(&[("lic1", 1, None), ("lic2", 1, None)]).variable("LM_LICENSE_FILE", "1@lic2");
    let host = host.grant(Capability::Network, ["lic1:*"]);
    let report = host.check::<LicenseServer>().unwrap();
    assert_eq!(report.outcome, Outcome::Unknown);
    assert!(report.facts[0].value.starts_with("could not be checked: "), "{:?}", report.facts);
    assert_eq!(
        host.variable("LM_LICENSE_FILE", "1@lic2:1@lic1").check::<LicenseServer>().unwrap().outcome,
        Outcome::Warn
    );
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    for (key, values) in
        [("manager", &["hasp"][..]), ("variables", &[]), ("servers", &[]), ("timeout", &["5"]), ("servers", &["1@a"])]
    {
        let host = machine(&[]).setting("variables", ["X"]).setting(key, values.iter().copied());
        let host = if key == "servers" && values.is_empty() { Host::new().setting("servers", [""; 0]) } else { host };
        let refused = host.check::<LicenseServer>();
        assert!(
            matches!(&refused, Err(Failure::Configuration(error)) if error.key == key),
            "{key} {values:?}: {refused:?}"
        );
    }
}
