use std::time::Duration;

use agentd_place::{PlaceKind, Pod};

use super::super::assemble::of_texts;
use super::*;

fn config(text: &str) -> Config {
    of_texts(&[text], &[]).unwrap_or_else(|error| panic!("{text}: {error}")).config
}

fn place(text: &str) -> Place {
    config(&format!("[places.farm]\n{text}")).place("farm").unwrap()
}

fn mistake(text: &str) -> String {
    of_texts(&[&format!("[places.farm]\n{text}")], &[]).map(drop).expect_err(text)
}

#[test]
fn each_kind_has_its_defaults() {
    let ssh = place("kind = \"ssh\"\nhost = \"farm\"");
    assert_eq!((ssh.keeper.as_str(), ssh.pass.join(" ").as_str()), ("agentd-keeper", "SSH_AUTH_SOCK"));
    let times = (ssh.grace, ssh.silence, ssh.poll);
    assert_eq!(times, (Duration::ZERO, Duration::from_secs(30), Duration::from_secs(5)));
    for (text, keeper, passed) in [
        ("kind = \"slurm\"", "agentd-keeper", "SLURM_CONF"),
        ("kind = \"container\"\nimage = \"eda\"", "agentd-keeper", "XDG_RUNTIME_DIR"),
        ("kind = \"container\"\nimage = \"eda\"\nkeeper_file = \"/k\"", "/agentd-keeper", "XDG_RUNTIME_DIR"),
        ("kind = \"kubernetes\"\nimage = \"eda\"", "agentd-keeper", "KUBECONFIG"),
        ("kind = \"command\"\nclient = [\"run\"]", "agentd-keeper", ""),
    ] {
        let place = place(text);
        assert_eq!((place.keeper.as_str(), place.pass.join(" ").as_str()), (keeper, passed), "{text}");
        assert!(text.contains(place.kind.as_str()), "{text}");
    }
}

#[test]
fn every_key_of_slurm_reaches_the_place() {
    let place = place(
        "kind = \"slurm\"\npartition = \"all\"\ntime = \"8h\"\nmemory = \"4G\"\ncores = 2\ngpus = 1\n\
         licenses = [\"flexlm:1\"]\naccount = \"rtl\"\nqos = \"q\"\nreservation = \"r\"\nconstraint = \"c\"\n\
         requeue = true\noptions = [\"--exclude=b\"]\nkeeper_file = \"/opt/agentd-keeper\"\nbin = \"/opt/slurm/bin\"\n\
         grace = \"10m\"\nsilence = \"1m\"\npoll = 2\npass = [\"KRB5CCNAME\"]\nenv = { SLURM_DEBUG = \"1\" }",
    );
    assert_eq!(place.grace, Duration::from_mins(10));
    assert_eq!((place.silence, place.poll), (Duration::from_mins(1), Duration::from_secs(2)));
    assert_eq!((place.pass, place.env["SLURM_DEBUG"].as_str()), (vec!["KRB5CCNAME".to_owned()], "1"));
    let PlaceKind::Slurm(slurm) = place.kind else { panic!() };
    let texts = [slurm.partition, slurm.account, slurm.qos, slurm.reservation, slurm.constraint].map(Option::unwrap);
    assert_eq!(texts, ["all", "rtl", "q", "r", "c"]);
    assert_eq!((slurm.time, slurm.memory), (Some(Duration::from_hours(8)), Some(4 << 30)));
    assert_eq!((slurm.cores, slurm.gpus, slurm.requeue), (Some(2), Some(1), true));
    assert_eq!((slurm.licenses, slurm.options), (vec!["flexlm:1".to_owned()], vec!["--exclude=b".to_owned()]));
    assert_eq!((slurm.keeper_file, slurm.bin), (Some("/opt/agentd-keeper".into()), Some("/opt/slurm/bin".into())));
}

