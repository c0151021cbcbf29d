//! Tests each import with requests that must be refused. No service is called for a refused request, except to
//! resolve the links of a path.

mod machine;
mod transcript;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::Machine;

use super::{Bounds, CallState, PassThrough};
use crate::bindings::provider::agentd::plugin::{
    clock, command, file, log, mount, network, process, script, secret, shell_environment, types,
};
use crate::call::Failure;
use crate::grant::{CommandGrant, Grant, Patterns, Places, Rules};
use crate::limits::Limits;
use crate::services::{COMMAND_PATH, CONTENT, ERRORS, RECEIVE};

fn list(patterns: &[&str]) -> Vec<String> {
    patterns.iter().map(|&pattern| pattern.to_owned()).collect()
}

fn commands(patterns: &[&str]) -> Vec<CommandGrant> {
    patterns.iter().map(|&pattern| pattern.into()).collect()
}

fn everything() -> Grant {
    let any = || list(&["*"]);
    let (script, file, network, mount, process, secret) = (any(), any(), any(), any(), any(), any());
    Grant {
        login_shell: true,
        script,
        command: commands(&["**"]),
        file,
        network,
        mount,
        process,
        secret,
        variables: None,
    }
}

struct Case {
    state: CallState,
    machine: Arc<Machine>,
}

/// Makes a call of a plugin that wants everything.
fn case(granted: &Grant, denied: &Grant, machine: Machine) -> Case {
    let wanted = Some(Patterns::new(&everything()).unwrap());
    let rules = Rules { granted: Patterns::new(granted).unwrap(), denied: Patterns::new(denied).unwrap(), wanted };
    with(rules, machine)
}

fn with(rules: Rules, machine: Machine) -> Case {
    let machine = Arc::new(machine);
    let places = Places {
        cwd: Some("/work".to_owned()),
        config: Some("/home/u/.config/agentd".to_owned()),
        ..Places::default()
    };
    let limits = Limits { time: Duration::from_secs(1), ..Limits::default() };
    let services = Arc::<Machine>::clone(&machine);
    Case { state: CallState::new(&limits, Bounds::new(rules), services, places), machine }
}

impl Case {
    /// Returns the recorded calls since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.machine.asked.lock().unwrap())
    }

    #[track_caller]
    fn untouched<T: Debug>(&self, answer: wasmtime::Result<Result<T, types::Failure>>, words: &str) {
        failed(answer, words);
        assert_eq!(self.asked(), [""; 0], "refused before anybody is asked");
    }
}

#[track_caller]
fn failed<T: Debug>(answer: wasmtime::Result<Result<T, types::Failure>>, words: &str) {
    let failure = Failure::from(answer.unwrap().unwrap_err()).to_string();
    assert!(failure.contains(words), "{failure:?} has no {words:?}");
}

const GRANTED: &str = "is outside of this plugin's grant";

#[tokio::test]
async fn scripts_are_refused_by_their_text_and_reach_the_service_in_order() {
    let granted = Grant { script: list(&["{config}/*", "/etc/agentd/?.sh"]), ..Grant::default() };
    let denied = Grant { script: list(&["/home/**/secret.sh"]), ..Grant::default() };
    let mut case = case(&granted, &denied, Machine::default());
    for (path, words) in [
        ("{cwd}/x.sh", GRANTED),
        ("{config}/a/b.sh", GRANTED),
        ("{config}/../x.sh", "contains \"..\""),
        ("{session}/x.sh", GRANTED),
        ("/etc/agentd/ab.sh", GRANTED),
        ("/etc/agentd/a.sh\0", "NUL"),
        ("{config}x", "neither absolute"),
        ("x.sh", "neither absolute"),
        ("", "is empty"),
        ("{config}/secret.sh", "is denied by the administrator"),
        ("/home/u/.config/agentd/secret.sh", "is denied by the administrator"),
    ] {
        let answer = script::Host::source(&mut case.state, path.to_owned(), Vec::new()).await;
        case.untouched(answer, words);
        let both = vec!["{config}/a.sh".to_owned(), path.to_owned()];
        let answer = script::Host::locate(&mut case.state, both).await;
        case.untouched(answer, words);
    }
    let unfit = types::Variable { name: "A=B".to_owned(), value: Vec::new() };
    let answer = script::Host::source(&mut case.state, "{config}/a.sh".to_owned(), vec![unfit]).await;
    case.untouched(answer, "no environment can hold");
    let many = vec!["{config}/a.sh".to_owned(); 1001];
    let answer = script::Host::locate(&mut case.state, many).await;
    case.untouched(answer, "more than 1000");
    script::Host::source(&mut case.state, "{config}//./a.sh".to_owned(), Vec::new()).await.unwrap().unwrap();
    script::Host::source(&mut case.state, "/home/u/.config/agentd/b".to_owned(), Vec::new()).await.unwrap().unwrap();
    assert_eq!(case.asked(), ["source {config}/a.sh", "source /home/u/.config/agentd/b"]);
}

