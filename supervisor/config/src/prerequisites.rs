//! `[prerequisites.NAME]`: conditions of the machine that sessions need, and the action of a launch if one is not
//! met.
//!
//! This module does not check whether a plugin exists and knows its settings. That happens when the plugin is loaded.

use std::collections::BTreeMap;
use std::time::Duration;

use agentd_api::prerequisite::{Moment, OnFailure, RequiredBy};
use agentd_api::quantity::Time;
use agentd_plugin_host::World;
use serde::{Deserialize, Deserializer};

use super::plugins::of_world;
use super::{Flaws, Plugin, flaw, seconds};

/// A prerequisite of sessions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Prerequisite {
    /// Plugin that checks the prerequisite: a built-in one or a `[plugins.NAME]`. Required.
    pub plugin: String,
    /// Settings of this check. They override the plugin's own settings key by key. Default: none.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Settings"))]
    #[serde(default)]
    pub settings: toml::Table,
    /// Sessions that need the prerequisite: `"all"`, or a table with `agents`, `directories` and `tags`. Default:
    /// only sessions whose request names the prerequisite.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::RequiredBy"))]
    #[serde(default, deserialize_with = "all_or_some")]
    pub required_by: RequiredBy,
    /// Action of a launch if the prerequisite is not met: `fail` or `warn`. Default: `fail`.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// When the prerequisite is checked: `before-environment` or `after-environment`. Default: the plugin's own
    /// choice, otherwise `before-environment`.
    #[serde(default)]
    pub moment: Option<Moment>,
    /// Time limit of one check, at most 60 s. Default: 5 s. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    #[serde(default = "five_seconds")]
    pub time: Time,
    /// Time for which a result is used again, if the check does not report one. Default: 5 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    #[serde(default = "five_seconds")]
    pub cache: Time,
    /// Interval of the checks while a session that needs the prerequisite runs, at least 100 ms. Default: 60 s. 0
    /// means never.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    #[serde(default = "a_minute")]
    pub interval: Time,
    /// Text that tells the user how to meet the prerequisite. Default: the remedy that the check reports.
    #[serde(default)]
    pub remedy: Option<String>,
}

/// Maximum time limit of one check.
const MAX_TIME: Duration = Duration::from_mins(1);
/// Minimum interval between checks. A shorter interval would load the machine without a benefit.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn five_seconds() -> Time {
    seconds(5)
}

fn a_minute() -> Time {
    seconds(60)
}

/// Parses `"all"` or a table of agents, directories and tags.
fn all_or_some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RequiredBy, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "either \"all\", or a table of agents, directories and tags")]
    enum Written {
        All(All),
        Some(RequiredBy),
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum All {
        All,
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::All(All::All) => RequiredBy { all: true, ..RequiredBy::default() },
        Written::Some(some) => some,
    })
}

/// Returns the mistakes of the prerequisites that show without reading a plugin's file.
pub(super) fn check(prerequisites: &BTreeMap<String, Prerequisite>, plugins: &BTreeMap<String, Plugin>) -> Flaws {
    let each = prerequisites.iter().filter_map(|(name, prerequisite)| {
        let (key, message) = check_one(name, prerequisite, plugins).err()?;
        Some(flaw(&["prerequisites", name, key], message))
    });
    each.collect()
}

/// Checks one prerequisite. An error has the key below the prerequisite and the message.
fn check_one(
    name: &str,
    prerequisite: &Prerequisite,
    plugins: &BTreeMap<String, Plugin>,
) -> Result<(), (&'static str, String)> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err((
            "plugin",
            format!("prerequisites.{name:?} is not a valid prerequisite name; use 1 to 64 of a-z, 0-9 and -"),
        ));
    }
    let Prerequisite { plugin, moment, time, interval, .. } = prerequisite;
    let built_in = agentd_plugin_host::builtin().iter().find(|builtin| builtin.name == plugin);
    if built_in.is_some_and(|builtin| builtin.world != World::Prerequisite) {
        return Err((
            "plugin",
            format!(
                "prerequisites.{name} names the plugin {plugin:?}, which is a provider and cannot check; \
                 plugins of the world `prerequisite` are {}, and your own",
                of_world(World::Prerequisite).collect::<Vec<_>>().join(", ")
            ),
        ));
    }
    if built_in.is_none() && !plugins.contains_key(plugin) {
        return Err((
            "plugin",
            format!("prerequisites.{name} names the plugin {plugin:?}, but there is no [plugins.{plugin}]"),
        ));
    }
    if *moment == Some(Moment::Unknown) {
        return Err((
            "moment",
            format!("prerequisites.{name}.moment is neither \"before-environment\" nor \"after-environment\""),
        ));
    }
    if time.0.is_zero() || time.0 > MAX_TIME {
        return Err(("time", format!("prerequisites.{name}.time is not between 0 s and {} s", MAX_TIME.as_secs())));
    }
    if !interval.0.is_zero() && interval.0 < MIN_INTERVAL {
        return Err((
            "interval",
            format!("prerequisites.{name}.interval is shorter than {} ms; 0 means never", MIN_INTERVAL.as_millis()),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::assemble::of_texts;
    use super::*;

    fn of(text: &str) -> Result<Prerequisite, String> {
        let text = format!("[plugins.lab]\nsha256 = \"{}\"\n[prerequisites.lab]\n{text}", "0".repeat(64));
        let loaded = of_texts(&[], &[&text])?;
        Ok(loaded.config.prerequisites["lab"].clone())
    }

    #[test]
    fn what_is_left_out_has_a_default_and_required_by_is_all_or_some() {
        let lab = of("plugin = \"lab\"").unwrap();
        assert_eq!((lab.required_by, lab.on_failure, lab.moment), (RequiredBy::default(), OnFailure::Fail, None));
        assert_eq!((lab.time, lab.cache, lab.interval), (seconds(5), seconds(5), seconds(60)));
        assert!(of("plugin = \"lab\"\nrequired_by = \"all\"").unwrap().required_by.all);
        let some = of("plugin = \"lab\"\nrequired_by = { agents = [\"claude\"], tags = [\"fpga\"] }").unwrap();
        assert_eq!((some.required_by.agents, some.required_by.tags), (vec!["claude".into()], vec!["fpga".into()]));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_its_name() {
        for (text, word) in [
            ("plugin = \"none\"", "[plugins.none]"),
            ("plugin = \"snapshot\"", "plugins of the world `prerequisite` are"),
            ("plugin = \"lab\"\ntime = \"0s\"", "prerequisites.lab.time"),
            ("plugin = \"lab\"\ntime = \"61s\"", "60 s"),
            ("plugin = \"lab\"\ninterval = \"1ms\"", "prerequisites.lab.interval"),
            ("plugin = \"lab\"\nmoment = \"never\"", "after-environment"),
            ("plugin = \"lab\"\nrequired_by = \"some\"", "either \"all\""),
            ("plugin = \"lab\"\nrequired_by = { agent = [] }", "required_by"),
            ("plugin = \"lab\"\nremedi = \"x\"", "remedi"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(word), "{word} is not in {error}");
        }
    }
}