#[test]
fn every_key_of_the_other_kinds_reaches_the_place() {
    let text = "kind = \"ssh\"\nhost = \"farm\"\nuser = \"kim\"\nport = 22\nconfig = \"/c\"\noptions = [\"-4\"]\n\
                keeper = \"~/bin/agentd-keeper\"";
    let ssh = place(text);
    assert_eq!(ssh.keeper, "~/bin/agentd-keeper");
    let PlaceKind::Ssh(ssh) = ssh.kind else { panic!() };
    assert_eq!((ssh.host.as_str(), ssh.user.as_deref(), ssh.port), ("farm", Some("kim"), Some(22)));
    assert_eq!((ssh.config, ssh.options), (Some("/c".into()), vec!["-4".to_owned()]));
    let pinned = place(&format!("{text}\nkeeper_sha256 = {:?}", "5A".repeat(32)));
    assert_eq!(pinned.keeper_sha256, Some("5a".repeat(32)));
    let sent = place("kind = \"ssh\"\nhost = \"h\"\nkeeper_file = \"/k\"");
    assert_eq!(sent.keeper_file(), Some(Path::new("/k")));

    let text = "kind = \"container\"\nimage = \"eda\"\nengine = \"docker\"\nmounts = [\"/work:/work:ro\"]\n\
                user = \"1\"\nnetwork = \"none\"\nmemory = 10\ncores = 1\n\
                options = [\"-a\"]\nengine_options = [\"-b\"]";
    let PlaceKind::Container(container) = place(text).kind else { panic!() };
    let mount = (container.mounts[0].source.as_str(), container.mounts[0].options.as_deref());
    assert_eq!((container.image.as_str(), container.engine.as_str(), mount), ("eda", "docker", ("/work", Some("ro"))));
    assert_eq!((container.user.as_deref(), container.network.as_deref()), (Some("1"), Some("none")));
    assert_eq!((container.memory, container.cores), (Some(10), Some(1)));
    assert_eq!((container.options, container.engine_options), (vec!["-a".to_owned()], vec!["-b".to_owned()]));

    let text = "kind = \"kubernetes\"\nnamespace = \"n\"\ncontext = \"c\"\ntemplate = \"/pod.yaml\"\nmemory = 1\n\
                cores = 2\noptions = [\"-a\"]";
    let kubernetes = place(text);
    assert_eq!(kubernetes.template(), Some(Path::new("/pod.yaml")));
    let PlaceKind::Kubernetes(kubernetes) = kubernetes.kind else { panic!() };
    assert_eq!((kubernetes.namespace.as_deref(), kubernetes.context.as_deref()), (Some("n"), Some("c")));
    assert_eq!((kubernetes.memory, kubernetes.cores, kubernetes.options.len()), (Some(1), Some(2), 1));
    assert_eq!(kubernetes.pod, Pod::Template("/pod.yaml".into()));

    let text = "kind = \"command\"\nclient = [\"a\", \"{name}\"]\nstatus = [\"b\"]\ncancel = [\"c\"]\nsweep = [\"d\"]";
    let PlaceKind::Command(command) = place(text).kind else { panic!() };
    assert_eq!([command.client.len(), command.status.len(), command.cancel.len(), command.sweep.len()], [2, 1, 1, 1]);
}

#[test]
fn a_key_of_another_kind_is_refused_with_the_kinds_that_have_it() {
    for (kind, key, kinds) in [
        ("kind = \"ssh\"\nhost = \"h\"", "partition = \"p\"", "slurm"),
        ("kind = \"ssh\"\nhost = \"h\"", "memory = 1", "slurm, container, kubernetes"),
        ("kind = \"slurm\"", "host = \"h\"", "ssh"),
        ("kind = \"slurm\"", "user = \"u\"", "ssh, container"),
        ("kind = \"kubernetes\"\nimage = \"i\"", "keeper_file = \"/k\"", "slurm, ssh, container"),
        ("kind = \"kubernetes\"\nimage = \"i\"", "requeue = false", "slurm"),
        ("kind = \"command\"\nclient = [\"c\"]", "options = [\"-x\"]", "slurm, ssh, container, kubernetes"),
        ("kind = \"container\"\nimage = \"i\"", "sweep = [\"x\"]", "command"),
        ("kind = \"container\"\nimage = \"i\"", "context = \"x\"", "kubernetes"),
    ] {
        let error = mistake(&format!("{kind}\n{key}"));
        let (key, kind) = (key.split(' ').next().unwrap(), kind.split('"').nth(1).unwrap());
        let expected =
            format!("places.farm.{key} is no key of the kind \"{kind}\"; remove it, or choose the kind {kinds}");
        assert!(error.ends_with(&expected), "{error}");
    }
}

