//! The tools for authors of plugins: a new project is built and tested in each language, inspected, checked and
//! installed. Each tool also gets files that it must refuse, and its message is checked.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use agentd_api::plugin_tool::{CaseOutcome, Check, Inspection, TestRun};
use tempfile::TempDir;

use crate::harness::{Daemon, paths, require};

fn root() -> PathBuf {
    paths::checkout().to_owned()
}

/// Returns the path of a built-in provider's component. It serves as an author's finished plugin.
fn built_in(name: &str) -> PathBuf {
    root().join("plugins/dist").join(format!("{name}.wasm"))
}

/// Author of a plugin, with a directory and a configuration of its own.
struct Author {
    directory: TempDir,
}

impl Author {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("author-").tempdir().unwrap();
        fs::create_dir(directory.path().join("config")).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Returns a command with the author's configuration and the tests' compiled components.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("CONFIGURATION_DIRECTORY", self.path("config"))
            .env("CACHE_DIRECTORY", paths::kept().join("agentd-cache"))
            .env("AGENTD_SOCKET", self.path("no.sock"))
            .env("AGENTCTL", paths::agentctl())
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    fn agentctl<S: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        let output = self.command(paths::agentctl()).arg("plugin").args(arguments).output().unwrap();
        Said::from(output)
    }
}

