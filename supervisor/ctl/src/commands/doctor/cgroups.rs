//! Checks whether the user's manager may limit its units. The limits of a session are those of its unit, and
//! need kernel controllers that were delegated to that manager.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use agentd_api::doctor::Check;
use agentd_api::prerequisite::Outcome;

use crate::service::host::Host;

/// Controllers that the limits of a session need: memory, tasks, and the share of the processors.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// Returns the path of the user's manager in the hierarchies.
pub(super) async fn manager(host: &Host) -> String {
    let unit = format!("user@{}.service", host.uid);
    let said = host.said(&["systemctl", "show", "--property=ControlGroup", "--value", &unit]).await;
    said.filter(|path| path.len() > 1)
        .unwrap_or_else(|| format!("/user.slice/user-{0}.slice/user@{0}.service", host.uid))
}

/// Checks the delegated controllers. `tree` is the mount point of the hierarchies, `manager` the path of the
/// user's manager in them.
pub(super) fn check(tree: &Path, manager: &str, uid: u32) -> Check {
    let unified = tree.join("cgroup.controllers").exists();
    let (layout, missing) = if unified {
        let given = std::fs::read_to_string(tree.join(manager).join("cgroup.controllers"));
        let Ok(given) = given else {
            return Check::new("cgroups", Outcome::Unknown, format!("there is no cgroup {manager}"))
                .remedy("log in once, or loginctl enable-linger, so that your manager runs");
        };
        let given: Vec<&str> = given.split_whitespace().collect();
        ("unified", CONTROLLERS.into_iter().filter(|name| !given.contains(name)).collect::<Vec<_>>())
    } else {
        let is_own = |name: &&str| tree.join(name).join(manager).metadata().is_ok_and(|metadata| metadata.uid() == uid);
        let layout = if tree.join("unified").exists() { "hybrid" } else { "version 1" };
        (layout, CONTROLLERS.into_iter().filter(|name| !is_own(name)).collect())
    };
    let check = |outcome, summary: String| Check::new("cgroups", outcome, summary).fact("hierarchy", layout);
    if missing.is_empty() {
        return check(Outcome::Pass, "limits of sessions are enforced: memory, tasks and processors".to_owned());
    }
    let remedy = if unified {
        "as root: systemctl edit user@.service, with `[Service]` and `Delegate=cpu memory pids`; then log in again"
    } else {
        "boot with systemd.unified_cgroup_hierarchy=1: the older hierarchies are not delegated to users"
    };
    check(Outcome::Warn, format!("limits of sessions are not enforced for lack of: {}", missing.join(", ")))
        .remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGER: &str = "user.slice/user-1000.slice/user@1000.service";

    #[test]
    fn controllers_that_were_not_handed_to_the_manager_are_named_in_either_hierarchy() {
        let tree = tempfile::tempdir().unwrap();
        let uid = nix::unistd::getuid().as_raw();
        for name in CONTROLLERS {
            std::fs::create_dir_all(tree.path().join(name).join(MANAGER)).unwrap();
        }
        assert_eq!(check(tree.path(), MANAGER, uid).outcome, Outcome::Pass, "version 1, handed over");
        assert_eq!(check(tree.path(), MANAGER, uid + 1).outcome, Outcome::Warn, "root's");

        std::fs::write(tree.path().join("cgroup.controllers"), "cpu memory pids io").unwrap();
        assert_eq!(check(tree.path(), MANAGER, uid).outcome, Outcome::Unknown, "no manager runs");
        let manager = tree.path().join(MANAGER);
        std::fs::create_dir_all(&manager).unwrap();
        std::fs::write(manager.join("cgroup.controllers"), "memory pids\n").unwrap();
        let without = check(tree.path(), MANAGER, uid);
        assert!(without.outcome == Outcome::Warn && without.summary.ends_with("for lack of: cpu"), "{without:?}");
        std::fs::write(manager.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        assert_eq!(check(tree.path(), MANAGER, uid).outcome, Outcome::Pass);
    }
}