#[test]
fn a_place_that_cannot_work_is_refused_with_its_remedy() {
    for (text, expected) in [
        ("", "places.farm has no kind; add one of slurm, ssh, container, kubernetes, command"),
        ("kind = \"lsf\"", "unknown variant `lsf`"),
        ("kind = \"ssh\"\nhots = \"h\"", "did you mean `host`"),
        ("kind = \"ssh\"", "places.farm has no host, which the kind \"ssh\" needs; add host = \"HOST\""),
        ("kind = \"container\"", "places.farm has no image"),
        ("kind = \"kubernetes\"", "or template = \"FILE\""),
        ("kind = \"kubernetes\"\nimage = \"i\"\ntemplate = \"/t\"", "has image and template; remove one of them"),
        ("kind = \"command\"", "places.farm has no client"),
        ("kind = \"command\"\nclient = [\"c\"]\nstatus = [\"s\", \"{name}\"]", "is run once for all launches"),
        ("kind = \"command\"\nclient = [\"\"]", "begins with an empty word"),
        ("kind = \"ssh\"\nhost = \"-oProxyCommand=x\"", "without a leading -"),
        ("kind = \"ssh\"\nhost = \"\"", "places.farm.host is \"\""),
        ("kind = \"ssh\"\nhost = \"h\"\nport = 0", "places.farm.port is 0"),
        ("kind = \"ssh\"\nhost = \"h\"\nconfig = \"c\"", "places.farm.config is c; begin the path with / or ~/"),
        ("kind = \"ssh\"\nhost = \"h\"\nkeeper = \"bin/keeper\"", "is a relative path"),
        ("kind = \"ssh\"\nhost = \"h\"\nkeeper = \"/a'b\"", "none of ' ! \\"),
        ("kind = \"slurm\"\nkeeper = \"~/keeper\"", "is a relative path"),
        ("kind = \"slurm\"\nkeeper = \"/k\"\nkeeper_file = \"/k\"", "is not used beside keeper_file"),
        ("kind = \"ssh\"\nhost = \"h\"\nkeeper = \"/k\"\nkeeper_file = \"/k\"", "is not used beside keeper_file"),
        ("kind = \"container\"\nimage = \"i\"\nkeeper = \"k\"\nkeeper_file = \"/k\"", "is the target of keeper_file"),
        ("kind = \"container\"\nimage = \"i\"\nengine = \"crictl\"", "set \"podman\", \"docker\" or an absolute path"),
        ("kind = \"container\"\nimage = \"i\"\nmounts = [\"work:/work\"]", "\"SOURCE:TARGET:ro\" with absolute paths"),
        ("kind = \"slurm\"\nkeeper_sha256 = \"5a\"", "set the 64 hexadecimal digits that sha256sum prints"),
        ("kind = \"slurm\"\nkeeper_file = \"/k\"\nkeeper_sha256 = \"5a\"", "is not used beside keeper_file"),
        ("kind = \"slurm\"\nlicenses = [\"a,b\"]", "places.farm.licenses has \"a,b\""),
        ("kind = \"slurm\"\ntime = 0", "places.farm.time is 0"),
        ("kind = \"slurm\"\nsilence = \"999ms\"", "places.farm.silence is less than 1 s"),
        ("kind = \"slurm\"\npoll = \"99ms\"", "places.farm.poll is less than 100 ms"),
        ("kind = \"ssh\"\nhost = \"h\"\npoll = 1", "remove it, or set level = \"resident\""),
        ("kind = \"slurm\"\nlevel = \"stays\"", "unknown variant `stays`"),
        ("kind = \"slurm\"\nlinger = 1", "places.farm.linger is no key of this level"),
        ("kind = \"slurm\"\nunattended = 1", "remove it, or set level = \"resident\""),
        ("kind = \"slurm\"\nlevel = \"resident\"\ngrace = 1", "remove it, or set level = \"connected\""),
        ("kind = \"slurm\"\nlevel = \"resident\"\nkeeper_file = \"/k\"", "sbatch takes no file along"),
        ("kind = \"command\"\nclient = [\"c\"]\nsubmit = [\"s\"]", "places.farm.submit is no key of this level"),
        ("kind = \"command\"\nlevel = \"resident\"\nclient = [\"c\", \"{job}\"]", "set submit"),
        ("kind = \"slurm\"\npass = [\"A B\"]", "places.farm.pass: \"A B\" is not a variable name"),
        ("kind = \"slurm\"\npass = [\"AGENTD_X\"]", "agentd's own"),
        ("kind = \"slurm\"\nenv = { AGENTD_X = \"1\" }", "places.farm.env: AGENTD_X is agentd's own variable"),
        ("kind = \"slurm\"\nenv = { A_TOKEN = \"hunter22\" }", "add \"A_TOKEN\" to places.farm.pass"),
    ] {
        let error = mistake(text);
        assert!(error.contains(expected) && !error.contains("hunter22"), "{text}: {error}");
    }
    // The value of a passed secret is in no file.
    assert_eq!(place("kind = \"slurm\"\npass = [\"A_TOKEN\"]").pass, ["A_TOKEN"]);
}

