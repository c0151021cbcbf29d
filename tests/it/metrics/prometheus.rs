//! The tools of Prometheus on the page, on the rules and on the dashboard. A real Prometheus scrapes a daemon over TCP.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use agentd_api::session::{SessionSpec, SessionView};
use agentd_metrics::Metrics;
use nix::errno::Errno;
use serde_json::{Value, json};

use crate::harness::client::in_query;
use crate::harness::planted::Planted;
use crate::harness::{Daemon, LIMIT, Session, paths, require, within};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of attempts to start Prometheus on a free port, which another process may take first.
const STARTS: usize = 5;

fn shipped(name: &str) -> PathBuf {
    paths::checkout().join("units/observability").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(shipped(name)).expect("the file is in the repository")
}

/// Returns each query of the dashboard with its panel.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("agentd.dashboard.json")).expect("the dashboard is JSON");
    assert_eq!(dashboard["uid"], "agentd");
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().expect("it has panels") {
        let title = panel["title"].as_str().expect("a panel has a title");
        let targets = panel["targets"].as_array();
        assert!(panel["type"] == "row" || targets.is_some_and(|targets| !targets.is_empty()), "{title} has no query");
        for target in targets.into_iter().flatten() {
            found.push((title.to_owned(), target["expr"].as_str().expect("a target has a query").to_owned()));
        }
    }
    found
}

/// Returns the names of metrics in a text: words that begin with the prefix.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = text.split(|character| !is_part(character));
    words.filter(|word| word.starts_with("agentd_")).map(str::to_owned).collect()
}

#[test]
fn each_metric_of_the_rules_and_of_the_dashboard_exists_and_the_dashboard_shows_each_family() {
    let known: BTreeSet<String> = Metrics::ALL.iter().flat_map(agentd_metrics::Described::series).collect();
    let ruled = names(&read("agentd.rules.yml"));
    assert!(ruled.len() > 15, "{ruled:?}");
    let mut shown: BTreeSet<String> = queries().iter().flat_map(|(_, query)| names(query)).collect();
    assert!(shown.remove("agentd_build_info"), "{shown:?}");
    for name in ruled.iter().chain(&shown) {
        assert!(known.contains(name), "there is no metric {name}");
    }
    for family in Metrics::ALL {
        assert!(family.series().iter().any(|series| shown.contains(series)), "no panel shows {}", family.name());
    }
}

#[test]
fn each_alert_has_a_reason_a_remedy_and_a_test_that_makes_it_fire_and_clear() {
    let (rules, tests) = (read("agentd.rules.yml"), read("agentd.rules.test.yml"));
    let count = |text: &str, word: &str| text.lines().filter(|line| line.trim_start().starts_with(word)).count();
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    for word in ["summary: ", "description: ", "severity: ", "for: "] {
        assert_eq!(count(&rules, word), alerts.len(), "{word}");
    }
    for alert in &alerts {
        assert_eq!(count(&tests, &format!("alertname: {alert}")), 2, "{alert}");
    }
    assert_eq!(count(&tests, "exp_alerts: []"), alerts.len());
}