fn run(program: &str, arguments: &[&str]) -> command::Invocation {
    command::Invocation {
        program: program.to_owned(),
        arguments: list(arguments),
        environment: Vec::new(),
        directory: None,
        input: Vec::new(),
        time: Some(200),
    }
}

#[tokio::test]
async fn programs_are_refused_by_their_arguments_and_by_what_they_turn_out_to_be() {
    let granted = Grant { command: commands(&["/usr/bin/tool list *", "plain"]), ..Grant::default() };
    let denied = Grant { command: commands(&["* list denied **"]), ..Grant::default() };
    let links = [("/home/u/tool", "/bin/sh"), ("/usr/bin/plain", "/opt/plain")].into();
    let mut case = case(&granted, &denied, Machine { links, ..Machine::default() });
    let long = "a".repeat(200_000);
    for (invocation, words) in [
        (run("/usr/bin/tool", &["drop", "x"]), GRANTED),
        (run("/usr/bin/tool", &["list"]), GRANTED),
        (run("/usr/bin/tool", &["list", "x", "y"]), GRANTED),
        (run("/usr/bin/tool", &["list", "denied"]), "is denied by the administrator"),
        (run("/usr/bin/tool", &["list", "a\0b"]), "NUL"),
        (run("/usr/bin/tool", &["list", &long]), "more than 131072 bytes of arguments"),
        (run("/usr/bin/other", &["list", "x"]), GRANTED),
        (run("/usr/bin/../bin/tool", &["list", "x"]), "contains"),
        (run("bin/tool", &["list", "x"]), "neither an absolute path nor"),
        (run("..", &[]), "neither an absolute path nor"),
        (run("", &[]), "neither an absolute path nor"),
        (run("/opt/plain", &[]), GRANTED),
        (command::Invocation { directory: Some("/etc".to_owned()), ..run("plain", &[]) }, "cannot start in \"/etc\""),
        (
            command::Invocation {
                environment: vec![types::Variable { name: String::new(), value: Vec::new() }],
                ..run("plain", &[])
            },
            "no environment can hold",
        ),
    ] {
        let answer = command::Host::run(&mut case.state, invocation).await;
        case.untouched(answer, words);
    }
    // The name matches; only the machine knows the file.
    let answer = command::Host::run(&mut case.state, run("/home/u/tool", &["list", "x"])).await;
    failed(answer, "\"/home/u/tool\" with the arguments \"list x\" is outside of this plugin's grant");
    assert_eq!(case.asked(), ["run /home/u/tool list x 2"]);
    let completed = command::Host::run(&mut case.state, run("plain", &[])).await.unwrap().unwrap();
    assert_eq!(completed.errors.len(), ERRORS);
    command::Host::run(&mut case.state, run("tool", &["list", ""])).await.unwrap().unwrap();
    assert_eq!(case.asked(), ["run plain  2", "run tool list  2"]);
    let much = command::Invocation { input: vec![b'i'; CONTENT + 1], time: Some(u64::MAX), ..run("plain", &[]) };
    let answer = command::Host::run(&mut case.state, much).await;
    failed(answer, "more than 1048576 bytes");
    assert_eq!(case.asked(), ["run plain  9"], "no time asked for is more than the call has");
}

