//! The examples of `docs/scripts.md`. Each example runs unchanged, with the real tool if it is installed, or else with
//! a small replacement that has the tool's interface.

#![allow(clippy::unnecessary_wraps, reason = "some recipes need what a machine may not have, and all are of one type")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use agentd_api::session::{ConditionStatus, ConditionType};
use serde_json::{Value, json};

use crate::harness::quote::quoted;
use crate::harness::{Daemon, require};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scripts.md");

/// Placeholder path in the page. Each site has its own path there.
const VENDOR: &str = "/opt/Xilinx";

/// Test of one example.
struct Recipe {
    name: &'static str,
    /// The user's login shell and its start-up file.
    login: (&'static str, &'static str),
    /// Creates the tool and returns the text of the start-up file, or `None` if the machine lacks a requirement.
    prepare: fn(&Daemon) -> Option<String>,
    /// A variable of the agent, and its expected value below the daemon's root.
    expected: (&'static str, &'static str),
}

const BASH: (&str, &str) = ("/bin/bash", ".profile");

const RECIPES: &[Recipe] = &[
    Recipe { name: "venv", login: BASH, prepare: venv, expected: ("VIRTUAL_ENV", "{root}/work/.venv") },
    Recipe { name: "conda", login: BASH, prepare: conda, expected: ("CONDA_PREFIX", "{root}/conda/envs/science") },
    Recipe { name: "micromamba", login: BASH, prepare: micromamba, expected: ("CONDA_PREFIX", "/envs/science") },
    Recipe { name: "nvm", login: ("/bin/zsh", ".zshrc"), prepare: nvm, expected: ("PATH", "{root}/nvm/v20/bin:") },
    Recipe { name: "mise", login: BASH, prepare: mise, expected: ("PATH", "{root}/mise/node/20/bin:") },
    Recipe { name: "direnv", login: BASH, prepare: direnv, expected: ("FROM_ENVRC", "yes") },
    Recipe { name: "modules-bash", login: BASH, prepare: modules_of_bash, expected: ("CC", "gcc-12") },
    Recipe { name: "modules-zsh", login: ("/bin/zsh", ".zshrc"), prepare: modules_of_zsh, expected: ("CC", "gcc-12") },
    Recipe {
        name: "modules-tcsh",
        login: ("/bin/tcsh", ".tcshrc"),
        prepare: modules_of_tcsh,
        expected: ("CC", "gcc-12"),
    },
    Recipe {
        name: "modules-fish",
        login: ("/usr/bin/fish", ".config/fish/config.fish"),
        prepare: modules_of_fish,
        expected: ("CC", "gcc-12"),
    },
    Recipe { name: "settings64", login: BASH, prepare: settings64, expected: ("XILINX_VIVADO", "{root}/opt/Xilinx") },
];

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
}

