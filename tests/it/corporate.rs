//! A corporate home: every family of variables that toolchains need reaches the agent complete, and no secret among the
//! variables does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;

use agentd_api::environment::EnvironmentView;
use agentd_api::session::{ConditionType, Phase, SessionSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::planted::{Planted, found_below, found_in};
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, paths, require};

/// A file of `plugins/whitelist/families`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Family {
    title: String,
    source: String,
    names: Vec<String>,
    patterns: Vec<String>,
    #[serde(default)]
    passwords: Vec<String>,
    #[serde(default)]
    state: Vec<String>,
    #[serde(default)]
    state_with: Vec<String>,
}

/// Every family by its name.
fn families() -> BTreeMap<String, Family> {
    let folder = paths::checkout().join("plugins/whitelist/families");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let family = |path: std::path::PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let family = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), family)
    };
    files.map(family).collect()
}

impl Family {
    /// A variable of each name and one for each pattern.
    fn variables(&self) -> BTreeSet<String> {
        let of_patterns = self.patterns.iter().chain(&self.state).map(|pattern| pattern.replace('*', "CORP"));
        self.names.iter().cloned().chain(of_patterns).collect()
    }
}

/// Variables with realistic values. All other variables of the families get a path as their value.
const REAL: &[(&str, &str)] = &[
    ("LM_LICENSE_FILE", "27000@licence.corp.invalid:1717@backup.corp.invalid"),
    ("XILINXD_LICENSE_FILE", "2100@xilinx.corp.invalid"),
    ("HTTPS_PROXY", "http://kim:a-real-password@proxy.corp.invalid:3128"),
    ("NO_PROXY", "localhost,127.0.0.1,.corp.invalid"),
    ("PIP_INDEX_URL", "https://artifacts.corp.invalid/pypi/simple"),
    ("GOPROXY", "https://artifacts.corp.invalid/go,direct"),
    ("DOCKER_HOST", "ssh://kim@builder.corp.invalid"),
    ("JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStore=/etc/ssl/corp.jks"),
    ("CFLAGS", "-O2 -g -I/opt/corp/include"),
    ("LOADEDMODULES", "gcc/13:vivado/2024.1"),
    ("LESS", "-R"),
    ("SOURCE_DATE_EPOCH", "1700000000"),
    ("NIX_STORE", "/nix/store/0c0m1jqj7yzr0wd6s1xzkqlrx3l2bdkn-gcc-13.2.0"),
    ("GOFLAGS", "-ldflags=-X=main.commit=d095cb3e1f0a4b5c6d7e8f90123456789abcdef0"),
    ("JAVA_OPTS", "-Dhttp.auth=basic -Dmail.smtp.auth=true -Djava.security.auth.login.config=/etc/jaas.conf"),
    ("CYCLONEDDS_URI", "<CycloneDDS><Domain><General><Interfaces/></General></Domain></CycloneDDS>"),
    ("SLURM_JOB_UUID", "123e4567-e89b-12d3-a456-426614174000"),
    ("KO_DOCKER_REPO", "registry.corp.invalid/team/image:1.2@sha256:e3b0c44298fc1c149afbf4c8996fb924"),
    ("P4PORT", "ssl:perforce.corp.invalid:1666"),
    ("CVSROOT", ":ext:kim@cvs.corp.invalid:/root"),
    ("npm_config_always_auth", "true"),
    ("HISTSIZE", "1000"),
    ("HISTFILESIZE", "1000"),
];

async fn variables(session: &Session) -> Value {
    serde_json::from_str(&session.turn("env").await.text).expect("the agent says its environment")
}

