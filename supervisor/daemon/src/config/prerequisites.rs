//! `[prerequisites.NAME]`: what sessions need of the world, who needs it, and what becomes of a launch without it.
//!
//! Whether a plugin is there and knows its settings is seen when it is loaded, not here.

use std::collections::BTreeMap;
use std::time::Duration;

use agentd_api::prerequisite::{Moment, OnFailure, RequiredBy};
use agentd_api::quantity::Time;
use agentd_plugins::World;
use serde::{Deserialize, Deserializer};

use super::plugins::of_world;
use super::{Flaws, Plugin, flaw, seconds};

/// One prerequisite.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prerequisite {
    /// The plugin that checks it: a built-in one, or a `[plugins.NAME]`.
    pub(crate) plugin: String,
    /// Of this check; they go before the plugin's own.
    #[serde(default)]
    pub(crate) settings: toml::Table,
    /// Which sessions need it; without it, those whose spec names it.
    #[serde(default, deserialize_with = "all_or_some")]
    pub(crate) required_by: RequiredBy,
    #[serde(default)]
    pub(crate) on_failure: OnFailure,
    /// When it is checked; without it, as the plugin says, and before the environment where that says nothing.
    #[serde(default)]
    pub(crate) moment: Option<Moment>,
    /// For one check.
    #[serde(default = "five_seconds")]
    pub(crate) time: Time,
    /// How long what was found is used again, where the check does not say.
    #[serde(default = "five_seconds")]
    pub(crate) cache: Time,
    /// How often it is looked at while a session that needs it runs; 0 is never.
    #[serde(default = "a_minute")]
    pub(crate) interval: Time,
    /// What the user can do about it, in the place of the check's own words.
    #[serde(default)]
    pub(crate) remedy: Option<String>,
}

/// The longest that one check may take.
const LONGEST: Duration = Duration::from_mins(1);
/// The shortest interval: what is looked at more often is load, and not watching.
const OFTEN: Duration = Duration::from_millis(100);

fn five_seconds() -> Time {
    seconds(5)
}

fn a_minute() -> Time {
    seconds(60)
}

/// `"all"`, or a table that says who.
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

/// What can be said against them without looking at a file.
pub(super) fn check(prerequisites: &BTreeMap<String, Prerequisite>, plugins: &BTreeMap<String, Plugin>) -> Flaws {
    let each = prerequisites.iter().filter_map(|(name, prerequisite)| {
        let (key, message) = check_one(name, prerequisite, plugins).err()?;
        Some(flaw(&["prerequisites", name, key], message))
    });
    each.collect()
}

/// The key below the prerequisite, and what is wrong there.
fn check_one(
    name: &str,
    prerequisite: &Prerequisite,
    plugins: &BTreeMap<String, Plugin>,
) -> Result<(), (&'static str, String)> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err((
            "plugin",
            format!("prerequisites.{name:?} is no name of a prerequisite; a name is of a-z, 0-9 and -, at most 64"),
        ));
    }
    let Prerequisite { plugin, moment, time, interval, .. } = prerequisite;
    let built_in = agentd_plugins::builtin().iter().find(|builtin| builtin.name == plugin);
    if built_in.is_some_and(|builtin| builtin.world != World::Prerequisite) {
        return Err((
            "plugin",
            format!(
                "prerequisites.{name} names the plugin {plugin:?}, which is a provider of environments and checks nothing; of the world \
             `prerequisite` there are {}, and your own",
                of_world(World::Prerequisite).collect::<Vec<_>>().join(", ")
            ),
        ));
    }
    if built_in.is_none() && !plugins.contains_key(plugin) {
        return Err((
            "plugin",
            format!("prerequisites.{name} names the plugin {plugin:?}, and there is no [plugins.{plugin}]"),
        ));
    }
    if *moment == Some(Moment::Unknown) {
        return Err((
            "moment",
            format!("prerequisites.{name}.moment is neither \"before-environment\" nor \"after-environment\""),
        ));
    }
    if time.0.is_zero() || time.0 > LONGEST {
        return Err(("time", format!("prerequisites.{name}.time is not between 0 s and {} s", LONGEST.as_secs())));
    }
    if !interval.0.is_zero() && interval.0 < OFTEN {
        return Err((
            "interval",
            format!("prerequisites.{name}.interval is shorter than {} ms; 0 is never", OFTEN.as_millis()),
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
            ("plugin = \"snapshot\"", "the world `prerequisite` there are"),
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
