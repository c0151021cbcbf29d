use std::path::PathBuf;

use agentd_api::configuration::{Consequence, Mistake};
use agentd_api::plugin::OnFailure;

use super::*;

fn load_text(texts: &[&str]) -> Result<Config, String> {
    assemble::of_texts(texts, &[]).map(|loaded| loaded.config)
}

#[test]
fn without_a_file_the_defaults_hold() {
    let config = load_text(&[]).unwrap();
    assert_eq!(config.default_agent.as_str(), DEMO);
    assert_eq!(config.environment.providers.len(), 3);
}

#[test]
fn a_key_is_made_or_found_where_it_is_said_to_be() {
    let source = |text: &str| load_text(&[text]).unwrap().environment.encryption;
    assert_eq!(source(""), Encryption::default());
    let file = source("[environment.encryption]\nenabled = true\nkey = { file = \"/k\" }\nprevious = [\"generated\"]");
    assert_eq!(
        (file.enabled, file.key, file.previous),
        (true, KeySource::File("/k".into()), vec![KeySource::Generated])
    );
    let credential = source("[environment.encryption]\nkey = { credential = \"k\" }");
    assert_eq!(credential.key, KeySource::Credential("k".to_owned()));
}

#[test]
fn a_later_file_overrides_key_by_key() {
    let config = load_text(&[
        "[limits]\nlaunches = 2\nqueued_turns = 3\n[agents.a]\ncommand = [\"a\"]",
        "default_agent = \"b\"\n[limits]\nlaunches = 5\n[agents.b]\ncommand = [\"b\"]",
    ]);
    // The second file names an agent that neither the defaults nor the file itself define: the check applies to the
    // merged files.
    let config = config.unwrap();
    assert_eq!((config.limits.launches, config.limits.queued_turns), (5, 3));
    assert_eq!(config.agents.len(), 2);
}

#[test]
fn every_configuration_that_a_page_shows_is_valid() {
    let root = std::path::Path::new("../..");
    let mut pages = vec![root.join("README.md"), root.join("units/README.md")];
    for folder in ["docs", "docs/guide", "docs/operations"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let mut count = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for block in text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            // `agentctl config check` loads the included files (tests/it/book.rs).
            if block.starts_with("{{#include ") {
                continue;
            }
            load_text(&[block]).unwrap_or_else(|error| panic!("{}: {error}\n{block}", page.display()));
            count += 1;
        }
        for block in text.split("```toml workflow\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            parse_workflow(std::path::Path::new("workflow.toml"), block)
                .unwrap_or_else(|error| panic!("{}: {error}\n{block}", page.display()));
        }
    }
    assert!(count >= 20, "the pages show {count} configurations");
}