#[tokio::test]
async fn every_family_reaches_the_agent_whole() {
    let families = families();
    let wanted: BTreeMap<String, String> = families
        .values()
        .flat_map(Family::variables)
        .chain(REAL.iter().map(|(name, _)| (*name).to_owned()))
        .map(|name| {
            let real = REAL.iter().find(|(known, _)| *known == name);
            let value = real.map_or_else(|| format!("/opt/corp/{name}"), |(_, value)| (*value).to_owned());
            (name, value)
        })
        .collect();
    assert!(wanted.len() >= 138 && families.values().all(|family| family.source.starts_with("https://")));
    let mut daemon = Daemon::prepare();
    let profile = wanted.iter().fold(String::new(), |mut text, (name, value)| {
        writeln!(text, "export {name}={}", quoted(value)).unwrap();
        text
    });
    fs::write(daemon.home().join(".profile"), profile + "export ACME_COLOUR=red\n").unwrap();
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let view: EnvironmentView = daemon.client.get(&session.path("/environment?values=true")).await.expect(200);
    let reason = |name: &str| {
        let dropped = view.dropped.iter().find(|dropped| dropped.name == name)?;
        Some(format!("dropped by {}: {}", dropped.provider, dropped.reason.clone().unwrap_or_default()))
    };
    let given: BTreeMap<&str, String> = view
        .variables
        .iter()
        .map(|variable| {
            let value = variable.value.as_ref().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
            (variable.name.as_str(), value.unwrap_or_else(|| "(secret)".to_owned()))
        })
        .collect();
    for (id, family) in &families {
        let is_missing = |name: &&String| match given.get(name.as_str()) {
            // A proxy's password is a secret: the agent gets it, and the view hides it.
            Some(value) => *value != wanted[*name] && !(family.passwords.contains(name) && value == "(secret)"),
            None => true,
        };
        let names = family.variables();
        let missing: Vec<String> = names
            .iter()
            .filter(is_missing)
            .map(|name| format!("{name} {}", reason(name).unwrap_or_else(|| format!("{:?}", given.get(name.as_str())))))
            .collect();
        assert!(missing.is_empty(), "{id} ({}) is not whole: {missing:#?}", family.title);
        let is_listed = |name: &String| {
            let by_pattern = |pattern: &String| name.starts_with(pattern.trim_end_matches('*'));
            wanted.contains_key(name) || families.values().any(|family| family.patterns.iter().any(by_pattern))
        };
        assert!(family.state_with.iter().all(is_listed), "{id} names what no family keeps");
    }
    let without_password = REAL.iter().filter(|(name, _)| *name != "HTTPS_PROXY");
    let missing: Vec<String> = without_password
        .filter(|(name, value)| given.get(name).is_none_or(|given| given != value))
        .map(|(name, _)| format!("{name} {:?}", reason(name)))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(reason("ACME_COLOUR").is_some_and(|why| why.contains("toolchains list")), "{:?}", reason("ACME_COLOUR"));
    // The agent's own environment has the values that the view shows.
    let agents = variables(&session).await;
    for name in ["JAVA_HOME", "LD_LIBRARY_PATH", "XILINXD_LICENSE_FILE", "LOADEDMODULES", "DO_NOT_TRACK"] {
        assert_eq!(agents[name].as_str(), Some(wanted[name].as_str()), "{name}");
    }
}

#[tokio::test]
async fn no_secret_among_the_families_reaches_the_agent() {
    let plant = Planted::new;
    let planted = [
        plant("PIP_INDEX_URL", "https://kim:{}@artifacts.corp.invalid/simple"),
        plant("UV_DEFAULT_INDEX", "https://{}x:{}@artifacts.corp.invalid/simple"),
        plant("GOPROXY", "https://proxy.corp.invalid,https://kim:{}@go.corp.invalid"),
        plant("npm_config_registry", "https://kim:{}@npm.corp.invalid/"),
        plant("npm_config__auth", "{}"),
        plant("YARN_NPM_AUTH_IDENT", "kim:{}"),
        plant("CONDA_CHANNEL_ALIAS", "https://conda.corp.invalid/t/{}/main"),
        plant("CARGO_REGISTRIES_CORP_INDEX", "sparse+https://kim:{}@crates.corp.invalid/"),
        plant("MAVEN_OPTS", "-Xmx1g -Dhttps.proxyPassword={} -Dhttps.proxyUser=kim"),
        plant("GRADLE_OPTS", "-Dorg.corp.apiKey={}"),
        plant("JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStorePassword={}"),
        plant("TF_CLI_ARGS", "-var=db_password={}"),
        plant("NIX_CONFIG", "access-tokens = git.corp.invalid={}"),
        plant("DOCKER_HOST", "https://kim:{}@docker.corp.invalid"),
        plant("KUBECONFIG", "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----"),
        plant("VAULT_ADDR", "https://kim:{}@vault.corp.invalid"),
        plant("SLURM_JWT", "{}"),
        plant("CUDA_NOTE", "see glpat-{}0123456789abcdefghij"),
        plant("ROS_REMOTE", "mirror of https://kim:{}@ros.corp.invalid"),
        plant("ACME_LICENSE_FILE", "27000@lic;password={}"),
        plant("HELM_KUBETOKEN", "{}"),
        plant("SCCACHE_REDIS_ENDPOINT", "redis://:{}@cache.corp.invalid"),
        plant("HOMEBREW_GITHUB_API_TOKEN", "{}"),
        plant("CMAKE_SERVER", "Server=s;Uid=u;Pwd={};"),
        plant("SBT_OPTS", "-Dsbt.token={}"),
        plant("CORP_ANYTHING", "{}"),
    ];
    assert!(planted.len() >= 25);
    none_reaches_the_agent(&planted).await;
}

