//! The lists of names that are safe to pass on, and the look of a secret's name.

use agentd_plugin_sdk::Failure;
use agentd_plugin_sdk::pattern::matches;

/// Without these hardly any program works as its user expects.
const MINIMAL: &[&str] =
    &["PATH", "SHELL", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR"];

/// What tools of development look at, and that says nothing secret.
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
];

/// What a program needs to open a window: with it an agent can see and drive the user's desktop.
const DESKTOP: &[&str] = &["DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XAUTHORITY"];

/// How much is kept without being named. Each holds what the one before it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preset {
    Minimal,
    Standard,
    Desktop,
}

impl Preset {
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        match text {
            "minimal" => Ok(Self::Minimal),
            "standard" => Ok(Self::Standard),
            "desktop" => Ok(Self::Desktop),
            other => {
                Err(Failure::Configuration(format!("\"preset\" is {other:?}; it must be minimal, standard or desktop")))
            }
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Standard => "standard",
            Self::Desktop => "desktop",
        }
    }

    pub(crate) fn keeps(self, name: &str) -> bool {
        let lists: &[&[&str]] = match self {
            Self::Minimal => &[MINIMAL],
            Self::Standard => &[MINIMAL, STANDARD],
            Self::Desktop => &[MINIMAL, STANDARD, DESKTOP],
        };
        lists.iter().copied().flatten().any(|pattern| matches(pattern, name))
    }
}

/// Words that end a part of a secret's name (parts are what stands between underscores): `GITHUB_TOKEN`, `PGPASSWORD`.
const ENDINGS: &[&str] = &[
    "TOKEN",
    "TOKENS",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWORDS",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "APIKEY",
    "APIKEYS",
];

/// Whether the name is of the kind that secrets have. It looks at words, not at letters: `TOKENIZERS_PARALLELISM` is none.
pub(crate) fn looks_secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let mut parts = upper.split('_').filter(|part| !part.is_empty());
    upper.split('_').any(|part| ENDINGS.iter().any(|ending| part.ends_with(ending)))
        // `..._KEY`, whatever the key opens; `KEY_...` and `KEYBOARD` are something else
        || parts.next_back().is_some_and(|last| last == "KEY" || last == "KEYS") && parts.next().is_some()
        || ["API_KEY", "ACCESS_KEY", "PRIVATE_KEY"].iter().any(|words| upper.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known() {
        for name in [
            "OPENAI_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "GITHUB_TOKEN",
            "PGPASSWORD",
            "DB_PASSWORD",
            "MYSQL_PWD_SECRET",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "github_token",
            "NPM_AUTHTOKEN",
            "OPENAI_KEY",
            "TOKEN_OF_SOMETHING",
            "SSH_PRIVATE_KEY_PATH",
        ] {
            assert!(looks_secret(name), "{name}");
        }
    }

    #[test]
    fn names_that_share_letters_with_a_secret_are_not_secret() {
        for name in
            ["TOKENIZERS_PARALLELISM", "PATH", "KEYBOARD", "KEY", "XKB_KEYMAP", "SECRETARY", "PASSAGE", "MONKEY", "PWD"]
        {
            assert!(!looks_secret(name), "{name}");
        }
    }

    #[test]
    fn each_preset_holds_the_one_before_it() {
        for (name, minimal, standard, desktop) in [
            ("PATH", true, true, true),
            ("LC_TIME", true, true, true),
            ("XDG_CONFIG_HOME", false, true, true),
            ("DISPLAY", false, false, true),
            ("JAVA_HOME", false, false, false),
        ] {
            let kept = [Preset::Minimal, Preset::Standard, Preset::Desktop].map(|preset| preset.keeps(name));
            assert_eq!(kept, [minimal, standard, desktop], "{name}");
        }
    }

    #[test]
    fn nothing_on_a_list_looks_like_a_secret() {
        for name in [MINIMAL, STANDARD, DESKTOP].into_iter().flatten() {
            assert!(!looks_secret(name), "{name}");
        }
    }

    #[test]
    fn a_preset_that_is_not_one_is_refused_with_those_that_are() {
        assert!(
            matches!(Preset::parse("full"), Err(Failure::Configuration(text)) if text.contains("minimal, standard or desktop"))
        );
    }
}
