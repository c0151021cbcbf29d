//! Plugins with full, partial and denied grants, from the loaded file to the answer. The plugins are the components
//! that were built against version 1.0.0, and guests that declare other wants than they use.

use std::collections::BTreeMap;
use std::time::Duration;

use agentd_plugin_host::{
    Call, Capability, Change, CheckMoment, CheckOutcome, CommandGrant, Effect, Grant, LoadError, LoadTerms, Places,
    Plugin, Refusal, Setting, Source, World, admit,
};

use crate::answers::{Answers, BOTH, PROVIDER};
use crate::bench::{Bench, call, everything};
use crate::guest::{Guest, LOGIN, SCRIPT};

fn fixture(name: &str) -> Source {
    let path = format!("../../tests/fixtures/plugins/1.0.0/{name}.wasm");
    Source::File { path: path.into(), sha256: None }
}

fn list(patterns: &[&str]) -> Vec<String> {
    patterns.iter().map(|&pattern| pattern.to_owned()).collect()
}

/// Returns the grant that covers exactly the wants of the fixtures.
fn wanted() -> Grant {
    Grant {
        login_shell: true,
        script: list(&["{config}/fixture.sh", "/nowhere/**"]),
        command: vec![CommandGrant::from("/usr/bin/fixture one *").with_variables(["FIXTURE"])],
        file: list(&["{cwd}", "{cwd}/*"]),
        network: list(&["*.example:27000"]),
        mount: list(&["/fixture", "/fixture/a/*"]),
        process: list(&["fixture"]),
        secret: list(&["fix*"]),
        variables: Some(list(&["FIXTURE_*"])),
    }
}

fn settings() -> Vec<Setting> {
    vec![Setting { key: "text".to_owned(), values: vec!["hello".to_owned()] }]
}

fn fixture_call() -> Call {
    let places = Places { cwd: Some("/work".to_owned()), config: Some("/config".to_owned()), ..Places::default() };
    Call { settings: settings(), environment: vec![("A".to_owned(), b"1".to_vec())], places, ..call(Answers) }
}

/// Returns the names and values of the variables that the provider fixture sets, without the prefix `FIXTURE_`.
fn lines(changes: &[Change]) -> BTreeMap<String, String> {
    let line = |change: &Change| match &change.effect {
        Effect::Set { name, value } => {
            Some((name.strip_prefix("FIXTURE_")?.to_owned(), String::from_utf8(value.clone()).ok()?))
        }
        _ => None,
    };
    changes.iter().filter_map(line).collect()
}

