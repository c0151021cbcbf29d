//! Environment scripts: the use of their results, exported functions, and the allowed names of a directory's script.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agentd_api::session::Phase;
use serde_json::{Value, json};

use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session};

type Variables = BTreeMap<String, String>;

async fn of_agent(session: &Session) -> Variables {
    let text = session.turn("env").await.text;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A daemon with a global script that counts its runs.
struct Counting {
    daemon: Daemon,
}

impl Counting {
    async fn start(declared: &str) -> Self {
        let counting = Self { daemon: Daemon::start().await };
        counting.write("version.txt", "1");
        counting.write_script(declared, "");
        counting
    }

    fn file(&self, name: &str) -> PathBuf {
        self.daemon.root().join("config").join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.file(name), content).unwrap();
    }

    fn write_script(&self, declared: &str, more: &str) {
        let (counter, version) = (self.file("runs"), self.file("version.txt"));
        let script = format!(
            "{declared}\necho run >> {}\nexport VERSION=\"$(cat {})\" SEEN=\"$EDITOR\"\n{more}\n",
            quoted(&counter),
            quoted(&version)
        );
        self.write("env-setup.sh", &script);
    }

    /// Launches a session, and returns the number of the script's runs so far and the agent's variables.
    async fn launch(&self) -> (usize, Variables) {
        let session = self.daemon.session(&self.daemon.scripted(&[])).await;
        let variables = of_agent(&session).await;
        session.stop().await;
        (std::fs::read_to_string(self.file("runs")).unwrap().lines().count(), variables)
    }
}

#[tokio::test]
async fn invalidating_the_snapshots_forgets_what_scripts_gave_too() {
    let counting = Counting::start("# agentd-depends: version.txt").await;
    assert_eq!(counting.launch().await.0, 1);
    assert_eq!(counting.launch().await.0, 1, "its result is kept");
    let _: Value = counting.daemon.client.post("/v1/snapshots/invalidate", &json!({})).await.expect(200);
    assert_eq!(counting.launch().await.0, 2);
}

#[tokio::test]
async fn a_script_that_says_what_it_depends_on_is_run_again_only_when_that_is_other_than_it_was() {
    let declared = "# agentd-depends: version.txt $EDITOR";
    let counting = Counting::start(declared).await;
    let (runs, first) = counting.launch().await;
    assert_eq!((runs, first["VERSION"].as_str(), first["SEEN"].as_str()), (1, "1", "ed"));
    let (runs, again) = counting.launch().await;
    assert_eq!((runs, &again["VERSION"], &again["SEEN"]), (1, &first["VERSION"], &first["SEEN"]));

    counting.write("version.txt", "2");
    let (runs, changed) = counting.launch().await;
    assert_eq!((runs, changed["VERSION"].as_str()), (2, "2"), "a file that it depends on");

    std::fs::write(counting.daemon.home().join(".profile"), "export EDITOR=vi\n").unwrap();
    let (runs, changed) = counting.launch().await;
    assert_eq!((runs, changed["SEEN"].as_str()), (3, "vi"), "a variable that it depends on");

    counting.write_script(declared, "export MORE=yes");
    let (runs, changed) = counting.launch().await;
    assert_eq!((runs, changed["MORE"].as_str()), (4, "yes"), "the script");
    assert_eq!(counting.launch().await.0, 4);
}

#[tokio::test]
async fn a_script_that_does_not_say_what_it_depends_on_is_run_every_time() {
    let counting = Counting::start("").await;
    assert_eq!(counting.launch().await.0, 1);
    assert_eq!(counting.launch().await.0, 2);
}

/// A profile that exports a function, as that of Environment Modules does.
const PROFILE: &str = "export EDITOR=ed\ngreet() {\n  export GREETED=\"$1\"\n}\nexport -f greet\n";
const FUNCTION: &str = "BASH_FUNC_greet%%";
const CALLS: &str = "if type greet > /dev/null 2>&1; then greet hello; fi\n";