#[tokio::test]
async fn files_are_refused_by_where_their_links_lead_and_nothing_else_is_told_of_them() {
    let granted = Grant { file: list(&["{cwd}/**", "/etc/tool/*", "{cwd}"]), ..Grant::default() };
    let denied = Grant { file: list(&["{cwd}/.git/**"]), ..Grant::default() };
    let links = [
        ("/work/link", "/etc/shadow"),
        ("/work/there", "/etc/tool/a"),
        ("/outside/there", "/etc/tool/a"),
        ("/work/gone", "absent"),
        ("/outside/gone", "absent"),
        ("/work/git", "/work/.git/config"),
    ];
    let mut case = case(&granted, &denied, Machine { links: links.into(), ..Machine::default() });
    for (path, words) in [
        ("{cwd}/../etc/shadow", "contains"),
        ("/etc/tool/../shadow", "contains"),
        ("{cwd}/.git/config", "is denied"),
        ("/work/.git/config", "is denied"),
        ("{session}/x", "a place that this call does not have"),
        ("{home}/x", "neither absolute"),
        ("etc", "neither absolute"),
        ("/etc\0", "NUL"),
    ] {
        let answer = file::Host::read(&mut case.state, path.to_owned()).await;
        case.untouched(answer, words);
        let answer = file::Host::inspect(&mut case.state, path.to_owned()).await;
        case.untouched(answer, words);
        let answer = file::Host::entries(&mut case.state, path.to_owned()).await;
        case.untouched(answer, words);
    }
    for (path, words) in [
        ("/etc/shadow", "the file \"/etc/shadow\" is outside of this plugin's grant"),
        ("/etc/tool/a/b", GRANTED),
        ("{cwd}/link", "the file \"{cwd}/link\" is \"/etc/shadow\", which is outside"),
        ("{cwd}/git", "is \"/work/.git/config\", which is denied by the administrator"),
        ("{cwd}/gone", "there is no such file"),
        ("/outside/gone", "the file \"/outside/gone\" is outside of this plugin's grant"),
        ("{cwd}/large", "is more than 1048576 bytes"),
    ] {
        let answer = file::Host::read(&mut case.state, path.to_owned()).await;
        failed(answer, words);
    }
    let answer = file::Host::entries(&mut case.state, "{cwd}/large".to_owned()).await;
    failed(answer, "has more than 10000 entries");
    for path in ["{cwd}/there", "/outside/there", "{cwd}//a/./b/", "/etc/tool/a", "{cwd}"] {
        file::Host::read(&mut case.state, path.to_owned()).await.unwrap().unwrap();
        file::Host::entries(&mut case.state, path.to_owned()).await.unwrap().unwrap();
        file::Host::inspect(&mut case.state, path.to_owned()).await.unwrap().unwrap();
    }
    assert!(case.asked().contains(&"read {cwd}/a/b".to_owned()));
}

#[tokio::test]
async fn a_grant_by_a_link_of_the_machines_own_is_one_of_where_it_leads_and_of_no_other_name() {
    // On most machines `/bin` is a link, and `sh` is another.
    let shell = std::fs::canonicalize("/bin/sh").unwrap().into_os_string().into_string().unwrap();
    let shell: &'static str = shell.leak();
    let granted = Grant { command: commands(&["/bin/sh -c *"]), file: list(&["/bin/sh"]), ..Grant::default() };
    let links = [("/bin/sh", shell), ("/usr/bin/sh", shell), ("/home/u/sh", shell), ("/home/u/x", shell)];
    let machine = || Machine { links: links.into(), ..Machine::default() };
    let mut open = case(&granted, &Grant::default(), machine());
    for program in ["/bin/sh", "sh", "/home/u/sh"] {
        command::Host::run(&mut open.state, run(program, &["-c", "true"])).await.unwrap().unwrap();
    }
    let answer = command::Host::run(&mut open.state, run("/home/u/x", &["-c", "true"])).await;
    failed(answer, GRANTED);
    file::Host::read(&mut open.state, "/bin/sh".to_owned()).await.unwrap().unwrap();
    // A denial of one name covers all names.
    let denied = Grant { command: commands(&["/bin/sh **"]), file: list(&["/bin/sh"]), ..Grant::default() };
    let mut closed = case(&everything(), &denied, machine());
    for program in ["/bin/sh", "sh", "/home/u/sh", "/home/u/x"] {
        let answer = command::Host::run(&mut closed.state, run(program, &["-c", "true"])).await;
        failed(answer, "is denied by the administrator");
    }
    let answer = file::Host::read(&mut closed.state, "/home/u/x".to_owned()).await;
    failed(answer, "is denied by the administrator");
}

