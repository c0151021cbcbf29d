//! The image of `.ci/image` in a real container engine, as the Job of `units/kubernetes` runs it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Run;
use crate::harness::ctl::{Said, end_of};
use crate::harness::{paths, process, require, until};

/// User of the image and of the Job.
const USER: u32 = 65532;

/// A podman with a store of its own, which has the image. Dropping the value removes its containers.
struct Engine {
    directory: TempDir,
    image: String,
}

impl Engine {
    /// Packs the programs of this build, and loads the image.
    fn boot() -> Option<Self> {
        require::engine()?;
        let directory = tempfile::Builder::new().prefix("agentd-engine-").tempdir().unwrap();
        let first = packed(&directory.path().join("first"));
        let second = packed(&directory.path().join("second"));
        assert_eq!(first.digest, second.digest);
        assert!(fs::read(&first.archive).unwrap() == fs::read(&second.archive).unwrap(), "the archives differ");
        fs::remove_dir_all(directory.path().join("second")).unwrap();
        let mut engine = Self { directory, image: String::new() };
        let said = engine.run(&["load", "--input", first.archive.to_str().unwrap()]);
        said.lines().find_map(|line| line.strip_prefix("Loaded image: ")).unwrap().clone_into(&mut engine.image);
        let digest = engine.run(&["image", "inspect", "--format", "{{.Digest}}", &engine.image]);
        assert_eq!(digest.trim(), first.digest, "the engine has the image under the digest of the script");
        Some(engine)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Builds a command of podman. Nothing outside of the store's directory is used.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/podman");
        for (option, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            command.arg(option).arg(self.path(name));
        }
        command.args(["--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=file", "--runtime=runc"]);
        command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command of podman, which must succeed.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a pod of the Job: the rights, mounts, variables and arguments of `units/kubernetes/job.yaml`.
    fn start(&self, pod: &str, spec: &Value) -> Child {
        for (name, text) in [("session.yaml", spec.to_string()), ("agentd.toml", configuration())] {
            let directory = self.path(pod).join("session");
            fs::create_dir_all(&directory).unwrap();
            fs::set_permissions(self.path(pod), fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(directory.join(name), text).unwrap();
        }
        let keys = self.path(pod).join("keys");
        fs::create_dir_all(&keys).unwrap();
        fs::write(keys.join("anthropic"), "sk-a-key-of-the-pod\n").unwrap();
        // As a volume of a Secret with `fsGroup`.
        chown(keys.join("anthropic"), Some(0), Some(USER)).unwrap();
        fs::set_permissions(keys.join("anthropic"), fs::Permissions::from_mode(0o440)).unwrap();
        let state = self.state();
        fs::create_dir_all(&state).unwrap();
        chown(&state, Some(0), Some(USER)).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o2775)).unwrap();
        // Without CAP_SYS_RESOURCE podman must not raise a limit, and it does by default.
        let mut words: Vec<String> =
            ["run", "--rm", "--network=none", "--log-driver=none", "--ulimit=nofile=1024:1024"]
                .iter()
                .chain(&["--ulimit=nproc=4096", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all"])
                .chain(&[
                    "--security-opt=no-new-privileges",
                    "--tmpfs=/tmp",
                    "--tmpfs=/run/agentd",
                    "--tmpfs=/home/agent",
                ])
                .map(|&word| word.to_owned())
                .collect();
        words.extend([format!("--user={USER}:{USER}"), format!("--name={pod}")]);
        words.push(format!("--volume={}:/state", state.display()));
        words.push(format!("--volume={}:/etc/agentd-session:ro", self.path(pod).join("session").display()));
        words.push(format!("--volume={}:/run/secrets/agentd:ro", keys.display()));
        for (name, value) in variables() {
            words.push(format!("--env={name}={value}"));
        }
        words.extend(["--entrypoint=agentd".to_owned(), self.image.clone(), "run-spec".to_owned()]);
        words.extend(arguments().into_iter().map(|word| word.replace("$(POD_NAME)", pod)));
        self.command(&words.iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap()
    }

    fn state(&self) -> PathBuf {
        self.path("state")
    }

    fn results(&self, pod: &str) -> PathBuf {
        self.state().join("results").join(pod)
    }

    fn result(&self, pod: &str) -> Value {
        serde_json::from_slice(&fs::read(self.results(pod).join("result.json")).unwrap()).unwrap()
    }

    /// Waits until the journal of the pod's session contains the text.
    async fn has_recorded(&self, pod: &str, text: &str) {
        let sessions = self.state().join(pod).join("state/sessions");
        let contains = |path: &Path| fs::read_to_string(path.join("journal.jsonl")).is_ok_and(|all| all.contains(text));
        let found = || fs::read_dir(&sessions).into_iter().flatten().flatten().any(|session| contains(&session.path()));
        until(&format!("{text:?} is in the journal"), found).await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The store and its mounts are this test's alone.
        let _ = self.command(&["rm", "--force", "--all", "--time", "0"]).output();
        process::kill_all_of(self.directory.path());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for mount in own.filter(|path| Path::new(path).starts_with(self.directory.path())) {
            let _ = Command::new("umount").args(["--lazy", mount]).status();
        }
    }
}

/// An image that `.ci/image` has made.
struct Packed {
    archive: PathBuf,
    digest: String,
}

fn packed(out: &Path) -> Packed {
    let output = Command::new(paths::checkout().join(".ci/image")).arg(paths::programs()).arg(out).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let (archive, digest) = said.trim_end().split_once('\n').unwrap();
    Packed { archive: archive.into(), digest: digest.to_owned() }
}

fn manifest(name: &str) -> String {
    fs::read_to_string(paths::checkout().join("units/kubernetes").join(name)).unwrap()
}

/// Returns the configuration of the base, without the agent that the image does not have.
fn configuration() -> String {
    let mut config: toml::Table = manifest("agentd.toml").parse().unwrap();
    config.remove("agents").unwrap();
    config.to_string()
}

/// Returns the lines of the Job between two of its lines, which have the same indentation.
fn section(begin: &str, end: &str) -> Vec<String> {
    let job = manifest("job.yaml");
    let lines = job.lines().map(str::trim).skip_while(|line| *line != begin).skip(1).take_while(|line| *line != end);
    let lines: Vec<String> = lines.map(|line| line.split(" #").next().unwrap().trim_end().to_owned()).collect();
    assert!(!lines.is_empty(), "the Job has no lines between {begin} and {end}");
    lines
}

fn arguments() -> Vec<String> {
    section("args:", "env:").iter().map(|line| line.strip_prefix("- ").unwrap().to_owned()).collect()
}

/// Returns the variables of the Job with a value of their own.
fn variables() -> Vec<(String, String)> {
    let lines = section("env:", "resources:");
    let value = |pair: &[String]| {
        Some((pair[0].strip_prefix("- name: ")?.to_owned(), pair[1].strip_prefix("value: ")?.to_owned()))
    };
    lines.windows(2).filter_map(value).collect()
}

/// Asserts that a pod ended with this status.
fn assert_status(said: &Said, status: i32) {
    assert_eq!(said.status, Some(status), "{said:?}");
}

#[tokio::test]
async fn the_job_runs_in_a_container_and_takes_its_signals() {
    let Some(engine) = Engine::boot() else { return };
    let spec =
        |prompt: &str| json!({ "agent": "demo", "workspace": "new", "permissions": "deny", "initial_prompt": prompt });
    let said = end_of(engine.start("completes", &spec("show your environment"))).await;
    assert_status(&said, 0);
    assert!(said.out.contains("ANTHROPIC_API_KEY=‹secret›") && said.out.contains("HOME=/home/agent"), "{said:?}");
    assert!(!said.out.contains("AGENTD_SOCKET") && !said.out.contains("CREDENTIALS_DIRECTORY"), "{said:?}");
    assert_eq!(engine.result("completes")["outcome"], json!("completed"));
    for name in ["journal.jsonl", "agentd.log"] {
        let text = fs::read_to_string(engine.results("completes").join(name)).unwrap();
        assert!(!text.is_empty() && !text.contains("sk-a-key-of-the-pod"), "{name}");
    }

    // The engine asks the container to end, and another program looks at the session before.
    let child = engine.start("stops", &spec("count to 100000 slowly"));
    engine.has_recorded("stops", "agent_message_chunk").await;
    let listed = engine.run(&["exec", "stops", "agentctl", "ls"]);
    assert!(listed.contains("busy") && listed.contains("count to 100000"), "{listed}");
    engine.run(&["stop", "--time", "60", "stops"]);
    assert_status(&end_of(child).await, 143);
    assert_eq!(
        (&engine.result("stops")["outcome"], &engine.result("stops")["signal"]),
        (&json!("stopped"), &json!(15))
    );

    // Ctrl-C at a terminal of the engine.
    let child = engine.start("interrupted", &spec("count to 100000 slowly"));
    engine.has_recorded("interrupted", "agent_message_chunk").await;
    engine.run(&["kill", "--signal", "INT", "interrupted"]);
    assert_status(&end_of(child).await, 130);
    assert_eq!(engine.result("interrupted")["outcome"], json!("stopped"));

    // A crash of the daemon is no end.
    let child = engine.start("crashes", &spec("count to 4 slowly"));
    engine.has_recorded("crashes", "agent_message_chunk").await;
    let socket = "/run/agentd/sockets/control.sock";
    let daemons = process::running(Path::new(socket).parent().unwrap(), "agentd", Some("serve"));
    assert_eq!(daemons.len(), 1, "{daemons:?}");
    process::kill9(daemons[0]);
    let said = end_of(child).await;
    assert_status(&said, 0);
    assert!(said.out.ends_with("4\n") && said.err.contains("agentd was started again"), "{said:?}");

    // A mistake in the specification.
    let ended = end_of(engine.start("invalid", &json!({ "agent": "absent", "initial_prompt": "x" }))).await;
    assert_status(&ended, 2);
    assert_eq!(engine.run(&["ps", "--all", "--quiet"]), "", "no container is left");
}

#[tokio::test]
async fn agentd_finds_no_mistake_in_the_specification_and_the_configuration_of_the_base() {
    let mut run = Run::of(json!({}), &[]);
    run.leave_out("--config");
    run.add("--config", paths::checkout().join("units/kubernetes/agentd.toml"));
    let file = paths::checkout().join("units/kubernetes/session.yaml");
    let said = end_of(run.command(file.to_str().unwrap()).spawn().unwrap()).await;
    // Both were read, and only the Secret is missing.
    assert_status(&said, 7);
    assert!(said.err.contains("SecretMissing") || said.err.contains("$CREDENTIALS_DIRECTORY"), "{said:?}");
    let log = fs::read_to_string(run.path("out/agentd.log")).unwrap();
    assert!(!log.contains("ERROR"), "{log}");
}
