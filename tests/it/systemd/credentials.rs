//! Credentials from systemd reach only the daemon.

use std::collections::BTreeSet;
use std::fs;

use super::turn_ends;
use crate::harness::lab::Lab;
use crate::harness::planted::{Planted, found_below, found_in};
use crate::harness::require;
use crate::harness::session::said;

const CONFIGURED: &str = "
[environment.encryption]
enabled = true
key = { credential = \"environment-key\" }
[secrets.GH_TOKEN]
credential = \"gh-token\"
[control]
tcp = \"127.0.0.1:7345\"
token = { credential = \"tcp-token\" }
";

/// Returns the path, the command line and the environment of each process in the lab.
fn processes(lab: &Lab) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let all = fs::read_dir(lab.path("/proc")).expect("/proc is mounted").flatten();
    let all = all.filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit()).map(|entry| entry.path());
    all.filter_map(|process| {
        let read = |name: &str| fs::read(process.join(name)).ok();
        let name = String::from_utf8_lossy(&read("comm")?).trim().to_owned();
        Some((name, read("environ")?, read("cmdline")?))
    })
    .collect()
}

#[tokio::test]
async fn credentials_of_the_template_reach_the_daemon_and_are_nowhere_else() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let mut planted = [
        Planted::new("environment-key", "{}"),
        Planted::new("gh-token", "{}-for-the-agent"),
        Planted::new("tcp-token", "{}-for-clients"),
    ];
    // An encryption key has 32 bytes.
    planted[0].value = format!("{:K<32}", planted[0].value);
    for one in &planted {
        lab.write(&format!("/etc/agentd-keys/{}", one.name), &one.value);
    }
    let line = |one: &Planted| format!("LoadCredential={0}:/etc/agentd-keys/{0}\n", one.name);
    let drop_in: String = std::iter::once("[Service]\n".to_owned()).chain(planted.iter().map(line)).collect();
    lab.write("/etc/systemd/system/agentd@.service.d/credentials.conf", &drop_in);
    let config = "/home/worker/.config/agentd/agentd.toml";
    let text = fs::read_to_string(lab.path(config)).expect("it is there") + CONFIGURED;
    lab.write(config, &text);
    lab.administer();

    let id = lab.session_in("/home/worker/project", &["--permissions", "allow"]);
    let at = "/run/credentials/agentd@worker.service";
    for one in &planted {
        assert_eq!(lab.worker(&["cat", &format!("{at}/{}", one.name)]), one.value, "the daemon's user can read it");
    }
    lab.worker(&["agentctl", "prompt", id.as_str(), "env\ntool echo $GH_TOKEN; echo $GH_TOKEN >&2"]);
    turn_ends(&lab, &id).await;
    let over_tcp =
        |file: &str| lab.try_worker(&["agentctl", "--url", "http://127.0.0.1:7345", "--token-file", file, "ls"]);
    assert!(over_tcp(&format!("{at}/tcp-token")).status.success(), "{:?}", over_tcp(&format!("{at}/tcp-token")));
    assert!(!over_tcp(&format!("{at}/gh-token")).status.success(), "another token opens it too");
    // The agent receives one of the secrets. The daemon uses the key, so the stored environment is not readable; a
    // later daemon decrypts it.
    let said: String = lab.journal(&id).iter().filter_map(said).collect();
    assert!(said.contains("\"GH_TOKEN\":\"‹secret›\"") && !said.contains("CREDENTIALS_DIRECTORY"), "{said}");
    let sealed = format!("/home/worker/.local/state/agentd/sessions/{id}/environment.json");
    assert!(!fs::read_to_string(lab.path(&sealed)).expect("it is there").contains("LOGNAME"));
    lab.root(&["systemctl", "restart", "agentd@worker.service"]);
    assert!(lab.worker(&["agentctl", "env", id.as_str(), "--values"]).contains("worker"));

    let nothing = BTreeSet::new();
    for (name, environment, arguments) in processes(&lab) {
        let is_agent = ["scripted-agent", "sh"].contains(&name.as_str());
        let mut found = found_in(&environment, &planted);
        assert!(!found.remove("gh-token") || is_agent, "{name} has the token in its environment");
        assert_eq!(found, nothing, "in the environment of {name}");
        assert_eq!(found_in(&arguments, &planted), nothing, "in the arguments of {name}");
    }
    let unit = format!("agentd-session-{id}.service");
    let told = [
        lab.root(&["systemctl", "show", "agentd@worker.service", "agentd@worker.socket"]),
        lab.root(&["systemctl", "cat", "agentd@worker.service"]),
        lab.root(&["systemctl", "show-environment"]),
        lab.systemctl(&["show", &unit]),
        lab.systemctl(&["cat", &unit]),
        lab.systemctl(&["show-environment"]),
        lab.journalctl(&["-o", "json", "--all"]),
    ];
    assert!(told[1].contains("LoadCredential=tcp-token") && told[3].contains("ActiveState=active"), "{told:?}");
    for text in told {
        assert_eq!(found_in(text.as_bytes(), &planted), nothing, "{text}");
    }
    for directory in
        ["/home/worker", "/run/user/4711", "/run/agentd", "/run/systemd", "/tmp", "/var/tmp", "/etc/systemd"]
    {
        let mut found = found_below(&lab.path(directory), &planted);
        // The daemon passes this secret to the agent, which prints it and stores its conversations in its own files.
        found.retain(|place| !(place.contains("/conversation-") && place.ends_with(": gh-token")));
        assert_eq!(found, Vec::<String>::new());
    }
    assert_eq!(found_below(&lab.path("/etc/agentd-keys"), &planted).len(), 3, "the search sees what is there");
    lab.worker(&["agentctl", "stop", id.as_str()]);
}