#[tokio::test]
async fn a_program_gets_the_hosts_environment_and_the_variables_that_are_granted_for_it() {
    let command = CommandGrant::from("ldd *").with_variables(["TOOL_*", "*", "PAGER"]);
    let granted = Grant { command: vec![command, "ldd -v".into(), "/usr/bin/git log".into()], ..Grant::default() };
    let mut case = case(&granted, &Grant::default(), Machine::default());
    let around = [("HOME", "/home/u"), ("LD_LIBRARY_PATH", "/own"), ("BASH_ENV", "/plugin")];
    let around: Vec<_> = around.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    case.state.set_pass_through(PassThrough::new(&around, &["BASH_ENV".to_owned()]));
    let with = |run: command::Invocation, variables: &[(&str, &str)]| {
        let variable = |(name, value): &(&str, &str)| types::Variable { name: (*name).into(), value: (*value).into() };
        command::Invocation { environment: variables.iter().map(variable).collect(), ..run }
    };
    let (ldd, git) = (run("ldd", &["/bin/true"]), run("/usr/bin/git", &["log"]));
    for (invocation, words) in [
        (with(ldd.clone(), &[("BASH_ENV", "$(evil)")]), "is given \"BASH_ENV\", and this plugin is not granted"),
        (
            with(ldd.clone(), &[("BASH_ENV", "/plugin")]),
            "is granted only by its exact name, since shells run or read it",
        ),
        (with(ldd.clone(), &[("TOOL_A", "1"), ("LD_PRELOAD", "/x.so")]), "variables = [\"LD_PRELOAD\"]"),
        (with(ldd.clone(), &[("LD_LIBRARY_PATH", "/other")]), "\"LD_LIBRARY_PATH\""),
        (with(git.clone(), &[("GIT_CONFIG_COUNT", "1"), ("A", "1")]), "is given \"GIT_CONFIG_COUNT\", \"A\", and"),
        (with(git.clone(), &[("GIT_TRACE", "/home/u/.profile")]), "\"GIT_TRACE\""),
        (with(run("ldd", &["-v"]), &[("PATH", "/evil")]), "\"PATH\""),
    ] {
        let answer = command::Host::run(&mut case.state, invocation).await;
        case.untouched(answer, words);
    }
    for invocation in [
        with(ldd.clone(), &[("TOOL_A", "1"), ("PAGER", "cat"), ("ANY", "")]),
        with(ldd, &[("LD_LIBRARY_PATH", "/own"), ("HOME", "/home/u")]),
        with(git, &[("HOME", "/home/u"), ("PATH", COMMAND_PATH)]),
    ] {
        command::Host::run(&mut case.state, invocation).await.unwrap().unwrap();
    }
    let given = std::mem::take(&mut *case.machine.given.lock().unwrap());
    let names: Vec<Vec<&str>> =
        given.iter().map(|variables| variables.iter().map(|(name, _)| name.as_str()).collect()).collect();
    assert_eq!(
        names,
        [&["TOOL_A", "PAGER", "ANY", "PATH"][..], &["LD_LIBRARY_PATH", "HOME", "PATH"], &["HOME", "PATH"]]
    );
}

fn words(problem: network::Problem) -> String {
    match problem {
        network::Problem::Other(failure) => Failure::from(failure).to_string(),
        other => format!("{other:?}"),
    }
}

fn step(receive: u32) -> network::Step {
    network::Step { send: Vec::new(), receive, until: Vec::new() }
}

