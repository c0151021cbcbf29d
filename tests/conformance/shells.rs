//! Tests of login shells beyond the table's rows: the choice between bash's files, functions, and background processes.

use agentd_api::Body;
use agentd_api::event::EnvironmentBuilt;
use agentd_api::snapshot::SnapshotList;

use super::{BASH, Dialect, FISH, KSH, NU, TCSH, ZSH, daemon, of_agent, refusal};
use crate::harness::{Session, process, until};

fn built(session: &Session) -> EnvironmentBuilt {
    let mut found = session.journal().into_iter().filter_map(|event| match event.body {
        Body::EnvironmentBuilt(built) => Some(built),
        _ => None,
    });
    found.next_back().expect("it was built")
}

#[tokio::test]
async fn bash_gives_what_stands_in_bashrc_whether_the_profile_reads_it_or_not() {
    let Some(program) = BASH.program() else { return };
    let mut daemon = daemon(&program);
    let home = daemon.home();
    let bashrc = "case $- in *i*) ;; *) return;; esac\nexport FROM_BASHRC=\"${FROM_BASHRC-}x\"\n";
    std::fs::write(home.join(".bashrc"), bashrc).unwrap();
    daemon.run().await;
    for profile in [None, Some("export FROM_PROFILE=yes"), Some("export FROM_PROFILE=yes; . ~/.bashrc")] {
        if let Some(profile) = profile {
            BASH.write(&home, profile);
        }
        let session = daemon.create(&daemon.scripted(&[])).await;
        let environment = of_agent(&session).await;
        let get = |name: &str| environment.get(name).map(Vec::as_slice);
        assert_eq!(get("FROM_BASHRC"), Some(&b"x"[..]), "once, and no more: {profile:?}");
        assert_eq!(get("FROM_PROFILE"), profile.map(|_| &b"yes"[..]), "{profile:?}");
        session.stop().await;
    }
}

#[tokio::test]
async fn what_else_each_shell_reads_at_a_login_is_read_too() {
    let more = [
        (ZSH, ".zshenv", "export MORE=read"),
        (FISH, ".config/fish/conf.d/more.fish", "set -gx MORE read"),
        (TCSH, ".login", "setenv MORE read"),
        (KSH, ".kshrc", "export MORE=read"),
        (NU, ".config/nushell/login.nu", "$env.MORE = 'read'"),
    ];
    for (shell, file, text) in more {
        let Some(program) = shell.program() else { continue };
        let mut daemon = daemon(&program);
        shell.write(&daemon.home(), "");
        let file = daemon.home().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, format!("{text}\n")).unwrap();
        daemon.run().await;
        let session = daemon.create(&daemon.scripted(&[])).await;
        let environment = of_agent(&session).await;
        assert_eq!(environment.get("MORE").map(Vec::as_slice), Some(&b"read"[..]), "{}", shell.name);
        let made = [".sh_history", ".zsh_history"].into_iter().find(|name| daemon.home().join(name).exists());
        assert_eq!(made, None, "{} wrote a history", shell.name);
    }
}

#[tokio::test]
async fn a_shell_that_is_none_has_another_in_its_place_and_one_that_is_missing_is_refused() {
    for path in ["/usr/sbin/nologin", "/usr/bin/env", "/bin/cat"] {
        let mut daemon = daemon(path.as_ref());
        BASH.write(&daemon.home(), "export ROW=read");
        daemon.run().await;
        let session = daemon.create(&daemon.scripted(&[])).await;
        let environment = of_agent(&session).await;
        assert_eq!(environment.get("ROW").map(Vec::as_slice), Some(&b"read"[..]), "{path}");
        assert_eq!(environment.get("SHELL").map(Vec::as_slice), Some(&b"/bin/bash"[..]), "{path}");
        let log = std::fs::read_to_string(daemon.root().join("agentd.log")).unwrap();
        assert!(log.contains("running another shell; set environment.shell") && log.contains(path), "{path}: {log}");
    }
    let mut daemon = daemon("/no/such/shell".as_ref());
    daemon.run().await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    let (_, message) = refusal(&session).await;
    assert!(message.contains("does not exist; set environment.shell"), "{message}");
}

#[tokio::test]
async fn a_wrapper_is_run_as_a_login_runs_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let wrapper = directory.path().join("site-shell");
    std::fs::write(&wrapper, "#!/bin/sh\nexport OF_THE_SITE=yes\nexec /bin/bash -l\n").unwrap();
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut daemon = daemon(&wrapper);
    BASH.write(&daemon.home(), "export ROW=read");
    daemon.run().await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    let environment = of_agent(&session).await;
    for (name, value) in [("OF_THE_SITE", "yes"), ("ROW", "read")] {
        assert_eq!(environment.get(name).map(Vec::as_slice), Some(value.as_bytes()), "{name}");
    }
}

