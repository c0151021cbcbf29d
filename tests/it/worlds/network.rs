//! `vpn` and `tcp` in a network that the tests change.

use std::time::Duration;

use agentd_api::prerequisite::Outcome;

use super::stage::{Stage, assert_told, declared, fact, remedy};
use super::world::{HOST, INSIDE_HOST, INSIDE_NAMES, Manner, OUTSIDE_HOST, OUTSIDE_NAMES, Peer};

const TIME: Duration = Duration::from_secs(1);
const WAY_IN: &str = "through vpn0, from 10.99.0.2";
const WAY_OUT: &str = "through wan0, from 192.0.2.2";

fn vpn(interface: &str) -> String {
    format!("host = \"{HOST}\", network = [\"10.99.0.0/16\"], interface = \"{interface}\", timeout = \"1s\"")
}

#[tokio::test]
async fn a_vpn_that_goes_down_and_comes_up_is_told_with_what_keeps_it_from_working() {
    let Some(stage) = Stage::new(|_| declared("vpn", "vpn", &vpn("vpn0"), "")).await else { return };
    let world = &stage.world;
    let host = world.inside_host();
    let check = async || stage.check("vpn", TIME).await;
    let passes = async || {
        let report = check().await;
        let way = format!("route to {INSIDE_HOST}");
        let facts = [("address", INSIDE_HOST), (way.as_str(), WAY_IN)];
        assert_told(&report, Outcome::Pass, "git.corp.test port 443 answers from inside", &facts);
    };
    passes().await;

    // The name server is behind the VPN. With another default route, the query is lost. Without a route, the query
    // cannot be sent.
    world.disconnect();
    let untold = "the address of git.corp.test is unavailable: the interface vpn0 is not connected";
    let way_to_names = format!("route to {INSIDE_NAMES}");
    let facts =
        |way| [("name servers", INSIDE_NAMES), (way_to_names.as_str(), way), ("interface vpn0", "down, 10.99.0.2/16")];
    let report = check().await;
    assert_told(&report, Outcome::Fail, untold, &facts(WAY_OUT));
    assert!(fact(&report, "error").contains("did not answer within"), "{report:#?}");
    assert_eq!(remedy(&report), "connect the VPN: its interface is vpn0");
    world.home(false);
    let report = check().await;
    assert_told(&report, Outcome::Fail, untold, &facts("none"));
    assert!(fact(&report, "error").contains("cannot resolve"), "{report:#?}");

    // The hosts file now contains the name, so the address is known. The route is then missing, or leads to another
    // network.
    world.etc("hosts", &format!("{INSIDE_HOST} {HOST}\n"));
    let (way, routes) = (format!("route to {INSIDE_HOST}"), format!("routes to {INSIDE_HOST}"));
    let facts = |leads: [&'static str; 2], interface| {
        [
            ("addresses", INSIDE_HOST),
            (way.as_str(), leads[0]),
            (routes.as_str(), leads[1]),
            ("interface vpn0", interface),
        ]
    };
    let report = check().await;
    let none = "there is no route to git.corp.test";
    assert_told(&report, Outcome::Fail, none, &facts(["none", "none"], "down, 10.99.0.2/16"));
    world.connect().await;
    passes().await;
    world.ip("route del 10.99.0.0/16 dev vpn0");
    let report = check().await;
    assert_told(&report, Outcome::Fail, none, &facts(["none", "none"], "up, running, 10.99.0.2/16"));
    world.home(true);
    let report = check().await;
    let elsewhere = [WAY_OUT, "0.0.0.0/0 by 192.0.2.1 through wan0"];
    let silent = "git.corp.test port 443 does not answer within 1 s";
    assert_told(&report, Outcome::Fail, silent, &facts(elsewhere, "up, running, 10.99.0.2/16"));
    world.ip("route add 10.99.0.0/16 dev vpn0");
    passes().await;
    world.etc("hosts", "127.0.0.1 localhost\n");
    passes().await;

    host.close().await;
    let report = check().await;
    assert_told(&report, Outcome::Fail, "git.corp.test port 443 refuses the connection", &[("addresses", INSIDE_HOST)]);
    assert!(remedy(&report).starts_with("check whether git.corp.test runs and listens at port 443"), "{report:#?}");
    stage.pulse.judge();
}