fn program(path: &Path, text: &str) {
    write(path, text);
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

fn venv(daemon: &Daemon) -> Option<String> {
    let python = require::shell_file("/usr/bin/python3", "python3-venv")?;
    let mut venv = Command::new(python);
    let made = venv.args(["-m", "venv", "--without-pip"]).arg(daemon.work().join(".venv")).status().unwrap();
    assert!(made.success());
    Some(String::new())
}

/// Imitates the result of `conda init`: the start-up file exports `CONDA_EXE`, and reads a function from `profile.d`.
fn conda(daemon: &Daemon) -> Option<String> {
    let root = daemon.root().join("conda");
    fs::create_dir_all(root.join("envs/science/bin")).unwrap();
    let root = root.display();
    let function = format!(
        "conda() {{\n  case \"$1\" in\n  activate)\n    if [ ! -d '{root}/envs/'\"$2\" ]; then\n      \
         echo \"EnvironmentNameNotFound: Could not find conda environment: $2\" >&2; return 1\n    fi\n    \
         export CONDA_PREFIX='{root}/envs/'\"$2\" CONDA_DEFAULT_ENV=\"$2\"; \
         export PATH=\"$CONDA_PREFIX/bin:$PATH\" ;;\n  \
         *) \"$CONDA_EXE\" \"$@\" ;;\n  esac\n}}\n"
    );
    write(&daemon.root().join("conda/etc/profile.d/conda.sh"), &function);
    program(&daemon.root().join("conda/bin/conda"), "#!/bin/sh\nexit 1\n");
    Some(format!("export CONDA_EXE='{root}/bin/conda'\n. '{root}/etc/profile.d/conda.sh'\n"))
}

/// Creates a program that prints its function, as `micromamba shell hook` does.
fn micromamba(daemon: &Daemon) -> Option<String> {
    let file = daemon.root().join("bin/micromamba");
    let text = "#!/bin/sh\n[ \"$1 $2 $3 $4\" = \"shell hook --shell bash\" ] || { \
                echo \"'micromamba' is running as a subprocess and can't modify the parent shell.\" >&2; exit 1; }\n\
                cat <<'END'\nmicromamba() {\n  [ \"$1\" = activate ] || return 1\n  \
                export CONDA_PREFIX=\"$MAMBA_ROOT_PREFIX/envs/$2\"\n}\nEND\n";
    program(&file, text);
    let root = daemon.root().display();
    // In `PATH` alone, as an installer has it; the prefix is the script's to set where the whitelist drops it.
    Some(format!("export PATH='{root}/bin':$PATH MAMBA_ROOT_PREFIX='{root}/mamba'\n"))
}

fn nvm(daemon: &Daemon) -> Option<String> {
    require::shell_file("/bin/zsh", "zsh")?;
    let root = daemon.root().join("nvm");
    fs::create_dir_all(root.join("v20/bin")).unwrap();
    let root = root.display();
    let function = format!(
        "nvm() {{\n  [ \"$1\" = use ] || return 127\n  version=$(cat .nvmrc)\n  \
         if [ ! -d '{root}/v'\"$version\" ]; then\n    \
         echo \"N/A: version \\\"v$version\\\" is not yet installed.\" >&2; return 3\n  fi\n  \
         export PATH='{root}/v'\"$version/bin:$PATH\"\n  echo \"Now using node v$version\"\n}}\n"
    );
    write(&daemon.root().join("nvm/nvm.sh"), &function);
    write(&daemon.work().join(".nvmrc"), "20\n");
    Some(format!("export NVM_DIR='{root}'\n. '{root}/nvm.sh'\n"))
}

fn mise(daemon: &Daemon) -> Option<String> {
    let root = daemon.root().display();
    let text = format!(
        "#!/bin/sh\n[ \"$*\" = 'env -s bash' ] || exit 1\n[ -r mise.toml ] || exit 0\n\
         echo \"export PATH='{root}/mise/node/20/bin:$PATH'\"\n"
    );
    program(&daemon.home().join(".local/bin/mise"), &text);
    write(&daemon.work().join("mise.toml"), "[tools]\nnode = \"20\"\n");
    fs::create_dir_all(daemon.root().join("mise/node/20/bin")).unwrap();
    Some("export PATH=\"$HOME/.local/bin:$PATH\"\n".to_owned())
}

fn direnv(daemon: &Daemon) -> Option<String> {
    let direnv = require::shell_file("/usr/bin/direnv", "direnv")?;
    write(&daemon.work().join(".envrc"), "export FROM_ENVRC=yes\n");
    let mut allow = Command::new(direnv);
    allow.arg("allow").current_dir(daemon.work()).env_clear().env("HOME", daemon.home()).env("PATH", "/usr/bin:/bin");
    assert!(allow.status().unwrap().success());
    Some(String::new())
}

/// Prepares Environment Modules with one module, and returns the line of a start-up file that begins with them.
fn modules(daemon: &Daemon, shell: &str) -> Option<String> {
    let init = require::shell_file(&format!("/usr/share/modules/init/{shell}"), "environment-modules")?;
    require::shell_file(&format!("/bin/{shell}"), shell)?;
    let modules = daemon.root().join("modulefiles");
    write(&modules.join("gcc/12"), "#%Module1.0\nsetenv CC gcc-12\n");
    Some(format!("source {}\nmodule use {}\n", quoted(&init), quoted(&modules)))
}

fn modules_of_bash(daemon: &Daemon) -> Option<String> {
    modules(daemon, "bash")
}

fn modules_of_zsh(daemon: &Daemon) -> Option<String> {
    modules(daemon, "zsh")
}

fn modules_of_tcsh(daemon: &Daemon) -> Option<String> {
    modules(daemon, "tcsh")
}

fn modules_of_fish(daemon: &Daemon) -> Option<String> {
    modules(daemon, "fish")
}

fn settings64(daemon: &Daemon) -> Option<String> {
    let place = daemon.root().join("opt/Xilinx/Vivado/2024.1");
    let text = format!("export XILINX_VIVADO='{0}'\nexport PATH=\"{0}/bin:$PATH\"\n", place.display());
    fs::create_dir_all(place.join("bin")).unwrap();
    write(&place.join("settings64.sh"), &text);
    Some(String::new())
}

/// Returns the examples of the page by their names, which follow the language of a block.
fn examples() -> Vec<(String, String)> {
    let page = fs::read_to_string(PAGE).expect("the page is there");
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```sh ") else { continue };
        let text: String = lines.by_ref().take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect();
        found.push((name.to_owned(), text));
    }
    found
}

/// Runs one example in a project, and checks the agent's variable.
async fn works(recipe: &Recipe, text: &str) {
    let Recipe { name, login: (shell, file), prepare, expected: (variable, value) } = recipe;
    let mut daemon = Daemon::prepare();
    let root = daemon.root().canonicalize().unwrap().display().to_string();
    fs::remove_file(daemon.home().join(".profile")).unwrap();
    let Some(login) = prepare(&daemon) else { return };
    write(&daemon.home().join(file), &login);
    daemon.configure(|config| config.replace("shell = \"/bin/bash\"", &format!("shell = \"{shell}\"")));
    daemon.run().await;
    // The page has no quotes here, so blanks in the path of the temporary directory are escaped.
    let text = text.replace(VENDOR, &format!("{}{VENDOR}", root.replace(' ', "\\ ")));
    write(&daemon.work().join(".agentd-env.sh"), &text);
    daemon.client.post("/v1/scripts/allow", &json!({ "directory": daemon.work() })).await.expect::<Value>(200);
    let session = daemon.session(&daemon.scripted(&[])).await;
    let agent: Value = serde_json::from_str(&session.turn("env").await.text).unwrap();
    let conditions = session.view().await.status.conditions;
    let valid = conditions.iter().find(|one| one.kind == ConditionType::EnvironmentValid).unwrap();
    let got = agent[*variable].as_str().unwrap_or_default();
    assert!(got.contains(&value.replace("{root}", &root)), "{name}: {variable}={got:?}: {valid:?}");
    assert_eq!(valid.status, ConditionStatus::True, "{name}: {valid:?}");
    let noted = agent.as_object().unwrap().keys().find(|name| name.starts_with("DIRENV_"));
    assert_eq!(noted, None, "{name}");
}

#[tokio::test]
async fn each_example_of_the_page_on_scripts_works() {
    let examples = examples();
    let of_page: Vec<&str> = examples.iter().map(|(name, _)| name.as_str()).collect();
    let tried: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    assert_eq!(of_page, tried, "each example is tried, and each that is tried is on the page");
    for (recipe, (_, text)) in RECIPES.iter().zip(&examples) {
        works(recipe, text).await;
    }
}