#[tokio::test]
async fn hosts_are_refused_by_name_and_port_and_by_the_address_that_is_denied() {
    let granted = Grant { network: list(&["*.corp:443", "[fd00::1]:80"]), ..Grant::default() };
    let mut case = case(&granted, &Grant::default(), Machine::default());
    for (host, port, expected) in [
        ("a.corp", 80, GRANTED),
        ("corp", 443, GRANTED),
        ("a.corp.evil", 443, GRANTED),
        ("a.corp:443", 443, "is neither an address nor a name"),
        ("127.1", 443, "looks like a number"),
        ("a.corp\0", 443, "is neither an address nor a name"),
        ("", 443, "is neither an address nor a name"),
        ("fd00::2", 80, GRANTED),
    ] {
        let problem = network::Host::exchange(&mut case.state, host.to_owned(), port, vec![], 100).await.unwrap();
        let problem = words(problem.unwrap_err());
        assert!(problem.contains(expected), "{host}: {problem}");
        if port == 443 {
            network::Host::resolve(&mut case.state, host.to_owned()).await.unwrap().unwrap_err();
        }
        assert_eq!(case.asked(), [""; 0]);
    }
    let many = vec![step(1); 65];
    let problem = network::Host::exchange(&mut case.state, "a.corp".to_owned(), 443, many, 100).await.unwrap();
    assert!(words(problem.unwrap_err()).contains("more than 64 steps"));
    let steps = vec![step(u32::MAX), step(0)];
    let done = network::Host::exchange(&mut case.state, "A.corp.".to_owned(), 443, steps, u64::MAX).await.unwrap();
    let lengths: Vec<usize> = done.unwrap().received.iter().map(Vec::len).collect();
    assert_eq!(lengths, [RECEIVE as usize, 0], "no more than was asked for");
    network::Host::resolve(&mut case.state, "[FD00:0::1]".to_owned()).await.unwrap().unwrap();
    let answer = network::Host::way_to(&mut case.state, "a.corp".to_owned()).await;
    failed(answer, "it is not an address");
    assert_eq!(case.asked(), ["exchange a.corp 443 [65536 0] 9", "resolve fd00::1"]);

    let denied = Grant { network: list(&["127.*:*"]), ..Grant::default() };
    // A denial covers all names of this machine, and all names that resolve to it.
    let anywhere = Grant { network: list(&["*:*"]), ..Grant::default() };
    let addresses = vec!["0.0.0.0", "::", "::1%lo", "64:ff9b::7f00:1"];
    let mut closed = super::tests::case(&anywhere, &denied, Machine { addresses, ..Machine::default() });
    for host in
        ["127.0.0.1", "0.0.0.0", "::", "::%lo", "[::]", "::ffff:127.0.0.1", "localhost.", "2002:7f00:1::", "a.corp"]
    {
        let problem = network::Host::exchange(&mut closed.state, host.to_owned(), 80, vec![], 100).await.unwrap();
        let problem = words(problem.unwrap_err());
        assert!(problem.contains("is denied by the administrator"), "{host}: {problem}");
        assert!(closed.asked().iter().all(|asked| asked == "resolve a.corp"), "{host} was connected to");
    }
    let mut open =
        super::tests::case(&anywhere, &denied, Machine { addresses: vec!["10.0.0.1"], ..Machine::default() });
    network::Host::exchange(&mut open.state, "10.0.0.1".to_owned(), 80, vec![], 100).await.unwrap().unwrap();
    let addresses = vec!["::ffff:127.0.0.1", "10.0.0.9", "10.0.0.1", "10.0.0.2"];
    let mut case = super::tests::case(&granted, &denied, Machine { addresses, ..Machine::default() });
    let done = network::Host::exchange(&mut case.state, "a.corp".to_owned(), 443, vec![], 100).await.unwrap().unwrap();
    assert_eq!(done.address, "10.0.0.1");
    assert_eq!(case.asked(), ["resolve a.corp", "exchange 10.0.0.9 443 [] 1", "exchange 10.0.0.1 443 [] 1"]);
    let problem = network::Host::exchange(&mut case.state, "127.0.0.1".to_owned(), 443, vec![], 100).await.unwrap();
    assert!(words(problem.unwrap_err()).contains("is denied by the administrator"));
}

