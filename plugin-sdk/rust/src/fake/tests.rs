use super::*;
use crate::command::Command;
use crate::mount::{Liveness, Mounted};
use crate::network::{NameService, Problem, Step};
use crate::{
    CheckDescription, Moment, OrNone, Outcome, clock, file, log, mount, network, process, script, secret, shell,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the message with which the test fails.
fn ends_with(part: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(part)).expect_err("the test goes on");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// A provider that wants the files of one directory, and reads the file that its setting names.
struct Reader;

impl Provider for Reader {
    fn describe() -> Description {
        Description::new("reader", "1", "reads a file").required_setting("path", "a file").wants(
            Capability::File,
            ["{cwd}/**"],
            "reads it",
        )
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        Ok(vec![Change::set("READ", file::read(request.required_setting("path")?)?)])
    }
}

#[test]
fn a_call_without_an_answer_ends_the_test_and_says_which_call_and_what_would_answer_it() {
    let host = Host::new().setting("path", ["{cwd}/a"]);
    let told = ends_with(|| drop(host.provide::<Reader>()));
    assert!(told.contains("the file /work/a") && told.contains("file, directory or nothing_at"), "{told}");
    let host = Host::new();
    for (part, subject) in [
        (Box::new(|| drop(Command::new("git").argument("log").run())) as Box<dyn FnOnce()>, "the command \"git log\""),
        (Box::new(|| drop(shell::login())), "the login shell's environment"),
        (Box::new(|| drop(script::locate(&["/a.sh".to_owned()]))), "the script /a.sh"),
        (Box::new(|| drop(network::resolve("h"))), "the addresses of h"),
        (Box::new(|| drop(network::connect("h", 80, Duration::ZERO))), "an exchange with h:80"),
        (Box::new(|| drop(network::routes())), "Routes"),
        (Box::new(|| drop(mount::mounts())), "the mount table"),
        (Box::new(|| drop(mount::probe("/m", Duration::ZERO))), "the path /m"),
        (Box::new(|| drop(process::running("p"))), "processes named \"p\""),
        (Box::new(|| drop(secret::read("s"))), "the secret \"s\""),
    ] {
        let told = ends_with(|| host.run(part));
        assert!(told.contains(subject) && told.contains("has no answer"), "{told}");
    }
}

#[test]
fn without_a_host_a_call_ends_the_test_and_a_message_does_not() {
    log::info("nobody listens");
    let told = ends_with(|| drop(file::read("/a")));
    assert!(told.contains("Read(\"/a\")") && told.contains("fake::Host"), "{told}");
}

#[test]
fn what_no_want_and_what_no_grant_covers_is_not_granted() {
    let with = |path: &str| Host::new().setting("path", [path]).file(path, "x");
    assert_eq!(with("{cwd}/a").provide::<Reader>(), Ok(vec![Change::set("READ", "x")]));
    let refused = |host: Host, who: &str| {
        let failure = host.provide::<Reader>().unwrap_err();
        assert!(matches!(&failure, Failure::NotGranted(text) if text.contains(who)), "{failure:?}");
    };
    refused(with("/etc/passwd"), "the plugin's description wants");
    refused(with("{cwd}/../etc/passwd"), "the plugin's description wants");
    refused(with("{cwd}/a").grant(Capability::File, ["{cwd}/b"]), "the administrator granted");
    refused(with("{cwd}/a").grant(Capability::Script, ["{cwd}/a"]), "the administrator granted");
    refused(with("{cwd}/a").grant_nothing(), "the administrator granted");
    let granted = with("{cwd}/a").grant(Capability::File, ["{cwd}/*"]);
    assert_eq!(granted.provide::<Reader>().map(|changes| changes.len()), Ok(1));
    assert_eq!(granted.calls(), [Call::Read("{cwd}/a".to_owned())]);
}

#[test]
fn a_configuration_that_the_daemon_would_refuse_does_not_reach_the_plugin() {
    let key = |host: Host| match host.provide::<Reader>() {
        Err(Failure::Configuration(error)) => error.key,
        other => panic!("{other:?}"),
    };
    assert_eq!(key(Host::new()), "path");
    assert_eq!(key(Host::new().setting("path", ["/a"]).setting("paht", ["/a"])), "paht");
}

#[test]
fn scripts_and_files_are_found_by_their_places_and_nothing_is_where_the_test_says_so() {
    let host = Host::new()
        .script("{config}/a.sh", |environment| {
            environment.insert("A".to_owned(), b"1".to_vec());
        })
        .script_fails("/b.sh", Failure::NotApproved("approve it".to_owned()))
        .directory("{cwd}", ["y", "x"])
        .file("/secret", Failure::unavailable("may not be read"))
        .nothing_at("/nowhere/**");
    host.run(|| {
        let paths = ["{config}/a.sh", "/nowhere/x.sh"].map(str::to_owned);
        let located = script::locate(&paths).unwrap();
        assert_eq!(located, [Some("/home/demo/.config/agentd/a.sh".to_owned()), None]);
        let sourced = script::source("{config}/a.sh", &[Variable::new("B", "2")]).unwrap();
        assert_eq!(sourced.environment, [Variable::new("A", "1"), Variable::new("B", "2")]);
        assert!(matches!(script::source("/b.sh", &[]), Err(Failure::NotApproved(_))));
        assert!(matches!(script::source("/nowhere/x.sh", &[]), Err(Failure::NotFound(_))));
        assert_eq!(file::entries("{cwd}").unwrap(), ["x", "y"]);
        assert_eq!(file::inspect("/work").map(|of| of.kind), Ok(file::Kind::Directory));
        assert_eq!(file::read("/secret"), Err(Failure::unavailable("may not be read")));
        assert_eq!(file::read("/nowhere/a").or_none(), Ok(None));
        assert!(matches!(file::read("{cwd}"), Err(Failure::Unavailable(_))));
        for path in ["a", "{home}/a", ""] {
            assert!(matches!(file::read(path), Err(Failure::Failed(text)) if text.contains("absolute")), "{path}");
        }
    });
}

#[test]
fn more_than_the_host_hands_over_is_too_large() {
    let much = vec![b'x'; (1 << 20) + 1];
    let host = Host::new().file("/a", much.clone()).output("cat", much);
    host.run(|| {
        assert!(matches!(file::read("/a"), Err(Failure::TooLarge(_))));
        assert!(matches!(Command::new("cat").run(), Err(Failure::TooLarge(_))));
    });
}

#[test]
fn a_program_that_fails_is_told_with_its_last_words() {
    let host = Host::new().command("make *", |invocation| {
        assert_eq!((&invocation.arguments[..], invocation.time), (&["all".to_owned()][..], Some(2000)));
        Ok(completed(2, "", "first\nno rule\n\n"))
    });
    let output = host.run(|| Command::new("make").argument("all").time(Duration::from_secs(2)).output());
    assert_eq!(output, Err(Failure::failed("make ended with status 2: no rule")));
}

#[test]
fn time_goes_on_when_the_test_says_so() {
    let host = Host::new().clock(1_000);
    host.run(|| {
        let before = clock::monotonic();
        host.time_passes(Duration::from_secs(1));
        assert_eq!((clock::wall(), clock::monotonic() - before), (2_000, 1_000_000_000));
    });
}

/// A prerequisite that uses every capability that a check can use.
struct Server;

impl Prerequisite for Server {
    fn describe() -> CheckDescription {
        Description::new("server", "1", "asks a server")
            .wants(Capability::Network, ["*.example:80"], "asks it")
            .wants(Capability::Mount, ["/m"], "looks at it")
            .checked(Moment::BeforeEnvironment)
    }

    fn check(request: &CheckRequest) -> Result<Report, Failure> {
        log::debug("asking");
        let mounts = mount::mounts()?.len();
        let alive = mount::probe("/m", Duration::from_secs(1))?;
        let servers = network::name_service()?.servers.join(",");
        let outcome = match network::exchange("a.example", 80, &[Step::send("?").receive(1)], Duration::from_secs(1)) {
            Ok(answer) if answer.received == [b"!".to_vec()] => Outcome::Pass,
            Ok(_) => Outcome::Warn,
            Err(Problem::Other(failure)) => return Err(failure),
            Err(_) => Outcome::Fail,
        };
        let session = request.session.is_some().to_string();
        Ok(Report::new(outcome, format!("{mounts} {alive:?} {servers}")).fact("session", session))
    }
}

#[test]
fn a_prerequisite_is_asked_with_and_without_a_session() {
    let mounted = |path: &str| Mounted {
        path: path.to_owned(),
        source: "s:/".to_owned(),
        kind: "nfs4".to_owned(),
        options: Vec::new(),
        device: "0:1".to_owned(),
    };
    let host = |answer: &'static str| {
        Host::new()
            .mounts(vec![mounted("/m"), mounted("/other")])
            .probe("/m", Ok(Liveness::Hangs))
            .name_service(NameService { servers: vec!["192.0.2.53".to_owned()], search: Vec::new() })
            .listens("a.example", 80, move |_| Ok(exchanged("192.0.2.1:80", [answer])))
    };
    let report = host("!").check::<Server>().unwrap();
    assert_eq!((report.outcome, report.summary.as_str()), (Outcome::Pass, "1 Liveness::Hangs 192.0.2.53"));
    assert_eq!(report.facts[0].value, "true");
    assert_eq!(host("?").check_without_session::<Server>().unwrap().facts[0].value, "false");
    let refused = host("!").listens("a.example", 80, |_| Err(Problem::Refused("nobody there".to_owned())));
    assert_eq!(refused.check::<Server>().map(|report| report.outcome), Ok(Outcome::Fail));
    assert_eq!(refused.log(), [(Level::Debug, "asking".to_owned())]);
    assert!(matches!(host("!").grant_nothing().check::<Server>(), Err(Failure::NotGranted(_))));
}

