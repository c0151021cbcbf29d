//! The job of launchd. A real parser reads it, and a table of launchd.plist(5) contains the allowed keys and values.
//! launchd itself ignores unknown keys and values of a wrong type without a report. systemd's units are tested in
//! tests/it/systemd.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use plist::{Dictionary, Value};

use crate::harness::paths;

/// Required form of a value.
enum Form {
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// An absolute path without characters that only a shell would expand, because launchd expands nothing.
    Path,
    Flag,
    /// A number from this minimum to this maximum.
    Number(u64, u64),
    Texts,
    /// The path of a program, and its arguments.
    Command,
    /// These keys and no other.
    Table(&'static [(&'static str, Form)]),
    /// Any key.
    All(&'static Form),
    Either(&'static Form, &'static Form),
}

use Form::{All, Either, Flag, Number, Table, Text, Texts, Word};

const ANY: u64 = u64::MAX;
const MODE: Form = Number(0, 0o777);
const PER_RESOURCE: Form = Table(&[
    ("Core", Number(0, ANY)),
    ("CPU", Number(0, ANY)),
    ("Data", Number(0, ANY)),
    ("FileSize", Number(0, ANY)),
    ("MemoryLock", Number(0, ANY)),
    ("NumberOfFiles", Number(0, ANY)),
    ("NumberOfProcesses", Number(0, ANY)),
    ("ResidentSetSize", Number(0, ANY)),
    ("Stack", Number(0, ANY)),
]);
const SOCKET: Form = Table(&[
    ("SockType", Word(&["dgram", "stream", "seqpacket"])),
    ("SockPassive", Flag),
    ("SockNodeName", Text),
    ("SockServiceName", Text),
    ("SockFamily", Word(&["IPv4", "IPv6", "IPv4v6", "Unix"])),
    ("SockProtocol", Word(&["TCP", "UDP"])),
    ("SockPathName", Form::Path),
    ("SecureSocketWithKey", Text),
    ("SockPathOwner", Number(0, ANY)),
    ("SockPathGroup", Number(0, ANY)),
    ("SockPathMode", MODE),
    ("Bonjour", Either(&Flag, &Either(&Text, &Texts))),
    ("MulticastGroup", Text),
]);
const CALENDAR: Form = Table(&[
    ("Minute", Number(0, 59)),
    ("Hour", Number(0, 23)),
    ("Day", Number(1, 31)),
    ("Weekday", Number(0, 7)),
    ("Month", Number(1, 12)),
]);

/// Keys of launchd.plist(5), without deprecated keys and without keys that affect only the system's daemons.
const JOB: Form = Table(&[
    ("Label", Text),
    ("Program", Form::Path),
    ("ProgramArguments", Form::Command),
    ("EnableGlobbing", Flag),
    ("EnableTransactions", Flag),
    ("EnablePressuredExit", Flag),
    ("LimitLoadToSessionType", Either(&Text, &Texts)),
    (
        "KeepAlive",
        Either(
            &Flag,
            &Table(&[
                ("SuccessfulExit", Flag),
                ("PathState", All(&Flag)),
                ("OtherJobEnabled", All(&Flag)),
                ("Crashed", Flag),
                ("AfterInitialDemand", Flag),
            ]),
        ),
    ),
    ("RunAtLoad", Flag),
    ("WorkingDirectory", Form::Path),
    ("EnvironmentVariables", All(&Text)),
    ("Umask", MODE),
    ("ExitTimeOut", Number(0, ANY)),
    // A value below 10 has no effect.
    ("ThrottleInterval", Number(10, ANY)),
    ("WatchPaths", Texts),
    ("QueueDirectories", Texts),
    ("StartOnMount", Flag),
    ("StartInterval", Number(1, ANY)),
    ("StartCalendarInterval", CALENDAR),
    ("StandardInPath", Form::Path),
    ("StandardOutPath", Form::Path),
    ("StandardErrorPath", Form::Path),
    ("Debug", Flag),
    ("WaitForDebugger", Flag),
    ("SoftResourceLimits", PER_RESOURCE),
    ("HardResourceLimits", PER_RESOURCE),
    ("Nice", Number(0, 20)),
    ("ProcessType", Word(&["Background", "Standard", "Adaptive", "Interactive"])),
    ("AbandonProcessGroup", Flag),
    ("LowPriorityIO", Flag),
    ("LowPriorityBackgroundIO", Flag),
    ("LaunchOnlyOnce", Flag),
    ("MachServices", All(&Either(&Flag, &Table(&[("ResetAtClose", Flag), ("HideUntilCheckIn", Flag)])))),
    ("Sockets", All(&SOCKET)),
    ("SessionCreate", Flag),
    ("LegacyTimers", Flag),
    ("AssociatedBundleIdentifiers", Either(&Text, &Texts)),
]);

