//! The plugin `my-plugin`: puts a toolchain into a session's environment.
//!
//! Each call runs in a new instance: a `static` does not keep its value between calls.

use std::time::Duration;

use agentd_plugin_sdk::{Capability, Change, Description, Failure, Provider, Request, export_provider, file, log};

struct Plugin;

/// The settings, validated.
struct Settings<'a> {
    root: &'a str,
    bin: Vec<&'a str>,
    version_file: &'a str,
    drop: Vec<&'a str>,
    hours: u64,
}

impl<'a> Settings<'a> {
    fn of(request: &'a Request) -> Result<Self, Failure> {
        let list = |key: &str| request.settings(key).map(|values| values.iter().map(String::as_str).collect());
        let one = |key: &str| match request.settings(key) {
            None => Ok(None),
            Some([value]) => Ok(Some(value.as_str())),
            Some(values) => Err(Failure::configuration(key, format!("must be one value, and has {}", values.len()))),
        };
        let root = request.required_setting("root")?;
        if !root.starts_with('/') {
            return Err(Failure::configuration("root", format!("must be an absolute path, and is \"{root}\"")));
        }
        let bin: Vec<&str> = list("bin").unwrap_or_else(|| vec!["bin"]);
        if let Some(wrong) = bin.iter().find(|directory| directory.is_empty() || directory.contains(':')) {
            let message = format!("must be names of directories without a colon, and has \"{wrong}\"");
            return Err(Failure::configuration("bin", message));
        }
        let hours = one("hours")?.unwrap_or("24");
        let wrong =
            || Failure::configuration("hours", format!("must be a whole number from 1 to 8760, and is \"{hours}\""));
        let digits = hours.bytes().all(|byte| byte.is_ascii_digit());
        let hours = hours.parse().ok().filter(|hours| digits && (1..=8760).contains(hours)).ok_or_else(wrong)?;
        let version_file = one("version-file")?.unwrap_or("VERSION");
        Ok(Self { root, bin, version_file, drop: list("drop").unwrap_or_default(), hours })
    }
}

impl Provider for Plugin {
    fn describe() -> Description {
        let summary = "puts a toolchain in front of PATH and says which version it is";
        Description::new("my-plugin", env!("CARGO_PKG_VERSION"), summary)
            .required_setting("root", "the toolchain's directory, absolute")
            .setting("bin", "directories below it that go in front of PATH, in this order; default: bin")
            .setting("version-file", "the file below it that has its version; default: VERSION")
            .setting("drop", "variables that are taken away, since they would disturb it; default: none")
            .setting("hours", "after how many hours its version is looked at again; default: 24")
            .wants(Capability::File, ["/**"], "to read the toolchain's version")
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        let Settings { root, bin, version_file, drop, hours } = Settings::of(request)?;
        let path = format!("{root}/{version_file}");
        // If the file cannot be read, the host's failure becomes this call's failure.
        let content = file::read(&path)?;
        let version = content.trim_ascii();
        if version.is_empty() {
            return Err(Failure::failed(format!("there is no version in \"{path}\"")));
        }
        log::info(&format!("the toolchain is at {root}"));

        let reason = format!("it would disturb the toolchain at {root}");
        let there = |name: &&&str| request.variable(name).is_some();
        let mut changes: Vec<Change> = drop.iter().filter(there).map(|name| Change::unset(*name, &reason)).collect();
        // The entry that is prepended last comes first in PATH.
        changes.extend(bin.iter().rev().map(|directory| Change::prepend("PATH", format!("{root}/{directory}"))));
        changes.push(Change::set("TOOLCHAIN_ROOT", root));
        // Values are bytes in any encoding.
        let time = Duration::from_hours(hours);
        changes.push(Change::set("TOOLCHAIN_VERSION", version).from_file(&path).valid_for(time));
        let content = [b"root = ", root.as_bytes(), b"\nversion = ", version, b"\n"].concat();
        changes.push(Change::file("TOOLCHAIN_CONFIG", "toolchain.conf", content).from_file(&path).valid_for(time));
        Ok(changes)
    }
}

export_provider!(Plugin);

/// Native tests with the SDK's fake host. The cases in tests/*.toml test the component in agentd's sandbox.
#[cfg(test)]
mod tests {
    use agentd_plugin_sdk::{Effect, fake};

    use super::*;

    fn host() -> fake::Host {
        fake::Host::new().setting("root", ["/opt/t"]).file("/opt/t/VERSION", "1\n")
    }

    fn effects(host: &fake::Host) -> Vec<Effect> {
        host.provide::<Plugin>().unwrap().into_iter().map(|change| change.effect).collect()
    }

    #[test]
    fn the_first_directory_is_the_first_on_the_path() {
        let effects = effects(&host().setting("bin", ["a", "b"]));
        let entries: Vec<&[u8]> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Prepend(entry) => Some(&entry.entry[..]),
                _ => None,
            })
            .collect();
        assert_eq!(entries, [b"/opt/t/b", b"/opt/t/a"]);
    }

    #[test]
    fn a_version_need_not_be_text() {
        let changes = host().file("/opt/t/VERSION", b" caf\xe9 \n".to_vec()).provide::<Plugin>().unwrap();
        let time = Duration::from_hours(24);
        let expected =
            Change::set("TOOLCHAIN_VERSION", b"caf\xe9".to_vec()).from_file("/opt/t/VERSION").valid_for(time);
        assert!(changes.contains(&expected), "{changes:?}");
    }

    #[test]
    fn only_what_is_there_is_dropped() {
        let host = host().variable("LD_PRELOAD", "x").setting("drop", ["LD_PRELOAD", "LD_LIBRARY_PATH"]);
        let changes = host.provide::<Plugin>().unwrap();
        let dropped: Vec<&str> =
            changes.iter().filter(|change| matches!(change.effect, Effect::Unset(_))).map(Change::name).collect();
        assert_eq!(dropped, ["LD_PRELOAD"]);
    }

    #[test]
    fn a_setting_that_is_wrong_is_named() {
        let wrong: [(&str, &[&str]); 4] =
            [("root", &["t"]), ("bin", &["a:b"]), ("hours", &["0"]), ("version-file", &["a", "b"])];
        for (key, values) in wrong {
            let failure = host().setting(key, values.iter().copied()).provide::<Plugin>().unwrap_err();
            assert!(matches!(&failure, Failure::Configuration(error) if error.key == key), "{failure:?}");
        }
    }

    #[test]
    fn a_toolchain_that_is_not_there_is_a_failure() {
        let failure = fake::Host::new().setting("root", ["/opt/t"]).nothing_at("/opt/**").provide::<Plugin>();
        assert!(matches!(failure, Err(Failure::NotFound(_))), "{failure:?}");
    }
}
