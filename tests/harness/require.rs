//! Checks the requirements of a test that a machine may lack. Without a requirement the test is skipped: it passes,
//! and the run ends with a list of skipped tests and reasons. If `AGENTD_TEST_REQUIRE` lists the requirement, as in
//! CI, the test fails instead. The variable takes values such as
//! `systemd,opencode,gemini,claude-agent-acp,codex-acp,copilot,clients,openapi,shells,root,fuse,guests,namespaces`,
//! `prometheus`, `dashboards`, `openssl`, `tmux`, `browser`, `slurm`, `cgroups` and `container`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::paths;

fn missing<T>(what: &str, reason: &str) -> Option<T> {
    let required = std::env::var("AGENTD_TEST_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == what), "{what} is required by AGENTD_TEST_REQUIRE, but {reason}");
    list(reason);
    None
}

/// Shell script that prints the sorted, distinct lines of its standard input when the input ends.
const LIST: &str = r#"lines=$(sort -u); printf '\nSKIPPED:\n%s\n' "$lines" >&2"#;

/// Adds this test to the list that is printed when the test program ends.
///
/// The harness libtest discards the output of passing tests and runs no code at its end. Therefore a child of the
/// test program collects the lines from a pipe. The child prints them when the end of the test program closes the
/// pipe.
#[allow(clippy::zombie_processes, reason = "the child outlives this program")]
fn list(reason: &str) {
    static LISTER: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    let lister = LISTER.get_or_init(|| {
        let child = Command::new("/bin/sh")
            .args(["-c", LIST])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("/bin/sh starts");
        Mutex::new(child.stdin.expect("the standard input is a pipe"))
    });
    // With one test thread, libtest runs all tests in `main`, and only the reason is known.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("main");
    let line = format!("  {test}: {}\n", reason.replace('\n', " "));
    let mut lister = lister.lock().unwrap_or_else(PoisonError::into_inner);
    lister.write_all(line.as_bytes()).expect("the list takes a line");
}

#[test]
fn a_run_ends_with_the_list_of_its_skipped_tests() {
    let run = Command::new("/bin/sh")
        .args(["-c", r#"exec "$0" gemini:: --test-threads=2 2>&1"#])
        .arg(std::env::current_exe().unwrap())
        .env("AGENTD_TEST_GEMINI", "/nowhere/gemini")
        .env_remove("AGENTD_TEST_REQUIRE")
        .output()
        .unwrap();
    let printed = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success(), "{printed}");
    let (ran, listed) = printed.split_once("\nSKIPPED:\n").expect(&printed);
    let names: Vec<&str> = ran
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... ok"))
        .filter(|name| listed.contains(&format!("  {name}: gemini is not installed")))
        .collect();
    assert_eq!(names.len(), 3, "{printed}");
    assert_eq!(listed.lines().count(), 3, "{printed}");
    assert!(ran.contains("test result: ok"), "the list does not come last: {printed}");
}

/// Returns the program opencode: the file in `AGENTD_TEST_OPENCODE`, otherwise `opencode` on the PATH.
pub(crate) fn opencode() -> Option<PathBuf> {
    program("opencode", "AGENTD_TEST_OPENCODE", "opencode-ai")
}

/// Returns the program gemini: the file in `AGENTD_TEST_GEMINI`, otherwise `gemini` on the PATH.
pub(crate) fn gemini() -> Option<PathBuf> {
    program("gemini", "AGENTD_TEST_GEMINI", "@google/gemini-cli")
}

/// Returns the program claude-agent-acp: the file in `AGENTD_TEST_CLAUDE`, otherwise on the PATH.
pub(crate) fn claude() -> Option<PathBuf> {
    program("claude-agent-acp", "AGENTD_TEST_CLAUDE", "@agentclientprotocol/claude-agent-acp")
}

/// Returns the program codex-acp: the file in `AGENTD_TEST_CODEX`, otherwise on the PATH.
pub(crate) fn codex() -> Option<PathBuf> {
    program("codex-acp", "AGENTD_TEST_CODEX", "@agentclientprotocol/codex-acp")
}

/// Returns the program copilot: the file in `AGENTD_TEST_COPILOT`, otherwise on the PATH.
pub(crate) fn copilot() -> Option<PathBuf> {
    program("copilot", "AGENTD_TEST_COPILOT", "@github/copilot")
}

/// Returns the directory `node_modules` with clients of the protocol, from `AGENTD_TEST_ACP_CLIENTS`.
pub(crate) fn acp_clients() -> Option<PathBuf> {
    let named = std::env::var_os("AGENTD_TEST_ACP_CLIENTS").map(PathBuf::from);
    let is_whole = |directory: &PathBuf| {
        ["acpx", "@agentclientprotocol/sdk", "ajv", "ws"].iter().all(|package| directory.join(package).exists())
    };
    let reason = "AGENTD_TEST_ACP_CLIENTS names no node_modules with acpx, @agentclientprotocol/sdk, ajv and ws";
    named.filter(is_whole).or_else(|| missing("clients", reason))
}

/// Returns the directory in which the packages of `tests/ui` are installed, from `AGENTD_TEST_BROWSER`. Debian's
/// Chromium must be installed too.
pub(crate) fn browser() -> Option<PathBuf> {
    if !Path::new("/usr/bin/chromium").exists() {
        return missing("browser", "/usr/bin/chromium is not installed (Debian's package chromium)");
    }
    let named = std::env::var_os("AGENTD_TEST_BROWSER").map(PathBuf::from);
    let is_whole = |directory: &PathBuf| {
        ["playwright-core", "axe-core"].iter().all(|package| directory.join("node_modules").join(package).exists())
    };
    let reason = "AGENTD_TEST_BROWSER names no directory with the packages of tests/ui (.ci/run installs them)";
    named.filter(is_whole).or_else(|| missing("browser", reason))
}

/// Returns the directory of programs that read `OpenAPI` documents, from `AGENTD_TEST_OPENAPI`.
pub(crate) fn openapi() -> Option<PathBuf> {
    let programs = ["openapi-spec-validator", "openapi-python-client", "schemathesis", "python"];
    let named = std::env::var_os("AGENTD_TEST_OPENAPI").map(PathBuf::from);
    let is_whole = |directory: &PathBuf| programs.iter().all(|program| directory.join(program).exists());
    let reason = "AGENTD_TEST_OPENAPI names no directory with the programs that .ci/run installs";
    named.filter(is_whole).or_else(|| missing("openapi", reason))
}

/// Returns a shell: the first of `places` that exists. For nushell, which no distribution packages, `AGENTD_TEST_NU`
/// takes precedence.
pub(crate) fn shell(name: &str, places: &[&str]) -> Option<PathBuf> {
    let named = (name == "nu").then(|| std::env::var_os("AGENTD_TEST_NU").map(PathBuf::from)).flatten();
    let found = named.into_iter().chain(places.iter().map(PathBuf::from)).find(|file| file.exists());
    found.or_else(|| missing("shells", &format!("the shell {name} is not installed")))
}

/// Returns lmod's init file for bash: the file in `AGENTD_TEST_LMOD`, otherwise Debian's path. Debian's lmod cannot
/// be installed beside environment-modules.
pub(crate) fn lmod() -> Option<PathBuf> {
    let file = match std::env::var_os("AGENTD_TEST_LMOD") {
        Some(named) => PathBuf::from(named),
        None => PathBuf::from("/usr/share/lmod/lmod/init/bash"),
    };
    let reason = || format!("lmod is not installed, or AGENTD_TEST_LMOD is wrong: there is no {}", file.display());
    if file.exists() { Some(file) } else { missing("shells", &reason()) }
}

/// Returns a file from a Debian package for shells.
pub(crate) fn shell_file(path: &str, package: &str) -> Option<PathBuf> {
    let path = PathBuf::from(path);
    if path.exists() { Some(path) } else { missing("shells", &format!("the package {package} is not installed")) }
}

fn program(name: &str, variable: &str, package: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = named.or_else(|| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.exists()));
    match found {
        Some(file) if file.exists() => Some(file),
        _ => missing(name, &format!("{name} is not installed (npm install {package}) or {variable} is wrong")),
    }
}

/// Returns the builder of Python components, from `AGENTD_TEST_COMPONENTIZE_PY`.
pub(crate) fn componentize_py() -> Option<PathBuf> {
    named_tool("AGENTD_TEST_COMPONENTIZE_PY", "componentize-py 0.25.0")
}

/// Returns the builder of JavaScript components, from `AGENTD_TEST_COMPONENTIZE_QJS`.
pub(crate) fn componentize_qjs() -> Option<PathBuf> {
    named_tool("AGENTD_TEST_COMPONENTIZE_QJS", "componentize-qjs 0.4.5")
}

fn named_tool(variable: &str, what: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    named
        .filter(|file| file.exists())
        .or_else(|| missing("guests", &format!("{variable} does not name the path of {what}")))
}

/// Returns the Rust compiler for components, as a project's `build` expects it. That is rustup's target, otherwise
/// Debian's compiler in `AGENTD_DEBIAN_RUST` or in the place where `plugins/rebuild` stored it.
pub(crate) fn rust_guests() -> Option<Vec<(&'static str, PathBuf)>> {
    let sysroot = std::process::Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let target =
        PathBuf::from(String::from_utf8(sysroot.stdout).ok()?.trim()).join("lib/rustlib/wasm32-unknown-unknown/lib");
    if target.exists() {
        return Some(Vec::new());
    }
    let unpacked = || paths::checkout().join("plugins/target/debian-rust");
    let debian = std::env::var_os("AGENTD_DEBIAN_RUST").map_or_else(unpacked, PathBuf::from);
    if debian.join("version").exists() {
        return Some(vec![("AGENTD_DEBIAN_RUST", debian)]);
    }
    missing("guests", "there is no compiler for wasm32-unknown-unknown: plugins/rebuild --check --fetch gets one")
}

/// Requires the rights of root for `what`.
pub(crate) fn root(what: &str) -> Option<()> {
    if nix::unistd::geteuid().is_root() { Some(()) } else { missing("root", &format!("{what} needs root")) }
}

/// Returns the program sshd, which serves root.
pub(crate) fn sshd() -> Option<PathBuf> {
    root("an sshd for root")?;
    let program = PathBuf::from("/usr/sbin/sshd");
    if program.exists() { Some(program) } else { missing("root", "openssh-server is not installed") }
}

/// Requires the program `openssl`, which makes certificates.
pub(crate) fn openssl() -> Option<()> {
    let runs = Command::new("openssl").arg("version").output().is_ok_and(|output| output.status.success());
    if runs { Some(()) } else { missing("openssl", "openssl is not installed") }
}

/// Requires the programs `prometheus` and `promtool`.
pub(crate) fn prometheus() -> Option<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|directory| directory.join(name).exists());
    match ["prometheus", "promtool"].iter().find(|name| !is_there(name)) {
        None => Some(()),
        Some(name) => missing("prometheus", &format!("{name} is not installed (Debian's package prometheus)")),
    }
}