#[tokio::test]
async fn the_provider_of_version_one_gets_an_answer_of_every_import_and_gives_every_kind_of_change() {
    let bench = Bench::new();
    let plugin = bench.load(fixture("provider"), &wanted()).await.unwrap();
    assert_eq!((plugin.world(), plugin.interface()), (World::Provider, "1.0.0"));
    assert_eq!((plugin.description().name.as_str(), plugin.narrowed()), ("fixture-provider", &[][..]));
    assert_eq!(plugin.imports().len(), Capability::ALL.len());
    plugin.check_settings(&settings()).unwrap();
    plugin.warm_up(fixture_call().limits).await;
    for _ in 0..2 {
        let changes = plugin.provide(fixture_call()).await.unwrap();
        let mut lines = lines(&changes);
        assert!(lines.remove("WALL").is_some_and(|wall| wall.parse::<u64>().is_ok()));
        let expected = PROVIDER.iter().chain(BOTH).map(|(name, line)| ((*name).to_owned(), (*line).to_owned()));
        assert_eq!(lines, expected.collect());
        let rest: Vec<&Change> = changes.iter().skip(PROVIDER.len() + BOTH.len() + 1).collect();
        let from = |file: &str| Some(file.to_owned());
        let prepend = Effect::Prepend { name: "FIXTURE_LIST".into(), entry: b"/front".to_vec() };
        let append = Effect::Append { name: "FIXTURE_LIST".into(), entry: b"/back".to_vec() };
        let secret = Effect::Secret { name: "FIXTURE_TOKEN".into(), secret: "fixture".into() };
        let (file_name, content) = ("fixture.json".into(), b"{}\n".to_vec());
        let minutes = |minutes| Some(Duration::from_mins(minutes));
        let expected: [Change; 7] = [
            Change {
                valid_for: minutes(1),
                origin: from("/fixture/origin"),
                ..Change::set("FIXTURE_BYTES", [0xff, b'\n'])
            },
            Change::unset("FIXTURE_GONE", from("it is a fixture")),
            Change::unset("FIXTURE_SILENT", None),
            prepend.into(),
            Change { origin: from("/fixture/list"), ..append.into() },
            Change { valid_for: minutes(2), ..secret.into() },
            Effect::File { name: "FIXTURE_FILE".into(), file_name, content }.into(),
        ];
        assert_eq!(rest, expected.iter().collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn the_prerequisite_of_version_one_gets_an_answer_of_every_import_and_reports() {
    let bench = Bench::new();
    let plugin = bench.load(fixture("prerequisite"), &wanted()).await.unwrap();
    assert_eq!(
        (plugin.world(), plugin.description().moment),
        (World::Prerequisite, Some(CheckMoment::AfterEnvironment))
    );
    for (session, said) in [(true, "s1 1"), (false, "-")] {
        let mut call = fixture_call();
        call.session = call.session.filter(|_| session);
        let report = plugin.check(call).await.unwrap();
        assert_eq!((report.outcome, report.summary.as_str()), (CheckOutcome::Pass, "hello"));
        assert_eq!(report.remedy.as_deref(), Some("nothing: it is a fixture"));
        assert_eq!(report.valid_for, Some(Duration::from_secs(5)));
        let mut facts: BTreeMap<String, String> = report.facts.into_iter().collect();
        assert!(facts.remove("WALL").is_some());
        let own = [("SESSION", said), ("ENVIRONMENT", "A=1")];
        let expected = own.iter().chain(BOTH).map(|(name, line)| ((*name).to_owned(), (*line).to_owned()));
        assert_eq!(facts, expected.collect());
    }
    for (outcome, is) in
        [("warn", CheckOutcome::Warn), ("fail", CheckOutcome::Fail), ("unknown", CheckOutcome::Unknown)]
    {
        let mut call = fixture_call();
        call.settings.push(Setting { key: "outcome".to_owned(), values: vec![outcome.to_owned()] });
        assert_eq!(plugin.check(call).await.unwrap().outcome, is);
    }
}

#[tokio::test]
async fn every_failure_of_version_one_arrives_as_it_was_said() {
    let bench = Bench::new();
    let provider = bench.load(fixture("provider"), &wanted()).await.unwrap();
    let prerequisite = bench.load(fixture("prerequisite"), &wanted()).await.unwrap();
    for (kind, words) in [
        ("configuration", "its setting \"fail\" is wrong: as asked"),
        ("not-granted", "not granted: as asked"),
        ("not-approved", "not approved: as asked"),
        ("not-found", "not found: as asked"),
        ("timed-out", "took too long: as asked"),
        ("too-large", "too large: as asked"),
        ("unavailable", "unavailable: as asked"),
        ("failed", "as asked"),
    ] {
        let mut call = fixture_call();
        call.settings.push(Setting { key: "fail".to_owned(), values: vec![kind.to_owned()] });
        let error = provider.provide(call.clone()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("plugin \"provider\" failed: {words}"));
        let error = prerequisite.check(call).await.unwrap_err();
        assert_eq!(error.to_string(), format!("plugin \"prerequisite\" failed: {words}"));
    }
}

async fn provided(terms: LoadTerms) -> (Plugin, Result<Vec<Change>, String>) {
    let bench = Bench::new();
    let plugin = bench.host.load_with(fixture("provider"), terms).await.unwrap();
    let changes = plugin.provide(fixture_call()).await;
    (plugin, changes.map_err(|error| error.to_string()))
}

#[tokio::test]
async fn what_is_granted_in_part_is_refused_call_by_call_and_told_when_it_is_loaded() {
    let grant = Grant {
        script: list(&["{session}/**"]),
        command: vec!["/usr/bin/fixture two **".into()],
        file: list(&["{cwd}/*"]),
        network: list(&["*:443"]),
        mount: list(&["/home"]),
        process: list(&["sshd"]),
        ..wanted()
    };
    let (plugin, changes) =
        provided(LoadTerms { grant, name: Some("narrow".to_owned()), ..LoadTerms::default() }).await;
    assert_eq!(plugin.name(), "narrow");
    let lines = lines(&changes.unwrap());
    for (line, refused) in [
        ("LOCATE", "the script \"{config}/fixture.sh\" is"),
        ("SOURCE", "the script \"{config}/fixture.sh\" is"),
        ("RUN", "the program \"/usr/bin/fixture\" with the arguments \"one two words\" is"),
        ("ENTRIES", "the directory \"{cwd}\" is"),
        ("EXCHANGE", "the host \"fixture.example\" with the port 27000 is"),
        ("PROBE", "the path \"/fixture\" is"),
        ("RUNNING", "the process \"fixture\" is"),
    ] {
        assert!(lines[line].contains("failure not-granted: "), "{line}: {}", lines[line]);
        assert!(lines[line].ends_with(&format!("{refused} outside of this plugin's grant")), "{}", lines[line]);
    }
    assert_eq!((lines["READ"].as_str(), lines["MOUNTS"].as_str()), ("/work/fixture.txt", ""));
    let narrowed: Vec<String> =
        plugin.narrowed().iter().map(|want| format!("{} {}", want.capability, want.pattern)).collect();
    assert_eq!(
        narrowed,
        [
            "command /usr/bin/fixture one *",
            "file {cwd}",
            "network fixture.example:27000-27009",
            "mount /fixture",
            "mount /fixture/**",
            "process fixture*",
        ]
    );
}

#[tokio::test]
async fn what_is_granted_beyond_what_the_plugin_wants_is_refused_all_the_same() {
    let grant = Grant { mount: list(&["*"]), ..everything() };
    let (_, changes) = provided(LoadTerms { grant, ..LoadTerms::default() }).await;
    assert_eq!(lines(&changes.unwrap())["MOUNTS"], "/fixture server:/x nfs4 rw,hard 0:42");
    // This guest declares that it wants one script, and sources another script.
    let provide = "(call $source (i32.const 144) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 512))
        (i32.store (i32.const 64) (i32.const 1)) (i32.store (i32.const 68) (i32.load (i32.const 516)))
        (i32.store (i32.const 72) (i32.load (i32.const 520))) (i32.store (i32.const 76) (i32.load (i32.const 524)))";
    // Its want of a script is the pattern at address 65056.
    let fields = r#"(data (i32.const 64536) "\10\fe\00\00") (data (i32.const 65040) "\20\fe\00\00\04\00\00\00")
        (data (i32.const 65056) "/a/b") (data (i32.const 144) "/a/c")"#;
    let guest = Guest { imports: SCRIPT, provide, fields, ..Guest::default() };
    let bench = Bench::new();
    let grant = Grant { script: list(&["*"]), ..Grant::default() };
    let plugin = bench.load_bytes("two-faced", &guest.provider(), &grant).await.unwrap();
    let error = plugin.provide(call(Answers)).await.unwrap_err();
    let words = "not granted: the script \"/a/c\" is outside of this plugin's wants";
    assert!(error.to_string().ends_with(words), "{error}");
}

#[tokio::test]
async fn what_the_administrator_denies_is_denied_whatever_is_granted() {
    let deny = Grant { file: list(&["/work/**"]), network: list(&["*:1-65534"]), ..Grant::default() };
    let (_, changes) = provided(LoadTerms { grant: everything(), deny: Some(deny), ..LoadTerms::default() }).await;
    let lines = lines(&changes.unwrap());
    assert!(lines["READ"].ends_with("is denied by the administrator"), "{}", lines["READ"]);
    assert!(lines["EXCHANGE"].ends_with("is denied by the administrator"), "{}", lines["EXCHANGE"]);
    assert_eq!(lines["ENTRIES"], "a,b");
    let bench = Bench::new();
    for (deny, import) in [
        (Grant { login_shell: true, ..Grant::default() }, "shell-environment"),
        (Grant { command: vec!["**".into()], ..Grant::default() }, "command"),
        (Grant { network: list(&["*:*"]), ..Grant::default() }, "network"),
    ] {
        let terms = LoadTerms { grant: everything(), deny: Some(deny), ..LoadTerms::default() };
        let error = bench.host.load_with(fixture("provider"), terms).await.unwrap_err();
        let words = format!("imports \"agentd:plugin/{import}@1.0.0\", which the administrator denies");
        assert_eq!(error.to_string(), format!("plugin \"provider\" {words}"));
        assert_eq!(error.code(), "plugin-denied");
    }
}

#[tokio::test]
async fn a_variable_by_a_secret_that_is_not_granted_is_no_answer() {
    let grant = Grant { secret: list(&["other"]), ..wanted() };
    let (_, changes) = provided(LoadTerms { grant, ..LoadTerms::default() }).await;
    let words = "the variable \"FIXTURE_TOKEN\" by the secret \"fixture\", which is outside of this plugin's grant";
    assert_eq!(changes.unwrap_err(), format!("plugin \"provider\" answered with {words}"));
}

#[tokio::test]
async fn variables_of_its_answer_and_of_its_programs_are_bounded_by_the_grant() {
    let error_of = async |grant: Grant, deny: Option<Grant>| {
        provided(LoadTerms { grant, deny, ..LoadTerms::default() }).await.1.map(|changes| lines(&changes))
    };
    let variables = |names: &[&str]| Some(list(names));
    let none = error_of(Grant { variables: None, ..wanted() }, None).await.unwrap_err();
    assert!(none.starts_with("plugin \"provider\" answered with the variable \"FIXTURE_"), "{none}");
    assert!(none.contains("add to its grant: variables = [\"FIXTURE_BYTES\", "), "{none}");
    let part = error_of(Grant { variables: variables(&["FIXTURE_?*", "X"]), ..wanted() }, None).await;
    assert!(part.is_ok(), "{part:?}");
    let deny = Grant { variables: variables(&["*_TOKEN"]), ..Grant::default() };
    let denied = error_of(wanted(), Some(deny)).await.unwrap_err();
    assert!(denied.ends_with("the variable \"FIXTURE_TOKEN\", which is denied by the administrator"), "{denied}");

    // The plugin passes the variable FIXTURE to the program that it runs.
    let granted = |names: &[&str]| Grant {
        command: vec![CommandGrant::from("/usr/bin/fixture one *").with_variables(names.iter().copied())],
        ..wanted()
    };
    for (grant, expected) in [(granted(&["FIXTURE"]), true), (granted(&["F*"]), true), (granted(&["FIX"]), false)] {
        let run = error_of(grant, None).await.unwrap()["RUN"].clone();
        let refused = run.contains("is given \"FIXTURE\", and this plugin is not granted to set that for it");
        assert_eq!(!refused, expected, "{run}");
        assert!(expected || run.contains("{ run = \"...\", variables = [\"FIXTURE\"] }"), "{run}");
    }
}

#[tokio::test]
async fn an_import_that_the_plugin_does_not_say_it_wants_keeps_it_out() {
    let bench = Bench::new();
    let none = r#"(data (i32.const 52) "\00")"#;
    let guest = Guest { imports: LOGIN, provide: "(call $login (i32.const 512))", fields: none, ..Guest::default() };
    let error = bench.load_bytes("silent", &guest.provider(), &everything()).await.unwrap_err();
    let words = "imports \"agentd:plugin/shell-environment@1.0.0\" but declares no want for it";
    assert_eq!(error.to_string(), format!("plugin \"silent\" {words}"));
    let harmless = Guest { fields: none, ..Guest::default() };
    bench.load_bytes("harmless", &harmless.provider(), &Grant::default()).await.unwrap();
}

#[tokio::test]
async fn a_pattern_that_is_none_keeps_the_plugin_out_whoever_wrote_it() {
    let bench = Bench::new();
    let grant = Grant { file: list(&["{cwd}/../x"]), ..wanted() };
    let error = bench.load(fixture("provider"), &grant).await.unwrap_err();
    let words = "has an invalid pattern in its grant: file \"{cwd}/../x\": \"..\" matches nothing";
    assert_eq!(error.to_string(), format!("plugin \"provider\" {words}"));
    let fields = r#"(data (i32.const 65016) "a/b/")"#;
    let guest = Guest { imports: LOGIN, provide: "(call $login (i32.const 512))", fields, ..Guest::default() };
    let error = bench.load_bytes("wishful", &guest.provider(), &everything()).await.unwrap_err();
    assert!(
        error.to_string().starts_with("plugin \"wishful\" has an invalid pattern in its wants: script \"a\""),
        "{error}"
    );
}

#[tokio::test]
async fn settings_that_the_plugin_does_not_know_or_lacks_keep_it_out() {
    let bench = Bench::new();
    let loaded = async |uses: &[&[&str]]| {
        let setting = |key: &&str| Setting { key: (*key).to_owned(), values: vec!["x".to_owned()] };
        let settings = uses.iter().map(|keys| keys.iter().map(setting).collect()).collect();
        let terms = LoadTerms { grant: wanted(), settings, ..LoadTerms::default() };
        bench.host.load_with(fixture("provider"), terms).await.map(|_| ())
    };
    loaded(&[&["text"], &["text", "fail"]]).await.unwrap();
    let error = loaded(&[&["text"], &["text", "fial"]]).await.unwrap_err();
    assert_eq!(error.to_string(), "the settings of plugin \"provider\" are wrong: unknown setting \"fial\"");
    assert_eq!((error.code(), error.hint().as_deref()), ("plugin-settings", Some("known settings: text, fail")));
    let error = loaded(&[&["fail"]]).await.unwrap_err();
    assert_eq!(error.to_string(), "the settings of plugin \"provider\" are wrong: the setting \"text\" is missing");
    assert!(matches!(error, LoadError::Settings { .. }));
}

#[tokio::test]
async fn a_component_is_looked_at_without_any_grant() {
    let bench = Bench::new();
    let inspection = bench.host.inspect(fixture("provider")).await.unwrap();
    assert_eq!(inspection.sha256, "b7cf522dcca412d634ce23af4fb921cf14227be50a0cf5e430e18f729e0bb01c");
    assert_eq!((inspection.world, inspection.interface), (World::Provider, "1.0.0"));
    assert_eq!((inspection.description.name.as_str(), inspection.description.wants.len()), ("fixture-provider", 8));
    assert!(inspection.imports.contains(&"agentd:plugin/secret@1.0.0".to_owned()) && inspection.size > 10_000);
    let admission = admit(&inspection.requested(), &Grant { secret: list(&["x"]), ..Grant::default() }, None);
    assert_eq!(admission.refused.len(), 7, "{:?}", admission.refused);
    assert!(admission.refused.iter().all(|refusal| matches!(refusal, Refusal::NotGranted { .. })));
    assert_eq!(admission.linked, [Capability::Log, Capability::Clock, Capability::Secret].map(|c| c).as_slice());
    assert_eq!(admission.narrowed.len(), 1);
}
