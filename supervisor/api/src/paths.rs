//! The location of the control socket. The daemon and its clients share this rule.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Returns the directory for sockets and other runtime files. The first of these applies:
///
/// 1. systemd's `RUNTIME_DIRECTORY` (systemd.exec(5))
/// 2. `agentd` in `XDG_RUNTIME_DIR` (XDG Base Directory Specification)
/// 3. on macOS, `~/.local/state/agentd/run`
/// 4. `/run/user/UID/agentd`, if `exists` finds `/run/user/UID`
/// 5. `/tmp/agentd-UID`
///
/// macOS has neither variable nor `/run/user`. launchd expands no variables, so the socket's path must be known
/// beforehand. macOS also removes files in `/tmp` and `TMPDIR` that are unused for three days, but sockets must
/// live longer.
pub fn runtime_directory(
    variable: impl Fn(&str) -> Option<OsString>,
    uid: u32,
    exists: impl Fn(&Path) -> bool,
) -> PathBuf {
    find(variable, uid, exists, cfg!(target_os = "macos"))
}

/// Finds the runtime directory, for macOS if `macos`.
fn find(variable: impl Fn(&str) -> Option<OsString>, uid: u32, exists: impl Fn(&Path) -> bool, macos: bool) -> PathBuf {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(path) = absolute("RUNTIME_DIRECTORY") {
        return path;
    }
    if let Some(path) = absolute("XDG_RUNTIME_DIR") {
        return path.join("agentd");
    }
    if let Some(home) = absolute("HOME").filter(|_| macos) {
        return home.join(".local/state/agentd/run");
    }
    let run_user = PathBuf::from(format!("/run/user/{uid}"));
    if exists(&run_user) { run_user.join("agentd") } else { PathBuf::from(format!("/tmp/agentd-{uid}")) }
}

/// Name of the control socket in the runtime directory.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Parent of the runtime directories of the daemons that the administrator runs for users
/// (units/systemd/system). Each directory has the user's name.
pub const OF_ADMINISTRATOR: &str = "/run/agentd";

/// Returns the control socket that a client connects to.
///
/// If `exists` finds a daemon's socket that the administrator runs for `user`, it is that socket. Otherwise it
/// is the socket in the [`runtime_directory`].
pub fn client_socket(
    variable: impl Fn(&str) -> Option<OsString>,
    uid: u32,
    user: Option<&str>,
    exists: impl Fn(&Path) -> bool,
) -> PathBuf {
    let of_administrator = user.map(|user| Path::new(OF_ADMINISTRATOR).join(user).join(CONTROL_SOCKET));
    match of_administrator.filter(|socket| variable("RUNTIME_DIRECTORY").is_none() && exists(socket)) {
        Some(socket) => socket,
        None => runtime_directory(variable, uid, exists).join(CONTROL_SOCKET),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)], run_user: bool, macos: bool) -> String {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        find(variable, 1000, |_| run_user, macos).display().to_string()
    }

    #[test]
    fn the_first_that_is_there_wins_and_a_relative_one_is_not_there() {
        let home = ("HOME", "/home/a");
        assert_eq!(with(&[("RUNTIME_DIRECTORY", "/r"), ("XDG_RUNTIME_DIR", "/x"), home], true, false), "/r");
        assert_eq!(with(&[("XDG_RUNTIME_DIR", "/x"), home], true, false), "/x/agentd");
        assert_eq!(with(&[("XDG_RUNTIME_DIR", "x"), home], true, false), "/run/user/1000/agentd");
        assert_eq!(with(&[home], false, false), "/tmp/agentd-1000");
    }

    #[test]
    fn on_macos_it_is_below_the_home_directory() {
        let home = ("HOME", "/Users/a");
        assert_eq!(with(&[home], false, true), "/Users/a/.local/state/agentd/run");
        assert_eq!(with(&[home, ("XDG_RUNTIME_DIR", "/x")], false, true), "/x/agentd");
        assert_eq!(with(&[], false, true), "/tmp/agentd-1000");
    }

    #[test]
    fn a_keepers_socket_fits_into_a_path_of_macos() {
        // sun_path has 104 bytes with the NUL. An id has at most 32 bytes; agentd's own ids have 12. People's
        // names are shorter than this.
        let home = format!("/Users/{}", "n".repeat(20));
        let socket = format!("{}/{}/keeper.sock", with(&[("HOME", &home)], false, true), "i".repeat(32));
        assert!(socket.len() <= 103, "{} bytes", socket.len());
    }

    #[test]
    fn a_client_prefers_the_daemon_that_the_administrator_runs_unless_a_service_told_it_where() {
        let find = |variable: &'static str, user, there: &'static str| {
            let variable = move |name: &str| (name == variable).then(|| OsString::from("/x"));
            client_socket(variable, 1000, user, |path| path == Path::new(there)).display().to_string()
        };
        let socket = "/run/agentd/kim/control.sock";
        assert_eq!(find("XDG_RUNTIME_DIR", Some("kim"), socket), socket);
        assert_eq!(find("XDG_RUNTIME_DIR", Some("lee"), socket), "/x/agentd/control.sock");
        assert_eq!(find("XDG_RUNTIME_DIR", None, socket), "/x/agentd/control.sock");
        assert_eq!(find("RUNTIME_DIRECTORY", Some("kim"), socket), "/x/control.sock");
    }
}