/// Returns the mistakes in a value, each with the path of keys that leads to the mistake.
fn mistakes(at: &str, value: &Value, form: &Form) -> Vec<String> {
    let wrong = |what: &str| vec![format!("{at}: {what}, and it is {value:?}")];
    let unless = |holds: bool, what: &str| if holds { Vec::new() } else { wrong(what) };
    let is_path = |text: &str| text.starts_with('/') && !text.contains(['~', '$', '@']);
    match form {
        Text => unless(value.as_string().is_some_and(|text| !text.is_empty()), "a text is wanted"),
        Word(words) => {
            unless(value.as_string().is_some_and(|text| words.contains(&text)), &format!("one of {words:?} is wanted"))
        }
        Form::Path => unless(value.as_string().is_some_and(is_path), "an absolute path is wanted"),
        Flag => unless(value.as_boolean().is_some(), "true or false is wanted"),
        Number(least, most) => {
            let range = least..=most;
            let holds = value.as_unsigned_integer().is_some_and(|number| range.contains(&&number));
            unless(holds, &format!("a number from {least} to {most} is wanted"))
        }
        Texts => {
            let holds = |list: &Vec<Value>| !list.is_empty() && list.iter().all(|one| one.as_string().is_some());
            unless(value.as_array().is_some_and(holds), "a list of texts is wanted")
        }
        Form::Command => {
            let found = mistakes(at, value, &Texts);
            if !found.is_empty() {
                return found;
            }
            // execvp(3) would search launchd's own PATH for a bare name.
            mistakes(&format!("{at}[0]"), &value.as_array().expect("a list")[0], &Form::Path)
        }
        Table(keys) => {
            let Some(dictionary) = value.as_dictionary() else { return wrong("a dictionary is wanted") };
            let of = |key: &String, value| match keys.iter().find(|(name, _)| name == key) {
                Some((_, form)) => mistakes(&format!("{at}/{key}"), value, form),
                None => vec![format!("{at}/{key}: there is no such key")],
            };
            dictionary.iter().flat_map(|(key, value)| of(key, value)).collect()
        }
        All(form) => {
            let Some(dictionary) = value.as_dictionary() else { return wrong("a dictionary is wanted") };
            dictionary.iter().flat_map(|(key, value)| mistakes(&format!("{at}/{key}"), value, form)).collect()
        }
        Either(one, other) => {
            // With a dictionary, the second form is the intended form, so that a wrong key in the dictionary is named.
            let (first, second) = (mistakes(at, value, one), mistakes(at, value, other));
            if first.is_empty() || second.is_empty() { Vec::new() } else { second }
        }
    }
}

/// Returns the mistakes in a whole job, including missing keys and paths of sockets that are too long.
fn mistakes_of_job(job: &Dictionary) -> Vec<String> {
    let mut found = mistakes("", &Value::Dictionary(job.clone()), &JOB);
    if !job.contains_key("Label") {
        found.push("/Label: it is missing".to_owned());
    }
    if !job.contains_key("Program") && !job.contains_key("ProgramArguments") {
        found.push("/ProgramArguments: it is missing, and so is Program".to_owned());
    }
    let sockets = job.get("Sockets").and_then(Value::as_dictionary).into_iter().flat_map(Dictionary::values);
    for path in sockets.filter_map(|socket| socket.as_dictionary()?.get("SockPathName")?.as_string()) {
        if path.len() > 103 {
            found.push(format!("/Sockets: {path:?} has {} bytes, and sun_path of macOS has room for 103", path.len()));
        }
    }
    found
}