#[tokio::test]
async fn mounts_are_left_out_and_paths_processes_and_secrets_refused() {
    let (mount, process, secret) = (list(&["/mnt/**"]), list(&["ssh?"]), list(&["corp-*", "large"]));
    let granted = Grant { mount, process, secret, ..Grant::default() };
    let denied = Grant { mount: list(&["/mnt/secret"]), secret: list(&["*-root"]), ..Grant::default() };
    let mut case = case(&granted, &denied, Machine::default());
    let mounts = mount::Host::mounts(&mut case.state).await.unwrap().unwrap();
    assert_eq!(mounts.iter().map(|mount| mount.path.as_str()).collect::<Vec<_>>(), ["/mnt/a", "/mnt/a/b"]);
    case.asked();
    for (path, words) in [("/", GRANTED), ("/mnt/../home", "contains"), ("/mnt/secret", "denied"), ("mnt", "neither")] {
        let answer = mount::Host::probe(&mut case.state, path.to_owned(), 100).await;
        case.untouched(answer, words);
    }
    let long = "s".repeat(256);
    for (name, words) in [("sshdd", GRANTED), ("", "no name"), (&long, "no name"), ("ssh\0", "no name")] {
        let answer = process::Host::running(&mut case.state, name.to_owned()).await;
        case.untouched(answer, words);
    }
    for (name, words) in [("corp", GRANTED), ("corp-root", "is denied"), ("", "no name"), ("corp-\0", "no name")] {
        let answer = secret::Host::read(&mut case.state, name.to_owned()).await;
        case.untouched(answer, words);
    }
    mount::Host::probe(&mut case.state, "/mnt/a/".to_owned(), u64::MAX).await.unwrap().unwrap();
    process::Host::running(&mut case.state, "sshd".to_owned()).await.unwrap().unwrap();
    secret::Host::read(&mut case.state, "corp-a".to_owned()).await.unwrap().unwrap();
    assert_eq!(case.asked(), ["probe /mnt/a 9", "process sshd", "secret corp-a"]);
    let answer = secret::Host::read(&mut case.state, "large".to_owned()).await;
    failed(answer, "more than 1048576 bytes");
}

/// Restarts the call's time.
fn anew(state: &mut CallState) -> &mut CallState {
    let began = std::mem::replace(&mut state.started, Instant::now());
    state.host_deadline = state.started + (state.host_deadline - began);
    state.deadline = state.started + (state.deadline - began);
    state
}

/// Calls every import once with a request that a full grant allows, and returns the failures.
async fn all(case: &mut Case) -> Vec<String> {
    let state = &mut case.state;
    let one = || "/x".to_owned();
    let mut said = Vec::new();
    let mut add =
        |failure: Option<types::Failure>| said.extend(failure.map(|failure| Failure::from(failure).to_string()));
    add(shell_environment::Host::login(anew(state)).await.unwrap().err());
    add(script::Host::locate(anew(anew(state)), vec![one()]).await.unwrap().err());
    add(script::Host::source(anew(anew(state)), one(), Vec::new()).await.unwrap().err());
    add(command::Host::run(anew(anew(state)), run("/x", &[])).await.unwrap().err());
    add(file::Host::inspect(anew(anew(state)), one()).await.unwrap().err());
    add(file::Host::read(anew(anew(state)), one()).await.unwrap().err());
    add(file::Host::entries(anew(anew(state)), one()).await.unwrap().err());
    add(network::Host::interfaces(anew(state)).await.unwrap().err());
    add(network::Host::routes(anew(state)).await.unwrap().err());
    add(network::Host::way_to(anew(anew(state)), "::1".to_owned()).await.unwrap().err());
    add(network::Host::name_service_facts(anew(state)).await.unwrap().err());
    add(mount::Host::mounts(anew(state)).await.unwrap().err());
    add(process::Host::running(anew(anew(state)), one()).await.unwrap().err());
    add(secret::Host::read(anew(anew(state)), one()).await.unwrap().err());
    for problem in [
        network::Host::resolve(anew(anew(state)), "x".to_owned()).await.unwrap().map(|_| ()),
        network::Host::exchange(anew(anew(state)), "x".to_owned(), 1, vec![], 100).await.unwrap().map(|_| ()),
    ] {
        said.extend(problem.err().map(words));
    }
    said
}

