//! The built-in components: each loads with only its own grant, describes itself, and does its work.

use agentd_plugin_host::{Capability, Change, Effect, Grant, LoadError, Refusal, Setting, builtin};

use crate::bench::{Bench, Fake, call, everything, source};

fn names(changes: &[Change]) -> (Vec<&str>, Vec<&str>) {
    let set = changes.iter().filter(|change| matches!(change.effect, Effect::Set { .. })).map(Change::name).collect();
    let unset =
        changes.iter().filter(|change| matches!(change.effect, Effect::Unset { .. })).map(Change::name).collect();
    (set, unset)
}

#[tokio::test]
async fn each_loads_describes_itself_and_imports_only_what_its_grant_allows() {
    let bench = Bench::new();
    for built_in in builtin() {
        // The built-in grant has no command, because the administrator chooses the program of this check.
        let grant = match built_in.name {
            "command" => Grant { command: vec!["/bin/check **".into()], ..built_in.grant() },
            _ => built_in.grant(),
        };
        let plugin = bench.load(source(built_in.name), &grant).await.unwrap();
        assert_eq!(plugin.description().name, built_in.name);
        assert_eq!(plugin.description().version, "0.1.0");
        assert!(!plugin.description().summary.is_empty() && !plugin.description().settings.is_empty());
        assert_eq!(plugin.world(), built_in.world);
        assert!(built_in.bytes.len() < 120_000, "{} has {} bytes", built_in.name, built_in.bytes.len());
        let wanted: Vec<Capability> = plugin.imports().iter().copied().filter(|c| c.grant_line().is_some()).collect();
        let granted: Vec<Capability> =
            Capability::ALL.into_iter().filter(|c| c.grant_line().is_some() && grant.allows(*c)).collect();
        assert_eq!(wanted, granted, "{}: what it wants is what it is granted, and no more", built_in.name);
    }
}

#[tokio::test]
async fn without_its_grant_it_is_refused_by_the_name_of_the_import() {
    let bench = Bench::new();
    let error = bench.load(source("snapshot"), &Grant::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "plugin \"snapshot\" imports \"agentd:plugin/shell-environment@1.0.0\", which it is not granted"
    );
    assert!(matches!(&error, LoadError::Refused { refusal: Refusal::NotGranted { .. }, .. }));
    assert!(error.hint().is_some_and(|hint| hint.contains("login-shell = true")));
}

#[tokio::test]
async fn the_snapshot_is_the_login_shells_environment_without_what_is_a_terminals() {
    let bench = Bench::new();
    let plugin = bench.load_built_in("snapshot").await;
    let fake = Fake::default().login(&[("PATH", b"/bin"), ("TERM", b"xterm"), ("RAW", b"a\n\xff ")]);
    let changes = plugin.provide(call(fake)).await.unwrap();
    assert_eq!(names(&changes), (vec!["PATH", "RAW"], vec!["TERM"]));
    assert!(changes.contains(&Change::set("RAW", b"a\n\xff ")));
}

#[tokio::test]
async fn the_whitelist_drops_what_is_not_on_it() {
    let bench = Bench::new();
    let plugin = bench.load_built_in("whitelist").await;
    let mut call = call(Fake::default());
    call.environment = vec![("PATH".into(), b"/bin".to_vec()), ("A_TOKEN".into(), vec![]), ("X".into(), vec![])];
    call.settings = vec![Setting { key: "allow".into(), values: vec!["X".into()] }];
    assert_eq!(names(&plugin.provide(call).await.unwrap()), (vec![], vec!["A_TOKEN"]));
}

#[tokio::test]
async fn the_scripts_are_sourced_in_order_and_their_files_are_the_origin() {
    let bench = Bench::new();
    let plugin = bench.load_built_in("env-script").await;
    let fake =
        Fake::default().script("{config}/env-setup.sh", &[("A", b"1")]).script("{cwd}/.agentd-env.sh", &[("A", b"2")]);
    let changes = plugin.provide(call(fake)).await.unwrap();
    let origin = Some("/resolved/{cwd}/.agentd-env.sh".to_owned());
    assert_eq!(changes, [Change::set("A", "2").from_file(origin)]);
}

#[tokio::test]
async fn a_script_outside_of_the_grant_is_refused_and_a_misspelt_setting_too() {
    let bench = Bench::new();
    let plugin = bench.load_built_in("env-script").await;
    for (key, value, words) in [
        ("scripts", "/etc/passwd", "plugin \"env-script\" failed: not granted: the script \"/etc/passwd\" is outside"),
        ("scripts", "{cwd}/../x.sh", "is outside of this plugin's grant"),
        ("script", "x", "plugin \"env-script\" failed: its setting \"script\" is wrong: "),
    ] {
        let mut call = call(Fake::default());
        call.settings = vec![Setting { key: key.into(), values: vec![value.into()] }];
        let error = plugin.provide(call).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_at_once_on_many_threads_do_not_see_each_other() {
    let bench = Bench::new();
    let host = bench.host.clone();
    let loading = tokio::spawn(async move { host.load(source("snapshot"), &everything()).await });
    let plugin = loading.await.unwrap().unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..50 {
        let plugin = plugin.clone();
        let value = number.to_string().into_bytes();
        calls.spawn(async move {
            let changes = plugin.provide(call(Fake::default().login(&[("N", &value)]))).await.unwrap();
            assert_eq!(changes, [Change::set("N", value)]);
        });
    }
    calls.join_all().await;
}