async fn with_functions(policy: Option<&str>) -> (Variables, Value) {
    let mut daemon = Daemon::prepare();
    let policy = policy.map(|policy| format!("functions = \"{policy}\"\n")).unwrap_or_default();
    daemon.configure(|config| config.replace("[environment]\n", &format!("[environment]\n{policy}")));
    std::fs::write(daemon.home().join(".profile"), PROFILE).unwrap();
    daemon.run().await;
    let mut spec = daemon.scripted(&[]);
    spec.env_setup = Some(CALLS.to_owned());
    let session = daemon.session(&spec).await;
    let view: Value = daemon.client.get(&session.path("/environment")).await.expect(200);
    (of_agent(&session).await, view)
}

#[tokio::test]
async fn an_exported_function_reaches_the_scripts_and_not_the_agent() {
    let (agent, view) = with_functions(None).await;
    assert_eq!(agent.get("GREETED").map(String::as_str), Some("hello"), "{agent:#?}");
    assert!(!agent.contains_key(FUNCTION), "{agent:#?}");
    let dropped = view["dropped"].as_array().unwrap();
    assert!(dropped.iter().any(|dropped| dropped["name"] == FUNCTION), "{dropped:#?}");
}

#[tokio::test]
async fn exported_functions_reach_the_agent_or_nobody_where_the_setting_says_so() {
    let (agent, _) = with_functions(Some("agent")).await;
    assert!(agent.contains_key(FUNCTION) && agent.contains_key("GREETED"), "{agent:#?}");
    let (agent, _) = with_functions(Some("drop")).await;
    assert!(!agent.contains_key(FUNCTION) && !agent.contains_key("GREETED"), "{agent:#?}");
}

#[tokio::test]
async fn a_function_that_a_script_defines_is_there_for_the_next() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.root().join("config/env-setup.sh"), PROFILE).unwrap();
    let mut spec = daemon.scripted(&[]);
    spec.env_setup = Some(CALLS.to_owned());
    let agent = of_agent(&daemon.session(&spec).await).await;
    assert_eq!(agent.get("GREETED").map(String::as_str), Some("hello"), "{agent:#?}");
    assert!(!agent.contains_key(FUNCTION), "{agent:#?}");
}

#[tokio::test]
async fn a_directorys_scripts_have_the_names_that_the_administrator_lists() {
    let mut daemon = Daemon::prepare();
    let providers = "[[environment.providers]]\nplugin = \"snapshot\"\n\
                     [[environment.providers]]\nplugin = \"whitelist\"\n\
                     [[environment.providers]]\nplugin = \"env-script\"\n\
                     settings = { directory_names = [\".agentd-env.sh\", \".caco-env.sh\"] }\n";
    daemon.configure(|config| format!("{config}\n{providers}"));
    daemon.run().await;
    std::fs::write(daemon.work().join(".agentd-env.sh"), "export A=own B=own\n").unwrap();
    std::fs::write(daemon.work().join(".caco-env.sh"), "export B=\"after $A\"\n").unwrap();
    daemon.create(&daemon.scripted(&[])).await.wait_for_phase(Phase::Failed).await;

    let allowed: Value =
        daemon.client.post("/v1/scripts/allow", &json!({ "directory": daemon.work() })).await.expect(200);
    assert_eq!(allowed["scripts"].as_array().map(Vec::len), Some(2), "{allowed}");
    let agent = of_agent(&daemon.session(&daemon.scripted(&[])).await).await;
    assert_eq!((agent["A"].as_str(), agent["B"].as_str()), ("own", "after own"));
}

#[tokio::test]
async fn what_a_script_depends_on_is_found_in_the_sessions_directory_and_from_the_home() {
    let counting = Counting::start("# agentd-depends: .nvmrc ~/.toolrc $HOME/.more/*.conf").await;
    let (work, home) = (counting.daemon.work(), counting.daemon.home());
    assert_eq!((counting.launch().await.0, counting.launch().await.0), (1, 1));
    std::fs::create_dir(home.join(".more")).unwrap();
    for (runs, file) in (2..).zip([work.join(".nvmrc"), home.join(".toolrc"), home.join(".more/a.conf")]) {
        std::fs::write(&file, "1").unwrap();
        assert_eq!(counting.launch().await.0, runs, "{}", file.display());
        assert_eq!(counting.launch().await.0, runs, "{}", file.display());
    }
    counting.daemon.client.post("/v1/snapshots/invalidate", &json!({})).await.expect::<Value>(200);
    assert_eq!(counting.launch().await.0, 5, "forgotten with the snapshots");
}