/// A provider whose results the daemon refuses.
struct Wrong;

impl Provider for Wrong {
    fn describe() -> Description {
        Description::new("wrong", "1", "is wrong").setting("how", "in which way")
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        Ok(vec![match request.required_setting("how")? {
            "name" => Change::set("A=B", ""),
            "value" => Change::set("A", "\0"),
            "entry" => Change::prepend("A", "/a:/b"),
            "file" => Change::file("A", ".hidden", ""),
            _ => Change::secret("A", "token"),
        }])
    }
}

#[test]
fn what_the_daemon_would_refuse_of_an_answer_ends_the_test() {
    for how in ["name", "value", "entry", "file"] {
        let told = ends_with(|| drop(Host::new().setting("how", [how]).provide::<Wrong>()));
        assert!(told.starts_with("the daemon refuses"), "{how}: {told}");
    }
    // Whether a secret may be used depends on the grant.
    assert!(matches!(Host::new().setting("how", ["secret"]).provide::<Wrong>(), Err(Failure::NotGranted(_))));
}

/// A provider that makes a host call in `describe`.
struct Early;

impl Provider for Early {
    fn describe() -> Description {
        log::info("described");
        let _ = process::running("x");
        Description::new("early", "1", "asks too soon")
    }

    fn provide(_: &Request) -> Result<Vec<Change>, Failure> {
        Ok(Vec::new())
    }
}

#[test]
fn while_it_is_described_a_plugin_has_the_log_and_the_clocks_alone() {
    let host = Host::new().running("x", 1);
    let told = ends_with(|| drop(host.provide::<Early>()));
    assert!(told.contains("Running(\"x\")") && told.contains("while a plugin is described"), "{told}");
    assert_eq!(host.log().len(), 1);
}