const LABEL: &str = "dev.agentd.agentd";

fn units() -> PathBuf {
    paths::checkout().join("units")
}

/// Returns the installed job of a user.
fn launch_agent() -> Dictionary {
    let text = fs::read_to_string(units().join(format!("launchd/{LABEL}.plist"))).unwrap();
    let text = text.replace("@HOME@", "/Users/somebody.with-a-long-name");
    parsed(&text).expect("a property list").into_dictionary().expect("a dictionary")
}

fn parsed(text: &str) -> Result<Value, plist::Error> {
    Value::from_reader(Cursor::new(text))
}

fn number(value: u64) -> Value {
    Value::Integer(value.into())
}

#[test]
fn every_key_of_the_launch_agent_is_one_that_launchd_knows_and_has_a_value_of_its_type() {
    assert_eq!(mistakes_of_job(&launch_agent()), [""; 0]);
}

/// Changes the value at the end of these keys. `None` removes the value.
fn changed(keys: &[&str], value: Option<Value>) -> Dictionary {
    fn change(dictionary: &mut Dictionary, keys: &[&str], value: Option<Value>) {
        let (key, rest) = keys.split_first().expect("a key");
        match (rest, value) {
            ([], Some(value)) => drop(dictionary.insert((*key).to_owned(), value)),
            ([], None) => drop(dictionary.remove(key).expect("it is there to be taken away")),
            (_, value) => {
                let below = dictionary.get_mut(key).and_then(Value::as_dictionary_mut);
                change(below.unwrap_or_else(|| panic!("{key} is a dictionary")), rest, value);
            }
        }
    }
    let mut job = launch_agent();
    change(&mut job, keys, value);
    job
}

