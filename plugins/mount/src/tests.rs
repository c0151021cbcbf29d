use super::*;
use agentd_plugin_sdk::fake::{Call, Host, exchanged};
use agentd_plugin_sdk::network::{NameService, Way};

const PATH: &str = "/mnt/home";

fn mounted(path: &str, source: &str, kind: &str, device: &str) -> Mounted {
    Mounted {
        path: path.to_owned(),
        source: source.to_owned(),
        kind: kind.to_owned(),
        options: vec!["rw".to_owned()],
        device: device.to_owned(),
    }
}

fn home() -> Mounted {
    mounted(PATH, "files.corp:/home", "nfs4", "0:52")
}

/// Makes a machine with these mounts besides its own disk, and with a server that answers.
fn machine(mounts: impl IntoIterator<Item = Mounted>) -> Host {
    let table = [mounted("/", "/dev/sda1", "ext4", "8:1"), mounted("/mnt", "tmpfs", "tmpfs", "0:40")];
    Host::new()
        .setting("path", [PATH])
        .mounts(table.into_iter().chain(mounts).collect())
        .probe(PATH, Ok(Liveness::Answers("0:52".to_owned())))
        .listens("files.corp", 2049, |_| Ok(exchanged("10.1.0.9", [""; 0])))
        .resolves("files.corp", Ok(vec!["10.1.0.9".to_owned()]))
        .way_to("10.1.0.9", Some(Way { via: Some("eth0".to_owned()), source: "10.1.0.2".to_owned() }))
        .name_service(NameService { servers: vec!["10.0.0.53".to_owned()], search: Vec::new() })
}

fn facts(report: &Report) -> Vec<String> {
    report.facts.iter().map(|fact| format!("{}: {}", fact.name, fact.value)).collect()
}

fn told(report: &Report) -> (Outcome, &str) {
    (report.outcome, report.summary.as_str())
}

fn was_touched(host: &Host) -> bool {
    host.calls().iter().any(|call| matches!(call, Call::Probe { .. }))
}

#[test]
fn what_is_mounted_and_answers_is_a_pass_and_its_server_is_asked_first() {
    let host = machine([home()]);
    let report = host.check_without_session::<Mount>().unwrap();
    assert_eq!(told(&report), (Outcome::Pass, "/mnt/home is mounted and answers"));
    assert_eq!(facts(&report), ["source: files.corp:/home", "kind: nfs4", "device: 0:52"]);
    let [Call::Mounts, Call::Exchange { time: first, .. }, Call::Probe { time: second, .. }] = &host.calls()[..] else {
        panic!("{:?}", host.calls())
    };
    assert_eq!((*first, *second), (DEFAULT_TIME / 2, DEFAULT_TIME));
    let local = machine([mounted("/mnt/home", "/dev/sdb1", "ext4", "8:17")]).setting("path", ["/mnt/home//"]);
    assert_eq!(local.check::<Mount>().unwrap().outcome, Outcome::Pass);
    assert_eq!(local.calls().len(), 2);
}

#[test]
fn what_is_missing_is_told_with_what_the_path_is_on() {
    let host = machine([mounted("/mnt/home2", "x", "ext4", "8:3"), mounted("/mnt/home/sub", "y", "ext4", "8:4")]);
    let report = host.check::<Mount>().unwrap();
    assert_eq!(told(&report), (Outcome::Fail, "nothing is mounted at /mnt/home"));
    assert_eq!(facts(&report), ["is on: /mnt (tmpfs from tmpfs)"]);
    assert!(report.remedy.is_some_and(|text| text.contains("mount /mnt/home")) && !was_touched(&host));
    // If the settings have a source, its server is checked to explain the missing mount.
    let host = machine([]).setting("source", ["files.corp:/home"]);
    let report = host.check::<Mount>().unwrap();
    assert_eq!(facts(&report), ["is on: /mnt (tmpfs from tmpfs)", "expected: files.corp:/home"]);
    let host = host.listens("files.corp", 2049, |_| Err(Problem::Refused("refused".to_owned())));
    let report = host.check::<Mount>().unwrap();
    let summary = "nothing is mounted at /mnt/home, and the server of /mnt/home cannot be used: files.corp port \
        2049 refuses the connection";
    assert_eq!(told(&report), (Outcome::Fail, summary));
    assert_eq!(facts(&report)[3..], ["is on: /mnt (tmpfs from tmpfs)", "expected: files.corp:/home"]);
    assert!(report.remedy.is_some_and(|text| text.contains("files.corp") && text.contains("mount /mnt/home")));
}

#[test]
fn another_file_system_than_the_one_that_is_meant_is_a_failure() {
    for (key, value, fails) in [
        ("kind", "nfs4", None),
        ("kind", "nfs*", None),
        ("kind", "cifs", Some("its kind is nfs4, and should be cifs")),
        ("source", "files.corp:/home", None),
        ("source", "files.corp:/*", None),
        ("source", "files.corp:/scratch", Some("its source is files.corp:/home, and should be files.corp:/scratch")),
        ("device", "0:52", None),
        ("device", "259:3", Some("its device is 0:52, and should be 259:3")),
    ] {
        let host = machine([home()]).setting(key, [value]);
        let report = host.check::<Mount>().unwrap();
        let summary = fails.map(|why| format!("another file system is mounted at /mnt/home: {why}"));
        match summary {
            Some(summary) => assert_eq!(told(&report), (Outcome::Fail, summary.as_str())),
            None => assert_eq!(report.outcome, Outcome::Pass, "{key} {value}"),
        }
        assert_eq!((report.facts.len(), was_touched(&host)), (3, fails.is_none()));
    }
    // The mount on top counts.
    let host = machine([home(), mounted(PATH, "tmpfs", "tmpfs", "0:60")]).setting("kind", ["nfs4"]);
    assert_eq!(host.check::<Mount>().unwrap().outcome, Outcome::Fail);
}

