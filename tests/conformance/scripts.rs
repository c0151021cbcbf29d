//! Environment scripts: the shell that sources them, failures, and processes that they leave behind.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agentd_api::contract::VARIABLES;
use agentd_api::session::Phase;

use super::{BASH, Environment, FISH, KSH, NU, TCSH, ZSH, of_agent, refusal};
use crate::harness::quote::quoted;
use crate::harness::{Daemon, process, require};

/// Returns a daemon whose user's start-up files set nothing.
async fn daemon() -> Daemon {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        config.replace("[environment]\n", "[environment]\ndeadline = \"3s\"\n")
            + "\n[[environment.providers]]\nplugin = \"snapshot\"\n[[environment.providers]]\nplugin = \"env-script\"\n"
    });
    daemon.run().await;
    daemon
}

/// Returns the environment of an agent after its session's script.
async fn after(daemon: &Daemon, script: &str) -> Environment {
    let mut spec = daemon.scripted(&[]);
    spec.env_setup = Some(script.to_owned());
    let session = daemon.create(&spec).await;
    let environment = of_agent(&session).await;
    session.stop().await;
    environment
}

/// Returns the reason why a session with this script does not start.
async fn failure(daemon: &Daemon, script: &str) -> (String, String) {
    let mut spec = daemon.scripted(&[]);
    spec.env_setup = Some(script.to_owned());
    refusal(&daemon.create(&spec).await).await
}

#[tokio::test]
async fn a_script_is_sourced_by_the_shell_that_its_first_line_names() {
    let daemon = daemon().await;
    let bash = "export BY=\"bash ${BASH_VERSION:+yes}\"";
    let mut scripts = vec![
        (bash.to_owned(), "bash yes"),
        (format!("#!/usr/bin/env bash\n{bash}"), "bash yes"),
        ("#!/bin/sh\nexport BY=\"sh ${BASH_VERSION:-no}\"".to_owned(), "sh no"),
    ];
    if let Some(zsh) = ZSH.program() {
        scripts.push((format!("#!{}\nexport BY=\"zsh ${{ZSH_VERSION:+yes}}\"", zsh.display()), "zsh yes"));
    }
    if let Some(ksh) = KSH.program() {
        scripts.push((format!("#!{}\nexport BY=\"ksh ${{KSH_VERSION:+yes}}\"", ksh.display()), "ksh yes"));
    }
    if FISH.program().is_some() {
        scripts.push((
            "#!/usr/bin/env fish\nset -gx BY \"fish \"(set -q FISH_VERSION; and echo yes)".to_owned(),
            "fish yes",
        ));
    }
    if let Some(tcsh) = TCSH.program() {
        scripts.push((format!("#!{} -f\nsetenv BY \"tcsh $?tcsh\"", tcsh.display()), "tcsh 1"));
    }
    if let Some(nu) = NU.program() {
        scripts.push((format!("#!{}\n$env.BY = $'nu (2 + 3)'", nu.display()), "nu 5"));
    }
    for (script, expected) in scripts {
        let environment = after(&daemon, &script).await;
        let by = environment.get("BY").map(|by| String::from_utf8_lossy(by).into_owned());
        assert_eq!(by.as_deref(), Some(expected), "{script}");
        let is_known = |name: &str| VARIABLES.iter().any(|variable| variable.name == name);
        let of_the_runner = environment.keys().find(|name| name.starts_with("AGENTD_") && !is_known(name));
        assert_eq!(of_the_runner, None, "{script}");
    }
    let (reason, message) = failure(&daemon, "#!/usr/bin/python3\nimport os").await;
    assert_eq!(reason, "ScriptInterpreterUnknown");
    assert!(message.contains("begins with \"#!/usr/bin/python3\""), "{message}");
}