fn promtool(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(shipped(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool can be executed");
    child.stdin.take().expect("it has a stdin").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

#[test]
fn promtool_finds_nothing_in_the_rules_and_their_tests_pass() {
    let Some(()) = require::prometheus() else { return };
    let checked = promtool(&["check", "rules", "agentd.rules.yml"], "");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && checked.stderr.is_empty() && said.contains("SUCCESS"), "{checked:?}");
    let tested = promtool(&["test", "rules", "agentd.rules.test.yml"], "");
    assert!(tested.status.success(), "{tested:?}");
    let example = promtool(&["check", "config", "--syntax-only", "prometheus.example.yml"], "");
    assert!(example.status.success(), "{example:?}");
    let agent = promtool(&["check", "config", "--syntax-only", "--agent", "prometheus-agent.example.yml"], "");
    assert!(agent.status.success(), "{agent:?}");
}

/// A Prometheus in the directory of a daemon. Dropping the value ends it.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Prometheus {
    /// Starts Prometheus with this configuration and waits until it is ready.
    async fn start(directory: &Path, config: &Path) -> Self {
        for attempt in 0..STARTS {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let log = fs::File::create(directory.join(format!("prometheus-{attempt}.log"))).unwrap();
            let child = Command::new("prometheus")
                .arg(format!("--config.file={}", config.display()))
                .arg(format!("--storage.tsdb.path={}", directory.join(format!("tsdb-{attempt}")).display()))
                .arg(format!("--web.listen-address=127.0.0.1:{port}"))
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .expect("prometheus can be executed");
            let mut started = Self { child, port };
            let is_ready = within("Prometheus starts or ends", async {
                loop {
                    if started.child.try_wait().unwrap().is_some() {
                        return false;
                    }
                    if started.get("/-/ready").is_some_and(|(status, _)| status == 200) {
                        return true;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            })
            .await;
            if is_ready {
                return started;
            }
        }
        panic!("Prometheus does not start; its logs are in {}", directory.display());
    }

    /// Makes a request of HTTP/1.0, whose answer ends with the connection.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path).unwrap_or_else(|| panic!("no answer to {path}"));
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// Reports whether a query has data at present.
    fn has_data(&self, query: &str) -> bool {
        let escaped = in_query(Path::new(query));
        let answer = self.json(&format!("/api/v1/query?query={escaped}"));
        answer["data"]["result"].as_array().is_some_and(|result| !result.is_empty())
    }

    /// Returns the names of the firing alerts.
    fn firing(&self) -> BTreeSet<String> {
        let answer = self.json("/api/v1/alerts");
        let alerts = answer["data"]["alerts"].as_array().expect("a list of alerts");
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().expect("a name").to_owned()).collect()
    }

    async fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        within(what, async {
            while !condition(self) {
                tokio::time::sleep(PAUSE).await;
            }
        })
        .await;
    }
}

/// Starts a daemon with a hook that listens on TCP, and writes its token into a file.
async fn listening() -> (Daemon, PathBuf, String) {
    let mut daemon = Daemon::prepare();
    let (token, file) = (Planted::new("TOKEN", "token-{}"), daemon.root().join("token"));
    fs::write(&file, format!("{}\n", token.value)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    daemon.configure(|config| {
        format!(
            "{config}\n[control]\ntcp = \"127.0.0.1:0\"\ntoken = {{ file = \"{}\" }}\n\n\
             [[hooks]]\nname = \"notes\"\non = [\"turn.ended\"]\ncommand = [\"/bin/true\"]\n\n\
             [places.farm]\nkind = \"command\"\nclient = [{keeper:?}, \"enter\"]\nkeeper = {keeper:?}\n\
             status = [\"/bin/true\"]\npoll = \"500ms\"\n",
            file.display(),
            keeper = paths::keeper(),
        )
    });
    // The daemon uses fault points only if this directory exists at its start.
    fs::create_dir(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    let version: Value = daemon.client.get("/v1/version").await.expect(200);
    let address = version["tcp"].as_str().unwrap_or_else(|| panic!("{version}")).to_owned();
    (daemon, file, address)
}

/// Writes a configuration that scrapes once a second, with the shipped rules and short times.
fn configuration(directory: &Path, token: &Path, address: &str) -> PathBuf {
    let short = |line: &str| {
        let waits = line.trim_start().strip_prefix("for: ");
        waits.map_or_else(|| line.to_owned(), |waits| line.replace(&format!("for: {waits}"), "for: 1s"))
    };
    let rules: Vec<String> = read("agentd.rules.yml").lines().map(short).collect();
    fs::write(directory.join("agentd.rules.yml"), rules.join("\n") + "\n").unwrap();
    let config = read("prometheus.example.yml")
        .replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s")
        .replace("/etc/prometheus/agentd.token", &token.display().to_string())
        .replace("127.0.0.1:7345", address);
    let file = directory.join("prometheus.yml");
    fs::write(&file, config).unwrap();
    file
}

/// Makes a few turns, of which one asks a question.
async fn work(session: &Session) {
    session.turn("say one").await;
    let asked = session.prompt("ask").await;
    let view = session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
    let answer = format!("/permissions/{}", view.status.permissions[0].id);
    session.post(&answer, &json!({ "option": "yes" })).await.expect::<SessionView>(200);
    session.end_of(&asked).await;
}

#[tokio::test]
async fn promtool_finds_nothing_on_the_page_and_a_real_prometheus_shows_the_dashboard_and_fires_an_alert() {
    let Some(()) = require::prometheus() else { return };
    let (daemon, token, address) = listening().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    daemon.session(&SessionSpec { place: Some("farm".to_owned()), ..daemon.scripted(&[]) }).await;
    work(&session).await;
    let text = daemon
        .client
        .raw(b"GET /metrics HTTP/1.1\r\nhost: agentd\r\naccept: text/plain\r\nconnection: close\r\n\r\n")
        .await;
    let text = String::from_utf8(text).unwrap();
    let checked = promtool(&["check", "metrics"], text.split_once("\r\n\r\n").unwrap().1);
    assert!(checked.status.success() && checked.stdout.is_empty() && checked.stderr.is_empty(), "{checked:?}");

    let directory = daemon.root().join("prometheus");
    fs::create_dir(&directory).unwrap();
    let prometheus = Prometheus::start(&directory, &configuration(&directory, &token, &address)).await;
    prometheus.wait_until("the daemon is scraped", |it| it.has_data("agentd_ready == 1")).await;
    let mut missing = queries();
    let looked = tokio::time::timeout(LIMIT, async {
        while !missing.is_empty() {
            work(&session).await;
            missing.retain(|(_, query)| {
                let query = query.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*");
                !prometheus.has_data(&query)
            });
            tokio::time::sleep(PAUSE).await;
        }
    });
    let looked = looked.await;
    assert!(looked.is_ok(), "queries of the dashboard without data after {} s: {missing:#?}", LIMIT.as_secs());

    assert!(!prometheus.firing().contains("AgentdNotReady"));
    let fault = daemon.state().join("faults/daemon.disk.before");
    fs::write(&fault, format!("refuse {}", Errno::ENOSPC as i32)).unwrap();
    // `AgentdDiskLow` fires on a test machine with a nearly full disk too.
    prometheus.wait_until("a full disk is an alert", |it| it.firing().contains("AgentdNotReady")).await;
    fs::remove_file(fault).unwrap();
    prometheus.wait_until("the alert clears", |it| !it.firing().contains("AgentdNotReady")).await;
}