#[tokio::test]
async fn nothing_answers_a_plugin_that_has_not_described_itself_or_is_denied_everything() {
    let rules = Rules { granted: Patterns::new(&everything()).unwrap(), ..Rules::default() };
    let mut undescribed = with(rules, Machine::default());
    let said = all(&mut undescribed).await;
    assert_eq!(said.len(), 16, "{said:?}");
    assert!(said.iter().all(|said| said.contains("before the plugin has described itself")), "{said:?}");
    assert_eq!(undescribed.asked(), [""; 0]);

    // Network facts and the mount table cannot be denied by pattern. A plugin that is denied everything is not
    // linked at all.
    let mut denied = case(&everything(), &everything(), Machine::default());
    let said = all(&mut denied).await;
    assert_eq!(said.len(), 11, "{said:?}");
    assert!(said.iter().all(|said| said.contains("is denied by the administrator")), "{said:?}");
    assert_eq!(denied.asked(), ["interfaces", "routes", "way ::1", "names", "mounts"]);
    assert_eq!(mount::Host::mounts(&mut denied.state).await.unwrap().unwrap().len(), 0);

    let mut allowed = case(&everything(), &Grant::default(), Machine::default());
    assert_eq!(all(&mut allowed).await, [""; 0]);
}

#[tokio::test]
async fn every_import_ends_by_the_deadline_of_its_call_or_its_own() {
    let mut case = case(&everything(), &Grant::default(), Machine { stuck: true, ..Machine::default() });
    let begun = Instant::now();
    command::Host::run(&mut case.state, run("/x", &[])).await.unwrap().unwrap_err();
    let exchanged = network::Host::exchange(&mut case.state, "x".to_owned(), 1, vec![], 100).await.unwrap();
    assert!(matches!(exchanged, Err(network::Problem::TimedOut(_))), "{exchanged:?}");
    let probed = mount::Host::probe(&mut case.state, "/x".to_owned(), 100).await.unwrap().unwrap();
    assert!(matches!(probed, mount::Liveness::Hangs));
    assert!(begun.elapsed() < Duration::from_millis(900), "each by its own: {:?}", begun.elapsed());
    let begun = Instant::now();
    case.state.host_deadline = case.state.started + Duration::from_millis(100);
    case.state.deadline = case.state.started + Duration::from_millis(150);
    let said = all(&mut case).await;
    assert_eq!(said.len(), 16, "{said:?}");
    assert!(said.iter().all(|said| said.contains("did not end within the ")), "{said:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "each of them by the call's: {:?}", begun.elapsed());
}

#[tokio::test]
async fn nothing_is_begun_for_a_call_whose_time_is_over() {
    let mut case = case(&everything(), &Grant::default(), Machine::default());
    case.state.host_deadline = Instant::now();
    let over = "was not started";
    let ran = command::Host::run(&mut case.state, run("/x", &[])).await;
    case.untouched(ran, over);
    let read = file::Host::read(&mut case.state, "/x".to_owned()).await;
    case.untouched(read, over);
    let secret = secret::Host::read(&mut case.state, "x".to_owned()).await;
    case.untouched(secret, over);
    let exchanged = network::Host::exchange(&mut case.state, "x".to_owned(), 1, vec![], 100).await.unwrap();
    assert!(matches!(&exchanged, Err(network::Problem::TimedOut(words)) if words.contains(over)), "{exchanged:?}");
    assert_eq!(case.asked(), [""; 0]);
}

#[tokio::test]
async fn messages_are_counted_by_the_limit_of_the_call_and_made_plain() {
    let mut case = case(&Grant::default(), &Grant::default(), Machine::default());
    case.state.most_messages = 2;
    for message in ["one\x1b[2J", "two", "three"] {
        log::Host::write(&mut case.state, log::Level::Error, message.to_owned()).await.unwrap();
    }
    assert_eq!(case.state.last_error.as_deref(), Some("three"), "a panic is told even of who said too much");
    case.state.finish();
    let lost = "Warn 1 more messages were dropped; a call may write 2";
    assert_eq!(case.asked(), ["Error one\\u{1b}[2J", "Error two", lost]);
    let before = clock::Host::monotonic(&mut case.state).await.unwrap();
    assert!(clock::Host::monotonic(&mut case.state).await.unwrap() >= before);
}
