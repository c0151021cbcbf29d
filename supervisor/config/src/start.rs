//! The settings that the daemon reads once, at its start.

use super::{Config, Manager};

/// Settings that stay in force as long as the daemon runs. A change of their keys takes effect at the next start.
///
/// The configuration's own fields of these settings are private to this crate, so no other code can read a value
/// that is not in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartSettings {
    pub manager: Manager,
    /// Maximum number of connections to the control socket, and of connections over TCP.
    pub connections: usize,
    /// Maximum number of connections for short requests from one caller.
    pub connections_per_caller: usize,
    /// Maximum number of streams of one caller.
    pub streams_per_caller: usize,
}

impl StartSettings {
    /// The dotted keys of the settings.
    pub(super) const KEYS: [&str; 4] =
        ["launch.manager", "limits.connections", "limits.connections_per_caller", "limits.streams_per_caller"];

    /// Takes the settings out of the configuration of the start.
    pub fn of(Config { limits, launch, .. }: &Config) -> Self {
        Self {
            manager: launch.manager,
            connections: limits.connections,
            connections_per_caller: limits.connections_per_caller,
            streams_per_caller: limits.streams_per_caller,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_sets_its_setting_and_no_other() {
        let settings = |text: &str| StartSettings::of(&toml::from_str(text).unwrap());
        let former = settings("");
        let all = "[launch]\nmanager = \"detached\"\n\
                   [limits]\nconnections = 3\nconnections_per_caller = 2\nstreams_per_caller = 1\n";
        let expected = StartSettings {
            manager: Manager::Detached,
            connections: 3,
            connections_per_caller: 2,
            streams_per_caller: 1,
        };
        assert_eq!(settings(all), expected);
        for key in StartSettings::KEYS {
            let (table, name) = key.split_once('.').unwrap();
            let value = if table == "launch" { "\"systemd\"" } else { "5" };
            assert_ne!(settings(&format!("[{table}]\n{name} = {value}\n")), former, "{key}");
        }
    }
}
