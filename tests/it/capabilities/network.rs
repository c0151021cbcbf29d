//! Network calls. Each way in which a peer or a name does not answer has its own error.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use agentd_plugin_host::{ExchangeEnding, ExchangeResult, Failure, NetworkProblem, Step};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::harness::quote::quoted;
use crate::harness::{paths, require};

fn say(text: &str, receive: u32, until: &str) -> Step {
    Step { send: text.into(), receive, until: until.into() }
}

async fn exchange(port: u16, steps: &[Step], milliseconds: u64) -> Result<ExchangeResult, NetworkProblem> {
    Here::new().machine.exchange("127.0.0.1", port, steps, within(milliseconds)).await
}

/// Starts a peer that serves its first connection. Returns the port.
async fn peer<F: Future<Output = ()> + Send + 'static>(serve: impl FnOnce(TcpStream) -> F + Send + 'static) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { serve(listener.accept().await.unwrap().0).await });
    port
}

#[tokio::test]
async fn an_exchange_goes_step_by_step_and_says_how_it_ended() {
    let port = peer(|mut stream| async move {
        stream.write_all(b"220 hello\r\n").await.unwrap();
        let mut asked = [0; 4];
        stream.read_exact(&mut asked).await.unwrap();
        stream.write_all(&asked).await.unwrap();
        stream.write_all(b"12345").await.unwrap();
    })
    .await;
    let steps = [say("", 1000, "\r\n"), say("echo", 4, ""), say("", 0, ""), say("", 4, "")];
    let exchanged = exchange(port, &steps, 30_000).await.unwrap();
    assert_eq!((exchanged.address.as_str(), exchanged.ending), ("127.0.0.1", ExchangeEnding::Complete));
    assert_eq!(exchanged.received, [&b"220 hello\r\n"[..], b"echo", b"", b"1234"]);

    let port = peer(|mut stream| async move { stream.write_all(b"go away").await.unwrap() }).await;
    let exchanged = exchange(port, &[say("", 1000, "\n"), say("", 5, "")], 30_000).await.unwrap();
    assert_eq!((exchanged.ending, exchanged.received), (ExchangeEnding::Closed, vec![b"go away".to_vec()]));

    let port = peer(|stream| async move { drop(stream) }).await;
    let connected = exchange(port, &[], 30_000).await.unwrap();
    assert_eq!((connected.ending, connected.received.len()), (ExchangeEnding::Complete, 0));
}

#[tokio::test]
async fn a_peer_that_accepts_and_never_speaks_costs_the_time_that_was_given() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let begun = Instant::now();
    let steps = [say("hello", 5, ""), say("never", 1, "")];
    let exchanged = exchange(listener.local_addr().unwrap().port(), &steps, 500).await.unwrap();
    assert_eq!((exchanged.ending, exchanged.received), (ExchangeEnding::TimedOut, vec![Vec::new()]));
    assert!(begun.elapsed() > Duration::from_millis(400), "{:?}", begun.elapsed());
    // This peer does not even read.
    let much = [Step { send: vec![0; 64 << 20], ..Step::default() }];
    let exchanged = exchange(listener.local_addr().unwrap().port(), &much, 500).await.unwrap();
    assert_eq!(exchanged.ending, ExchangeEnding::TimedOut);
}

#[tokio::test]
async fn why_nobody_could_be_connected_to_is_told_apart() {
    // No other test gets the port while it is bound.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refused = exchange(bound.local_addr().unwrap().port(), &[], 30_000).await;
    assert!(matches!(&refused, Err(NetworkProblem::Refused(text)) if text.contains("127.0.0.1")), "{refused:?}");

    // A TCP connection to a multicast address is impossible.
    let here = Here::new();
    let nowhere = here.machine.exchange("224.0.0.1", 80, &[], later()).await;
    assert!(matches!(nowhere, Err(NetworkProblem::Unreachable(_))), "{nowhere:?}");

    // The kernel drops new connections to a full queue without an answer, as a router may drop packets.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut inside = Vec::new();
    while let Ok(stream) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
        inside.push(stream.unwrap());
        assert!(inside.len() < 100, "the house does not fill");
    }
    let begun = Instant::now();
    let silent = exchange(address.port(), &[], 500).await;
    assert!(matches!(silent, Err(NetworkProblem::TimedOut(_))), "{silent:?}");
    assert!(begun.elapsed() > Duration::from_millis(400), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn what_comes_without_end_is_too_large() {
    let port = peer(|mut stream| async move { while stream.write_all(&[0; 4096]).await.is_ok() {} }).await;
    let flood = exchange(port, &vec![say("", 1 << 16, ""); 100], 30_000).await;
    assert!(matches!(flood, Err(NetworkProblem::Other(Failure::TooLarge(_)))), "{flood:?}");
}

#[tokio::test]
async fn this_machine_is_found_by_name_and_an_address_is_its_own() {
    let here = Here::new();
    let own = here.machine.resolve("localhost", later()).await.unwrap();
    assert!(own.iter().all(|address| address == "127.0.0.1" || address == "::1"), "{own:?}");
    assert_eq!(here.machine.resolve("192.0.2.7", later()).await.unwrap(), ["192.0.2.7"]);
    assert_eq!(here.machine.resolve("[2001:db8::7]", later()).await.unwrap(), ["2001:db8::7"]);
    for name in ["", "a\0b"] {
        assert!(matches!(here.machine.resolve(name, later()).await, Err(NetworkProblem::NoSuchHost(_))));
    }
}

/// Returns a machine whose name service is at this address.
fn with_name_service(here: &Here, address: &str) -> Machine {
    std::fs::write(here.at("resolv.conf"), format!("nameserver {address}\noptions attempts:1\n")).unwrap();
    std::fs::write(here.at("nsswitch.conf"), "hosts: dns\n").unwrap();
    let binds =
        "mount --bind \"$0/resolv.conf\" /etc/resolv.conf && mount --bind \"$0/nsswitch.conf\" /etc/nsswitch.conf";
    let text = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -c '{binds} && exec \"$@\"' {} {} \"$@\"\n",
        quoted(here.path()),
        quoted(paths::keeper())
    );
    let keeper = here.at(&format!("keeper-{address}"));
    std::fs::write(&keeper, text).unwrap();
    std::fs::set_permissions(&keeper, std::fs::Permissions::from_mode(0o755)).unwrap();
    Machine::new(keeper)
}

