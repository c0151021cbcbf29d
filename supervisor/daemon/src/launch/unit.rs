//! What a session's unit is called, what `systemctl status` shows of it, and what it may use. Pure.

use agentd_api::SessionId;
use agentd_api::session::{CpuWeight, SessionSpec};

use crate::config::Config;

/// What a session's keeper is started as, where that is a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    /// One line for people.
    pub(crate) description: String,
    /// Bytes.
    pub(crate) memory: Option<u64>,
    pub(crate) tasks: Option<u64>,
    pub(crate) cpu_weight: Option<CpuWeight>,
}

/// The longest part of a description that comes from outside, characters. A path may have four thousand.
const LONGEST: usize = 120;

impl Unit {
    /// The session's own limits go before the configured ones.
    pub(crate) fn of(id: &SessionId, spec: &SessionSpec, config: &Config) -> Self {
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

/// A text as a part of one line: systemd writes it into a file of lines, and people look at it on a terminal. Of a long one the end
/// is kept, which of a path tells more.
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
    fn what_the_session_says_goes_before_what_is_configured() {
        let mut config = Config::default();
        config.limits.memory = Some(1 << 30);
        config.limits.cpu_weight = Some(50.try_into().unwrap());
        let mut spec = SessionSpec::new("/");
        spec.limits.memory = Some(1 << 20);
        let unit = Unit::of(&"kmdn0eq26qgf".parse().unwrap(), &spec, &config);
        assert_eq!((unit.memory, unit.tasks, unit.cpu_weight.map(u16::from)), (Some(1 << 20), None, Some(50)));
    }
}
