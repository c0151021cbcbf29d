use super::*;
use crate::files::{Sources, Text};

const HEAD: &str = "# mine\ndefault_agent = \"a\" # this one\n\n[agents.a]\ncommand = [\"a\"]\n";

fn text(of_user: bool, content: &str) -> Text {
    let path = if of_user { "/home/kim/agentd.toml" } else { "/etc/agentd/agentd.toml" };
    Text { path: path.into(), content: content.to_owned(), of_user, template: None }
}

fn of(system: &str, user: Option<&str>, wish: &KeepRequest) -> Result<KeepPlan, EditError> {
    let sources = Sources { system: "/etc/agentd".into(), user: "/home/kim/agentd.toml".into(), named: false };
    let system = if system.is_empty() { Vec::new() } else { vec![text(false, system)] };
    planned(Files::of(system, user.map(|user| text(true, user)), &sources), wish)
}

fn names(names: &[&str]) -> KeepRequest {
    KeepRequest { names: names.iter().map(|&name| name.to_owned()).collect(), ..KeepRequest::default() }
}

fn after(user: &str, wish: &[&str]) -> String {
    of("", Some(user), &names(wish)).unwrap().edit.after
}

#[test]
fn the_whitelists_own_list_is_made_and_all_else_stays_as_it_is_written() {
    let plan = of("", Some(HEAD), &names(&["JAVA_HOME"])).unwrap();
    assert_eq!(plan.edit.after, format!("{HEAD}\n[plugins.whitelist.settings]\nallow = [\"JAVA_HOME\"]\n"));
    assert_eq!(
        (plan.keys, plan.added),
        (vec!["plugins.whitelist.settings.allow".to_owned()], vec!["JAVA_HOME".to_owned()])
    );
    let lines: Vec<(u32, bool, &str)> =
        plan.edit.lines.iter().map(|line| (line.line, line.added, line.text.as_str())).collect();
    assert_eq!(lines, [(6, true, ""), (7, true, "[plugins.whitelist.settings]"), (8, true, "allow = [\"JAVA_HOME\"]")]);
    let first = of("", None, &names(&["A"])).unwrap();
    assert_eq!(
        (first.edit.before, first.edit.after.as_str()),
        (None, "[plugins.whitelist.settings]\nallow = [\"A\"]\n")
    );
}

#[test]
fn a_name_is_written_once() {
    let once = after(HEAD, &["A", "A"]);
    let twice = of("", Some(&once), &names(&["A"])).unwrap();
    assert_eq!(
        (twice.edit.after, twice.already, twice.added.len(), twice.edit.lines.len()),
        (once, vec!["A".to_owned()], 0, 0)
    );
}

#[test]
fn a_list_keeps_its_layout_and_its_comments() {
    let whitelist =
        |list: &str| format!("[plugins.whitelist]\nsettings = {{ preset = \"minimal\", allow = {list} }}\n");
    assert_eq!(after(&whitelist("[\"A\"]"), &["B"]), whitelist("[\"A\", \"B\"]"));
    assert_eq!(after(&whitelist("\"A\""), &["B"]), whitelist("[\"A\", \"B\"]"));
    let long = |rest: &str| {
        format!("[plugins.whitelist.settings]\nallow = [\n    # compilers\n    \"A\", # first\n    \"C\"{rest}]\n")
    };
    assert_eq!(after(&long(", # last\n"), &["B"]), long(", # last\n    \"B\",\n"));
    assert_eq!(after(&long("\n"), &["B"]), long(",\n    \"B\",\n"));
    assert_eq!(after(&long(" # last\n"), &["B"]).matches("# last").count(), 1);
    assert_eq!(
        after("plugins.whitelist.settings.allow = []\n", &["A"]),
        "plugins.whitelist.settings.allow = [\"A\"]\n"
    );
}

