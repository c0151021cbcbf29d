//! The rule for names. It looks at words and not at letters, so `TOKENIZERS_PARALLELISM`, `MONKEY` and `AUTHOR`
//! are not secrets.

/// Endings of words that make the name secret in any position: `GITHUB_TOKEN`, `PGPASSWORD`, `npmAuthToken`.
const ENDINGS: &[&str] = &[
    "TOKEN",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWORDS",
    "PASSWD",
    "PASSPHRASE",
    "PASSCODE",
    "CREDENTIAL",
    "CREDENTIALS",
    "APIKEY",
    "APIKEYS",
    "ACCESSKEY",
    "AUTHKEY",
    "PRIVATEKEY",
    "SECRETKEY",
    "LICENSEKEY",
    "MASTERKEY",
    "CONNECTIONSTRING",
    "DBPASS",
    "KEYPASS",
    "PASSKEY",
    "STOREPASS",
    "USERPASS",
    "USERPWD", // GDAL: a user and a password
];

/// Whole words that make the name secret in any position.
const WORDS: &[&str] =
    &["TOKENS", "CRED", "CREDS", "BEARER", "JWT", "AUTHORIZATION", "DSN", "SSHPASS", "PGPASS", "CONNSTR", "WEBHOOK"];

/// Words that make the name secret at the end of a longer name: `DB_PASS`, `MYSQL_PWD` (but not `PWD`),
/// `GH_PAT`, `OTEL_EXPORTER_OTLP_HEADERS`. A value in base64 is a key, or a document that contains one:
/// `ANDROID_KEYSTORE_BASE64`.
const LAST: &[&str] = &[
    "KEY", "KEYS", "PASS", "PW", "PWD", "PSWD", "PAT", "OTP", "AUTH", "OAUTH", "HEADER", "HEADERS", "COOKIE",
    "COOKIES", "BASE64", "B64",
];

/// Pairs of consecutive words that make the name secret in any position: `AWS_ACCESS_KEY_ID`,
/// `API_KEY_OF_SOMETHING`.
const PAIRS: &[(&str, &str)] = &[
    ("API", "KEY"),
    ("API", "KEYS"),
    ("ACCESS", "KEY"),
    ("PRIVATE", "KEY"),
    ("SECRET", "KEY"),
    ("SIGNING", "KEY"),
    ("ENCRYPTION", "KEY"),
    ("CONNECTION", "STRING"),
    ("CONN", "STR"),
    ("AUTH", "IDENT"), // yarn: a user and a password
];

/// Services whose URLs usually contain a user and a password: `DATABASE_URL`, `CELERY_BROKER_URL`.
const SERVICES: &[&str] = &[
    "DATABASE",
    "DB",
    "POSTGRES",
    "POSTGRESQL",
    "PG",
    "MYSQL",
    "MARIADB",
    "MONGO",
    "MONGODB",
    "REDIS",
    "AMQP",
    "RABBITMQ",
    "BROKER",
    "JDBC",
    "SMTP",
    "MAILER",
    "CLICKHOUSE",
    "ELASTICSEARCH",
];

/// Whole names that no other rule covers. Their values are configurations that contain keys.
///
/// Sources: opencode.ai/docs/config, codex-acp's README, docs.gitlab.com on `DOCKER_AUTH_CONFIG`, direnv's
/// record of replaced values, Code Climate's repository id (which is its key), and `NuGet`'s credential
/// provider.
const NAMES: &[&str] = &[
    "OPENCODE_CONFIG_CONTENT",
    "OPENCODE_AUTH_CONTENT",
    "CODEX_CONFIG",
    "DEFAULT_AUTH_REQUEST",
    "DOCKER_AUTH_CONFIG",
    "DIRENV_DIFF",
    "CC_TEST_REPORTER_ID",
    "VSS_NUGET_EXTERNAL_FEED_ENDPOINTS",
];

/// Last words of names that describe a secret's location or lifetime instead of the secret: `SSH_AUTH_SOCK`,
/// `AWS_SHARED_CREDENTIALS_FILE`, `CLAUDE_CODE_API_KEY_HELPER_TTL_MS`.
const ABOUT: &[&str] = &[
    "SOCK",
    "SOCKET",
    "FILE",
    "FILES",
    "PATH",
    "DIR",
    "DIRECTORY",
    "NAME",
    "MS",
    "SECONDS",
    "TTL",
    "TIMEOUT",
    "INTERVAL",
    "LENGTH",
    "SIZE",
    "COUNT",
    "LIMIT",
];

/// Words beside which `TOKENS` means pieces of text: `MAX_THINKING_TOKENS`.
const COUNTED: &[&str] = &["MAX", "MIN", "NUM", "COUNT", "LIMIT", "BUDGET", "WINDOW"];

/// Words before `AUTH` that make the name a switch: `CLAUDE_CODE_SKIP_BEDROCK_AUTH`.
const SWITCHES: &[&str] = &["SKIP", "NO", "DISABLE", "ENABLE", "USE", "ALWAYS"];

/// Reports whether an option of this name disables a secret: `no-password`.
pub(crate) fn is_switched_off(name: &str) -> bool {
    ["no-", "skip-", "disable-"].iter().any(|beginning| name.starts_with(beginning))
}

