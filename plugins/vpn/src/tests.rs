use super::*;
use agentd_plugin_sdk::fake::{Call, Host, exchanged};
use agentd_plugin_sdk::network::{NameService, Route, Way};

const HOST: &str = "git.corp.example";

fn interface(up: bool) -> NetworkInterface {
    let addresses = if up { vec!["10.8.0.2/24".to_owned()] } else { Vec::new() };
    NetworkInterface { name: "wg0".to_owned(), up, running: up, loopback: false, addresses }
}

/// Makes a machine whose VPN is connected or not. A name server behind the VPN resolves the name.
fn machine(connected: bool) -> Host {
    let way = connected.then(|| Way { via: Some("wg0".to_owned()), source: "10.8.0.2".to_owned() });
    let route = |destination: &str, via: &str| Route {
        destination: destination.to_owned(),
        gateway: None,
        via: via.to_owned(),
        metric: 0,
    };
    let mut routes = vec![route("0.0.0.0/0", "eth0")];
    routes.extend(connected.then(|| route("10.0.0.0/8", "wg0")));
    Host::new()
        .setting("host", [HOST])
        .setting("network", ["10.0.0.0/8", "fd00::/8"])
        .setting("interface", ["wg0"])
        .name_service(NameService { servers: vec!["10.0.0.53".to_owned()], search: vec!["corp.example".to_owned()] })
        .interfaces(vec![interface(connected)])
        .routes(routes)
        .way_to("10.0.0.53", way.clone())
        .way_to("10.1.2.3", way)
}

fn resolving(host: Host, addresses: &[&str]) -> Host {
    host.resolves(HOST, Ok(addresses.iter().map(|&address| address.to_owned()).collect()))
}

fn fails(host: Host, port: u16, problem: fn(String) -> Problem) -> Host {
    host.listens(HOST, port, move |_| Err(problem("the host's words".to_owned())))
}

fn facts(report: &Report) -> Vec<String> {
    report.facts.iter().map(|fact| format!("{}: {}", fact.name, fact.value)).collect()
}

#[test]
fn an_inside_address_that_answers_is_a_pass_and_the_name_is_asked_for_once() {
    for address in ["10.1.2.3", "fd00::1"] {
        let host = machine(true).way_to("fd00::1", None).listens(HOST, 443, move |steps| {
            assert_eq!(steps, []);
            Ok(exchanged(address, [""; 0]))
        });
        let report = host.check_without_session::<Vpn>().unwrap();
        assert_eq!(
            (report.outcome, report.summary.as_str()),
            (Outcome::Pass, "git.corp.example port 443 answers from inside")
        );
        assert_eq!(facts(&report)[..2], [format!("address: {address}"), "connected after: 1 ms".to_owned()]);
        assert!(!host.calls().contains(&Call::Resolve(HOST.to_owned())) && report.remedy.is_none());
    }
}

/// A problem, whether the VPN is connected, and the expected summary and remedy.
type Case = (fn(String) -> Problem, bool, &'static str, &'static str);

#[test]
fn each_reason_has_its_summary_and_the_facts_in_the_order_in_which_they_explain() {
    let addresses = "addresses: 10.1.2.3".to_owned();
    let servers = ["error: the host's words", "name servers: 10.0.0.53", "searched domains: corp.example"];
    let up = "interface wg0: up, running, 10.8.0.2/24";
    let down = "interface wg0: down, no address";
    let way = |to: &str, is: bool| {
        if is { format!("route to {to}: through wg0, from 10.8.0.2") } else { format!("route to {to}: none") }
    };
    let kinds: [Case; 4] = [
        (Problem::Refused, true, "git.corp.example port 443 refuses the connection", "check whether"),
        (Problem::TimedOut, true, "git.corp.example port 443 does not answer within 3 s", "connect the VPN"),
        (
            Problem::TimedOut,
            false,
            "git.corp.example port 443 does not answer within 3 s",
            "connect the VPN: its interface is wg0",
        ),
        (Problem::Unreachable, false, "there is no route to git.corp.example", "connect the VPN"),
    ];
    for (problem, connected, summary, remedy) in kinds {
        let report = resolving(fails(machine(connected), 443, problem), &["10.1.2.3"]).check::<Vpn>().unwrap();
        assert_eq!((report.outcome, report.summary.as_str()), (Outcome::Fail, summary));
        let routes =
            if connected { "10.0.0.0/8 through wg0; 0.0.0.0/0 through eth0" } else { "0.0.0.0/0 through eth0" };
        let mut expected = servers.map(str::to_owned).to_vec();
        expected.extend([addresses.clone(), way("10.1.2.3", connected)]);
        expected.extend([if connected { up } else { down }.to_owned(), format!("routes to 10.1.2.3: {routes}")]);
        assert_eq!(facts(&report), expected);
        assert!(report.remedy.is_some_and(|text| text.starts_with(remedy)), "{summary}");
    }
    for (problem, connected, outcome, summary) in [
        (
            Problem::NoSuchHost as fn(String) -> Problem,
            true,
            Outcome::Fail,
            "the name git.corp.example is unknown here",
        ),
        (Problem::NoSuchHost, false, Outcome::Fail, "the name git.corp.example is unknown here"),
        (
            Problem::NotResolved,
            true,
            Outcome::Unknown,
            "the name service did not resolve git.corp.example, and nothing on this machine explains why",
        ),
        (
            Problem::NotResolved,
            false,
            Outcome::Fail,
            "the address of git.corp.example is unavailable: the interface wg0 is not connected",
        ),
    ] {
        let report = fails(machine(connected), 443, problem).check::<Vpn>().unwrap();
        assert_eq!((report.outcome, report.summary.as_str()), (outcome, summary));
        let mut expected = servers.map(str::to_owned).to_vec();
        expected.extend([way("10.0.0.53", connected), if connected { up } else { down }.to_owned()]);
        assert_eq!(facts(&report), expected);
        assert_eq!(report.remedy.as_deref(), Some("connect the VPN: its interface is wg0"));
    }
}

