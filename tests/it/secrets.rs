//! Secrets: their sources, their recipients, and the promise that only the agent's environment contains them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use agentd_api::environment::EnvironmentView;
use agentd_api::secret::SecretList;
use agentd_api::session::{
    Condition, ConditionStatus, ConditionType, PermissionPolicy, Phase, SessionSpec, SessionView,
};
use agentd_api::{Code, Problem};
use serde_json::{Value, json};

use crate::harness::ctl::{Said, ctl};
use crate::harness::planted::{Planted, Watch, found_below, found_in};
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, journal, paths, process, until};

/// Writes a file that only its owner can read.
pub(crate) fn private(path: &Path, content: &str) {
    fs::write(path, content).expect("the directory is writable");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is ours");
}

/// For a shell, in the form in which people write it: agentd reads it in scripts.
fn in_single_quotes(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

fn exports(planted: &[Planted]) -> String {
    planted
        .iter()
        .map(|one| format!("export {}={}\n", one.name, in_single_quotes(&one.value)))
        .collect::<Vec<_>>()
        .concat()
}

fn condition(view: &SessionView, kind: ConditionType) -> Option<&Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == kind)
}

async fn of_agent(session: &Session) -> Value {
    // The daemon masks secrets in the agent's output, so the agent's tool writes its environment to a file.
    let file = session.id.to_string();
    session.turn(&format!("tool printenv -0 > {file}")).await;
    let view = session.view().await;
    let environment = fs::read(view.spec.directory.join(file)).expect("the tool wrote it");
    let entries = environment.split(|byte| *byte == 0).filter_map(|entry| {
        let (name, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
        Some((name.to_owned(), Value::from(value)))
    });
    Value::Object(entries.collect())
}

async fn allowed(daemon: &Daemon) -> Session {
    let mut spec = daemon.scripted(&[]);
    spec.permissions = PermissionPolicy::Allow;
    daemon.session(&spec).await
}

/// Twenty-one secrets, by how they come to the agent.
struct All {
    /// From the login shell; the first four are let through by the whitelist.
    login: [Planted; 8],
    global: [Planted; 5],
    directory: [Planted; 2],
    /// Read by the session's own script.
    session: [Planted; 2],
    /// By file, credential, command, and as a variable of the login shell that the whitelist drops.
    named: [Planted; 4],
}

impl All {
    fn new() -> Self {
        let plant = Planted::new;
        Self {
            login: [
                plant("OPENAI_API_KEY", "sk-{}"),
                plant("PGPASSWORD", "pa\"ss\\{}/wörd"),
                plant("SIGNING_PASSPHRASE", "a phrase of {} words  "),
                plant("HTTPS_PROXY", "http://user:{}@proxy.invalid:3128"),
                plant("GITHUB_TOKEN", "ghp_{}"),
                plant("AWS_SECRET_ACCESS_KEY", "{}/+="),
                plant("npm_config__authToken", "{}"),
                plant("GH_PAT", "{}"),
            ],
            global: [
                plant("DB_PASSWORD", "{}$(not run)`nor this`"),
                plant("MYSQL_PWD", "{}"),
                plant("DATABASE_URL", "postgres://me:{}@db.invalid/x?y=1"),
                plant("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer {}"),
                plant("CALLED_ANYTHING", "Server=s;Uid=u;Password={};"),
            ],
            directory: [
                plant("GITLAB_TOKEN", "glpat-{}"),
                plant("DEPLOY_PEM", "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n"),
            ],
            session: [plant("SESSION_COOKIE", "{}"), plant("JWT_SECRET", "{}-😀-{}")],
            named: [
                plant("FROM_FILE", "{}"),
                plant("FROM_CREDENTIAL", "{} with\ttabs"),
                plant("FROM_COMMAND", "{}"),
                plant("HF_TOKEN", "hf_{}"),
            ],
        }
    }

    fn of_login(&self) -> Vec<Planted> {
        [&self.login[..], &self.named[3..]].concat()
    }

    fn every(&self) -> Vec<Planted> {
        [&self.login[..], &self.global, &self.directory, &self.session, &self.named].concat()
    }

    /// Returns the secrets that the agent gets.
    fn given(&self) -> Vec<Planted> {
        [&self.login[..4], &self.global, &self.directory, &self.session, &self.named].concat()
    }

    fn plant(&self, daemon: &mut Daemon) {
        let root = daemon.root().to_owned();
        let profile = root.join("home/.profile");
        private(&profile, &(fs::read_to_string(&profile).unwrap() + &exports(&self.of_login())));
        private(&root.join("config/env-setup.sh"), &exports(&self.global));
        fs::write(daemon.work().join(".agentd-env.sh"), exports(&self.directory)).unwrap();
        for (one, place) in self.session.iter().zip(["cookie", "jwt"]) {
            private(&root.join(place), &one.value);
        }
        fs::create_dir(root.join("credentials")).unwrap();
        private(&root.join("file"), &(self.named[0].value.clone() + "\n"));
        private(&root.join("credentials/licence"), &self.named[1].value);
        private(&root.join("command"), &(self.named[2].value.clone() + "\n"));
        let root = root.display();
        let secrets = format!(
            "\n[secrets.FROM_FILE]\nfile = \"{root}/file\"\n\n[secrets.licence]\ncredential = \"licence\"\n\
             variable = \"FROM_CREDENTIAL\"\n\n[secrets.FROM_COMMAND]\ncommand = [\"cat\", \"{root}/command\"]\n\n\
             [secrets.HF_TOKEN]\nsnapshot = \"HF_TOKEN\"\n\n[[environment.providers]]\nplugin = \"snapshot\"\n\
             [[environment.providers]]\nplugin = \"whitelist\"\nsettings = {{ allow = {:?} }}\n\
             [[environment.providers]]\nplugin = \"env-script\"\n",
            self.login[..4].iter().map(|one| one.name).collect::<Vec<_>>(),
        );
        daemon.configure(|config| config + &secrets);
        daemon.set_environment([
            ("PATH", "/usr/bin:/bin".to_owned()),
            ("CREDENTIALS_DIRECTORY", format!("{root}/credentials")),
            ("AGENTD_LOG", "info,agentd_daemon=trace,agentd_plugin_host=trace".to_owned()),
        ]);
    }
}

/// Returns the secrets in all files that agentd writes.
fn leaks(daemon: &Daemon, planted: &[Planted]) -> Vec<String> {
    let mut leaks = found_below(&daemon.state(), planted);
    leaks.extend(found_below(&daemon.root().join("run"), planted));
    leaks.extend(found_below(&paths::kept().join("agentd-cache"), planted));
    let log = fs::read(daemon.root().join("agentd.log")).expect("the daemon has a log");
    leaks.extend(found_in(&log, planted).into_iter().map(|name| format!("the log: {name}")));
    leaks
}

#[tokio::test]
async fn twenty_planted_secrets_are_nowhere_but_in_the_agents_environment_even_after_it_printed_them() {
    let (mut daemon, all) = (Daemon::prepare(), All::new());
    all.plant(&mut daemon);
    daemon.run().await;
    let body = json!({ "directory": daemon.work() });
    daemon.client.post("/v1/scripts/allow", &body).await.expect::<Value>(200);

    let (every, given) = (all.every(), all.given());
    let watch = Watch::begin(&every);
    let mut spec = daemon.scripted(&[]);
    spec.permissions = PermissionPolicy::Allow;
    let root = quoted(daemon.root());
    // The script has all other secrets in its environment, and waits until the test has looked at the processes.
    spec.env_setup = Some(format!(
        "export SESSION_COOKIE=\"$(cat {root}/cookie)\"\nJWT_SECRET=$(cat {root}/jwt); export JWT_SECRET\n\
         touch {root}/begun; while ! test -e {root}/seen; do sleep 0.01; done\n"
    ));
    let session = daemon.create(&spec).await;
    until("the session's script runs", || daemon.root().join("begun").exists()).await;
    watch.has_seen_all().await;
    fs::write(daemon.root().join("seen"), "").unwrap();
    session.wait_for_phase(Phase::Idle).await;
    watch.has_seen_all().await;
    let watched = watch.end();
    assert_eq!(watched.found.len(), 0, "in argument lists: {:?}", watched.found);
    assert!(["serve", "run", "hold"].iter().all(|role| watched.roles.contains(*role)), "{:?}", watched.roles);

    let environment = of_agent(&session).await;
    for one in &given {
        assert_eq!(environment[one.name], one.value.as_str(), "{}", one.name);
    }
    assert_eq!(environment["GITHUB_TOKEN"], Value::Null, "the whitelist drops it");

    // The agent prints the secrets in a message, escaped, in a tool's output and on stderr, and then one alone.
    let said = session.turn("env\nunicode").await.text;
    assert_eq!(said.matches("‹secret›").count(), 2 * given.len(), "{said}");
    let said = session.turn("tool printenv; bash -lc printenv").await.text;
    assert!(said.contains("OPENAI_API_KEY=‹secret›") && said.contains("GITHUB_TOKEN=‹secret›"), "{said}");
    assert!(said.contains("HTTPS_PROXY=‹secret›"), "{said}");
    session.turn("tool printenv >&2; echo \"$HTTPS_PROXY\" | cut -d: -f3 | cut -d@ -f1 >&2; echo >&2").await;
    until("stderr is in the journal", || {
        let journal = fs::read_to_string(journal::path(&daemon.state(), &session.id)).unwrap_or_default();
        journal.lines().filter(|line| line.contains("agent.stderr")).any(|line| line.contains("FROM_COMMAND=‹secret›"))
    })
    .await;

    for path in
        [session.path(""), session.path("/environment?values=true"), "/v1/secrets".into(), "/v1/sessions".into()]
    {
        let answer = daemon.client.get(&path).await.expect::<Value>(200).to_string();
        assert!(found_in(answer.as_bytes(), &every).is_empty(), "{path}: {answer}");
    }
    let view: EnvironmentView = daemon.client.get(&session.path("/environment?values=true")).await.expect(200);
    for one in &given {
        let variable = view.variables.iter().find(|variable| variable.name == one.name);
        let hidden = variable.is_some_and(|v| v.secret && v.value.is_none() && v.digest.is_none());
        assert!(hidden, "{}: {variable:?}", one.name);
    }
    session.stop().await;
    // Every record can be parsed, so masked records are still JSON.
    assert!(session.journal().len() > 20);
    assert_eq!(leaks(&daemon, &every), Vec::<String>::new());

    // A planted secret proves that the search finds secrets.
    private(&daemon.state().join("planted"), &every[0].value);
    assert_eq!(leaks(&daemon, &every).len(), 1);
}

#[tokio::test]
async fn a_script_that_fails_with_secrets_on_its_stderr_is_reported_without_them() {
    let (mut daemon, all) = (Daemon::prepare(), All::new());
    all.plant(&mut daemon);
    daemon.run().await;
    // The script assigns one secret, and reads the other from a file that agentd does not know.
    let (own, read) = (Planted::new("DEPLOY_TOKEN", "{}"), Planted::new("X_TOKEN", "{} and 'more'"));
    private(&daemon.root().join("elsewhere"), &read.value);
    let script = format!(
        "echo \"it has $OPENAI_API_KEY, $PGPASSWORD, $DATABASE_URL, a file has $(cat {root}/file); \
         $SIGNING_PASSPHRASE\" >&2\n\
         {own}echo \"and $DEPLOY_TOKEN\" >&2\nX_TOKEN=$(cat {root}/elsewhere)\nPS4='> '\nset -x\n\
         export \"X_TOKEN=$X_TOKEN\"\n\
         {{ set +x; }} 2>/dev/null\nexit 3\n",
        root = quoted(daemon.root()),
        own = exports(std::slice::from_ref(&own)),
    );
    fs::write(daemon.work().join(".agentd-env.sh"), script).unwrap();
    let body = json!({ "directory": daemon.work() });
    daemon.client.post("/v1/scripts/allow", &body).await.expect::<Value>(200);
    let session = daemon.create(&daemon.scripted(&[])).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let condition = condition(&view, ConditionType::EnvironmentReady).expect("it says why");
    let known = "it has ‹secret›, ‹secret›, ‹secret›, a file has ‹secret›; ‹secret›";
    for expected in [known, "and ‹secret›", "X_TOKEN=‹secret›"] {
        assert!(condition.message.contains(expected), "{expected}: {}", condition.message);
    }
    let every = [all.every(), vec![own, read]].concat();
    assert!(found_in(serde_json::to_string(&view).unwrap().as_bytes(), &every).is_empty(), "{view:#?}");
    assert_eq!(leaks(&daemon, &every), Vec::<String>::new());
}

#[tokio::test]
async fn a_login_shell_that_fails_at_its_first_run_is_reported_without_what_its_files_assign() {
    let mut daemon = Daemon::prepare();
    let planted = Planted::new("DEPLOY_TOKEN", "{}");
    let profile = format!("{}echo \"it is $DEPLOY_TOKEN\" >&2\nexit 3\n", exports(std::slice::from_ref(&planted)));
    fs::write(daemon.home().join(".profile"), profile).unwrap();
    daemon.run().await;
    let view = daemon.create(&daemon.scripted(&[])).await.wait_for_phase(Phase::Failed).await;
    let condition = condition(&view, ConditionType::EnvironmentReady).expect("it says why");
    assert!(condition.message.contains("it is ‹secret›"), "{}", condition.message);
    let status = daemon.client.get("/v1/snapshots").await.json::<Value>().to_string();
    assert!(status.contains("it is ‹secret›"), "{status}");
    assert_eq!(leaks(&daemon, &[planted]), Vec::<String>::new());
}

#[tokio::test]
async fn a_session_script_with_a_secret_in_its_text_is_refused_and_nothing_of_it_is_written() {
    let daemon = Daemon::start().await;
    let planted = Planted::new("API_KEY", "{}");
    let mut spec = daemon.scripted(&[]);
    spec.env_setup = Some(exports(std::slice::from_ref(&planted)));
    let problem = daemon.client.post("/v1/sessions", &spec).await.problem();
    assert_eq!(problem.code, Code::InvalidRequest);
    assert!(problem.detail.contains("API_KEY"), "{problem:?}");
    assert!(problem.hint.is_some_and(|hint| hint.contains("[secrets.API_KEY]")));
    assert_eq!(leaks(&daemon, &[planted]), Vec::<String>::new());
}

#[tokio::test]
async fn a_session_whose_command_or_script_holds_a_token_of_a_known_form_is_refused() {
    let daemon = Daemon::start().await;
    let token = Planted::new("PLAIN", &format!("npm_{}{{}}", "a1".repeat(18)));
    let mut command = daemon.scripted(&[]);
    command.command.as_mut().expect("a scripted agent has one").push(format!("--key={}", token.value));
    let mut script = daemon.scripted(&[]);
    script.env_setup = Some(format!("# {}\n", token.value));
    for (what, spec) in [("command", command), ("script", script)] {
        let problem = daemon.client.post("/v1/sessions", &spec).await.problem();
        assert_eq!(problem.code, Code::InvalidRequest, "{what}");
        assert!(problem.detail.contains(what) && problem.detail.contains("npm"), "{problem:?}");
    }
    assert_eq!(leaks(&daemon, &[token]), Vec::<String>::new());
}

#[tokio::test]
async fn a_secret_is_taken_anew_at_each_launch_and_only_by_the_sessions_it_is_for() {
    let mut daemon = Daemon::prepare();
    let (key, root) = (daemon.root().join("key"), daemon.root().display().to_string());
    private(&key, "first value\n");
    daemon.configure(|config| {
        config
            + &format!(
                "\n[secrets.HERE]\nfile = \"{root}/key\"\ndirectories = [\"{root}/*\"]\n\
                 [secrets.ELSEWHERE]\nfile = \"{root}/key\"\ndirectories = [\"/elsewhere/*\"]\n\
                 [secrets.OF_OTHERS]\nfile = \"/no/such/file\"\nagents = [\"other\"]\n"
            )
    });
    daemon.run().await;
    let session = allowed(&daemon).await;
    let environment = of_agent(&session).await;
    assert_eq!(environment["HERE"], "first value");
    assert!(environment["ELSEWHERE"].is_null() && environment["OF_OTHERS"].is_null(), "{environment:#}");
    let view: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
    let here = view.variables.iter().find(|variable| variable.name == "HERE").expect("it was given");
    assert_eq!((here.provider.as_str(), here.secret), ("secrets", true));
    assert_eq!(here.origin.as_deref(), Some(Path::new(&format!("the file {root}/key"))));
    let said = condition(&session.view().await, ConditionType::SecretsAvailable).cloned().expect("it has secrets");
    assert_eq!((said.status, said.message.as_str()), (ConditionStatus::True, "HERE"));

    session.stop().await;
    private(&key, "second value\n");
    session.resume().await;
    assert_eq!(of_agent(&session).await["HERE"], "second value");
}

#[tokio::test]
async fn a_required_secret_that_cannot_be_had_fails_the_launch_and_another_is_a_condition() {
    let mut daemon = Daemon::prepare();
    let key = daemon.root().join("key");
    private(&key, "the value\n");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let declare = format!(
        "\n[secrets.OPTIONAL]\ncommand = [\"sh\", \"-c\", \"echo it is locked >&2; exit 7\"]\nrequired = false\n\
         [secrets.KEY]\nfile = \"{}\"\n",
        key.display()
    );
    daemon.configure(|config| config + &declare);
    daemon.run().await;

    let session = daemon.create(&daemon.scripted(&[])).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let failed = condition(&view, ConditionType::EnvironmentReady).expect("it says why");
    assert_eq!((failed.status, failed.reason.as_str()), (ConditionStatus::False, "SecretUnavailable"));
    for expected in ["\"KEY\"", &key.display().to_string(), "mode 644", "chmod 600", "agentctl secret check"] {
        assert!(failed.message.contains(expected), "{expected}: {}", failed.message);
    }
    let checked: SecretList = daemon.client.post("/v1/secrets/check", &json!({})).await.expect(200);
    let available: Vec<_> = checked.secrets.iter().map(|one| (one.name.as_str(), one.available)).collect();
    assert_eq!(available, [("KEY", Some(false)), ("OPTIONAL", Some(false))]);
    assert_eq!(ctl(&daemon, &["secret", "check"]).await.status, Some(1));

    private(&key, "the value\n");
    session.resume().await;
    let view = session.view().await;
    let missing = condition(&view, ConditionType::SecretsAvailable).expect("one is missing");
    assert_eq!((missing.status, missing.reason.as_str()), (ConditionStatus::False, "SecretUnavailable"));
    let said = &missing.message;
    assert!(said.contains("OPTIONAL") && said.contains("status 7") && said.contains("it is locked"), "{said}");
    let Said { status, out, err } = ctl(&daemon, &["secret", "check"]).await;
    let text = out + &err;
    assert!(status == Some(0) && text.contains("status 7") && !text.contains("the value"), "{status:?}: {text}");
    let Said { status, out, err } = ctl(&daemon, &["secret", "ls"]).await;
    let text = out + &err;
    assert!(status == Some(0) && text.contains("all agents, if available"), "{status:?}: {text}");
}

#[tokio::test]
async fn a_command_that_does_not_end_is_ended_at_the_deadline_with_everything_it_started() {
    let mut daemon = Daemon::prepare();
    let pids = daemon.root().join("hanging");
    let command = format!("sleep 1000 & echo $! > {0}; echo $$ >> {0}; wait", quoted(&pids));
    daemon.configure(|config| {
        config.replacen("[environment]", "[environment]\ndeadline = \"1s\"", 1)
            + &format!("\n[secrets.SLOW]\ncommand = [\"sh\", \"-c\", {command:?}]\n")
    });
    daemon.run().await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let failed = condition(&view, ConditionType::EnvironmentReady).expect("it says why");
    assert!(failed.reason == "SecretUnavailable" && failed.message.contains("took longer than"), "{failed:?}");
    let pids: Vec<u32> = fs::read_to_string(pids).unwrap().lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    process::gone(&pids).await;
}

#[tokio::test]
async fn a_token_on_a_command_line_is_refused_in_a_session_and_in_a_configured_agent() {
    let token = format!("ghp_{}", "a1".repeat(18));
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[agents.keyed]\ncommand = [\"agent\", \"--key={token}\"]\n"));
    daemon.run().await;
    let configured =
        SessionSpec { agent: Some("keyed".parse().unwrap()), command: None, ..SessionSpec::new(daemon.work()) };
    let given = SessionSpec {
        command: Some(vec!["agent".to_owned(), token.clone()]),
        agent: None,
        ..SessionSpec::new(daemon.work())
    };
    for (spec, remedy) in [(configured, "agents.keyed.command"), (given, "[secrets.NAME]")] {
        let problem: Problem = daemon.client.post("/v1/sessions", &spec).await.expect(400);
        assert!(problem.detail.contains("contains a token of GitHub"), "{problem:?}");
        assert!(problem.hint.as_ref().is_some_and(|hint| hint.contains(remedy)), "{problem:?}");
        assert!(!format!("{problem:?}").contains(&token));
    }
}