#[test]
fn a_mistake_is_named_with_its_place() {
    let error = load_text(&["[limits]\nlaunchs = 2"]).unwrap_err();
    assert!(error.starts_with("/etc/agentd/0.toml:2:1: limits.launchs: unknown field"), "{error}");
    assert!(error.ends_with("did you mean `launches`?"), "{error}");
    let error = load_text(&["[limits]\nturn = \"soon\""]).unwrap_err();
    assert!(error.starts_with("/etc/agentd/0.toml:2:8: limits.turn:"), "{error}");
    // A mistake of the merged configuration has the position of the key in the last file that contains it.
    let error = load_text(&["[limits]\nbody = 1", "[limits]\nturn = \"1h\"\nbody = 0"]).unwrap_err();
    assert!(error.starts_with("/etc/agentd/1.toml:3:1: limits.body is 0"), "{error}");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (text, expected) in [
        ("[agents.a]\ncommand = []", "agents.a has no command"),
        ("[agents.a]\nallow = [\"X\"]", "add command = [\"PROGRAM\", \"ARGUMENT\"] to [agents.a]"),
        ("[agents.demo]\ncommand = [\"\"]", "agents.demo.command begins with an empty program"),
        ("default_agent = \"x\"", "there is no [agents.x]"),
        ("[limits]\nbody = 0", "limits.body is 0"),
        ("[environment]\nproviders = [\"/x.wasm\"]", "[plugins.NAME] file = \"/x.wasm\""),
        ("[environment]\nproviders = [\"x\"]", "there is no [plugins.x]; known plugins are snapshot"),
        ("[environment]\nproviders = [\"vpn\"]", "plugins of the world `provider` are snapshot, whitelist, env-script"),
        ("[[environment.providers]]\nplugin = \"whitelist\"\ngrant = {}", "unknown field `grant`"),
        ("[environment]\nproviders = [1]", "a plugin's name, or a table"),
        ("[[environment.providers]]\nplugin = \"whitelist\"\nname = \"\"", "empty name"),
        ("[[environment.providers]]\nplugin = \"whitelist\"\nname = \"env (session)\"", "agentd's own steps"),
        ("[plugins.x]", "plugins.x has no sha256"),
        ("[plugins.X]", "not a valid plugin name"),
        ("[plugins.x]\nsha256 = \"0f\"", "64 hexadecimal digits"),
        ("[plugins.snapshot]\nfile = \"/x.wasm\"", "is built in"),
        ("[plugins.snapshot]\non_failure = \"ignore\"", "skip"),
        ("[plugins.whitelist]\non_failure = \"skip\"", "would pass every variable to agents"),
        ("[plugins.snapshot]\nlimits = { memory = 0 }", "plugins.snapshot.limits.memory is 0"),
        ("[plugins.snapshot]\ngrant = { network = 1 }", "network"),
        ("[plugins.snapshot]\ngrant = { command = [\"\"] }", "plugins.snapshot.grant: command"),
        ("[plugin_policy]\ndeny = { network = [\"x\"] }", "plugin_policy.deny: network"),
        ("[plugin_policy]\ndeny = { everything = true }", "everything"),
        ("[limits]\nturn = \"-1s\"", "negative"),
        ("[environment]\nsource = \"shell\"", "login-shell"),
        ("[environment.encryption]\nkey = { file = \"key\" }", "not absolute"),
        ("[environment.encryption]\nkey = { credential = \"../key\" }", "not a valid credential name"),
        ("[control]\ntcp = \"0.0.0.0:7345\"\ntoken = { file = \"/t\" }", "other machines"),
        ("[control]\ntcp = \"[2001:db8::1]:7345\"\ntoken = { file = \"/t\" }", "other machines"),
        ("[control]\ntcp = \"localhost:7345\"\ntoken = { file = \"/t\" }", "tcp"),
        ("[control]\ntcp = \"127.0.0.1:7345\"", "needs control.token"),
        ("[control]\ntoken = { file = \"/t\" }", "needs control.tcp"),
        ("[control]\ntcp = \"[::1]:7345\"\ntoken = { file = \"t\" }", "not absolute"),
        ("[control]\ntcp = \"127.0.0.1:7345\"\ntoken = { credential = \"../t\" }", "not a valid credential name"),
        ("[control]\ntcp = \"127.0.0.1:1\"\n[control.tokens.a]\nscope = \"read\"", "either `file` or `credential`"),
        (
            "[control]\ntcp = \"127.0.0.1:1\"\n[control.tokens.a]\nscope = \"read\"\nfile = \"/t\"\ncredential = \"t\"",
            "either `file` or `credential`",
        ),
        ("[control]\ntcp = \"127.0.0.1:1\"\n[control.tokens.a]\nfile = \"/t\"", "scope"),
        ("[control]\ntcp = \"127.0.0.1:1\"\n[control.tokens.a]\nfile = \"/t\"\nscope = \"all\"", "operate"),
        ("[control]\ntcp = \"127.0.0.1:1\"\n[control.tokens.A]\nfile = \"/t\"\nscope = \"read\"", "the token name"),
        ("[control]\ntcp = \"127.0.0.1:1\"\n[control.tokens.a]\nfile = \"t\"\nscope = \"read\"", "not absolute"),
        ("[control.tokens.a]\nfile = \"/t\"\nscope = \"read\"", "needs control.tcp"),
        ("[control.read_only]\ngroup = \"ops\"", "socket"),
        ("[control.read_only]\nsocket = \"/r/s\"", "group"),
        ("[control.read_only]\nsocket = \"s\"\ngroup = 4", "not an absolute path"),
        ("[control.read_only]\nsocket = \"/r/../s\"\ngroup = 4", "not an absolute path"),
        ("[control.read_only]\nsocket = \"/r/s\"\ngroup = \"\"", "the group is empty"),
        ("[resume]\nnote = \"long\"", "brief"),
        ("[staleness]\nbranch = \"block\"", "refuse"),
        ("[repositories]\ndeadline = 0", "repositories.deadline is 0"),
        ("[workspaces]\nat_removal = \"burn\"", "keep"),
        ("[staleness]\nunused_after = 0", "staleness.unused_after is 0"),
        ("[agents.a]\ncommand = [\"a\"]\nrefresh = \"often\"", "warn"),
        ("[secrets.A]\nrequired = false", "secrets.A must have exactly one of file, credential"),
    ] {
        let error = load_text(&[text]).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

const PIN: &str = "sha256 = \"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\"";

#[test]
fn a_plugin_is_declared_once_and_used_by_its_name() {
    let text = format!(
        "[plugins.modules]\nfile = \"/x.wasm\"\n{PIN}\nsettings = {{ a = 1 }}\non_failure = \"skip\"\n\
         limits = {{ time = \"10s\", log = 0 }}\n\
         [environment]\n\
         providers = [\"snapshot\", {{ plugin = \"modules\", name = \"second\", settings = {{ b = 2 }} }}]"
    );
    let config = load_text(&[&text]).unwrap();
    let plugin = &config.plugins["modules"];
    assert_eq!(plugin.sha256, Some(Sha256Pin([15; 32])));
    assert_eq!(plugin.on_failure, OnFailure::Skip);
    assert_eq!(plugin.limits.time, Some(Time(Duration::from_secs(10))));
    assert_eq!(plugin.origin, Origin { file: Some("/etc/agentd/0.toml".into()), of_user: false });
    let steps: Vec<&str> = config.environment.providers.iter().map(Provider::step).collect();
    assert_eq!(steps, ["snapshot", "second"]);
    assert_eq!(config.environment.providers[1].settings["b"].as_integer(), Some(2));
}

#[test]
fn a_pin_is_64_hexadecimal_digits() {
    assert_eq!(Sha256Pin::try_from("0F".repeat(32)), Ok(Sha256Pin([15; 32])));
    for bad in ["", "0f", &"zz".repeat(32), &"0f".repeat(33), &"é".repeat(32)] {
        assert!(Sha256Pin::try_from(bad.to_owned()).is_err(), "{bad}");
    }
}

#[test]
fn what_the_administrator_says_of_plugins_no_user_says_otherwise() {
    let plugin = format!("[plugins.a]\n{PIN}\n");
    let refused = |system: &[&str], user: &str| assemble::of_texts(system, &[user]).unwrap_err();
    let taken = refused(&[&plugin], "[plugins.a]\ngrant = { script = [\"/**\"] }");
    assert!(taken.contains("/home/kim/0.toml") && taken.contains("/etc/agentd/0.toml"), "{taken}");
    let policy = refused(&[], "[plugin_policy]\nuser_plugins = true");
    assert!(policy.contains("/home/kim/0.toml") && policy.contains("[plugin_policy]"), "{policy}");
    let none = "[plugin_policy]\nuser_plugins = false";
    let user = refused(&[none], &plugin);
    assert!(user.contains("/home/kim/0.toml") && user.contains("user_plugins is false"), "{user}");
    // Several files of the administrator may declare one plugin together, and a user's file may use it.
    let config = assemble::of_texts(
        &[&plugin, "[plugins.a]\non_failure = \"skip\"", none],
        &["[environment]\nproviders = [\"a\"]"],
    );
    let config = config.unwrap().config;
    assert_eq!((config.plugins.len(), config.plugins["a"].on_failure), (1, OnFailure::Skip));
    assert!(!config.plugins["a"].origin.of_user && !config.plugin_policy.user_plugins);
    let users = assemble::of_texts(&[], &[&plugin]).unwrap().config;
    assert!(users.plugins["a"].origin.of_user);
}

#[test]
fn what_the_administrator_requires_no_user_requires_otherwise() {
    let (required, users) = ("[prerequisites.a]\nplugin = \"tcp\"\n", "[prerequisites.b]\nplugin = \"tcp\"\n");
    for (system, user) in [
        (&[required][..], "[prerequisites.a]\nplugin = \"tcp\"\non_failure = \"warn\""),
        (&[required], "[prerequisites.a]\nplugin = \"command\""),
        (&[users, required], "prerequisites.a.plugin = \"tcp\""),
    ] {
        let taken = assemble::of_texts(system, &[user]).unwrap_err();
        assert!(taken.contains("/home/kim/0.toml") && taken.contains("the prerequisite \"a\""), "{taken}");
        assert!(taken.contains(&format!("/etc/agentd/{}.toml", system.len() - 1)), "{taken}");
    }
    // Several files of the administrator may declare one prerequisite together, and a user may add others.
    let config = assemble::of_texts(&[required, "[prerequisites.a]\nplugin = \"tcp\"\ninterval = \"9s\""], &[users])
        .unwrap()
        .config;
    assert_eq!(config.prerequisites["a"].interval, Time(Duration::from_secs(9)));
    assert!(config.prerequisites.contains_key("b"));
}

#[test]
fn what_has_changed_is_told_by_its_keys() {
    let load = |text: &str| assemble::of_texts(&[text], &[]).unwrap().read;
    let old = load("[limits]\nlaunches = 2\nbody = 9\n[agents.a]\ncommand = [\"a\"]");
    let new = load("[limits]\nlaunches = 3\nbody = 9\nturn = \"1h\"\n[agents.b]\ncommand = [\"a\"]");
    assert_eq!(new.changed_since(&old), ["agents.a.command", "agents.b.command", "limits.launches", "limits.turn"]);
    assert_eq!(old.changed_since(&old), Vec::<String>::new());
    assert_eq!(load("[limits]\n[agents]").changed_since(&load("")), Vec::<String>::new());
}

#[test]
fn every_size_and_every_time_of_the_configuration_takes_the_one_grammar() {
    let load = |key: &str, value: &str| load_text(&[&format!("{key} = {value}")]);
    for key in [
        "limits.body",
        "limits.line",
        "limits.plugin_memory",
        "limits.memory",
        "limits.output_rate",
        "journal.rotate",
        "journal.keep_session",
        "journal.keep_all",
        "journal.keep_feed",
        "plugins.snapshot.limits.memory",
        "plugins.snapshot.limits.output",
    ] {
        for value in ["67108864", "\"64M\"", "\"64 MiB\"", "\"67108864\""] {
            load(key, value).unwrap_or_else(|error| panic!("{error}"));
        }
        for value in ["\"64MB\"", "\"much\"", "-1", "true"] {
            let error = load(key, value).map(drop).unwrap_err();
            assert!(error.contains(key) || key.starts_with("plugins."), "{key} = {value}: {error}");
        }
    }
    let journal = load_text(&["[journal]\nkeep_session = \"1G\"\nkeep_all = \"unlimited\""]).unwrap().journal;
    assert_eq!((journal.keep_session.0.0, journal.keep_all.0.0), (Some(1 << 30), None));
    let limits = load_text(&["[limits]\nmemory = \"2G\"\nbody = \"1K\""]).unwrap().limits;
    assert_eq!((limits.memory, limits.body), (Some(2 << 30), 1024));
    for key in [
        "environment.deadline",
        "environment.snapshot_ttl",
        "environment.snapshot_ttl_incomplete",
        "limits.initialize",
        "limits.open_conversation",
        "limits.turn",
        "limits.cancel",
        "limits.silence",
        "limits.idle",
        "limits.permission",
        "limits.orphan",
        "launch.stop_close",
        "launch.stop_term",
        "launch.keeper_answer",
        "launch.replay_quiet",
        "launch.restart_first",
        "launch.restart_longest",
        "repositories.deadline",
        "control.heartbeat",
        "staleness.unused_after",
        "agents.demo.warm_idle",
        "plugins.snapshot.limits.time",
    ] {
        for value in ["\"10m\"", "\"250ms\"", "\"1h30m\"", "\"14d\"", "90", "0.5"] {
            load(key, value).unwrap_or_else(|error| panic!("{error}"));
        }
        for value in ["\"soon\"", "\"-1s\"", "-1", "true"] {
            assert!(load(key, value).is_err(), "{key} = {value}");
        }
    }
    for key in ["time", "cache", "interval"] {
        let load = |value: &str| load_text(&[&format!("[prerequisites.a]\nplugin = \"tcp\"\n{key} = {value}")]);
        load("\"2s\"").map(drop).unwrap();
        load("10").map(drop).unwrap();
        assert!(load("\"soon\"").is_err(), "{key}");
    }
}

#[test]
fn a_tilde_in_front_of_an_agents_program_is_the_home_directory_and_nowhere_else() {
    let command = |written: &str| {
        let config = load_text(&[&format!("[agents.a]\ncommand = {written}")]).unwrap();
        config.agents.values().next().unwrap().command_in(Some(std::path::Path::new("/home/kim")))
    };
    assert_eq!(command("[\"~/bin/a\", \"~/x\"]"), ["/home/kim/bin/a", "~/x"]);
    assert_eq!(command("[\"~kim/bin/a\"]"), ["~kim/bin/a"]);
    assert_eq!(command("[\"a~/b\"]"), ["a~/b"]);
}

/// Returns the sources and the origin of the configuration from these texts, for a reload.
fn in_force(system: &str, user: &str) -> (Sources, Origins) {
    let loaded = assemble::of_texts(&[system], &[user]).unwrap();
    (loaded.read.sources.clone(), loaded.read)
}

fn again(before: &(Sources, Origins), system: &str, user: Result<&str, Mistake>) -> Result<Loaded, Vec<Mistake>> {
    let text = |path: PathBuf, content: &str, of_user| files::Text {
        path,
        content: content.to_owned(),
        of_user,
        template: None,
    };
    let (sources, read) = before;
    let user = user.map(|content| Some(text(sources.user.clone(), content, true)));
    reload::combine(&[text("/etc/agentd/0.toml".into(), system, false)], user, sources, read)
}

/// Returns each mistake's file, key and consequence.
fn told(mistakes: &[Mistake]) -> Vec<(&str, &str, Consequence)> {
    let file = |mistake: &Mistake| if mistake.file == Some("/home/kim/0.toml".into()) { "user" } else { "system" };
    mistakes.iter().map(|mistake| (file(mistake), mistake.key.as_str(), mistake.consequence)).collect()
}

#[test]
fn no_mistake_of_the_users_keeps_the_administrators_files_out_of_force() {
    use Consequence::FormerInForce;
    let key = |name: &str| format!("[environment.encryption]\nkey = {{ credential = \"{name}\" }}\n");
    let mine = "[agents.mine]\ncommand = [\"mine\"]\n";
    let before = in_force(&key("old"), mine);
    // Both mistakes of the table are mistakes of the user.
    let user =
        "[environment.encryption]\nkey = { credential = \"../a\" }\nprevious = [{ file = \"b\" }, { file = \"c\" }]\n";
    let loaded = again(&before, &key("new"), Ok(user)).unwrap();
    assert_eq!(loaded.config.environment.encryption.key, KeySource::Credential("new".to_owned()));
    assert!(loaded.config.agents.len() == 1, "the former part of the user's stays");
    let encryption = |key: &'static str| ("user", key, FormerInForce);
    let expected = [encryption("environment.encryption.key"), encryption("environment.encryption.previous")];
    assert_eq!(told(&loaded.read.mistakes), expected);

    // The administrator's file names an agent that only the user's former file declares.
    let relies = format!("default_agent = \"mine\"\n{}", key("new"));
    for user in ["[agents.mine]\ncommand = []\n", "[agents.mine]\ncommand = 7\n", "[limits]\nbody = 0\n", ""] {
        let loaded = again(&before, &relies, Ok(user)).unwrap();
        assert_eq!(loaded.config.default_agent.as_str(), "mine", "{user}");
        let mistakes = told(&loaded.read.mistakes);
        assert!(!mistakes.is_empty() && mistakes.iter().all(|told| told.2 == FormerInForce), "{user}: {mistakes:?}");
    }
}

#[test]
fn a_mistake_of_the_administrators_leaves_everything_as_it_was_whatever_becomes_of_the_users_file() {
    let before = in_force("[limits]\nbody = 1\n", "[limits]\nturn = \"1h\"\n");
    let unreadable = Mistake { file: Some("/home/kim/0.toml".into()), ..Mistake::default() };
    for user in [Ok("[limits]\nturn = \"2h\"\n"), Ok("[limits]\nturn = true\n"), Ok("[[["), Err(unreadable.clone())] {
        let mistakes = again(&before, "[limits]\nbody = 0\n", user).unwrap_err();
        assert_eq!(told(&mistakes), [("system", "limits.body", Consequence::FormerInForce)]);
    }
    // The administrator's valid files apply although the user's file cannot be read.
    let loaded = again(&before, "[limits]\nbody = 2\n", Err(unreadable)).unwrap();
    assert_eq!((loaded.config.limits.body, loaded.config.limits.turn), (2, Time(Duration::from_hours(1))));
    assert_eq!(told(&loaded.read.mistakes), [("user", "", Consequence::FormerInForce)]);
}

#[test]
fn where_neither_part_of_the_users_fits_the_administrators_files_apply_and_nothing_is_launched() {
    let before = in_force("[agents.a]\ncommand = [\"a\"]\n", "default_agent = \"a\"\n");
    let loaded = again(&before, "[limits]\nbody = 2\n", Ok("[limits]\nturn = true\n")).unwrap();
    assert!(loaded.read.refuses() && loaded.config.limits.body == 2);
    let refused = |key| ("user", key, Consequence::LaunchesRefused);
    assert_eq!(told(&loaded.read.mistakes), [refused("limits.turn"), refused("default_agent")]);
}

#[test]
fn files_that_do_not_fit_together_are_the_mistake_of_the_first_that_does_not_fit() {
    let token = |source: &str| format!("[control]\ntcp = \"127.0.0.1:1\"\ntoken = {{ {source} = \"/t\" }}\n");
    let error = assemble::of_texts(&[&token("file"), &token("credential")], &["[limits]\nbody = 1\n"]).unwrap_err();
    assert!(error.starts_with("/etc/agentd/1.toml:1:"), "{error}");
}
