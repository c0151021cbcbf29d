//! Lists of harmless names that belong to no family, and the presets.

use agentd_plugin_sdk::Failure;
use agentd_plugin_sdk::pattern::matches;

/// Variables that nearly every program needs.
const MINIMAL: &[&str] =
    &["PATH", "SHELL", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR"];

/// Variables of development tools, for the preset `standard`. The families contain all of these and more.
const STANDARD: &[&str] = &[
    "VIRTUAL_ENV",
    "NODE_ENV",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "PYTHONPATH",
    "NODE_PATH",
    "GOPATH",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "XDG_*",
    // Environment Modules and Lmod: variables that `module load` in an environment script needs.
    "MODULEPATH",
    "MODULEPATH_*",
    "MODULESHOME",
    "MODULES_CMD",
    "__MODULES_*",
    "LOADEDMODULES",
    "_LMFILES_",
    "LMOD_*",
    "__LMOD_*",
    "_ModuleTable*",
];

/// Variables for network access. Behind a company's proxy no agent can connect without them or without the
/// company's certificates. A proxy's URL is kept even if it contains a password.
const NETWORK: &[&str] = &[
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
];

/// Variables that a program needs to open a window. With them an agent can see and control the user's desktop.
const DESKTOP: &[&str] = &["DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XAUTHORITY"];

/// The amount of variables that are kept by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preset {
    /// Only the minimal list.
    Minimal,
    /// The list of agentd's first versions.
    Standard,
    /// The minimal list and the families.
    Toolchains,
    /// The lists of `Toolchains`, and the variables for windows.
    Desktop,
}

impl Preset {
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        match text {
            "minimal" => Ok(Self::Minimal),
            "standard" => Ok(Self::Standard),
            "toolchains" => Ok(Self::Toolchains),
            "desktop" => Ok(Self::Desktop),
            other => Err(Failure::configuration(
                "preset",
                format!("must be minimal, toolchains or desktop (or standard, the older list), and is {other:?}"),
            )),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Standard => "standard",
            Self::Toolchains => "toolchains",
            Self::Desktop => "desktop",
        }
    }

    /// Reports whether the preset includes families.
    pub(crate) fn has_families(self) -> bool {
        matches!(self, Self::Toolchains | Self::Desktop)
    }

    fn list(self) -> impl Iterator<Item = &'static str> {
        let lists: &[&[&str]] = match self {
            Self::Minimal | Self::Toolchains => &[MINIMAL],
            Self::Standard => &[MINIMAL, STANDARD, NETWORK],
            Self::Desktop => &[MINIMAL, DESKTOP],
        };
        lists.iter().copied().flatten().copied()
    }

    /// Reports whether a list of the preset contains the name, exactly or by pattern.
    pub(crate) fn keeps(self, name: &str) -> bool {
        self.list().any(|pattern| matches(pattern, name))
    }

    /// Reports whether a list of the preset contains the name exactly.
    pub(crate) fn names(self, name: &str) -> bool {
        self.list().any(|listed| listed == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_plugin_sdk::secret_names::is_secret_name;

    #[test]
    fn the_presets_hold_what_they_are_called_for() {
        for (name, minimal, standard, desktop) in [
            ("PATH", true, true, true),
            ("LC_TIME", true, true, true),
            ("XDG_CONFIG_HOME", false, true, false),
            ("https_proxy", false, true, false),
            ("DISPLAY", false, false, true),
            ("JAVA_HOME", false, false, false),
        ] {
            let kept = [Preset::Minimal, Preset::Standard, Preset::Desktop].map(|preset| preset.keeps(name));
            assert_eq!(kept, [minimal, standard, desktop], "{name}");
        }
    }

    #[test]
    fn nothing_on_a_list_looks_like_a_secret() {
        for name in Preset::Desktop.list().chain(Preset::Standard.list()) {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn a_preset_that_is_not_one_is_refused_with_those_that_are() {
        let Err(Failure::Configuration(refused)) = Preset::parse("full") else { panic!("not refused") };
        assert!(refused.message.contains("minimal, toolchains or desktop"), "{}", refused.message);
    }
}
