//! Name, description and resource limits of a session's unit. Pure.

use agentd_api::SessionId;
use agentd_api::session::{CpuWeight, SessionSpec};

use agentd_config::Config;

/// Properties of a session's unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Description in one line, for `systemctl status`.
    pub description: String,
    /// Memory limit in bytes.
    pub memory: Option<u64>,
    pub tasks: Option<u64>,
    pub cpu_weight: Option<CpuWeight>,
}

/// Maximum number of characters of a part of the description. A path may have 4000 characters.
const LONGEST: usize = 120;

impl Unit {
    /// Builds the properties. The session's own limits override the configured ones.
    pub fn of(id: &SessionId, spec: &SessionSpec, config: &Config) -> Self {
        let name = spec.name.as_ref().map_or(id.as_str(), agentd_api::SessionName::as_str);
        let agent = match (&spec.command, &spec.agent) {
            (Some(command), _) => command.first().map_or("", |program| program.rsplit('/').next().unwrap_or(program)),
            (None, Some(agent)) => agent.as_str(),
            (None, None) => config.default_agent.as_str(),
        };
        let directory = spec.directory.to_string_lossy();
        Self {
            description: format!("agentd: {name}, {} in {}", line(agent), line(&directory)),
            memory: spec.limits.memory.or(config.limits.memory),
            tasks: spec.limits.tasks.or(config.limits.tasks),
            cpu_weight: spec.limits.cpu_weight.or(config.limits.cpu_weight),
        }
    }
}

/// Cleans a text for one line, since systemd writes it to a file of lines and terminals show it. A long text keeps
/// its end, the more telling part of a path.
fn line(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let length = text.chars().count();
    if length <= LONGEST {
        return text.chars().map(clean).collect();
    }
    std::iter::once('…').chain(text.chars().skip(length + 1 - LONGEST).map(clean)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(change: impl FnOnce(&mut SessionSpec)) -> Unit {
        let mut spec = SessionSpec::new("/home/kim/100% sure");
        change(&mut spec);
        Unit::of(&"kmdn0eq26qgf".parse().unwrap(), &spec, &Config::default())
    }

    #[test]
    fn a_description_has_name_or_id_agent_and_directory_on_one_short_line() {
        assert_eq!(unit(|_| ()).description, "agentd: kmdn0eq26qgf, demo in /home/kim/100% sure");
        let named = unit(|spec| {
            spec.name = Some("fix-it".parse().unwrap());
            spec.command = Some(vec!["/opt/bin/claude\u{1b}[2J-acp".to_owned(), "--key=abc".to_owned()]);
            spec.directory = format!("/a\nb/{}/end", "d/".repeat(1000)).into();
        });
        let long = named.description;
        assert!(long.starts_with("agentd: fix-it, claude\u{fffd}[2J-acp in …"), "{long}");
        assert!(long.ends_with("d/d//end") && long.chars().count() < 200, "{long}");
        assert!(!long.contains("abc"), "arguments may be secrets");
        assert_eq!(
            unit(|spec| spec.directory = "/a\nb".into()).description,
            "agentd: kmdn0eq26qgf, demo in /a\u{fffd}b"
        );
    }

    #[test]
    fn the_sessions_own_limits_override_the_configured_ones() {
        let mut config = Config::default();
        config.limits.memory = Some(1 << 30);
        config.limits.cpu_weight = Some(50.try_into().unwrap());
        let mut spec = SessionSpec::new("/");
        spec.limits.memory = Some(1 << 20);
        let unit = Unit::of(&"kmdn0eq26qgf".parse().unwrap(), &spec, &config);
        assert_eq!((unit.memory, unit.tasks, unit.cpu_weight.map(u16::from)), (Some(1 << 20), None, Some(50)));
    }
}