/// Returns the name in upper case, with `_` where a capital letter begins a word: `keyPass` becomes `KEY_PASS`.
fn in_words(name: &str) -> String {
    let mut upper = String::with_capacity(name.len() + 4);
    let mut after_small = false;
    for letter in name.chars() {
        if after_small && letter.is_ascii_uppercase() {
            upper.push('_');
        }
        after_small = letter.is_ascii_lowercase();
        upper.push(letter.to_ascii_uppercase());
    }
    upper
}

/// Reports whether a variable of this name is treated as a secret.
pub fn is_secret_name(name: &str) -> bool {
    let upper = in_words(name);
    if NAMES.contains(&upper.as_str()) {
        return true;
    }
    // A number at the end of a word is an index: TOKEN2, API_KEY_1.
    let words: Vec<&str> = upper
        .split(|c: char| !c.is_ascii_alphanumeric())
        .map(|word| if LAST.contains(&word) { word } else { word.trim_end_matches(|c: char| c.is_ascii_digit()) })
        .filter(|word| !word.is_empty())
        .collect();
    let Some((last, before)) = words.split_last() else { return false };
    if ABOUT.contains(last) {
        return false;
    }
    let has = |list: &[&str]| words.iter().any(|word| list.contains(word));
    let counted = has(COUNTED);
    let telling = |word: &str| {
        let tokens = matches!(word, "TOKEN" | "TOKENS");
        !(tokens && counted) && (WORDS.contains(&word) || ENDINGS.iter().any(|ending| ends(word, ending)))
    };
    words.iter().any(|word| telling(word))
        || words.windows(2).any(|pair| PAIRS.contains(&(pair[0], pair[1])))
        || !before.is_empty() && LAST.contains(last) && !(last.ends_with("AUTH") && has(SWITCHES))
        || matches!(*last, "URL" | "URI" | "URLS") && before.iter().any(|word| SERVICES.contains(word))
}

/// `str::ends_with` with a fast path, because most words do not end with the last letter of an ending.
fn ends(word: &str, ending: &str) -> bool {
    word.as_bytes().last() == ending.as_bytes().last() && word.ends_with(ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known() {
        for name in [
            "OPENAI_API_KEY",
            "OPENAI_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "aws_session_token",
            "AWS_BEARER_TOKEN_BEDROCK",
            "GITHUB_TOKEN",
            "github_token",
            "GITHUB_TOKEN_2",
            "TOKEN",
            "TOKEN_OF_SOMETHING",
            "NPM_AUTHTOKEN",
            "npmAuthToken",
            "npm_config_//registry.npmjs.org/:_authToken",
            "npm_config__auth",
            "NPM_AUTH",
            "OAUTH_TOKEN_URL",
            "GH_PAT",
            "YARN_NPM_AUTH_IDENT",
            "PGPASSWORD",
            "DB_PASSWORD",
            "DB_PASSWORD1",
            "DB_PASS",
            "SSHPASS",
            "MYSQL_PWD",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "APIKEY",
            "API_KEY_1",
            "MY_PRIVATE_KEY",
            "CLAUDE_CODE_CLIENT_KEY_PASSPHRASE",
            "ANTHROPIC_CUSTOM_HEADERS",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "SENTRY_DSN",
            "DSN",
            "JUPYTER_COOKIE",
            "DATABASE_URL",
            "CELERY_BROKER_URL",
            "MONGODB_URI",
            "AZURE_STORAGE_CONNECTION_STRING",
            "SLACK_WEBHOOK_URL",
            "OPENCODE_CONFIG_CONTENT",
            "DIRENV_DIFF",
            "FOO_PW",
            "nexusPw",
            "keyPass",
            "DBPASS",
            "NPM_CONFIG_OTP",
            "ANDROID_KEYSTORE_BASE64",
            "IOS_P12_B64",
            "CC_TEST_REPORTER_ID",
            "ACME_LICENSEKEY",
            "InstrumentationKey",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn names_that_share_letters_with_a_secret_are_not_secret() {
        for name in [
            "",
            "_",
            "PATH",
            "PWD",
            "OLDPWD",
            "KEY",
            "KEYBOARD",
            "XKB_KEYMAP",
            "MONKEY",
            "TOKENIZERS_PARALLELISM",
            "MAX_THINKING_TOKENS",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
            "SECRETARY",
            "PASSAGE",
            "COMPASS",
            "AUTHOR",
            "PATTERN",
            "XAUTHORITY",
            "ANTHROPIC_BASE_URL",
            "HTTPS_PROXY",
            "CLAUDE_CODE_SKIP_BEDROCK_AUTH",
            "npm_config_always_auth",
            "SharedAccessKeyName",
            "OpenCV_DIR",
            "SSH_ASKPASS",
            "ANDROID_KEYSTORE",
            "BYPASS",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn where_a_secret_lies_is_none() {
        for name in [
            "SSH_AUTH_SOCK",
            "AWS_SHARED_CREDENTIALS_FILE",
            "OPENAI_IDENTITY_TOKEN_FILE",
            "SSH_PRIVATE_KEY_PATH",
            "CREDENTIALS_DIRECTORY",
            "CLAUDE_CODE_API_KEY_HELPER_TTL_MS",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