#[test]
fn each_mistake_in_a_launch_agent_is_found_and_named() {
    let text = |text: &str| Some(Value::String(text.to_owned()));
    let texts = |list: &[&str]| Some(Value::Array(list.iter().map(|one| Value::String((*one).to_owned())).collect()));
    let flag = Some(Value::Boolean(true));
    let long = format!("/Users/{}/.local/state/agentd/run/control.sock", "n".repeat(80));
    let socket = &["Sockets", "control"];
    for (keys, value, named) in [
        // Unknown keys: a misspelt key of launchd, keys of systemd, and keys in a wrong place.
        (&["ExitTimeout"][..], Some(number(20)), "/ExitTimeout: there is no such key"),
        (&["Restart"], text("on-failure"), "/Restart: there is no such key"),
        (&["SuccessfulExit"], flag.clone(), "/SuccessfulExit: there is no such key"),
        (&["KeepAlive", "OnFailure"], flag.clone(), "/KeepAlive/OnFailure: there is no such key"),
        (&[socket[0], socket[1], "SockPath"], text("/s"), "/Sockets/control/SockPath: there is no such key"),
        (&["SoftResourceLimits", "NOFILE"], Some(number(1)), "/SoftResourceLimits/NOFILE: there is no such key"),
        // A value of another type.
        (&["Label"], Some(number(1)), "/Label: a text is wanted"),
        (&["Label"], text(""), "/Label: a text is wanted"),
        (&["ProgramArguments"], text("/bin/agentd serve"), "/ProgramArguments: a list of texts is wanted"),
        (&["ProgramArguments"], Some(Value::Array(vec![number(1)])), "/ProgramArguments: a list of texts is wanted"),
        (&["ProgramArguments"], texts(&[]), "/ProgramArguments: a list of texts is wanted"),
        (&["EnvironmentVariables"], texts(&["PATH=/bin"]), "/EnvironmentVariables: a dictionary is wanted"),
        (&["EnvironmentVariables", "DEBUG"], Some(number(1)), "/EnvironmentVariables/DEBUG: a text is wanted"),
        (&["Sockets"], text("/s"), "/Sockets: a dictionary is wanted"),
        (socket, text("/s"), "/Sockets/control: a dictionary is wanted"),
        (&[socket[0], socket[1], "SockPathMode"], text("0600"), "SockPathMode: a number from 0 to 511 is wanted"),
        (&["RunAtLoad"], text("yes"), "/RunAtLoad: true or false is wanted"),
        (&["KeepAlive"], text("on-failure"), "/KeepAlive: a dictionary is wanted"),
        (&["KeepAlive", "SuccessfulExit"], Some(number(0)), "/KeepAlive/SuccessfulExit: true or false is wanted"),
        (&["ThrottleInterval"], text("10s"), "/ThrottleInterval: a number from 10 to"),
        (&["ExitTimeOut"], text("20"), "/ExitTimeOut: a number from 0 to"),
        (&["ExitTimeOut"], Some(Value::Integer((-1).into())), "/ExitTimeOut: a number from 0 to"),
        (&["AbandonProcessGroup"], Some(number(1)), "/AbandonProcessGroup: true or false is wanted"),
        (&["ProcessType"], flag.clone(), "/ProcessType: one of"),
        (&["SoftResourceLimits"], Some(number(10240)), "/SoftResourceLimits: a dictionary is wanted"),
        (&["SoftResourceLimits", "NumberOfFiles"], text("10240"), "NumberOfFiles: a number from 0 to"),
        (&["Umask"], text("077"), "/Umask: a number from 0 to 511 is wanted"),
        (&["StandardErrorPath"], texts(&["/l"]), "/StandardErrorPath: an absolute path is wanted"),
        // Values out of range: octal digits as a decimal number, a number below launchd's minimum, and an unknown word.
        (&[socket[0], socket[1], "SockPathMode"], Some(number(600)), "SockPathMode: a number from 0 to 511 is wanted"),
        (&["ThrottleInterval"], Some(number(1)), "/ThrottleInterval: a number from 10 to"),
        (&["ProcessType"], text("interactive"), "/ProcessType: one of"),
        // Paths that launchd would use unchanged, resolve relative to /, or search for.
        (&["ProgramArguments"], texts(&["agentd", "serve"]), "/ProgramArguments[0]: an absolute path is wanted"),
        (
            &["ProgramArguments"],
            texts(&["@HOME@/.local/bin/agentd"]),
            "/ProgramArguments[0]: an absolute path is wanted",
        ),
        (&["StandardErrorPath"], text("~/Library/Logs/agentd.log"), "/StandardErrorPath: an absolute path is wanted"),
        (&["StandardErrorPath"], text("Library/Logs/agentd.log"), "/StandardErrorPath: an absolute path is wanted"),
        (&["StandardErrorPath"], text("/Users/$USER/agentd.log"), "/StandardErrorPath: an absolute path is wanted"),
        (&[socket[0], socket[1], "SockPathName"], text("run/control.sock"), "SockPathName: an absolute path is wanted"),
        (&[socket[0], socket[1], "SockPathName"], text(&long), "sun_path of macOS has room for 103"),
        // Required keys.
        (&["Label"], None, "/Label: it is missing"),
        (&["ProgramArguments"], None, "/ProgramArguments: it is missing"),
    ] {
        let found = mistakes_of_job(&changed(keys, value.clone()));
        assert_eq!(found.len(), 1, "{keys:?} as {value:?}: {found:?}");
        assert!(found[0].contains(named), "{keys:?} as {value:?}: {found:?}");
    }
}