/// Plants the secrets in a profile, and searches for them in the agent's environment and in all files of the daemon.
async fn none_reaches_the_agent(planted: &[Planted]) {
    let names: BTreeSet<&str> = planted.iter().map(|one| one.name).collect();
    assert_eq!(names.len(), planted.len(), "each name is planted once");
    let mut daemon = Daemon::prepare();
    let profile = planted.iter().fold(String::new(), |mut text, one| {
        writeln!(text, "export {}={}", one.name, quoted(&one.value)).unwrap();
        text
    });
    fs::write(daemon.home().join(".profile"), profile + "export JAVA_HOME=/opt/jdk\n").unwrap();
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    // The daemon would mask secrets in the agent's output, so the test reads the process's environment from the kernel.
    let pid = session.view().await.status.agent_pid.expect("it runs");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(environment.split(|byte| *byte == 0).any(|entry| entry == b"JAVA_HOME=/opt/jdk"));
    assert_eq!(found_in(&environment, planted), BTreeSet::new());
    let view: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
    for one in planted {
        let dropped = view.dropped.iter().find(|dropped| dropped.name == one.name);
        let dropped = dropped.unwrap_or_else(|| panic!("{} is not named", one.name));
        assert_eq!(dropped.provider, "whitelist", "{}", one.name);
        assert!(dropped.reason.as_ref().is_some_and(|reason| !reason.is_empty()), "{}", one.name);
    }
    session.stop().await;
    assert_eq!(found_below(&daemon.state(), planted), [""; 0]);
}

#[tokio::test]
async fn no_secret_in_a_document_an_address_or_an_option_reaches_the_agent() {
    let plant = Planted::new;
    let planted = [
        // Each name belongs to a family, so only its words or the value identify the secret.
        plant("NPM_CONFIG_OTP", "{}"),
        plant("NPM_CONFIG_USERCONFIG_TEXT", "//registry.corp.invalid/:_authToken={}"),
        plant("PIP_EXTRA_INDEX_URL", "https://{}0123456789@pypi.corp.invalid/simple"),
        plant("PIP_CONFIG_TEXT", "[global]\nusername = kim\npassword = {}"),
        plant("UV_INDEX_URL", "https://pypi.corp.invalid/simple?private_token={}"),
        plant("CARGO_REGISTRIES_CORP_TOKEN", "{}"),
        plant("CARGO_SOURCE_CORP_REGISTRY", "sparse+https://kim:{}/x@crates.corp.invalid/"),
        plant("CONDA_TOKEN", "{}"),
        plant("CONDA_NETRC", "machine conda.corp.invalid login kim password {}"),
        plant("ROS_DB_PW", "{}"),
        plant("CC_TEST_REPORTER_ID", "{}"),
        plant("ANDROID_KEYSTORE_BASE64", "{}"),
        plant("ORG_GRADLE_PROJECT_androidKeyPass", "{}"),
        plant("JAVA_OPTS", "-Ddb.url=jdbc:oracle:thin:kim/{}@//db.corp.invalid:1521/app"),
        plant("JDK_JAVA_OPTIONS", "-Dspring.datasource.url=jdbc:sqlserver://db;user=sa;password={}"),
        plant("_JAVA_OPTIONS", "-javaagent:/opt/agent.jar=license_key={},app=corp"),
        plant("MAVEN_ARGS", "--batch-mode --define nexusPw={}"),
        plant("ANT_OPTS", "-Dpassword={}=="),
        plant("TF_CLI_ARGS", "-backend-config password={}"),
        plant("TF_CLI_CONFIG_FILE", "credentials \"app.corp.invalid\" { token = \"{}\" }"),
        plant("SCCACHE_ENDPOINT", "https://b.corp.invalid/c?sv=2022-11-02&sp=r&sig={}0123456789%3D"),
        plant("CCACHE_REMOTE_STORAGE", "http://cache.corp.invalid|bearer-token={}"),
        plant("VCPKG_BINARY_SOURCES", "clear;x-azblob,https://b.corp.invalid/c,sv=2022&sig={}0123456789,readwrite"),
        plant("CMAKE_SERVICE_BUS", "Endpoint=sb://b.corp.invalid/;SharedAccessKeyName=Root;SharedAccessKey={}"),
        plant("CMAKE_INSIGHTS", "InstrumentationKey={};IngestionEndpoint=https://x.corp.invalid"),
        plant("KUBECONFIG", "apiVersion: v1\nusers:\n- name: kim\n  user:\n    token: {}"),
        plant("DOCKER_CONFIG", "{\"auths\": {\"registry.corp.invalid\": {\"auth\": \"{}\"}}}"),
        plant("DOCKER_HOOK", "https://hooks.slack.com/services/T000/B000/{}"),
        plant("HELM_DRIVER_SQL", "kim:{}@tcp(db.corp.invalid:3306)/helm"),
        plant("HELM_POST_RENDERER_ARGS", "-H 'Authorization: Bearer {}'"),
        plant("CVSROOT", ":pserver:kim:{}@cvs.corp.invalid:/root"),
        plant("GDAL_HTTP_HEADER_LINE", "X-Api-Key: {}"),
        plant("GDAL_HTTP_USERPWD", "kim:{}"),
        plant(
            "CLOUDSDK_CONFIG",
            "{\"type\": \"service_account\", \"private_key\": \"-----BEGIN PRIVATE KEY-----\\n{}\\n\"}",
        ),
        plant("NIX_SIGNER", "-----BEGIN OPENSSH PRIVATE KEY-----\\n{}\\n-----END OPENSSH PRIVATE KEY-----"),
        plant("MLFLOW_TRACKING_URI", "kim:{}@mlflow.corp.invalid:5000"),
        plant("CYCLONEDDS_URI", "<Domain><Security><Password>{}</Password></Security></Domain>"),
        plant("HOMEBREW_CURL_OPTS", "--silent -u kim:{}"),
        plant("LM_PROJECT_AUTH", "{}"),
        plant("SNPS_LICENSEKEY", "{}"),
        plant("VAULT_NAMESPACE", "hvs.{}0123456789abcdef"),
        plant("XILINX_NOTE", "see dapi{}0123456789abcdef0123456789abcdef"),
    ];
    assert!(planted.len() >= 40);
    none_reaches_the_agent(&planted).await;
}

