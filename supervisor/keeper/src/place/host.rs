//! Facts about the machine and the user of this process, for the other side of the line.

use std::path::PathBuf;

use agentd_api::event::PlaceHost;
use nix::sys::utsname::uname;
use nix::unistd::{Uid, User, geteuid};

/// Returns the facts. A user database that is not reachable leaves the variables `HOME`, `SHELL` and `USER`: a program
/// that is linked statically sees only the local one.
pub(crate) fn facts() -> PlaceHost {
    let (uid, names) = (geteuid(), uname().ok());
    let user = User::from_uid(uid).ok().flatten();
    let name = |of: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr| {
        names.as_ref().map(|names| of(names).to_string_lossy().into_owned()).unwrap_or_default()
    };
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    // JSON has no other paths.
    let is_text = |path: &PathBuf| path.to_str().is_some_and(|path| !path.is_empty());
    let or_variable =
        |known: Option<PathBuf>, name: &str| known.or_else(|| variable(name).map(PathBuf::from)).filter(is_text);
    PlaceHost {
        host: name(nix::sys::utsname::UtsName::nodename),
        user: user_name(uid, user.as_ref()),
        uid: uid.as_raw(),
        home: or_variable(user.as_ref().map(|user| user.dir.clone()), "HOME"),
        shell: or_variable(user.map(|user| user.shell), "SHELL"),
        architecture: name(nix::sys::utsname::UtsName::machine),
        system: name(nix::sys::utsname::UtsName::sysname),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        agent_pid: None,
    }
}

fn user_name(uid: Uid, user: Option<&User>) -> String {
    match user {
        Some(user) => user.name.clone(),
        None => std::env::var("USER").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| uid.to_string()),
    }
}