#[test]
fn a_list_that_is_no_list_is_refused_by_the_parser() {
    let text = fs::read_to_string(units().join(format!("launchd/{LABEL}.plist"))).unwrap();
    for (right, wrong) in [("</array>", ""), ("<true/>", "<yes/>"), ("<integer>384</integer>", "<integer>rw</integer>")]
    {
        assert!(text.contains(right));
        assert!(parsed(&text.replacen(right, wrong, 1)).is_err(), "{right} as {wrong}");
    }
}

#[test]
fn launchd_keeps_the_daemon_and_never_ends_a_session_with_it() {
    let agent = launch_agent();
    let table = |key: &str| agent.get(key).and_then(Value::as_dictionary).unwrap_or_else(|| panic!("{key}"));
    assert_eq!(agent.get("Label").and_then(Value::as_string), Some(LABEL), "the file's own name");
    assert_eq!(agent.get("AbandonProcessGroup").and_then(Value::as_boolean), Some(true));
    assert_eq!(table("KeepAlive").get("SuccessfulExit").and_then(Value::as_boolean), Some(false));
    let control = table("Sockets").get("control").and_then(Value::as_dictionary);
    let control = control.expect("the socket that agentd asks launchd for is called control");
    assert_eq!(control.get("SockPathMode").and_then(Value::as_unsigned_integer), Some(0o600));
    // The rule of supervisor/api/src/paths.rs for macOS.
    let socket = control.get("SockPathName").and_then(Value::as_string).unwrap();
    assert_eq!(socket, "/Users/somebody.with-a-long-name/.local/state/agentd/run/control.sock");
}

/// Runs the commands of units/README.md in a home of the test, with a launchctl that records its arguments.
#[test]
fn what_the_readme_says_installs_it_with_every_directory_that_launchd_does_not_make() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let readme = fs::read_to_string(units().join("README.md")).unwrap();
    let (_, launchd) = readme.split_once("## launchd").unwrap();
    let (_, commands) = launchd.split_once("```sh\n").unwrap();
    let (commands, _) = commands.split_once("```").unwrap();
    for name in ["home", "bin", "checkout/target/release"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    std::os::unix::fs::symlink(units(), at("checkout/units")).unwrap();
    for program in ["agentd", "agentd-keeper", "agentctl"] {
        fs::write(at("checkout/target/release").join(program), "").unwrap();
    }
    fs::write(at("bin/launchctl"), "#!/bin/sh\nprintf '%s\\n' \"$@\" > \"$HOME/told\"\n").unwrap();
    fs::set_permissions(at("bin/launchctl"), fs::Permissions::from_mode(0o755)).unwrap();
    let said = Command::new("/bin/sh")
        .args(["-euc", commands])
        .current_dir(at("checkout"))
        .env_clear()
        .env("HOME", at("home"))
        .env("PATH", format!("{}:/usr/bin:/bin", at("bin").display()))
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));

    let installed = at("home/Library/LaunchAgents").join(format!("{LABEL}.plist"));
    let told = fs::read_to_string(at("home/told")).unwrap();
    let user = nix::unistd::getuid();
    assert_eq!(told, format!("bootstrap\ngui/{user}\n{}\n", installed.display()));
    let job = Value::from_file(&installed).unwrap().into_dictionary().unwrap();
    let text = |value: Option<&Value>| PathBuf::from(value.and_then(Value::as_string).expect("a text"));
    let program = text(job.get("ProgramArguments").and_then(Value::as_array).map(|words| &words[0]));
    for program in ["agentd", "agentd-keeper", "agentctl"].map(|name| program.with_file_name(name)) {
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o111, 0o111, "{}", program.display());
    }
    assert!(text(job.get("StandardErrorPath")).parent().unwrap().is_dir());
    let control = job.get("Sockets").and_then(Value::as_dictionary).unwrap().get("control");
    let socket = text(control.and_then(Value::as_dictionary).unwrap().get("SockPathName"));
    let runtime = socket.parent().unwrap();
    assert_eq!(runtime, at("home/.local/state/agentd/run"));
    assert_eq!(fs::metadata(runtime).unwrap().permissions().mode() & 0o777, 0o700);
}
