//! `/readyz`: each reason with its remedy, and an answer in time even if a disk hangs. `/healthz` answers meanwhile.

use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use agentd_api::problem::Reason;
use agentd_api::readiness::NotReady;
use agentd_api::session::Phase;
use nix::errno::Errno;

use crate::harness::openmetrics::Page;
use crate::harness::{Client, Daemon, until, within};

/// Returns the reasons why no session can be launched.
async fn reasons(client: &Client) -> Vec<Reason> {
    let response = client.get("/readyz").await;
    if response.status == 200 { Vec::new() } else { response.problem().particulars.reasons }
}

/// Polls until this reason is the only one, and returns its description. Checks its remedy and the metrics.
async fn only(client: &Client, reason: NotReady) -> String {
    within(reason.code(), async {
        loop {
            if let [found] = reasons(client).await.as_slice()
                && found.code == reason.code()
            {
                assert_eq!(found.hint.as_deref(), Some(reason.hint()), "{found:?}");
                let page = Page::of(client).await;
                let series = format!("agentd_not_ready{{reason=\"{}\"}}", reason.code());
                if page.value(&series) == Some(1.0) && page.value("agentd_ready") == Some(0.0) {
                    return found.detail.clone();
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

async fn ready(client: &Client) {
    within("the daemon is ready", async {
        while !reasons(client).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Starts a daemon whose fault points a test can set.
async fn faulty() -> Daemon {
    let mut daemon = Daemon::prepare();
    fs::create_dir(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    daemon
}

fn set(daemon: &Daemon, point: &str, order: &str) {
    // The rename makes the order visible as a whole.
    let file = daemon.state().join("faults").join(point);
    let unfinished = file.with_extension("new");
    fs::write(&unfinished, order).unwrap();
    fs::rename(unfinished, file).unwrap();
}

fn unset(daemon: &Daemon, point: &str) {
    fs::remove_file(daemon.state().join("faults").join(point)).unwrap();
}

#[tokio::test]
async fn a_full_disk_and_a_disk_that_hangs_are_reasons_and_the_answer_comes_in_time() {
    const POINT: &str = "daemon.disk.before";
    let daemon = faulty().await;
    ready(&daemon.client).await;
    set(&daemon, POINT, &format!("refuse {}", Errno::ENOSPC as i32));
    let detail = only(&daemon.client, NotReady::DiskLow).await;
    assert!(detail.contains("0 bytes are free"), "{detail}");
    unset(&daemon, POINT);
    set(&daemon, POINT, "pause");
    let detail = only(&daemon.client, NotReady::DiskUnresponsive).await;
    assert!(detail.contains("has not answered for"), "{detail}");
    // One quick answer shows that none waits for the disk, on a busy machine too.
    let mut fastest = Duration::MAX;
    for path in ["/readyz", "/healthz", "/metrics", "/readyz", "/readyz"] {
        let begun = Instant::now();
        daemon.client.get(path).await;
        fastest = fastest.min(begun.elapsed());
    }
    assert!(fastest < Duration::from_secs(2), "{fastest:?}");
    assert_eq!(daemon.client.get("/healthz").await.status, 200);
    unset(&daemon, &format!("{POINT}.hit"));
    ready(&daemon.client).await;
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_is_a_reason_until_it_can_be_written_again() {
    const POINT: &str = "journal.append.before";
    let daemon = faulty().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say one").await;
    set(&daemon, POINT, &format!("refuse {}", Errno::ENOSPC as i32));
    let refused = session.post("/prompt", &serde_json::json!({ "prompt": "say two" })).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    let detail = only(&daemon.client, NotReady::JournalNotWritable).await;
    assert!(detail.contains("1 sessions cannot write"), "{detail}");
    unset(&daemon, POINT);
    ready(&daemon.client).await;
    assert!(session.turn("say three").await.text.contains("three"));
}

#[tokio::test]
async fn a_stuck_driver_is_a_reason_until_it_gets_on() {
    const POINT: &str = "daemon.apply.after";
    let mut daemon = Daemon::prepare();
    fs::create_dir(daemon.state().join("faults")).unwrap();
    // A driver counts as stuck after half of the watchdog's time. No manager listens, so nothing ends the daemon.
    daemon.set_environment([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("WATCHDOG_USEC", "4000000")]);
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    set(&daemon, POINT, "pause");
    let prompting = tokio::spawn({
        let (client, path) = (daemon.client.clone(), session.path("/prompt"));
        async move { client.try_call("POST", &path, r#"{"prompt":"say one"}"#).await.map(drop) }
    });
    let hit = daemon.state().join("faults").join(format!("{POINT}.hit"));
    until("the driver is stuck", || hit.exists()).await;
    let detail = only(&daemon.client, NotReady::DriverStuck).await;
    assert!(detail.contains("1 sessions") && detail.contains("2 s"), "{detail}");
    assert_eq!(Page::of(&daemon.client).await.value("agentd_drivers_stuck"), Some(1.0));
    unset(&daemon, &format!("{POINT}.hit"));
    ready(&daemon.client).await;
    let _ = prompting.await;
    session.wait_for_phase(Phase::Idle).await;
}

#[tokio::test]
async fn a_service_manager_that_does_not_answer_is_a_reason() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config.replace("[launch]\n", "[launch]\nmanager = \"systemd\"\n"));
    // A bus that accepts connections and never answers.
    let path = daemon.root().join("bus");
    let bus = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = bus.accept() {
            let _ = stream.read(&mut [0; 64]);
            held.push(stream);
        }
    });
    let address = format!("unix:path={}", path.display());
    daemon.set_environment([
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("MANAGERPID", "1"),
        ("DBUS_SESSION_BUS_ADDRESS", &address),
    ]);
    daemon.run().await;
    let detail = only(&daemon.client, NotReady::ManagerUnresponsive).await;
    assert!(detail.contains("has not answered for 5 s"), "{detail}");
    assert_eq!(daemon.client.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_drain_and_an_invalid_configuration_are_reasons() {
    let mut daemon = Daemon::start().await;
    ready(&daemon.client).await;
    daemon.client.call("POST", "/v1/drain", "").await;
    only(&daemon.client, NotReady::Draining).await;
    daemon.client.call("DELETE", "/v1/drain", "").await;
    ready(&daemon.client).await;
    let file = daemon.root().join("config/agentd.toml");
    let good = fs::read_to_string(&file).unwrap();
    daemon.terminate().await;
    fs::write(&file, format!("{good}\n[environment\n")).unwrap();
    daemon.run().await;
    only(&daemon.client, NotReady::ConfigurationInvalid).await;
}
