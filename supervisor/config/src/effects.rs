//! The table of configuration keys and the time at which a change of each takes effect.
//!
//! A test fails if a key has no row.

use agentd_api::configuration::{Change, Effect};

use super::StartSettings;
use Effect::{NextLaunch, NextStart, Now};

/// Dotted keys; `*` is any name. A row applies to all keys below its key that have no row of their own. Keys of
/// [`StartSettings`] take effect at the next start and have no row.
const EFFECTS: &[(&str, Effect)] = &[
    // Each session records its agent when it is created.
    ("default_agent", Now),
    ("agents.*", NextLaunch),
    ("directories.*", NextLaunch),
    ("places.*", NextLaunch),
    ("environment.home", NextLaunch),
    ("environment.shell", NextLaunch),
    ("environment.sources", NextLaunch),
    ("environment.deadline", NextLaunch),
    ("environment.source", NextLaunch),
    ("environment.refresh", NextLaunch),
    ("environment.share", NextLaunch),
    ("environment.term", NextLaunch),
    ("environment.snapshot_ttl", NextLaunch),
    ("environment.snapshot_ttl_incomplete", NextLaunch),
    ("environment.snapshot_scope", NextLaunch),
    // Files are encrypted at their next write. Existing files are read with the keys that are configured now.
    ("environment.encryption.enabled", Now),
    ("environment.encryption.key", Now),
    ("environment.encryption.previous", Now),
    ("environment.providers", NextLaunch),
    ("environment.children", NextLaunch),
    ("environment.functions", NextLaunch),
    ("environment.compatibility", NextLaunch),
    ("plugins.*", NextLaunch),
    ("plugin_policy.user_plugins", Now),
    ("plugin_policy.deny", NextLaunch),
    // Prerequisites of running sessions are checked with the current declarations.
    ("prerequisites.*", Now),
    ("secrets.*", NextLaunch),
    ("limits.active_sessions", Now),
    ("limits.launches", Now),
    ("limits.queued_turns", Now),
    ("limits.body_time", Now),
    ("limits.body", Now),
    ("limits.prompt", Now),
    // The keeper receives this value when it starts the agent.
    ("limits.line", NextLaunch),
    ("limits.plugin_memory", NextLaunch),
    // A wait that has begun keeps its time limit.
    ("limits.initialize", Now),
    ("limits.open_conversation", Now),
    ("limits.turn", Now),
    ("limits.cancel", Now),
    ("limits.silence", Now),
    ("limits.idle", Now),
    ("limits.permission", Now),
    ("limits.orphan", NextLaunch),
    ("limits.memory", NextLaunch),
    ("limits.tasks", NextLaunch),
    ("limits.cpu_weight", NextLaunch),
    ("limits.output_rate", NextLaunch),
    ("control.tcp", Now),
    ("control.token", Now),
    // A request or stream ends at the reload that removes its token or its socket.
    ("control.tokens", Now),
    ("control.read_only", Now),
    // The caller is identified when it connects. Its rights are looked up at each request.
    ("control.guests", Now),
    ("control.guest_agents", Now),
    ("control.guest_sessions", Now),
    // A stream that has begun keeps its interval.
    ("control.heartbeat", Now),
    ("launch.stop_close", Now),
    ("launch.stop_term", Now),
    ("launch.replay_quiet", NextLaunch),
    ("launch.keeper_answer", Now),
    ("launch.spare_keeper", Now),
    ("launch.restart", Now),
    ("launch.restart_first", Now),
    ("launch.restart_longest", Now),
    ("launch.isolation_missing", NextLaunch),
    ("launch.isolation_bus", NextLaunch),
    ("resume.note", NextLaunch),
    ("mcp.enabled", NextLaunch),
    ("mcp.*", NextLaunch),
    // Work on a repository that has begun keeps its settings.
    ("repositories.deadline", Now),
    ("repositories.user_name", Now),
    ("repositories.user_email", Now),
    ("workspaces.at_removal", Now),
    // The template is rendered when a prompt is sent.
    ("resume.template", Now),
    // A question that is open stays open.
    ("staleness.directory", Now),
    ("staleness.repository", Now),
    ("staleness.branch", Now),
    ("staleness.head", Now),
    ("staleness.scripts", Now),
    ("staleness.environment", Now),
    ("staleness.unused", Now),
    ("staleness.unused_after", Now),
    ("staleness.agent_version", Now),
    // The keeper receives these values when it starts the agent.
    ("journal.rotate", NextLaunch),
    ("journal.durability", NextLaunch),
    ("journal.keep_session", NextLaunch),
    ("journal.keep_all", Now),
    ("journal.keep_feed", Now),
    // A span that has begun is sent to the present collector.
    ("traces.endpoint", Now),
    ("permissions", Now),
    // An event that is being delivered is delivered again with the new settings.
    ("hooks", Now),
];

/// Lookup of when a changed configuration key takes effect.
#[derive(Debug)]
pub struct Effects;

