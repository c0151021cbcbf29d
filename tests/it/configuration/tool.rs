//! Tests of `agentctl config`, which needs no daemon.

use std::fs;
use std::path::Path;
use std::process::Command;

use agentd_api::configuration::{ConfigurationCheck, ConfigurationPaths, ConfigurationShow};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::harness::paths;

/// Creates a home with a configuration.
fn home(config: &str) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join(".config/agentd")).unwrap();
    fs::write(home.path().join(".config/agentd/agentd.toml"), config).unwrap();
    home
}

/// Runs `agentctl config ...` without a daemon. Returns the exit status, standard output and standard error.
fn config(home: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(paths::agentctl())
        .arg("config")
        .args(arguments)
        .env_clear()
        .env("HOME", home)
        .env("XDG_RUNTIME_DIR", home.join("run"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(!home.join("run").exists() && !home.join(".local").exists(), "it made something");
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn document<T: DeserializeOwned>(home: &Path, arguments: &[&str]) -> T {
    let (_, stdout, stderr) = config(home, &[arguments, &["--json"]].concat());
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"))
}

#[test]
fn check_prints_each_mistake_with_its_place_and_a_suggestion_and_ends_with_status_one() {
    let home = home("[limits]\nlaunchs = 2\nbody = 0\n");
    let file = home.path().join(".config/agentd/agentd.toml").display().to_string();
    let (status, stdout, stderr) = config(home.path(), &["check"]);
    assert_eq!((status, stderr.as_str()), (1, ""));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert!(lines[0].starts_with(&format!("{file}:2:1: limits.launchs: ")), "{stdout}");
    assert!(lines[0].ends_with("did you mean `launches`?"), "{stdout}");
    assert!(lines[1].starts_with(&format!("{file}:3:1: limits.body is 0")), "{stdout}");
    let found: ConfigurationCheck = document(home.path(), &["check"]);
    assert_eq!((found.mistakes.len(), found.mistakes[0].line, found.mistakes[0].column), (2, Some(2), Some(1)));

    fs::write(&file, "[limits]\nlaunches = 2\n").unwrap();
    let (status, stdout, _) = config(home.path(), &["check"]);
    assert_eq!((status, stdout.as_str()), (0, "1 file has no mistake\n"));
}

#[test]
fn check_reads_a_file_that_is_not_in_use_yet_as_the_users_or_as_the_administrators() {
    let home = home("[limits]\nbody = 0\n");
    let candidate = home.path().join("candidate.toml");
    let candidate = candidate.to_str().unwrap();
    fs::write(candidate, "[limits]\nbody = 1\n").unwrap();
    assert_eq!(config(home.path(), &["check", candidate]).0, 0, "the file that is in use is not looked at");
    fs::write(candidate, "[plugin_policy]\nuser_plugins = false\n").unwrap();
    let (status, stdout, _) = config(home.path(), &["check", candidate]);
    assert!(status == 1 && stdout.contains("for the administrator"), "{stdout}");
    fs::write(home.path().join(".config/agentd/agentd.toml"), "").unwrap();
    assert_eq!(config(home.path(), &["check", "--system", candidate]).0, 0);
    let (status, stdout, _) = config(home.path(), &["check", "/nowhere.toml"]);
    assert!(status == 1 && stdout.contains("/nowhere.toml"), "{stdout}");
}

#[test]
fn check_finds_a_token_that_is_missing() {
    let home = home("[control]\ntcp = \"127.0.0.1:7345\"\ntoken = { file = \"~/.token\" }\n");
    let (status, stdout, _) = config(home.path(), &["check"]);
    assert!(status == 1 && stdout.contains("agentd.toml:3:1: ") && stdout.contains(".token"), "{stdout}");
}

#[test]
fn show_prints_each_value_with_its_place_and_no_secret_and_path_says_where_files_are_looked_for() {
    let home = home("[limits]\nturn = \"1h\"\n\n[agents.mine]\ncommand = [\"mine\", \"--api-key\", \"hunter2\"]\n");
    let file = home.path().join(".config/agentd/agentd.toml");
    let (status, stdout, stderr) = config(home.path(), &["show"]);
    assert_eq!((status, stderr.as_str()), (0, ""));
    assert!(stdout.contains(&format!("limits.turn = \"1h\"  # {}:2\n", file.display())), "{stdout}");
    assert!(stdout.contains("[\"mine\", \"--api-key\", \"***\"]") && !stdout.contains("hunter2"), "{stdout}");
    // The output is a valid configuration.
    toml::from_str::<toml::Table>(&stdout).unwrap();
    let shown: ConfigurationShow = document(home.path(), &["show"]);
    assert_eq!((shown.files.as_slice(), shown.values[0].key.as_str()), (&[file.clone()][..], "agents.mine.command"));

    let paths: ConfigurationPaths = document(home.path(), &["path"]);
    let last = paths.paths.last().unwrap();
    assert_eq!((&last.path, last.exists, last.owner.as_str()), (&file, true, "user"));
    assert!(paths.paths.iter().any(|path| path.path == Path::new("/etc/agentd/agentd.toml")));
    assert!(config(home.path(), &["path"]).1.contains("/etc/agentd/conf.d"));
}
