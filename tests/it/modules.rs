//! Environment Modules in a session, without a shell: the example of plugin-sdk/examples as an administrator deploys
//! it, with the machine's own modulecmd.

use std::fs;
use std::path::PathBuf;

use agentd_api::environment::EnvironmentView;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionView};

use crate::harness::digest::sha256;
use crate::harness::{Daemon, require};

pub(crate) const COMPONENT: &[u8] = include_bytes!("../../plugins/dist/environment-modules.wasm");
pub(crate) const MODULECMD: &str = "/usr/lib/x86_64-linux-gnu/modulecmd.tcl";

/// Variables that the modules change here, and the variable that configures modulecmd's pager.
pub(crate) const VARIABLES: &str = "[\"*\", \"PATH\", \"MODULES_PAGER\"]";

const GCC: &str = "#%Module1.0\nprepend-path PATH /apps/gcc/bin\nsetenv CC {gcc of \"12\"\nand more}\nconflict llvm\n";
const LLVM: &str = "#%Module1.0\nsetenv CC clang\n";

/// Returns a daemon that loads these modules with this grant, or `None` on a machine without Environment Modules.
async fn loading(modules: &[&str], grant: &str, more: &str) -> Option<Daemon> {
    require::shell_file(MODULECMD, "environment-modules")?;
    let mut daemon = Daemon::prepare();
    let (plugins, modulefiles) = (daemon.root().join("config/plugins"), modulefiles(&daemon));
    fs::create_dir_all(&plugins).unwrap();
    fs::write(plugins.join("environment-modules.wasm"), COMPONENT).unwrap();
    for (name, text) in [("gcc/12", GCC), ("llvm/15", LLVM)] {
        let file = modulefiles.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let pin = sha256(COMPONENT);
    daemon.configure(|text| {
        let providers =
            "[environment]\nproviders = [\"snapshot\", \"whitelist\", \"environment-modules\", \"env-script\"]";
        let declared = format!(
            "[plugins.environment-modules]\nsha256 = \"{pin}\"\ngrant = {{ variables = {VARIABLES}, command = [\
             {{ run = \"{MODULECMD} {grant}\", variables = {VARIABLES} }}] }}\n\
             settings = {{ modules = {modules:?}, modulepath = ['{}'] }}\n{more}\n",
            modulefiles.display()
        );
        format!("{}\n{declared}", text.replace("[environment]", providers))
    });
    daemon.run().await;
    Some(daemon)
}

fn modulefiles(daemon: &Daemon) -> PathBuf {
    daemon.root().join("modulefiles")
}

fn environment_of(view: &SessionView) -> Condition {
    let mut conditions = view.status.conditions.iter();
    conditions.find(|condition| condition.kind == ConditionType::EnvironmentReady).expect("it was built or not").clone()
}

/// Creates a session whose launch is refused, and returns the message of the refusal.
async fn refusal(daemon: &Daemon) -> String {
    let session = daemon.create(&daemon.scripted(&[])).await;
    let condition = environment_of(&session.wait_for_phase(Phase::Failed).await);
    assert_eq!(condition.status, ConditionStatus::False);
    condition.message
}

#[tokio::test]
async fn a_session_has_the_modules_and_each_variable_names_its_modulefile() {
    let Some(daemon) = loading(&["gcc"], "r load *", "").await else { return };
    let session = daemon.session(&daemon.scripted(&[])).await;
    let environment: serde_json::Value = serde_json::from_str(&session.turn("env").await.text).unwrap();
    assert_eq!(environment["CC"], "gcc of \"12\"\nand more");
    assert!(environment["PATH"].as_str().unwrap().starts_with("/apps/gcc/bin:"), "{}", environment["PATH"]);
    assert_eq!(environment["LOADEDMODULES"], "gcc/12");
    let view: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
    let file = modulefiles(&daemon).join("gcc/12");
    for name in ["CC", "PATH"] {
        let variable = view.variables.iter().find(|variable| variable.name == name).unwrap();
        assert_eq!(
            (variable.provider.as_str(), variable.origin.as_ref()),
            ("environment-modules", Some(&file)),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_module_that_cannot_be_loaded_refuses_the_launch_in_its_own_words() {
    let Some(daemon) = loading(&["llvm", "gcc"], "r load *", "").await else { return };
    let message = refusal(&daemon).await;
    assert!(message.contains("loading the module \"gcc\": ") && message.contains("module unload llvm"), "{message}");

    let Some(daemon) = loading(&["gcc/99"], "r load *", "").await else { return };
    let message = refusal(&daemon).await;
    assert!(message.contains("Unable to locate a modulefile for 'gcc/99'"), "{message}");
}

#[tokio::test]
async fn a_narrower_grant_loads_no_other_module_and_a_launch_can_go_on_without_any() {
    let Some(daemon) = loading(&["gcc", "llvm"], "r load gcc", "").await else { return };
    let message = refusal(&daemon).await;
    assert!(message.contains("loading the module \"llvm\"") && message.contains("granted"), "{message}");

    let Some(daemon) = loading(&["gcc/99"], "r load *", "on_failure = \"skip\"").await else { return };
    let session = daemon.session(&daemon.scripted(&[])).await;
    let condition = environment_of(&session.view().await);
    assert!(condition.message.contains("gcc/99"), "{condition:?}");
    let environment: serde_json::Value = serde_json::from_str(&session.turn("env").await.text).unwrap();
    assert!(environment["CC"].is_null() && environment["LOADEDMODULES"] != "gcc/12", "{environment}");
    let path = environment["MODULEPATH"].as_str().unwrap_or_default(); // a login shell of this machine may have one
    assert!(!path.contains(modulefiles(&daemon).to_str().unwrap()), "{environment}");
}