#[test]
fn an_empty_list_over_several_lines_and_other_line_ends_stay_what_they_are() {
    let empty = |rest: &str| format!("[plugins.whitelist.settings]\nallow = [{rest}]\n");
    assert_eq!(after(&empty("\n"), &["A", "B"]), empty("\n    \"A\",\n    \"B\",\n"));
    assert_eq!(after(&empty("\n  # none\n"), &["A"]), empty("\n  # none\n    \"A\",\n"));
    let windows = HEAD.replace('\n', "\r\n");
    let plan = of("", Some(&windows), &names(&["A"])).unwrap();
    assert!(
        plan.edit.after.starts_with(&windows) && !plan.edit.after.replace("\r\n", "").contains('\n'),
        "{:?}",
        plan.edit.after
    );
    assert_eq!(plan.edit.lines.len(), 3, "{:?}", plan.edit.lines);
}

#[test]
fn a_use_with_a_list_of_its_own_gets_the_name_in_both_ways_to_write_the_pipeline() {
    let values = |list: &str| {
        format!(
            "[environment]\nproviders = [\n  \"snapshot\",\n  \
             {{ plugin = \"whitelist\", settings = {{ allow = {list} }} }}, # mine\n]\n"
        )
    };
    assert_eq!(after(&values("[\"A\"]"), &["B"]), values("[\"A\", \"B\"]"));
    let tables = |list: &str| {
        format!(
            "[[environment.providers]]\nplugin = \"snapshot\"\n\n\
             [[environment.providers]]\nplugin = \"whitelist\"\nsettings.allow = {list}\n"
        )
    };
    assert_eq!(after(&tables("[\"A\"]"), &["B"]), tables("[\"A\", \"B\"]"));
    // A use without a list has the list of the plugin.
    let plain = "[environment]\nproviders = [\"snapshot\", \"whitelist\"]\n";
    assert!(after(plain, &["B"]).ends_with("[plugins.whitelist.settings]\nallow = [\"B\"]\n"));
    let none = of("", Some("[environment]\nproviders = [\"snapshot\"]\n"), &names(&["B"]));
    assert!(matches!(none, Err(EditError::NoWhitelist)), "{none:?}");
}

#[test]
fn what_the_administrator_writes_is_named_with_the_line_to_add() {
    for system in [
        "[plugins.whitelist]\nsettings = { preset = \"minimal\" }\n",
        "[environment]\nproviders = [\"snapshot\", { plugin = \"whitelist\", settings = { allow = [] } }]\n",
        "[plugin_policy]\nuser_plugins = false\n",
    ] {
        match of(system, Some(HEAD), &names(&["B"])) {
            Err(EditError::OfAdministrator { file, line, .. }) => {
                assert!(file.starts_with("/etc/agentd") && line.contains("\"B\""), "{file:?}: {line}");
            }
            other => panic!("{system}: {other:?}"),
        }
    }
}

#[test]
fn a_file_that_is_no_toml_or_has_something_else_there_is_left_alone() {
    let refused = of("", Some("default_agent = \n"), &names(&["B"]));
    assert!(matches!(&refused, Err(EditError::Mistakes(mistakes)) if !mistakes.is_empty()), "{refused:?}");
    let other = of("", Some("[plugins.whitelist.settings]\nallow = [1]\n"), &names(&["B"]));
    assert!(matches!(other, Err(EditError::NotAList { .. })), "{other:?}");
}

#[test]
fn an_agent_that_is_not_configured_is_named_with_those_that_are() {
    let wish = KeepRequest { agent: Some("b".parse().unwrap()), ..names(&["B"]) };
    match of("", Some(HEAD), &wish) {
        Err(EditError::NoSuchAgent { known, .. }) => assert_eq!(known, ["a", "demo"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_secret_in_a_changed_line_is_masked() {
    let line = "[environment]\nproviders = [{ plugin = \"snapshot\", settings = { password = \"hunter2\" } }, \
                { plugin = \"whitelist\", settings = { allow = [\"A\"] } }]\n";
    let plan = of("", Some(line), &names(&["B"])).unwrap();
    assert!(plan.edit.lines.len() == 2 && plan.edit.after.contains("hunter2"), "{plan:?}");
    assert!(
        plan.edit.lines.iter().all(|line| !line.text.contains("hunter2") && line.text.contains("***")),
        "{:?}",
        plan.edit.lines
    );
}