#[test]
fn a_name_is_a_label_and_is_not_this_machine() {
    let error = |name: &str| of_texts(&[&format!("[places.{name}]\nkind = \"slurm\"\n")], &[]).map(drop).unwrap_err();
    assert!(error("here").contains("places.here is reserved"), "{}", error("here"));
    assert!(error("Farm").contains("the place name"), "{}", error("Farm"));
}

#[test]
fn a_tilde_in_a_path_of_this_machine_is_the_home_directory() {
    let text = "[environment]\nhome = \"/home/kim\"\n[places.farm]\nkind = \"slurm\"\nkeeper_file = \"~/k\"\n";
    let PlaceKind::Slurm(slurm) = config(text).place("farm").unwrap().kind else { panic!() };
    let home = config(text).environment.home_directory().unwrap();
    assert_eq!(slurm.keeper_file, Some(home.join("k")));
}

#[test]
fn the_session_decides_then_the_nearest_directory_and_then_the_agent() {
    let config = config(
        "[places.farm]\nkind = \"slurm\"\n[places.lab]\nkind = \"ssh\"\nhost = \"lab\"\n\
         [agents.a]\ncommand = [\"a\"]\nplace = \"lab\"\n[agents.b]\ncommand = [\"b\"]\n\
         [directories.\"/work\"]\nplace = \"farm\"\n[directories.\"/work/x\"]\nallow = []\n\
         [directories.\"/work/x/local\"]\nplace = \"here\"\n",
    );
    for (requested, agent, directory, expected) in [
        (None, "a", "/home", "lab"),
        (None, "b", "/home", "here"),
        (None, "demo", "/home", "here"),
        (None, "a", "/work/x/y", "farm"),
        (None, "a", "/work/x/local/y", "here"),
        (Some("lab"), "b", "/work", "lab"),
        (Some("here"), "a", "/work", "here"),
    ] {
        let place = config.place_of(requested, agent, Path::new(directory)).unwrap();
        let name = place.map_or("here".to_owned(), |place| place.name.to_string());
        assert_eq!(name, expected, "{requested:?} {agent} {directory}");
    }
    let error = config.place_of(Some("moon"), "a", Path::new("/")).unwrap_err();
    assert_eq!(error.to_string(), "there is no place \"moon\" in the configuration; it has farm, lab");
    let error = Config::default().place_of(Some("moon"), "a", Path::new("/")).unwrap_err();
    assert_eq!(error.to_string(), "there is no place \"moon\" in the configuration");
}

#[test]
fn an_agent_on_a_place_is_neither_warm_nor_guarded() {
    for (text, expected) in [
        (
            "[agents.a]\ncommand = [\"a\"]\nplace = \"moon\"",
            "agents.a.place is \"moon\", but there is no [places.moon]",
        ),
        ("[directories.\"/w\"]\nplace = \"moon\"", "directories.\"/w\".place is \"moon\", but there is no"),
        ("[agents.a]\nlike = \"claude\"\nwarm = 1\nplace = \"farm\"", "no agent is kept warm on a place"),
        ("[agents.a]\ncommand = [\"a\"]\nisolation = \"guard\"\nplace = \"farm\"", "exists on this machine alone"),
    ] {
        let error = of_texts(&[&format!("[places.farm]\nkind = \"slurm\"\n{text}")], &[]).map(drop).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    config("[agents.a]\nlike = \"claude\"\nwarm = 1\nplace = \"here\"\n");
}

#[test]
fn a_users_file_completes_a_place_of_the_administrator() {
    let system = "[places.farm]\nkind = \"slurm\"\npartition = \"all\"\n";
    let loaded = of_texts(&[system], &["[places.farm]\npartition = \"own\"\n"]).unwrap();
    let PlaceKind::Slurm(slurm) = loaded.config.place("farm").unwrap().kind else { panic!() };
    assert_eq!(slurm.partition.as_deref(), Some("own"));
}

#[test]
fn an_agent_stays_on_a_place_of_the_level_resident_for_its_times() {
    assert_eq!(place("kind = \"slurm\"\nlevel = \"connected\"").resident, None);
    let resident = place("kind = \"ssh\"\nhost = \"h\"\nlevel = \"resident\"\npoll = 2").resident.unwrap();
    assert_eq!((resident.unattended, resident.linger), (Duration::from_hours(168), Duration::from_hours(24)));
    let times = "unattended = \"1h\"\nlinger = \"2m\"";
    let resident = place(&format!("kind = \"slurm\"\nlevel = \"resident\"\n{times}")).resident.unwrap();
    assert_eq!((resident.unattended, resident.linger), (Duration::from_hours(1), Duration::from_mins(2)));
}