#[tokio::test]
async fn a_script_fails_by_its_exit_and_not_by_its_last_command() {
    let daemon = daemon().await;
    let marker = daemon.root().join("trapped");
    let trap = format!("trap {} EXIT; export KEPT=trap", quoted(format!("echo done > {}", quoted(&marker))));
    for (script, expected) in [
        ("[ -d /nope ] && export OTHER=1", None),
        ("export KEPT=return; return 3", Some("return")),
        ("export KEPT=exit; exit 0", Some("exit")),
        ("set -eu; export KEPT=strict", Some("strict")),
        ("set -a; KEPT=all", Some("all")),
        ("export KEPT=positional; set -- a b c; shift 2", Some("positional")),
        (trap.as_str(), Some("trap")),
        ("shopt -s extglob\ncase abc in !(x)) export KEPT=extglob;; esac\nfalse", Some("extglob")),
    ] {
        let environment = after(&daemon, script).await;
        let kept = environment.get("KEPT").map(|kept| String::from_utf8_lossy(kept).into_owned());
        assert_eq!(kept.as_deref(), expected, "{script}");
    }
    assert!(marker.exists(), "the script's own trap was not run");
    for (script, reason, words) in [
        ("echo first >&2; echo why >&2; exit 4", "ScriptFailed", "ended with status 4; its last words: first | why"),
        ("set -e; false; export KEPT=no", "ScriptFailed", "ended with status 1"),
        ("set -u; export KEPT=$NOT_THERE", "ScriptFailed", "NOT_THERE: unbound variable"),
        ("export KEPT=no\nif then (\n", "ScriptSyntaxError", "has a syntax error; its last words:"),
        (
            "echo waiting >&2; sleep 8642",
            "ScriptTimedOut",
            "was ended with everything it had started; its last words: waiting",
        ),
        ("exec true", "ScriptFailed", "does it call exit or exec?"),
        ("kill -9 $$", "ScriptFailed", "was ended by signal 9"),
        (
            "export L=$(head -c 140000 /dev/zero | tr '\\0' y)",
            "ScriptFailed",
            "at most 131071 bytes for a variable with its name",
        ),
        ("set -x; export SOME=$((6 * 1013)); exit 5", "ScriptFailed", "ended with status 5"),
    ] {
        let (got, message) = failure(&daemon, script).await;
        assert!(got == reason && message.contains(words), "{script}: {got}: {message}");
        assert!(!message.contains("6078"), "a trace has values: {message}");
        let left = process::running(daemon.root(), "sleep", Some("8642"));
        assert!(left.is_empty(), "{script}: {left:?}");
    }
}

#[tokio::test]
async fn syntax_errors_and_exits_are_told_in_every_shell_that_sources_scripts() {
    let daemon = daemon().await;
    for (shell, bad, exit) in [
        (BASH, "if then (", "exit 4"),
        (ZSH, "if then (", "exit 4"),
        (KSH, "if then (", "exit 4"),
        (super::DASH, "if then (", "exit 4"),
        (FISH, "if (", "exit 4"),
        (NU, "if (", "exit 4"),
        (TCSH, "if ( then (", "exit 4"),
    ] {
        let Some(program) = shell.program() else { continue };
        let (reason, message) = failure(&daemon, &format!("#!{}\n{bad}\n", program.display())).await;
        assert_eq!(reason, "ScriptSyntaxError", "{}: {message}", shell.name);
        let (reason, message) = failure(&daemon, &format!("#!{}\n{exit}\n", program.display())).await;
        assert_eq!(reason, "ScriptFailed", "{}: {message}", shell.name);
    }
}

#[tokio::test]
async fn a_child_that_holds_every_descriptor_delays_no_launch() {
    let daemon = daemon().await;
    let plain = "export A=1\n";
    let holding = "sleep 8642 & setsid sleep 8642 &\nexport A=1\n";
    let mut best = [Duration::MAX; 2];
    // The machine is busy with other things too: what it can do at best is compared.
    for _ in 0..8 {
        for (n, script) in [plain, holding].into_iter().enumerate() {
            let mut spec = daemon.scripted(&[]);
            spec.env_setup = Some(script.to_owned());
            let begun = Instant::now();
            let session = daemon.create(&spec).await;
            session.wait_for_phase(Phase::Idle).await;
            best[n] = best[n].min(begun.elapsed());
            session.stop().await;
        }
    }
    eprintln!("a launch with a plain script {:?}, with one that leaves processes behind {:?}", best[0], best[1]);
    assert!(best[1] <= best[0] + Duration::from_millis(100), "{best:?}");
}

/// Starts the daemon with no environment; gives a directory in which there is the module `mytool`.
async fn run_with_modules(daemon: &mut Daemon, file: &str, text: &str) -> PathBuf {
    daemon.set_environment(Vec::<(String, String)>::new());
    let modules = daemon.root().join("modules");
    std::fs::create_dir(&modules).unwrap();
    std::fs::write(modules.join(file), text).unwrap();
    daemon.run().await;
    modules
}

/// Whether an agent has what the module `mytool` gives, after this login file and this script.
async fn has_mytool(daemon: &Daemon, profile: &str, script: &str) {
    std::fs::write(daemon.home().join(".profile"), profile).unwrap();
    let environment = after(daemon, script).await;
    let path = environment.get("PATH").map(|path| String::from_utf8_lossy(path).into_owned()).unwrap_or_default();
    assert!(path.starts_with("/opt/mytool/bin:") && path.contains("/usr/bin"), "{script}: {path}");
    assert_eq!(environment.get("MYTOOL_HOME").map(Vec::as_slice), Some(&b"/opt/mytool"[..]), "{script}");
    let function = environment.keys().find(|name| name.starts_with("BASH_FUNC_"));
    assert_eq!(function, None, "functions are for scripts: {script}");
    assert!(!environment.contains_key("BASH_ENV"), "{script}");
}

