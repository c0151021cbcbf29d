//! The launchd agent as a parser of property lists reads it. systemd's own units are tried in tests/it/systemd.rs.

use std::path::Path;

use plist::Value;

/// Whether a value has the form that its key wants.
type Form = fn(&Value) -> bool;

/// Every key of launchd.plist(5) that this file may use, and the form of its value.
const ALLOWED: [(&str, Form); 12] = [
    ("Label", |value| value.as_string().is_some()),
    ("ProgramArguments", |value| value.as_array().is_some_and(|list| list.iter().all(|v| v.as_string().is_some()))),
    ("EnvironmentVariables", |value| {
        value.as_dictionary().is_some_and(|d| d.values().all(|v| v.as_string().is_some()))
    }),
    ("Sockets", |value| value.as_dictionary().is_some()),
    ("RunAtLoad", |value| value.as_boolean().is_some()),
    ("KeepAlive", |value| value.as_boolean().is_some() || value.as_dictionary().is_some()),
    ("ThrottleInterval", |value| value.as_unsigned_integer().is_some()),
    ("ExitTimeOut", |value| value.as_unsigned_integer().is_some()),
    ("AbandonProcessGroup", |value| value.as_boolean().is_some()),
    ("ProcessType", |value| matches!(value.as_string(), Some("Background" | "Standard" | "Adaptive" | "Interactive"))),
    ("Umask", |value| value.as_unsigned_integer().is_some()),
    ("StandardErrorPath", |value| value.as_string().is_some()),
];

fn launch_agent() -> plist::Dictionary {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../units/launchd/dev.agentd.agentd.plist");
    Value::from_file(file).expect("a property list").into_dictionary().expect("a dictionary")
}

#[test]
fn every_key_of_the_launch_agent_is_one_that_launchd_knows() {
    for (key, value) in &launch_agent() {
        let allowed = ALLOWED.iter().find(|(name, _)| name == key);
        let (_, has_form) = allowed.unwrap_or_else(|| panic!("launchd.plist(5) as we use it has no key {key:?}"));
        assert!(has_form(value), "{key}: {value:?}");
    }
}

#[test]
fn launchd_keeps_the_daemon_and_never_ends_a_session_with_it() {
    let agent = launch_agent();
    assert_eq!(agent.get("Label").and_then(Value::as_string), Some("dev.agentd.agentd"), "the file's own name");
    assert_eq!(agent.get("AbandonProcessGroup").and_then(Value::as_boolean), Some(true));
    let keep_alive = agent.get("KeepAlive").and_then(Value::as_dictionary).expect("KeepAlive is conditional");
    assert_eq!(keep_alive.get("SuccessfulExit").and_then(Value::as_boolean), Some(false));
    let control = agent.get("Sockets").and_then(Value::as_dictionary).and_then(|sockets| sockets.get("control"));
    let control = control.and_then(Value::as_dictionary).expect("the socket that agentd asks for is called control");
    assert_eq!(control.get("SockPathMode").and_then(Value::as_unsigned_integer), Some(0o600));
    let runtime =
        agent.get("EnvironmentVariables").and_then(Value::as_dictionary).and_then(|d| d.get("RUNTIME_DIRECTORY"));
    let runtime = runtime.and_then(Value::as_string).expect("the daemon is told where the socket is");
    let socket = control.get("SockPathName").and_then(Value::as_string);
    assert_eq!(socket, Some(format!("{runtime}/control.sock").as_str()));
}