#[test]
fn a_dead_server_is_told_without_touching_the_mount() {
    for (problem, words) in [
        (Problem::Refused as fn(String) -> Problem, "files.corp port 2049 refuses the connection"),
        (Problem::Unreachable, "there is no route to files.corp"),
        (Problem::TimedOut, "files.corp port 2049 does not answer within 1500 ms"),
    ] {
        let host = machine([home()]).listens("files.corp", 2049, move |_| Err(problem("host's words".to_owned())));
        let report = host.check::<Mount>().unwrap();
        let summary = format!("the server of /mnt/home cannot be used: {words}");
        assert_eq!(told(&report), (Outcome::Fail, summary.as_str()));
        let names: Vec<&str> = report.facts.iter().map(|fact| fact.name.as_str()).collect();
        assert_eq!(names, ["error", "addresses", "route to 10.1.0.9", "source", "kind", "device"]);
        assert!(report.remedy.is_some_and(|text| text.contains("was not touched")) && !was_touched(&host));
    }
}

#[test]
fn what_comes_of_the_look_at_the_mount_is_the_outcome() {
    for (liveness, summary, remedy) in [
        (Liveness::Hangs, "/mnt/home is mounted and does not answer", "umount -l /mnt/home"),
        (
            Liveness::Error("Transport endpoint is not connected".to_owned()),
            "/mnt/home is mounted and answers with an error: Transport endpoint is not connected",
            "umount /mnt/home",
        ),
    ] {
        let report =
            machine([mounted(PATH, "me", "fuse.other", "0:9")]).probe(PATH, Ok(liveness)).check::<Mount>().unwrap();
        assert_eq!(told(&report), (Outcome::Fail, summary));
        assert!(report.remedy.is_some_and(|text| text.contains(remedy)));
    }
    let failure = Failure::unavailable("too many looks are stuck");
    assert_eq!(
        machine([home()]).probe(PATH, Err(failure)).check::<Mount>(),
        Ok(Report::unknown("too many looks are stuck"))
    );
}

#[test]
fn a_mount_that_answers_while_the_name_of_its_server_has_no_address_is_a_warning() {
    let nameless = |liveness: Liveness| {
        let host = machine([home()]).listens("files.corp", 2049, |_| Err(Problem::NoSuchHost("no".to_owned())));
        host.probe(PATH, Ok(liveness)).check::<Mount>().unwrap()
    };
    let report = nameless(Liveness::Answers("0:52".to_owned()));
    assert_eq!(report.outcome, Outcome::Warn);
    assert_eq!(facts(&report)[3..], ["error: no", "name servers: 10.0.0.53"]);
    assert_eq!(nameless(Liveness::Hangs).outcome, Outcome::Fail);
}

#[test]
fn what_an_automounter_would_mount_is_looked_at_so_that_it_does() {
    let automounter = |path: &str| mounted(path, "auto.home", "autofs", "0:30");
    for (path, source) in [(PATH, "files.corp:/home"), ("/mnt", "files.corp:/home"), (PATH, "*")] {
        // On the fake host the table does not change: nothing was mounted.
        let host = machine([automounter(path)]).setting("source", [source]);
        let report = host.check::<Mount>().unwrap();
        assert_eq!(told(&report), (Outcome::Fail, "nothing is mounted at /mnt/home"));
        let tables = host.calls().iter().filter(|call| matches!(call, Call::Mounts)).count();
        assert_eq!((tables, was_touched(&host)), (2, true), "{:?}", host.calls());
        let hangs = host.probe(PATH, Ok(Liveness::Hangs)).check::<Mount>().unwrap();
        assert!(hangs.summary.starts_with("the automounter does not mount /mnt/home"), "{}", hangs.summary);
    }
    let host = machine([automounter("/mnt")]).setting("source", ["files.corp:/home"]);
    let host = host.listens("files.corp", 2049, |_| Err(Problem::TimedOut("late".to_owned())));
    assert!(host.check::<Mount>().unwrap().summary.starts_with("the server of /mnt/home") && !was_touched(&host));
    // The automounter's mount is on top of the automounter.
    let host = machine([automounter(PATH), home()]);
    assert_eq!((host.check::<Mount>().unwrap().outcome, host.calls().len()), (Outcome::Pass, 3));
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    for (key, value) in [
        ("path", "mnt"),
        ("path", "/mnt/../home"),
        ("path", "{home}/x"),
        ("server", "a/b"),
        ("port", "x"),
        ("timeout", "soon"),
    ] {
        let refused = machine([home()]).setting(key, [value]).check::<Mount>();
        assert!(
            matches!(&refused, Err(Failure::Configuration(error)) if error.key == key),
            "{key} {value}: {refused:?}"
        );
    }
    let ungranted = machine([home()]).grant(Capability::Mount, ["/mnt/*"]).grant(Capability::Network, ["x:1"]);
    assert!(matches!(ungranted.check::<Mount>(), Err(Failure::NotGranted(_))));
}