#[test]
fn a_silent_name_service_is_a_failure_where_this_machine_explains_it() {
    let silent = |host: Host| fails(host, 443, Problem::NotResolved).check::<Vpn>().unwrap();
    let missing = silent(machine(true).interfaces(Vec::new()));
    assert!(missing.outcome == Outcome::Fail && missing.summary.ends_with("the interface wg0 does not exist"));
    // Without an interface in the settings, the routes to the name servers decide.
    let no_way = silent(machine(true).way_to("10.0.0.53", None));
    assert!(no_way.outcome == Outcome::Fail && no_way.summary.ends_with("there is no route to a name server"));
    let another = NameService { servers: vec!["10.0.0.53".to_owned(), "192.0.2.1".to_owned()], search: Vec::new() };
    let way = Some(Way { via: None, source: "192.0.2.9".to_owned() });
    let host = machine(true).way_to("10.0.0.53", None).name_service(another).way_to("192.0.2.1", way);
    assert_eq!(silent(host).outcome, Outcome::Unknown);
}

#[test]
fn an_outside_address_is_a_failure_whether_it_answers_or_not() {
    for answers in [true, false] {
        let answer = answers.then(|| exchanged("203.0.113.7", [""; 0])).ok_or_else(|| Problem::TimedOut("late".into()));
        let host = machine(false).listens(HOST, 443, move |_| answer.clone());
        let report = resolving(host, &["203.0.113.7"]).check::<Vpn>().unwrap();
        assert_eq!(report.outcome, Outcome::Fail);
        assert_eq!(report.summary, "git.corp.example resolves to 203.0.113.7, which is outside");
        assert_eq!(facts(&report)[2..4], ["addresses: 203.0.113.7", "inside: 10.0.0.0/8, fd00::/8"]);
        assert_eq!(report.remedy.as_deref(), Some("connect the VPN: its interface is wg0"));
    }
}

#[test]
fn of_a_host_with_addresses_of_both_kinds_an_inside_one_must_answer() {
    let host = |inside: Result<(), fn(String) -> Problem>| {
        let host = machine(true).listens(HOST, 443, |_| Ok(exchanged("203.0.113.7", [""; 0])));
        let host = host.listens("10.1.2.3", 443, move |_| match inside {
            Ok(()) => Ok(exchanged("10.1.2.3", [""; 0])),
            Err(problem) => Err(problem("the host's words".to_owned())),
        });
        resolving(host, &["203.0.113.7", "10.1.2.3"]).check::<Vpn>().unwrap()
    };
    assert_eq!((host(Ok(())).outcome, facts(&host(Ok(())))[0].as_str()), (Outcome::Pass, "address: 10.1.2.3"));
    let missed = host(Err(Problem::TimedOut));
    assert_eq!((missed.outcome, missed.facts[4].name.as_str()), (Outcome::Fail, "route to 10.1.2.3"));
    assert!(missed.summary.contains("does not answer"));
}

#[test]
fn what_is_not_granted_is_no_report() {
    let refused = fails(machine(true), 443, Problem::Refused).grant(Capability::Network, ["other.example:443"]);
    assert!(matches!(refused.check::<Vpn>(), Err(Failure::NotGranted(_))));
}

#[test]
fn the_settings_say_where_and_in_what_time() {
    let host = resolving(fails(machine(true), 22, Problem::TimedOut), &["10.1.2.3"])
        .setting("port", ["22"])
        .setting("timeout", ["700ms"]);
    assert_eq!(host.check::<Vpn>().unwrap().summary, "git.corp.example port 22 does not answer within 700 ms");
    assert!(matches!(&host.calls()[0], Call::Exchange { port: 22, time, .. } if *time == Duration::from_millis(700)));
    for (key, values) in [
        ("network", &[][..]),
        ("network", &["10.0.0.0/8", "corp"]),
        ("host", &["https://x"]),
        ("port", &["https"]),
        ("timeout", &["1"]),
    ] {
        let refused = machine(true).setting(key, values.iter().copied()).check::<Vpn>();
        assert!(matches!(&refused, Err(Failure::Configuration(error)) if error.key == key), "{key}: {refused:?}");
    }
}