impl Effects {
    /// Returns when a change of this key takes effect. For a table, the latest time of its keys counts.
    pub fn change(key: &str) -> Change {
        let effect = Self::of(key).unwrap_or_else(|| {
            let below = rows().filter(|(row, _)| within(row, key)).map(|(_, effect)| effect);
            below.max_by_key(|effect| moment(*effect)).unwrap_or(NextStart)
        });
        Change { key: key.to_owned(), effect }
    }

    /// Returns the changed keys that take effect only when agentd is started again.
    pub fn at_the_next_start(changes: &[Change]) -> Vec<String> {
        changes.iter().filter(|change| change.effect == NextStart).map(|change| change.key.clone()).collect()
    }

    /// Returns the effect of the row for a key or for a table around the key.
    fn of(key: &str) -> Option<Effect> {
        rows().find(|(row, _)| within(key, row)).map(|(_, effect)| effect)
    }
}

/// Returns the rows of the table, after those of the settings of the start.
fn rows() -> impl Iterator<Item = (&'static str, Effect)> {
    StartSettings::KEYS.into_iter().map(|key| (key, NextStart)).chain(EFFECTS.iter().copied())
}

fn moment(effect: Effect) -> u8 {
    match effect {
        Now => 0,
        NextLaunch => 1,
        NextStart | Effect::Unknown => 2,
    }
}

/// Reports whether `key` is `around` or a key below it.
fn within(key: &str, around: &str) -> bool {
    let mut parts = key.split('.');
    around.split('.').all(|wanted| parts.next().is_some_and(|part| wanted == "*" || part == "*" || part == wanted))
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use serde::de::value::Error as Stopped;
    use serde::de::{Deserialize, Error as _};
    use serde::{Deserializer, forward_to_deserialize_any};

    use super::super::{
        Config, Control, Encryption, Environment, Journal, Launch, Limits, Policy, Repositories, Resume, Staleness,
        Traces, Workspaces,
    };
    use super::*;

    /// A deserializer that collects the field names that a struct's `Deserialize` requests.
    struct Fields<'a>(&'a mut Vec<&'static str>);

    impl<'de> Deserializer<'de> for Fields<'_> {
        type Error = Stopped;

        fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Stopped> {
            Err(Stopped::custom("no struct"))
        }

        fn deserialize_struct<V: serde::de::Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Stopped> {
            self.0.extend(fields);
            Err(Stopped::custom("the fields are all that is wanted"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn fields<T: for<'de> Deserialize<'de> + fmt::Debug>() -> Vec<&'static str> {
        let mut fields = Vec::new();
        T::deserialize(Fields(&mut fields)).unwrap_err();
        assert!(!fields.is_empty());
        fields
    }

    /// Returns every key that a file can contain. A table with names chosen by the user is one key.
    fn keys() -> Vec<String> {
        let mut keys = Vec::new();
        for top in fields::<Config>() {
            let inner = match top {
                "environment" => fields::<Environment>(),
                "limits" => fields::<Limits>(),
                "control" => fields::<Control>(),
                "launch" => fields::<Launch>(),
                "resume" => fields::<Resume>(),
                "mcp" => vec!["enabled", "*"],
                "repositories" => fields::<Repositories>(),
                "workspaces" => fields::<Workspaces>(),
                "staleness" => fields::<Staleness>(),
                "journal" => fields::<Journal>(),
                "traces" => fields::<Traces>(),
                "plugin_policy" => fields::<Policy>(),
                "agents" | "directories" | "places" | "plugins" | "prerequisites" | "secrets" => vec!["*"],
                _ => Vec::new(),
            };
            if inner.is_empty() {
                keys.push(top.to_owned());
            }
            for key in inner {
                if (top, key) == ("environment", "encryption") {
                    let of_it = fields::<Encryption>();
                    keys.extend(of_it.iter().map(|inner| format!("{top}.{key}.{inner}")));
                } else {
                    keys.push(format!("{top}.{key}"));
                }
            }
        }
        keys
    }

    #[test]
    fn every_key_says_when_a_change_takes_effect_and_nothing_else_does() {
        let (keys, mut rows) = (keys(), rows().map(|(row, _)| row.to_owned()).collect::<Vec<_>>());
        for key in &keys {
            let position = rows.iter().position(|row| row == key);
            rows.remove(position.unwrap_or_else(|| panic!("there is no row for the key {key}")));
        }
        assert_eq!(rows, Vec::<String>::new(), "rows of keys that there are not");
    }

    #[test]
    fn a_key_is_known_by_its_row_or_by_what_it_stands_in() {
        let effect = |key: &str| Effects::change(key).effect;
        assert_eq!(effect("limits.connections"), NextStart);
        assert_eq!(effect("limits.turn"), Now);
        assert_eq!(effect("limits"), NextStart);
        assert_eq!(effect("agents.claude.command"), NextLaunch);
        assert_eq!(effect("control.token.file"), Now);
        assert_eq!(effect("launch.manager"), NextStart);
        assert_eq!(effect("plugins"), NextLaunch);
    }
}
