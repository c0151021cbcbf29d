//! Variables of a login that do not come from the shell, compared with a real login. `su -` and agentd each run in a
//! world with these files in `/etc`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::{DASH, Environment, daemon, of_agent};
use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, require};

const ENVIRONMENT: &str = r#"# comment
PLAIN=one
export EXPORTED=two
  INDENTED=three
DOUBLE="double quoted"
SINGLE='single quoted'
HASH=before#after
QUOTED_HASH="before # after"
SPACED = left out
TRAILING=kept   
INNER=a"b"c
MIXED="a'b"c
EMPTY=
EMPTY_QUOTED=""
JOINED=a\nb\
c=d
DEEPER=a\
   b
no equals sign
B-D=left out
LITERAL=$HOME/${HOME}
EQUALS=a=b=c
BEHIND="x y" # comment
UMLAUT=Grüße
export   BLANKS=left out
PLAIN_TWICE=first
PLAIN_TWICE=second
TAKEN_AWAY=1
TAKEN_AWAY
BOTH=environment
PATH="/opt/pam/bin:/usr/local/bin:/usr/bin:/bin"
"#;

const PAM_ENV: &str = r#"# comment
REMOTEHOST	DEFAULT=localhost OVERRIDE=@{PAM_RHOST}
P_QUOTED DEFAULT="two words"
P_USER DEFAULT=@{PAM_USER}
P_PLAIN DEFAULT=plain
P_SEES DEFAULT=${P_PLAIN}/x
P_OVER DEFAULT=a OVERRIDE=${P_PLAIN}
P_UNDER DEFAULT=a OVERRIDE=${NOT_THERE}
P_EMPTY DEFAULT=""
P_NONE
P_ESCAPED DEFAULT=a\$b\@c
P_JOINED DEFAULT=one\
two
P_SECOND_LINE \
  DEFAULT=x
P_HASH DEFAULT=a#b
P_PATH DEFAULT=/x:${PATH}
BOTH DEFAULT=conf
"#;

const LOCALE: &str = "LANG=\"de_DE.UTF-8\"\nLC_TIME=C\n";

/// Writes these files below the daemon's directory. The returned command makes a world with the files in `/etc`, and
/// runs its further arguments there.
fn world(daemon: &Daemon, files: &[(&str, &str)]) -> Vec<String> {
    let folder = daemon.root().join("of-the-machine");
    std::fs::create_dir_all(&folder).unwrap();
    let mut line = String::from("set -e; ");
    for (number, (place, text)) in files.iter().enumerate() {
        let file = folder.join(number.to_string());
        std::fs::write(&file, text).unwrap();
        write!(line, "[ -e {place} ] || : > {place}; mount --bind {} {place}; ", quoted(&file)).unwrap();
    }
    line += "exec \"$@\"";
    ["unshare", "--mount", "sh", "-c", &line, "sh"].map(str::to_owned).to_vec()
}

fn parse(environ: &[u8]) -> Environment {
    let entries = environ.split(|byte| *byte == 0).filter_map(|entry| {
        let equals = entry.iter().position(|byte| *byte == b'=')?;
        Some((String::from_utf8(entry[..equals].to_vec()).ok()?, entry[equals + 1..].to_vec()))
    });
    entries.collect()
}

/// Without what belongs to one login and not to the machine.
fn of_the_machine(environment: &Environment) -> Vec<(String, String)> {
    const OTHERS: [&str; 10] =
        ["_", "HOME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "TERM", "USER", "XDG_RUNTIME_DIR"];
    let others = |name: &str| OTHERS.contains(&name) || name == "SHLVL" || name.starts_with("AGENTD_");
    let rest = environment.iter().filter(|(name, _)| !others(name));
    rest.map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned())).collect()
}