#[tokio::test]
async fn module_load_in_a_script_gives_the_agent_the_modules_path_though_the_daemon_has_no_environment() {
    let Some(init) = require::shell_file("/usr/share/modules/init/bash", "environment-modules") else { return };
    let module = "#%Module1.0\nprepend-path PATH /opt/mytool/bin\nsetenv MYTOOL_HOME /opt/mytool\n";
    let mut daemon = Daemon::prepare();
    let modules = run_with_modules(&mut daemon, "mytool", module).await;
    let load = format!("module use {}\nmodule load mytool\n", quoted(&modules));
    let source = format!(". {}\n", quoted(&init));
    // With the function that the login shell exports, and with the init file where it exports none.
    has_mytool(&daemon, "", &format!("{source}{load}")).await;
    has_mytool(&daemon, &source, &load).await;
    let (reason, message) = failure(&daemon, &format!("{source}set -e\nmodule load no-such-module\n")).await;
    assert!(reason == "ScriptFailed" && message.contains("no-such-module"), "{reason}: {message}");
}

#[tokio::test]
async fn lmods_module_load_in_a_script_gives_the_agent_the_modules_path_though_the_daemon_has_no_environment() {
    let Some(init) = require::lmod() else { return };
    let module = "prepend_path(\"PATH\", \"/opt/mytool/bin\")\nsetenv(\"MYTOOL_HOME\", \"/opt/mytool\")\n";
    let source = format!(". {}\n", quoted(&init));
    let mut daemon = Daemon::prepare();
    let modules = run_with_modules(&mut daemon, "mytool.lua", module).await;
    let using = format!("module use {}\n", quoted(&modules));
    has_mytool(&daemon, "", &format!("{source}{using}module load mytool\n")).await;
    let (reason, message) = failure(&daemon, &format!("{source}set -e\nmodule load no-such-module\n")).await;
    assert!(reason == "ScriptFailed" && message.contains("no-such-module"), "{reason}: {message}");

    // Debian's file in /etc/profile.d exports both functions of Lmod, and a BASH_ENV.
    let profile = format!(". {}\n", quoted(init.with_file_name("profile")));
    let mut daemon = Daemon::prepare();
    let modules = run_with_modules(&mut daemon, "mytool.lua", module).await;
    for load in ["module load mytool", "ml mytool"] {
        has_mytool(&daemon, &profile, &format!("module use {}\n{load}\n", quoted(&modules))).await;
    }
}

#[tokio::test]
async fn a_function_without_the_variables_that_it_needs_is_given_to_no_script() {
    let Some(init) = require::lmod() else { return };
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        let providers = ["snapshot\"", "whitelist\"\nsettings = { preset = \"minimal\" }", "env-script\""]
            .map(|provider| format!("\n[[environment.providers]]\nplugin = \"{provider}\n"));
        config + &providers.concat()
    });
    daemon.run().await;
    std::fs::write(daemon.home().join(".profile"), format!(". {}\n", quoted(init.with_file_name("profile")))).unwrap();
    // Without LMOD_CMD what `module load` does is `bash load`, which looks here.
    let canary = daemon.root().join("canary");
    let planted = format!("touch {}\necho export FROM_REPOSITORY=1\n", quoted(&canary));
    std::fs::write(daemon.work().join("load"), planted).unwrap();
    let environment = after(&daemon, "module load mytool\nexport BEHIND=1\n").await;
    assert!(environment.contains_key("BEHIND") && !environment.contains_key("FROM_REPOSITORY"));
    assert!(!canary.exists(), "a file of the working directory was run");
}

#[tokio::test]
async fn direnv_in_a_script_gives_the_agent_what_the_directory_says() {
    let Some(direnv) = require::shell_file("/usr/bin/direnv", "direnv") else { return };
    let daemon = daemon().await;
    std::fs::write(daemon.home().join(".profile"), format!("eval \"$({} hook bash)\"\n", quoted(&direnv))).unwrap();
    std::fs::write(daemon.work().join(".envrc"), "PATH_add bin\nexport FROM_ENVRC='two\nlines '\n").unwrap();
    let environment = after(&daemon, "direnv allow . && eval \"$(direnv export bash)\"\n").await;
    assert_eq!(environment.get("FROM_ENVRC").map(Vec::as_slice), Some(&b"two\nlines "[..]));
    let path = String::from_utf8_lossy(&environment["PATH"]).into_owned();
    assert!(path.starts_with(&daemon.work().join("bin").display().to_string()), "{path}");
}