#[tokio::test]
async fn a_vpn_whose_names_are_asked_for_elsewhere_is_told_with_who_was_asked_and_what_he_said() {
    let both = declared("vpn", "vpn", &vpn("vpn0"), "") + &declared("tun", "vpn", &vpn("tun0"), "");
    let Some(stage) = Stage::new(|_| both).await else { return };
    let world = &stage.world;
    let _host = world.inside_host();
    // The name server outside does not know the name, or answers with the address of the company's public web site.
    world.names_at(OUTSIDE_NAMES);
    let report = stage.check("vpn", TIME).await;
    let servers = ("name servers", OUTSIDE_NAMES);
    let facts = [servers, ("interface vpn0", "up, running, 10.99.0.2/16")];
    assert_told(&report, Outcome::Fail, "the name git.corp.test is unknown here", &facts);
    let _page = Peer::listen(&world.outside, OUTSIDE_HOST, 443, Manner::Closes);
    world.outside_names.know(HOST, OUTSIDE_HOST);
    let report = stage.check("vpn", TIME).await;
    let facts = [servers, ("addresses", OUTSIDE_HOST), ("inside", "10.99.0.0/16")];
    let outside = "git.corp.test resolves to 203.0.113.7, which is outside";
    assert_told(&report, Outcome::Fail, outside, &facts);

    // The name server inside does not answer, for a reason that this machine cannot detect.
    world.names_at(INSIDE_NAMES);
    world.inside_names.be_silent(true);
    let report = stage.check("vpn", TIME).await;
    let silent = "the name service did not resolve git.corp.test, and nothing on this machine explains why";
    assert_told(&report, Outcome::Unknown, silent, &[("name servers", INSIDE_NAMES)]);

    // First the interface does not exist, and then it exists without its program. A route to the inside exists in both
    // cases.
    let report = stage.check("tun", TIME).await;
    let (absent, gone) = ("the interface tun0 does not exist", "the interface tun0 is not connected");
    let told = |why| format!("the address of git.corp.test is unavailable: {why}");
    assert_told(
        &report,
        Outcome::Fail,
        &told(absent),
        &[("interface tun0", "does not exist; existing interfaces: lo, vpn0, wan0")],
    );
    for line in ["tuntap add tun0 mode tun", "addr add 10.99.0.3/16 dev tun0", "link set vpn0 down", "link set tun0 up"]
    {
        world.ip(line);
    }
    let report = stage.check("tun", TIME).await;
    let way = format!("route to {INSIDE_NAMES}");
    let facts = [("interface tun0", "up, not running, 10.99.0.3/16"), (way.as_str(), "through tun0, from 10.99.0.3")];
    assert_told(&report, Outcome::Fail, &told(gone), &facts);
    world.ip("link del tun0");
    world.connect().await;
    world.inside_names.be_silent(false);
    assert_eq!(stage.check("vpn", TIME).await.outcome, Outcome::Pass);
    stage.pulse.judge();
}

#[tokio::test]
async fn a_peer_that_is_refused_lost_nameless_or_silent_is_told_as_what_it_is() {
    let tcp = |name: &str, host: &str, banner: &str| {
        let banner = if banner.is_empty() { String::new() } else { format!(", banner = \"{banner}\"") };
        declared(name, "tcp", &format!("host = \"{host}\", port = 22, timeout = \"1s\"{banner}"), "")
    };
    let config = tcp("answers", INSIDE_HOST, "SSH-2")
        + &tcp("silent", "10.99.1.11", "SSH-2")
        + &tcp("other", "10.99.1.12", "SSH-2")
        + &tcp("refused", "10.99.1.13", "")
        + &tcp("lost", "10.99.9.9", "")
        + &tcp("blackhole", "10.98.0.1", "")
        + &tcp("prohibited", "10.97.0.1", "")
        + &tcp("nameless", "gone.corp.test", "");
    let Some(stage) = Stage::new(|_| config).await else { return };
    let world = &stage.world;
    let listen = |host, manner| Peer::listen(&world.inside, host, 22, manner);
    let peers = [
        listen(INSIDE_HOST, Manner::Says("SSH-2.0-x\r\n")),
        listen("10.99.1.11", Manner::IsSilent),
        listen("10.99.1.12", Manner::Says("220 mail\r\n")),
    ];
    // The kernel has a hardware address for this address, but no interface has that hardware address.
    world.ip("neigh add 10.99.9.9 lladdr 02:00:00:00:00:09 dev vpn0 nud permanent");
    world.ip("route add blackhole 10.98.0.0/16");
    world.ip("route add prohibit 10.97.0.0/16");
    let way = |to: &str| format!("route to {to}");
    for (name, outcome, summary, facts) in [
        (
            "answers",
            Outcome::Pass,
            "10.99.1.1 port 22 answers with the expected banner",
            vec![("address".to_owned(), INSIDE_HOST)],
        ),
        (
            "silent",
            Outcome::Fail,
            "10.99.1.11 port 22 accepts the connection but sends nothing within 1 s",
            vec![("address".to_owned(), "10.99.1.11"), ("expected".to_owned(), "\"SSH-2\"")],
        ),
        (
            "other",
            Outcome::Fail,
            "10.99.1.12 port 22 does not send the expected banner",
            vec![("expected".to_owned(), "\"SSH-2\""), ("received".to_owned(), "\"220 mail\\r\\n\"")],
        ),
        ("refused", Outcome::Fail, "10.99.1.13 port 22 refuses the connection", vec![(way("10.99.1.13"), WAY_IN)]),
        ("lost", Outcome::Fail, "10.99.9.9 port 22 does not answer within 1 s", vec![(way("10.99.9.9"), WAY_IN)]),
        ("blackhole", Outcome::Fail, "there is no route to 10.98.0.1", vec![(way("10.98.0.1"), "none")]),
        ("prohibited", Outcome::Fail, "there is no route to 10.97.0.1", vec![(way("10.97.0.1"), "none")]),
        (
            "nameless",
            Outcome::Fail,
            "the name gone.corp.test is unknown",
            vec![("name servers".to_owned(), INSIDE_NAMES)],
        ),
    ] {
        let report = stage.check(name, TIME).await;
        let facts: Vec<(&str, &str)> = facts.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_told(&report, outcome, summary, &facts);
        assert_eq!(
            report.facts.iter().any(|fact| fact.name == "error"),
            !name.starts_with(['a', 's', 'o']),
            "{report:#?}"
        );
    }
    assert_eq!(peers.each_ref().map(Peer::accepted), [1, 1, 1]);
    world.inside_names.be_silent(true);
    let report = stage.check("nameless", TIME).await;
    let silent = "the name service did not resolve gone.corp.test";
    assert_told(&report, Outcome::Fail, silent, &[("name servers", INSIDE_NAMES)]);
    assert!(fact(&report, "error").contains("did not answer within"), "{report:#?}");
    stage.pulse.judge();
}