/// Requires the programs of the dashboards in the book: curl, jq and python3.
pub(crate) fn dashboards() -> Option<()> {
    let is_there = |name: &&str| ["/usr/bin", "/bin"].iter().any(|directory| Path::new(directory).join(name).exists());
    match ["curl", "jq", "python3"].iter().find(|name| !is_there(name)) {
        None => Some(()),
        Some(name) => missing("dashboards", &format!("{name} is not installed")),
    }
}

/// Requires the terminal multiplexer tmux, whose screen a test can read.
#[cfg(target_os = "linux")]
pub(crate) fn tmux() -> Option<()> {
    let runs = Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success());
    if runs { Some(()) } else { missing("tmux", "tmux is not installed (Debian's package tmux)") }
}

/// Requires a container engine and the programs that pack an image.
#[cfg(target_os = "linux")]
pub(crate) fn engine() -> Option<()> {
    root("a container of root")?;
    let programs =
        ["/usr/bin/podman", "/usr/bin/conmon", "/usr/sbin/runc", "/usr/bin/python3", "/usr/bin/strip", "/usr/bin/ldd"];
    match programs.into_iter().find(|program| !Path::new(program).exists()) {
        None => Some(()),
        Some(program) => missing("container", &format!("{program} is not installed")),
    }
}

