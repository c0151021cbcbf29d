//! The page of another machine's daemon, through a real sshd on the loopback.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::Shown;
use crate::harness::{paths, within};
use crate::hosts::Lab;

#[tokio::test]
async fn machines_beside_the_first_one_are_reached_and_named_in_commands() {
    let Some(lab) = Lab::start("").await else { return };
    let add = ["host", "add", "far", "root@lab", "--program", paths::agentctl()];
    for arguments in [&add[..], &["host", "use", "far"]] {
        assert_eq!(lab.plain(arguments).await.parts(), (Some(0), String::new(), String::new()));
    }
    let mut command = lab.command(&["ui", "--json", "--no-open"]);
    let shown = Shown::run(command.env("XDG_CONFIG_HOME", lab.daemon.root().join("c")));
    let visitor = shown.sign_in().await;
    let info = visitor.get("/ui/info").await.json();
    let hosts: Vec<[&Value; 2]> =
        info["hosts"].as_array().unwrap().iter().map(|host| [&host["name"], &host["options"]]).collect();
    // The default machine is another one, so a command for this machine names it.
    let named = |name: &str| json!([name, ["--host", name]]);
    assert_eq!(json!(hosts), json!([named("lab"), named("this"), named("far")]));

    let version: Value = lab.daemon.client.get("/v1/version").await.expect(200);
    for host in ["lab", "far"] {
        assert_eq!(visitor.get(&format!("/host/{host}/v1/version")).await.json(), version, "{host}");
    }
    assert_eq!(visitor.get("/host/this/v1/version").await.code(), "ui.host_unreachable");

    // A stream ends with its connection, and the next call has another one.
    let mut stream = shown.send("GET /host/lab/v1/events", &visitor.lines, b"").await;
    let mut seen = vec![0; 12];
    within("the first bytes", stream.read_exact(&mut seen)).await.unwrap();
    lab.cut();
    within("the end of the stream", stream.read_to_end(&mut seen)).await.unwrap();
    assert!(seen.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&seen));
    assert_eq!(visitor.get("/host/lab/v1/version").await.json(), version);
}