#[tokio::test]
async fn a_name_that_there_is_not_and_a_name_service_that_does_not_answer_are_told_apart() {
    if require::root("binding files in a mount namespace").is_none() {
        return;
    }
    let here = Here::new();
    // Answers each query with "no such name".
    let denies = UdpSocket::bind("127.0.0.77:53").unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = denies.recv_from(&mut query) {
            query[2] |= 0x80;
            query[3] = 0x83;
            let _ = denies.send_to(&query[..length], from);
        }
    });
    let missing = with_name_service(&here, "127.0.0.77").resolve("license.example", later()).await;
    assert!(
        matches!(&missing, Err(NetworkProblem::NoSuchHost(text)) if text.contains("license.example")),
        "{missing:?}"
    );

    // No process listens there, and the kernel reports that at once.
    let machine = with_name_service(&here, "127.0.0.78");
    let unknown = machine.exchange("license.example", 80, &[], later()).await;
    assert!(matches!(unknown, Err(NetworkProblem::NotResolved(_))), "{unknown:?}");

    // A process listens there and sends no answer.
    let _silent = UdpSocket::bind("127.0.0.79:53").unwrap();
    let begun = Instant::now();
    let unknown = with_name_service(&here, "127.0.0.79").resolve("license.example", within(700)).await;
    assert!(
        matches!(&unknown, Err(NetworkProblem::NotResolved(text)) if text.contains("did not answer")),
        "{unknown:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// Variable of the process that the next test starts for itself in a network of its own.
const ALONE: &str = "AGENTD_TEST_ALONE";

#[tokio::test]
async fn interfaces_routes_and_ways_are_those_of_the_system() {
    if std::env::var_os(ALONE).is_some() {
        return facts().await;
    }
    if require::root("a network namespace").is_none() {
        return;
    }
    let setup = "ip link set lo up && ip addr add 192.0.2.1/24 dev lo \
                 && ip route add 198.51.100.0/24 via 192.0.2.254 dev lo metric 7 \
                 && exec \"$0\" \"$@\"";
    let name = "capabilities::network::interfaces_routes_and_ways_are_those_of_the_system";
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", setup])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

async fn facts() {
    let Here { machine, .. } = &Here::new();
    let interfaces = machine.interfaces(later()).await.unwrap();
    let own = interfaces.iter().find(|interface| interface.name == "lo").unwrap();
    assert!(own.up && own.running && own.loopback, "{own:?}");
    assert!(
        ["127.0.0.1/8", "192.0.2.1/24"].iter().all(|address| own.addresses.iter().any(|one| one == address)),
        "{own:?}"
    );
    let routes = machine.routes(later()).await.unwrap();
    let route =
        routes.iter().find(|route| route.destination == "198.51.100.0/24").unwrap_or_else(|| panic!("{routes:?}"));
    assert_eq!((route.gateway.as_deref(), route.via.as_str(), route.metric), (Some("192.0.2.254"), "lo", 7));
    let way = machine.way_to("198.51.100.9", later()).await.unwrap().unwrap();
    assert_eq!((way.via.as_deref(), way.source.as_str()), (Some("lo"), "192.0.2.1"));
    assert_eq!(machine.way_to("203.0.113.1", later()).await.unwrap(), None);
    assert!(matches!(machine.way_to("localhost", later()).await, Err(Failure::Failed(_))));
    let nowhere = machine.exchange("203.0.113.1", 80, &[], later()).await;
    assert!(matches!(nowhere, Err(NetworkProblem::Unreachable(_))), "{nowhere:?}");
}

#[tokio::test]
async fn the_name_service_is_told_as_it_is_configured() {
    let configured = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let facts = Here::new().machine.name_service(later()).await.unwrap();
    let servers = configured.lines().filter(|line| line.starts_with("nameserver ")).count();
    assert_eq!(facts.servers.len(), servers, "{facts:?}");
}