/// Requires the programs of a D-Bus session bus.
pub(crate) fn bus() -> Option<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|directory| directory.join(name).exists());
    match ["dbus-daemon", "dbus-monitor"].iter().find(|name| !is_there(name)) {
        None => Some(()),
        Some(name) => missing("systemd", &format!("{name} is not installed (Debian's package dbus)")),
    }
}

/// Requires a kernel on which a file system can be mounted whose server does not answer.
pub(crate) fn fuse() -> Option<()> {
    root("mounting a file system")?;
    let there = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    match there {
        Ok(_) => Some(()),
        Err(error) => missing("fuse", &format!("/dev/fuse cannot be opened: {error}")),
    }
}

/// Requires private network and mount namespaces, and the program that creates networks.
pub(crate) fn namespaces() -> Option<()> {
    root("making a network")?;
    if let Some(program) = ["/usr/sbin/ip", "/usr/bin/nsenter", "/usr/bin/unshare"]
        .into_iter()
        .find(|program| !Path::new(program).exists())
    {
        return missing("namespaces", &format!("{program} is not installed"));
    }
    let line = "mount --make-rprivate / && /usr/sbin/ip link add one0 type veth peer name other0 && \
        /usr/sbin/ip tuntap add tun0 mode tun";
    let made = std::process::Command::new("/usr/bin/unshare").args(["--net", "--mount", "sh", "-c", line]).output();
    match made {
        Ok(output) if output.status.success() => Some(()),
        Ok(output) => missing(
            "namespaces",
            &format!("no network can be made: {}", String::from_utf8_lossy(&output.stderr).trim()),
        ),
        Err(error) => missing("namespaces", &format!("no network can be made: {error}")),
    }
}