/// A home in which Lmod has loaded a module, and a script that loads it once more.
async fn loaded_by_lmod(settings: &str) -> Option<Value> {
    let init = require::lmod()?;
    let mut daemon = Daemon::prepare();
    let modules = daemon.root().join("modulefiles");
    fs::create_dir_all(modules.join("acme")).unwrap();
    let file = "prepend_path(\"LD_LIBRARY_PATH\", \"/opt/acme/lib\")\nprepend_path(\"PATH\", \"/opt/acme/bin\")\n\
        setenv(\"ACME_COLOUR\", \"red\")\n";
    fs::write(modules.join("acme/1.2.lua"), file).unwrap();
    let using = format!("source {}\nmodule use {}\nmodule load acme\n", quoted(&init), quoted(&modules));
    fs::write(daemon.home().join(".profile"), &using).unwrap();
    let script = format!("source {}\nmodule load acme\n", quoted(&init));
    fs::write(daemon.root().join("config/env-setup.sh"), script).unwrap();
    daemon.configure(|config| format!("{config}\n{settings}\n"));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    Some(variables(&session).await)
}

#[tokio::test]
async fn a_loaded_module_is_whole_and_is_loaded_anew_where_a_part_of_it_was_dropped() {
    for settings in [
        "",
        "[plugins.whitelist]\nsettings = { without = [\"libraries\"] }",
        "[plugins.whitelist]\nsettings = { preset = \"standard\" }",
        "[plugins.whitelist]\nsettings = { drop = [\"LD_LIBRARY_PATH\"] }",
    ] {
        let Some(variables) = loaded_by_lmod(settings).await else { return };
        let has = |name: &str, part: &str| variables[name].as_str().is_some_and(|value| value.contains(part));
        assert!(has("LOADEDMODULES", "acme/1.2"), "{settings}: {}", variables["LOADEDMODULES"]);
        assert!(has("LD_LIBRARY_PATH", "/opt/acme/lib"), "{settings}: {}", variables["LD_LIBRARY_PATH"]);
        assert!(has("ACME_COLOUR", "red") && has("PATH", "/opt/acme/bin"), "{settings}: {variables}");
    }
}

#[tokio::test]
async fn the_licence_check_sees_the_servers_that_the_shell_names() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut daemon = Daemon::prepare();
    let profile = format!("export ACME_LICENSE_FILE={port}@127.0.0.1 SNPSLMD_LICENSE_FILE={port}@127.0.0.1\n");
    fs::write(daemon.home().join(".profile"), profile).unwrap();
    daemon.configure(|config| {
        format!("{config}\n[prerequisites.licences]\nplugin = \"license-server\"\nrequired_by = \"all\"\n")
    });
    daemon.run().await;
    let spec: SessionSpec = serde_json::from_value(json!({ "agent": "scripted", "directory": daemon.work() })).unwrap();
    let session = daemon.session(&spec).await;
    let view = session.wait_for_phase(Phase::Idle).await;
    let met = view.status.conditions.iter().find(|one| one.kind == ConditionType::PrerequisitesMet);
    assert!(met.is_some_and(|met| met.status == agentd_api::session::ConditionStatus::True), "{met:?}");
}