#[tokio::test]
async fn an_agent_has_what_files_of_the_machine_give_to_every_login_as_su_gives_it() {
    let Some(()) = require::namespaces() else { return };
    if !Path::new("/etc/pam.d/su").exists() || !Path::new("/etc/default").is_dir() {
        return; // files of PAM as Debian has them are what this compares with
    }
    let shell = DASH.program().expect("/bin/dash is essential in Debian");
    let mut daemon = daemon(&shell);
    daemon.configure(|config| {
        let sources = "sources = [\"login-defs\", \"pam-env\", \"etc-environment\", \"locale\"]";
        config.replace("[environment]\n", &format!("[environment]\n{sources}\n"))
    });
    let world = world(
        &daemon,
        &[
            ("/etc/environment", ENVIRONMENT),
            ("/etc/security/pam_env.conf", PAM_ENV),
            ("/etc/default/locale", LOCALE),
            ("/etc/profile", ""),
        ],
    );
    let mut su = Command::new(&world[0]);
    // As a login shell without arguments, env(1) prints its environment in lines, and reads no start-up file.
    su.args(&world[1..]).args(["su", "--shell", "/usr/bin/env", "-", "root"]);
    let output = su.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output().unwrap();
    let lines: Vec<u8> = output.stdout.iter().map(|byte| if *byte == b'\n' { 0 } else { *byte }).collect();
    let theirs = parse(&lines);
    assert!(theirs.contains_key("PLAIN"), "{}", String::from_utf8_lossy(&output.stderr));
    daemon.enter(world);
    daemon.run().await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    let ours = of_agent(&session).await;
    similar(&of_the_machine(&theirs), &of_the_machine(&ours));
}

#[track_caller]
fn similar(theirs: &[(String, String)], ours: &[(String, String)]) {
    let only = |one: &[(String, String)], other: &[(String, String)]| {
        one.iter().filter(|pair| !other.contains(pair)).cloned().collect::<Vec<_>>()
    };
    assert!(theirs == ours, "only su: {:#?}\nonly agentd: {:#?}", only(theirs, ours), only(ours, theirs));
}

#[tokio::test]
async fn files_of_environment_d_are_read_and_a_source_that_is_not_named_is_not() {
    let Some(shell) = DASH.program() else { return };
    for (sources, there) in [("", true), ("sources = [\"login-defs\"]", false)] {
        let mut daemon = daemon(&shell);
        daemon.configure(|config| config.replace("[environment]\n", &format!("[environment]\n{sources}\n")));
        let folder = daemon.home().join(".config/environment.d");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("50-mine.conf"), "TOOLS=$HOME/tools\nMORE=${NOT_THERE:-none}\n").unwrap();
        daemon.run().await;
        let session = daemon.create(&daemon.scripted(&[])).await;
        let environment = of_agent(&session).await;
        let expected = there.then(|| daemon.home().join("tools").display().to_string().into_bytes());
        assert_eq!(environment.get("TOOLS"), expected.as_ref(), "{sources}");
        assert_eq!(environment.get("MORE").map(Vec::as_slice), there.then_some(&b"none"[..]), "{sources}");
        session.stop().await;
        // A new file counts at the next launch.
        std::fs::write(folder.join("60-more.conf"), "LATER=1\n").unwrap();
        let session = daemon.create(&daemon.scripted(&[])).await;
        assert_eq!(of_agent(&session).await.contains_key("LATER"), there, "{sources}");
    }
}

#[tokio::test]
async fn a_source_that_is_none_is_refused_by_name() {
    let Some(shell) = DASH.program() else { return };
    let daemon = daemon(&shell);
    daemon.configure(|config| config.replace("[environment]\n", "[environment]\nsources = [\"etc-enviroment\"]\n"));
    let file = daemon.root().join("config/agentd.toml");
    let said = ctl(&daemon, &["config", "check", file.to_str().unwrap()]).await;
    let names_both = said.out.contains("etc-enviroment") && said.out.contains("etc-environment");
    assert!(said.status == Some(1) && names_both, "{said:?}");
}

#[tokio::test]
async fn a_home_other_than_the_user_databases_is_said_until_the_configuration_names_one() {
    let Some(shell) = DASH.program() else { return };
    for (named, outcome) in [(false, "warn"), (true, "pass")] {
        let mut daemon = daemon(&shell);
        let home = format!("home = \"{}\"\n", daemon.home().display());
        if !named {
            daemon.configure(|config| config.replace(&home, ""));
        }
        let other = daemon.root().join("other");
        std::fs::create_dir(&other).unwrap();
        daemon.set_environment([("PATH", "/usr/bin:/bin".into()), ("HOME", other.as_os_str().to_owned())]);
        daemon.run().await;
        let log = std::fs::read_to_string(daemon.root().join("agentd.log")).unwrap();
        assert_eq!(log.contains("HomeDiffers"), !named, "{log}");
        let said = ctl(&daemon, &["doctor", "--json"]).await;
        let view: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"));
        let checks = view["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "home").unwrap();
        assert_eq!(check["outcome"], outcome, "{check:#}");
        assert_eq!(check["summary"].as_str().unwrap().contains("environment.home = "), !named, "{check:#}");
    }
}