/// Requires a kernel on which a far machine can be booted ([`super::machine`]).
pub(crate) fn machines() -> Option<()> {
    root("booting a machine in namespaces")?;
    let line = "echo far > /proc/sys/kernel/hostname && mount --bind /etc/hosts /etc/passwd";
    let mut unshare = Command::new("/usr/bin/unshare");
    unshare.args(["--pid", "--mount", "--uts", "--fork", "--mount-proc", "--propagation", "private", "sh", "-c", line]);
    match unshare.output() {
        Ok(output) if output.status.success() => Some(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            missing("namespaces", &format!("no machine can be booted in namespaces: {said}"))
        }
        Err(error) => missing("namespaces", &format!("no machine can be booted in namespaces: {error}")),
    }
}

/// Requires Slurm's programs and the rights to run them.
pub(crate) fn slurm() -> Option<()> {
    machines()?;
    let programs = ["/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/srun", "/usr/sbin/munged"];
    match programs.into_iter().find(|program| !Path::new(program).exists()) {
        None => Some(()),
        Some(program) => missing("slurm", &format!("{program} is not installed")),
    }
}

/// Requires version 1 of cgroups, with which Slurm can track the processes of a job.
pub(crate) fn cgroups() -> Option<()> {
    let is_there = |name: &&str| Path::new("/sys/fs/cgroup").join(name).join("cgroup.procs").exists();
    match ["freezer", "memory"].iter().find(|name| !is_there(name)) {
        None => Some(()),
        Some(name) => missing("cgroups", &format!("this machine has no controller {name} of version 1")),
    }
}

/// Requires podman, a runtime and a static busybox for an image.
pub(crate) fn podman() -> Option<()> {
    root("a container of root")?;
    let programs = ["/usr/bin/podman", "/usr/bin/conmon", "/usr/sbin/runc", "/bin/busybox"];
    match programs.into_iter().find(|program| !Path::new(program).exists()) {
        None => Some(()),
        Some(program) => missing("container", &format!("{program} is not installed")),
    }
}

/// Requires a kernel with all features of the isolation level `guard`.
#[cfg(target_os = "linux")]
pub(crate) fn guard() -> Option<()> {
    let said = Command::new(paths::keeper()).arg("isolation").output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match said.as_deref() {
        Ok(r#"{"missing":[]}"#) => Some(()),
        Ok(survey) => missing("namespaces", &format!("this kernel lacks a part of the isolation: {survey}")),
        Err(error) => missing("namespaces", &format!("the keeper does not tell what this kernel can do: {error}")),
    }
}

/// Requires a systemd that can be booted in a lab (tests/systemd/lab).
pub(crate) fn systemd() -> Option<()> {
    if !nix::unistd::geteuid().is_root() {
        return missing("systemd", "booting a systemd in namespaces needs root");
    }
    let overlay = std::fs::read_to_string("/proc/filesystems").unwrap_or_default().contains("overlay");
    let programs = ["/lib/systemd/systemd", "/usr/bin/dbus-daemon", "/usr/bin/unshare", "/usr/bin/setpriv"];
    if let Some(program) = programs.into_iter().find(|program| !Path::new(program).exists()) {
        return missing("systemd", &format!("{program} is not installed"));
    }
    if !overlay {
        return missing("systemd", "this kernel has no overlayfs");
    }
    Some(())
}