/// Output and exit status of a program.
#[derive(Debug)]
struct Said {
    status: i32,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Said {
    fn json<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Asserts that the program failed with these words.
    fn failed_with(&self, words: &[&str]) {
        assert_eq!(self.status, 1, "{self:#?}");
        let all = format!("{}{}", self.out, self.err);
        for word in words {
            assert!(all.contains(word), "{word:?} is not in {self:#?}");
        }
    }
}

/// Goes from `plugin new` to a session's environment, with the tools that build components of this language.
async fn from_nothing(language: &str, tools: &[(&str, PathBuf)]) {
    let author = Author::new();
    let made = author.agentctl(["new", "--lang", language, "corp-toolchain"]);
    assert_eq!(made.status, 0, "{made:#?}");
    let project = author.path("corp-toolchain");
    // Every language has the same case files, so plugins that pass them behave alike.
    let tools = tools.iter().map(|(name, path)| (*name, path.as_path()));
    let tested = Said::from(author.command("./test").current_dir(&project).envs(tools).output().unwrap());
    assert_eq!(tested.status, 0, "{tested:#?}");
    for case in ["case", "not-text", "not-there", "wrong-setting"] {
        assert!(tested.out.contains(&format!("ok      tests/{case}.toml\n")), "{case}: {tested:#?}");
    }
    let component = project.join("corp-toolchain.wasm");
    let path = component.to_str().unwrap();
    let inspection: Inspection = author.agentctl(["inspect", path, "--json"]).json();
    assert_eq!((inspection.name.as_str(), inspection.interface.as_str()), ("corp-toolchain", "1.0.0"));
    assert_eq!((inspection.imports.contains(&"file".to_owned()), inspection.wants.len()), (true, 1));

    // Nothing is granted yet. The printed lines grant everything that the plugin needs.
    let case = project.join("tests/case.toml");
    let unknown = author.agentctl(["check", path, "--json", "--case", case.to_str().unwrap()]);
    assert_eq!(unknown.status, 1, "{unknown:#?}");
    let lines = unknown.json::<Check>().lines.expect("it can be granted");
    let mut daemon = Daemon::prepare();
    let toolchain = daemon.root().join("toolchain");
    fs::create_dir(&toolchain).unwrap();
    fs::write(toolchain.join("VERSION"), "12.1\n").unwrap();
    let provider = format!(
        "[environment]\nproviders = [\"snapshot\", \"whitelist\", \
         {{ plugin = \"corp-toolchain\", settings = {{ root = {:?} }} }}]",
        toolchain.display().to_string()
    );
    daemon.configure(|config| format!("{}\n{lines}", config.replace("[environment]", &provider)));
    fs::copy(daemon.root().join("config/agentd.toml"), author.path("config/agentd.toml")).unwrap();
    let known = author.agentctl(["check", path, "--case", case.to_str().unwrap()]);
    assert_eq!(known.status, 0, "{known:#?}");

    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let environment: serde_json::Value = serde_json::from_str(&session.turn("env").await.text).unwrap();
    let root = toolchain.display().to_string();
    assert_eq!(
        (&environment["TOOLCHAIN_ROOT"], &environment["TOOLCHAIN_VERSION"]),
        (&root.as_str().into(), &"12.1".into())
    );
    assert!(environment["PATH"].as_str().unwrap().starts_with(&format!("{root}/bin:")), "{environment}");
    let conf = fs::read_to_string(environment["TOOLCHAIN_CONFIG"].as_str().unwrap()).unwrap();
    assert_eq!(conf, format!("root = {root}\nversion = 12.1\n"));
}

#[tokio::test]
async fn a_plugin_in_rust_goes_from_nothing_to_a_session() {
    let Some(mut tools) = require::rust_guests() else { return };
    tools.push(("CARGO_TARGET_DIR", root().join("plugins/target")));
    from_nothing("rust", &tools).await;
}

#[tokio::test]
async fn a_plugin_in_python_goes_from_nothing_to_a_session() {
    let Some(program) = require::componentize_py() else { return };
    from_nothing("python", &[("COMPONENTIZE_PY", program)]).await;
}

#[tokio::test]
async fn a_plugin_in_javascript_goes_from_nothing_to_a_session() {
    let Some(program) = require::componentize_qjs() else { return };
    from_nothing("javascript", &[("COMPONENTIZE_QJS", program)]).await;
}

#[test]
fn a_name_that_is_none_or_a_directory_that_is_there_makes_no_project() {
    let author = Author::new();
    author.agentctl(["new", "--lang", "python", "Corp_Tools"]).failed_with(&["Corp_Tools", "a-z", "corp-modules"]);
    fs::create_dir(author.path("corp-tools")).unwrap();
    author.write("corp-tools/mine", "x");
    author.agentctl(["new", "--lang", "rust", "corp-tools"]).failed_with(&["corp-tools already exists", "--dir"]);
    assert_eq!(fs::read_dir(author.path("corp-tools")).unwrap().count(), 1);
}

#[test]
fn a_prerequisite_is_begun_and_its_case_is_one() {
    let author = Author::new();
    let made = author.agentctl(["new", "--lang", "python", "--world", "prerequisite", "vpn", "--dir", "elsewhere"]);
    assert_eq!(made.status, 0, "{made:#?}");
    assert!(fs::read_to_string(author.path("elsewhere/plugin.py")).unwrap().contains("name=\"vpn\""));
    // The case is for a prerequisite with the setting `host`. The provider does not know it, and the message names it.
    let case = author.path("elsewhere/tests/case.toml");
    let wrong = author.agentctl(["test".as_ref(), built_in("whitelist").as_os_str(), "--case".as_ref(), case.as_ref()]);
    wrong.failed_with(&["FAILED", "host"]);
}

#[test]
fn a_component_says_what_it_is() {
    let author = Author::new();
    let file = built_in("snapshot");
    let said = author.agentctl(["inspect".as_ref(), file.as_os_str()]);
    assert_eq!(said.status, 0, "{said:#?}");
    for words in ["snapshot", "world     provider", "interface 1.0.0", "shell-environment", "sha256", "settings"] {
        assert!(said.out.contains(words), "{words}: {}", said.out);
    }
    let inspection: Inspection = author.agentctl(["inspect".as_ref(), file.as_os_str(), "--json".as_ref()]).json();
    assert_eq!(inspection.size, fs::metadata(&file).unwrap().len());
    assert_eq!(inspection.sha256.len(), 64);
}

#[test]
fn what_is_no_component_is_told_with_what_to_do() {
    let author = Author::new();
    for (name, bytes, words) in [
        ("text.wasm", &b"hello"[..], "not a WebAssembly component"),
        ("module.wasm", b"\0asm\x01\0\0\0", "wasm-component-ld"),
        ("cut.wasm", &fs::read(built_in("snapshot")).unwrap()[..1000], "cut"),
    ] {
        fs::write(author.path(name), bytes).unwrap();
        for tool in ["inspect", "check"] {
            author.agentctl([tool, name]).failed_with(&["agentctl: ", words]);
        }
    }
    author.agentctl(["inspect", "nowhere.wasm"]).failed_with(&["nowhere.wasm", "hint: name the .wasm file"]);
}

#[test]
fn a_component_is_compared_with_its_grant_its_pin_and_its_settings() {
    let author = Author::new();
    let file = built_in("env-script");
    let path = file.to_str().unwrap();
    let check = |expected: i32| -> Check {
        let said = author.agentctl(["check", path, "--name", "scripts", "--json"]);
        assert_eq!(said.status, expected, "{said:#?}");
        said.json()
    };
    let nowhere = check(1);
    assert_eq!((nowhere.declared_in, nowhere.refused.len()), (None, 1));
    let lines = nowhere.lines.unwrap();
    author.write("config/agentd.toml", &lines);
    let loads = check(0);
    assert!(loads.declared_in.is_some() && loads.problem.is_none() && loads.lines.is_none() && loads.unused.is_empty());

    // The cases show which variables the plugin sets. For a variable that is not granted, the output has the line that
    // grants it.
    let case = "[answers]\n[[answers.script]]\npath = \"{config}/env-setup.sh\"\n\
        environment = { A = \"1\", PAGER = \"x\" }\n\
        [[answers.script]]\npath = \"{cwd}/.agentd-env.sh\"\nfailure = { not-found = \"\" }\n\
        [[answers.script]]\npath = \"{session}/env-setup.sh\"\nfailure = { not-found = \"\" }\n";
    let case = author.write("case.toml", case);
    assert!(loads.undecided.is_some_and(|text| text.contains("--case")));
    author.write("config/agentd.toml", &lines.replace("grant = { ", "grant = { variables = [\"A\", \"B\", \"*\"], "));
    let said = author.agentctl(["check", path, "--name", "scripts", "--json", "--case", case.to_str().unwrap()]);
    assert_eq!(said.status, 1, "{said:#?}");
    let compared: Check = said.json();
    let refused: Vec<&str> = compared.refused.iter().map(|refusal| refusal.what.as_str()).collect();
    assert_eq!(refused, ["the plugin sets the variable \"PAGER\", which nothing grants"]);
    assert!(compared.refused[0].hint.as_ref().is_some_and(|hint| hint.contains("exact name")), "{compared:?}");
    assert_eq!((compared.unused, compared.undecided), (vec!["variables \"B\"".to_owned()], None));
    assert!(compared.lines.unwrap().contains("variables = [\"A\", \"B\", \"*\", \"PAGER\"]"));

    // The pin has one wrong digit.
    let pinned = &nowhere.inspection.sha256;
    let digit = if pinned.starts_with('0') { '1' } else { '0' };
    author.write("config/agentd.toml", &lines.replace(pinned, &format!("{digit}{}", &pinned[1..])));
    let other = check(1);
    assert!(other.pin.is_some_and(|pin| !pin.matches) && other.lines.unwrap().contains(pinned));

    // The configuration has an unused grant, and then a setting that the plugin does not know.
    author.write("config/agentd.toml", &lines.replace("grant = { ", "grant = { process = [\"vpn\"], "));
    assert_eq!(check(0).unused, ["process"]);
    let used = "[environment]\nproviders = [\"snapshot\", { plugin = \"scripts\", settings = { script = \"x\" } }]\n";
    author.write("config/agentd.toml", &format!("{used}{lines}"));
    assert!(check(1).problem.is_some_and(|problem| problem.message.contains("script")));
    author.write("config/agentd.toml", "[plugins.scripts]\nsha256 = 1\n");
    author.agentctl(["check", path]).failed_with(&["agentd.toml", "sha256"]);
}

/// A case for the whitelist.
const CASE: &str = "# kept\n[environment]\nPATH = \"/bin\"\nNOT_SAFE = \"x\"\n";

#[test]
fn a_case_passes_differs_and_is_written() {
    let author = Author::new();
    let file = built_in("whitelist");
    let case = author.write("case.toml", CASE);
    let test = |more: &[&str]| {
        let arguments = ["test".as_ref(), file.as_os_str(), "--case".as_ref(), case.as_os_str()];
        author.agentctl(arguments.into_iter().chain(more.iter().map(std::ffi::OsStr::new)))
    };
    test(&[]).failed_with(&["has no expectation", "--update", "+ unset = \"NOT_SAFE\""]);
    let updated: TestRun = test(&["--update", "--json"]).json();
    assert_eq!(updated.cases[0].outcome, CaseOutcome::Updated);
    let written = fs::read_to_string(&case).unwrap();
    assert!(written.starts_with(CASE) && written.contains("unset = \"NOT_SAFE\""), "{written}");
    assert_eq!(test(&[]).status, 0);
    fs::write(&case, written.replace("\"NOT_SAFE\"", "\"OTHER\"").replacen("OTHER = ", "NOT_SAFE = ", 1)).unwrap();
    test(&[]).failed_with(&["FAILED", "- unset = \"OTHER\"", "+ unset = \"NOT_SAFE\"", "1 case, 1 failed"]);
}

#[test]
fn a_host_call_without_an_answer_is_told_with_the_lines_that_would_be_one() {
    let author = Author::new();
    let case = author.write("case.toml", "[expect]\nchanges = []\n");
    let file = built_in("snapshot");
    let test = || author.agentctl(["test".as_ref(), file.as_os_str(), "--case".as_ref(), case.as_os_str()]);
    test().failed_with(&["no answer for the login shell", "[answers.login.environment]"]);
    fs::write(
        &case,
        "[answers.login.environment]\nPATH = \"/x\"\n[[expect.changes]]\nset = \"PATH\"\nvalue = \"/x\"\n",
    )
    .unwrap();
    let said = test();
    assert_eq!(said.status, 0, "{said:#?}");
}

#[test]
fn a_case_with_a_mistake_is_told_with_its_place() {
    let author = Author::new();
    let file = built_in("whitelist");
    for (text, words) in [
        ("[settngs]\n", &["unknown field `settngs`", "line 1"][..]),
        ("[settings]\nallowed = \"X\"\n[expect]\nchanges = []\n", &["allowed"]),
        ("[settings]\nallow = [[\"X\"]]\n", &["allow"]),
    ] {
        let case = author.write("case.toml", text);
        author
            .agentctl(["test".as_ref(), file.as_os_str(), "--case".as_ref(), case.as_os_str()])
            .failed_with(&[&["FAILED"], words].concat());
    }
    let said = author.agentctl(["test".as_ref(), file.as_os_str(), "--case".as_ref(), "nowhere.toml".as_ref()]);
    said.failed_with(&["cannot read", "nowhere.toml"]);
}

#[tokio::test]
async fn a_case_is_taken_from_a_session_without_its_secrets() {
    let mut daemon = Daemon::prepare();
    fs::write(daemon.home().join(".profile"), "export EDITOR=ed DEPLOY_TOKEN=hunter2hunter2\n").unwrap();
    daemon.configure(|config| {
        let allow = "{ plugin = \"whitelist\", settings = { allow = [\"DEPLOY_TOKEN\"] } }";
        config.replace("[environment]", &format!("[environment]\nproviders = [\"snapshot\", {allow}]"))
    });
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let author = Author::new();
    let id = session.id.to_string();
    let case = |more: &[&str]| {
        let mut command = author.command(paths::agentctl());
        command.env("AGENTD_SOCKET", daemon.client.socket()).args(["plugin", "case", &id]).args(more);
        Said::from(command.output().unwrap())
    };
    let whole = case(&[]);
    assert_eq!(whole.status, 0, "{whole:#?}");
    assert!(whole.out.contains("EDITOR = \"ed\"") && whole.out.contains("agent = \"scripted-agent\""), "{}", whole.out);
    assert!(!whole.out.contains("hunter2") && whole.out.contains("DEPLOY_TOKEN"), "{}", whole.out);
    // The output is a case that `agentctl plugin test` can run unchanged.
    let of_plugin = case(&["--plugin", "whitelist"]);
    let file = author.write("case.toml", &of_plugin.out);
    let whitelist = built_in("whitelist");
    let said = author.agentctl([
        "test".as_ref(),
        whitelist.as_os_str(),
        "--update".as_ref(),
        "--case".as_ref(),
        file.as_os_str(),
    ]);
    assert_eq!(said.status, 0, "{said:#?}\n{}", of_plugin.out);
}
