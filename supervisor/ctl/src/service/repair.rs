//! Decides the commands that repair a service whose units exist and whose daemon does not answer.
//!
//! This module runs nothing: the caller runs the commands or shows them.

use agentd_api::doctor::{Command, Finding};

use super::host::line;
use super::manager::Service;
use super::survey::{UnitState, Units};

/// Returns the commands after which the socket unit listens, in order. `Err` has commands that only the
/// service's owner may decide to run.
pub(crate) fn listens(
    service: &Service,
    socket: &UnitState,
    unit: &UnitState,
) -> Result<Vec<Vec<String>>, Vec<Vec<String>>> {
    let (Some(socket_unit), Some(service_unit)) = (service.socket_unit(), service.service_unit()) else {
        return Ok(Vec::new());
    };
    let names = [(&socket_unit, socket), (&service_unit, unit)];
    let of = |wanted: &str| -> Vec<&str> {
        names.iter().filter(|(_, state)| state.active == wanted).map(|(name, _)| name.as_str()).collect()
    };
    let call = |verb: &str, units: &[&str]| service.systemctl(&[&[verb], units].concat());
    let masked = of("masked");
    if !masked.is_empty() {
        return Err(vec![call("unmask", &masked), call("start", &[&socket_unit])]);
    }
    let mut commands = Vec::new();
    let failed = of("failed");
    if !failed.is_empty() {
        commands.push(call("reset-failed", &failed));
    }
    if socket.is_active() {
        // The unit listens, but its file is gone. The service stops with it, and the next request starts the
        // service.
        commands.push(call("restart", &[&socket_unit]));
        return Ok(commands);
    }
    // systemd refuses to listen for a running service.
    if unit.is_up() {
        commands.push(call("stop", &[&service_unit]));
    }
    commands.push(call("start", &[&socket_unit]));
    Ok(commands)
}

/// Returns the commands that start the service, which then ends a stray daemon and takes over its sessions.
pub(crate) fn starts(units: &Units) -> Vec<Vec<String>> {
    let (service, names) = (&units.service, [units.service.socket_unit(), units.service.service_unit()]);
    let [Some(socket_unit), Some(service_unit)] = &names else { return Vec::new() };
    let failed: Vec<&str> = [(socket_unit, &units.socket), (service_unit, &units.unit)]
        .into_iter()
        .filter(|(_, state)| state.active == "failed")
        .map(|(name, _)| name.as_str())
        .collect();
    let reset = (!failed.is_empty()).then(|| service.systemctl(&[&["reset-failed"], failed.as_slice()].concat()));
    reset.into_iter().chain([service.systemctl(&["start", service_unit])]).collect()
}

/// Adds commands to a finding as its remedy, marked for root if the units belong to the administrator.
pub(crate) fn by(finding: Finding, service: &Service, commands: &[Vec<String>]) -> Finding {
    let root = matches!(service, Service::System { .. });
    commands
        .iter()
        .map(|command| line(command))
        .fold(finding, |finding, line| finding.run(if root { Command::of_root(line) } else { line.into() }))
}

/// Joins commands into one line for a shell.
pub(crate) fn shell(commands: &[Vec<String>]) -> String {
    commands.iter().map(|command| line(command)).collect::<Vec<_>>().join(" && ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(active: &str) -> UnitState {
        UnitState { active: active.to_owned(), ..UnitState::default() }
    }

    #[test]
    fn each_state_of_the_units_has_the_commands_that_bring_the_socket_back() {
        let kim = Service::System { user: Some("kim".into()) };
        for (service, socket, unit, expected) in [
            (&Service::User, "inactive", "inactive", Ok("systemctl --user start agentd.socket")),
            (
                &Service::User,
                "failed",
                "failed",
                Ok("systemctl --user reset-failed agentd.socket agentd.service && systemctl --user start \
                         agentd.socket"),
            ),
            (
                &Service::User,
                "inactive",
                "active",
                Ok("systemctl --user stop agentd.service && systemctl --user start agentd.socket"),
            ),
            (&Service::User, "active", "active", Ok("systemctl --user restart agentd.socket")),
            (
                &Service::User,
                "masked",
                "inactive",
                Err("systemctl --user unmask agentd.socket && systemctl --user start agentd.socket"),
            ),
            (
                &kim,
                "inactive",
                "failed",
                Ok("systemctl reset-failed agentd@kim.service && systemctl start agentd@kim.socket"),
            ),
        ] {
            let found = listens(service, &state(socket), &state(unit));
            let found = found.map(|it| shell(&it)).map_err(|it| shell(&it));
            assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned), "{socket}, {unit}");
        }
    }
}