#[tokio::test]
async fn exported_functions_are_for_scripts_and_for_the_agent_only_where_that_is_said() {
    let profile = "greet() {\n  echo \"hello $1\"\n}\nexport -f greet\n";
    for (policy, script_has_it, agent_has_it) in
        [(None, true, false), (Some("agent"), true, true), (Some("drop"), false, false)]
    {
        let Some(program) = BASH.program() else { return };
        let mut daemon = daemon(&program);
        if let Some(policy) = policy {
            daemon.configure(|config| {
                config.replace("[environment]\n", &format!("[environment]\nfunctions = {policy:?}\n"))
            });
        }
        BASH.write(&daemon.home(), profile);
        daemon.run().await;
        let mut spec = daemon.scripted(&[]);
        spec.env_setup = Some("export GREETING=\"$(greet you 2>/dev/null)\"\n".to_owned());
        let session = daemon.create(&spec).await;
        let environment = of_agent(&session).await;
        let greeting = if script_has_it { &b"hello you"[..] } else { b"" };
        assert_eq!(environment.get("GREETING").map(Vec::as_slice), Some(greeting), "{policy:?}");
        let function = environment.get("BASH_FUNC_greet%%").map(|text| String::from_utf8_lossy(text).into_owned());
        assert_eq!(function.is_some(), agent_has_it, "{policy:?}: {function:?}");
        assert!(function.is_none_or(|text| text.starts_with("() {") && text.contains("\"hello $1\"")), "{policy:?}");
    }
}

#[tokio::test]
async fn who_is_in_the_background_is_killed_or_left_as_the_policy_says_and_it_is_said() {
    for (policy, left) in [("kill", 0_u32), ("leave", 2)] {
        let Some(program) = BASH.program() else { return };
        let mut daemon = daemon(&program);
        daemon
            .configure(|config| config.replace("[environment]\n", &format!("[environment]\nchildren = {policy:?}\n")));
        BASH.write(&daemon.home(), "sleep 8642 &");
        daemon.run().await;
        let mut spec = daemon.scripted(&[]);
        spec.env_setup = Some("sleep 8642 &\nexport FROM_SCRIPT=yes\n".to_owned());
        let session = daemon.create(&spec).await;
        let environment = of_agent(&session).await;
        assert!(environment.contains_key("FROM_SCRIPT"));
        let alive = || process::running(daemon.root(), "sleep", Some("8642")).len();
        // A process that was just forked does not have the name `sleep` yet.
        until("those who may stay are there", || alive() >= left as usize).await;
        assert_eq!(alive(), left as usize, "{policy}");
        let built = built(&session);
        assert_eq!((built.left, built.killed), (left, 2 - left), "{policy}");
    }
}

#[tokio::test]
async fn the_files_that_start_up_files_source_are_known_and_no_value_of_theirs_is_logged() {
    let nested = "FIRST/second file.sh";
    for (shell, first, second, complete) in [
        (BASH, ". \"$HOME/first.sh\"", ". \"$HOME/FIRST/second file.sh\"", true),
        (ZSH, ". ~/first.sh", "source \"$HOME/FIRST/second file.sh\"", true),
        (FISH, "source ~/first.sh", "source $HOME/FIRST/'second file.sh'", false),
        (NU, "source ~/first.sh", "source '~/FIRST/second file.sh'", true),
        (TCSH, "source ~/first.sh", "source \"$HOME/FIRST/second file.sh\"", false),
    ] {
        let Some(program) = shell.program() else { continue };
        let mut daemon = daemon(&program);
        let home = daemon.home();
        let secret = match shell.dialect {
            Dialect::Sh => "export PLANTED_TOKEN=\"sekrit-$((6 * 1013))\"",
            Dialect::Fish => "set -gx PLANTED_TOKEN sekrit-(math 6 x 1013)",
            Dialect::Csh => "@ n = 6 * 1013\nsetenv PLANTED_TOKEN sekrit-$n",
            Dialect::Nu => "$env.PLANTED_TOKEN = $'sekrit-(6 * 1013)'",
        };
        std::fs::create_dir(home.join("FIRST")).unwrap();
        shell.write(&home, first);
        std::fs::write(home.join("first.sh"), format!("{second}\n")).unwrap();
        std::fs::write(home.join(nested), format!("{secret}\n")).unwrap();
        daemon.set_environment([("AGENTD_LOG", "debug")]);
        daemon.run().await;
        let session = daemon.create(&daemon.scripted(&[])).await;
        let environment = of_agent(&session).await;
        assert_eq!(environment.get("PLANTED_TOKEN").map(Vec::as_slice), Some(&b"sekrit-6078"[..]), "{}", shell.name);
        let log = std::fs::read_to_string(daemon.root().join("agentd.log")).unwrap();
        let list: SnapshotList = daemon.client.get("/v1/snapshots").await.expect(200);
        let [snapshot] = &list.login_shells[..] else { panic!("{list:#?}") };
        assert_eq!(snapshot.complete, complete, "{}: {snapshot:#?}", shell.name);
        let named = |file: &str| snapshot.files.contains(&home.join(file));
        assert!(named(shell.file), "{}: {snapshot:#?}", shell.name);
        if shell.dialect != Dialect::Csh {
            assert!(named("first.sh"), "{}: {snapshot:#?}", shell.name);
        }
        assert!(!complete || named(nested), "{}: {snapshot:#?}", shell.name);
        let state = std::fs::read(crate::harness::journal::path(&daemon.state(), &session.id)).unwrap();
        for text in [log.as_bytes(), &state] {
            assert!(!text.windows(6).any(|window| window == b"sekrit"), "{}: a value was written down", shell.name);
        }
    }
}
