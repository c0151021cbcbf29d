//! The shapes of values that are secrets whatever the variable is called: a URL with a password in it, a connection string
//! with one, an option that is called a password, a private key, a token of an issuer that marks its own.

use crate::names::is_secret_name;

/// How tokens begin, by those who issue them: `OpenAI` and Anthropic, GitHub, GitLab, Slack, npm, Google, Hugging Face (patterns of
/// GitHub's and GitLab's secret scanning).
const PREFIXES: &[&[u8]] = &[
    b"sk-",
    b"ghp_",
    b"gho_",
    b"ghu_",
    b"ghs_",
    b"ghr_",
    b"github_pat_",
    b"glpat-",
    b"xoxb-",
    b"xoxp-",
    b"xapp-",
    b"npm_",
    b"AIza",
    b"hf_",
];

/// Tokens that are known wherever they stand in a value: how each begins, how many characters follow at least, and which besides letters
/// and digits. It is the list that the keeper hides by (`tokens.rs` there); a test compares the two.
const ANYWHERE: &[(&[u8], usize, &[u8])] = &[
    (b"ghp_", 36, b""),
    (b"gho_", 36, b""),
    (b"ghu_", 36, b""),
    (b"ghs_", 36, b""),
    (b"ghr_", 36, b""),
    (b"github_pat_", 60, b"_"),
    (b"glpat-", 20, b"-_."),
    (b"gldt-", 20, b"-_."),
    (b"glrt-", 20, b"-_."),
    (b"glptt-", 40, b""),
    (b"AKIA", 16, b""),
    (b"ASIA", 16, b""),
    (b"xoxb-", 20, b"-"),
    (b"xoxp-", 20, b"-"),
    (b"xoxa-", 20, b"-"),
    (b"xoxr-", 20, b"-"),
    (b"xoxs-", 20, b"-"),
    (b"xapp-", 20, b"-"),
    (b"sk_live_", 20, b""),
    (b"rk_live_", 20, b""),
    (b"sk-ant-", 32, b"-_"),
    (b"sk-proj-", 32, b"-_"),
    (b"sk-svcacct-", 32, b"-_"),
    (b"sk-", 40, b""),
    (b"npm_", 36, b""),
    (b"pypi-AgEI", 50, b"-_"),
    (b"AIza", 35, b"-_"),
    (b"dop_v1_", 64, b""),
    (b"doo_v1_", 64, b""),
    (b"hf_", 34, b""),
    (b"SG.", 60, b"-_."),
    (b"dckr_pat_", 24, b"-_"),
    (b"AccountKey=", 86, b"+/="),
    (b"eyJ", 60, b"-_."),
];

/// A part of a path that is shorter is no token.
const SHORTEST_PART: usize = 8;

/// Fewer bytes than this behind a prefix are a word that happens to begin so.
const SHORTEST_TOKEN: usize = 16;

/// What Nix's configuration calls tokens, in `NIX_CONFIG` (nix.conf(5)).
const ACCESS_TOKENS: &[u8] = b"access-tokens";

/// What stands before a password in a connection string (learn.microsoft.com on ADO and Azure Storage, libpq).
const FIELDS: &[&[u8]] = &[b"password=", b"pwd=", b"accountkey=", b"sharedaccesskey="];

/// Whether the value is a secret by its shape.
pub fn is_secret_value(value: &[u8]) -> bool {
    is_token(value)
        || has_token(value)
        || is_private_key(value)
        || password(value).is_some()
        || find(value, ACCESS_TOKENS).is_some()
}

/// The password in a URL (`https://user:password@host`), in a connection string (`Server=s;Password=...;`) or in an option of a
/// program (`-Dhttp.proxyPassword=...`): what must not be
/// seen even where the rest may. As it stands: a URL's percent signs are not resolved.
pub fn password(value: &[u8]) -> Option<&[u8]> {
    in_url(value).or_else(|| in_connection_string(value)).or_else(|| in_option(value))
}

fn is_token(value: &[u8]) -> bool {
    let of_a_token = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    PREFIXES
        .iter()
        .filter_map(|prefix| value.strip_prefix(*prefix))
        .any(|rest| rest.len() >= SHORTEST_TOKEN && rest.iter().all(of_a_token))
}

/// Whether a token of a known form stands somewhere in the value.
fn has_token(value: &[u8]) -> bool {
    (0..value.len()).any(|at| {
        let before = value[..at].last();
        // The first letters of all of them; the rest of most values is passed over by this alone.
        if !matches!(value[at], b'g' | b'A' | b'x' | b's' | b'r' | b'n' | b'p' | b'd' | b'h' | b'S' | b'e')
            || before.is_some_and(|last| last.is_ascii_alphanumeric() || b"_-+/".contains(last))
        {
            return false;
        }
        ANYWHERE.iter().any(|(beginning, length, besides)| {
            let Some(rest) = value[at..].strip_prefix(*beginning) else { return false };
            let of_it = |byte: &&u8| byte.is_ascii_alphanumeric() || besides.contains(*byte);
            let token = &rest[..rest.iter().take_while(of_it).count()];
            match *beginning {
                b"AKIA" | b"ASIA" => token.len() == *length && !token.iter().any(u8::is_ascii_lowercase),
                b"eyJ" => token.len() >= *length && token.split(|byte| *byte == b'.').count() >= 3,
                _ => token.len() >= *length && token.iter().any(u8::is_ascii_digit),
            }
        })
    })
}

/// PEM (RFC 7468) in any of its kinds of private key.
fn is_private_key(value: &[u8]) -> bool {
    value.starts_with(b"-----BEGIN ") && find(value, b"PRIVATE KEY-----").is_some()
}

/// The authority ends at the first `/`, `?` or `#` (RFC 3986); what stands before its last `@` is the user, and behind the
/// first `:` the password. A value may hold several URLs.
fn in_url(value: &[u8]) -> Option<&[u8]> {
    let mut rest = value;
    while let Some(at) = find(rest, b"://") {
        let authority = &rest[at + 3..];
        let end = authority.iter().position(|b| matches!(b, b'/' | b'?' | b'#') || b.is_ascii_whitespace());
        let whole = &authority[..end.unwrap_or(authority.len())];
        if let Some(sign) = whole.iter().rposition(|b| *b == b'@') {
            let user = &whole[..sign];
            let password = user.iter().position(|b| *b == b':').map(|colon| &user[colon + 1..]);
            if let Some(password) = password.filter(|password| !password.is_empty()) {
                return Some(password);
            }
            if is_token(user) {
                return Some(user);
            }
        }
        // A channel of conda: `https://host/t/TOKEN/channel`.
        let path = authority.strip_prefix(whole).and_then(|path| path.strip_prefix(b"/t/"));
        let token = path.map(|path| &path[..path.iter().position(|b| *b == b'/').unwrap_or(path.len())]);
        if let Some(token) = token.filter(|token| token.len() >= SHORTEST_PART) {
            return Some(token);
        }
        rest = authority;
    }
    None
}

/// The value of an option whose name is a secret's: `-Djavax.net.ssl.trustStorePassword=...`, `--api-key=...`, `-var=db_password=...`.
fn in_option(value: &[u8]) -> Option<&[u8]> {
    let mut words = value.split(u8::is_ascii_whitespace).filter(|word| word.starts_with(b"-"));
    words.find_map(|word| {
        let at = word.iter().rposition(|b| *b == b'=')?;
        let names = std::str::from_utf8(&word[..at]).ok()?;
        let of_secret =
            names.split('=').any(|name| is_secret_name(name.trim_start_matches('-').trim_start_matches('D')));
        (of_secret && at + 1 < word.len()).then(|| &word[at + 1..])
    })
}

fn in_connection_string(value: &[u8]) -> Option<&[u8]> {
    if !value.contains(&b'=') {
        return None;
    }
    let lower = value.to_ascii_lowercase();
    FIELDS.iter().find_map(|field| {
        let at = find(&lower, field)?;
        // `OLDPWD=` is another field.
        let begins = at == 0 || matches!(lower[at - 1], b';' | b' ' | b'&' | b'?');
        let rest = &value[at + field.len()..];
        let end = rest.iter().position(|b| matches!(b, b';' | b' ' | b'&')).unwrap_or(rest.len());
        (begins && end > 0).then(|| &rest[..end])
    })
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    let first = part.first()?;
    (0..text.len()).find(|&at| text[at] == *first && text[at..].starts_with(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_a_password_is_a_secret_and_one_with_a_user_is_none() {
        for (value, expected) in [
            ("http://user:hunter22@proxy.example:3128", Some("hunter22")),
            ("postgres://u:p:w@h/db", Some("p:w")),
            ("a,b http://x/ http://u:pw@h", Some("pw")),
            ("https://ghp_0123456789abcdefghij@github.com/x", Some("ghp_0123456789abcdefghij")),
            ("http://proxy.example:3128", None),
            ("ssh://git@github.com/x", None),
            ("https://h/a:b@c", None),
            ("http://user:@h", None),
            ("://", None),
        ] {
            assert_eq!(password(value.as_bytes()), expected.map(str::as_bytes), "{value}");
        }
    }

    #[test]
    fn a_connection_string_is_a_secret_where_a_password_stands_in_it() {
        assert_eq!(password(b"Server=s;Uid=u;Pwd=hunter22;"), Some(&b"hunter22"[..]));
        assert_eq!(password(b"host=h password=hunter22"), Some(&b"hunter22"[..]));
        assert_eq!(password(b"OLDPWD=/tmp"), None);
        assert_eq!(password(b"password="), None);
    }

    #[test]
    fn an_option_with_the_name_of_a_secret_and_a_channel_with_a_token_are_secrets() {
        for (value, expected) in [
            ("-Xmx1g -Dhttps.proxyPassword=hunter22 -Da=b", Some("hunter22")),
            ("-Djavax.net.ssl.trustStorePassword=changeit", Some("changeit")),
            ("--verbose --api-key=hunter22", Some("hunter22")),
            ("-var=db_password=hunter22", Some("hunter22")),
            ("-Djavax.net.ssl.trustStore=/etc/ssl/java", None),
            ("-DTOKEN= -Da.keyStoreType=PKCS12", None),
            ("a-password=x", None),
            ("https://conda.example/t/co-0123-4567/main", Some("co-0123-4567")),
            ("https://conda.example/t/x/main", None),
        ] {
            assert_eq!(password(value.as_bytes()), expected.map(str::as_bytes), "{value}");
        }
        assert!(is_secret_value(b"experimental-features = flakes\naccess-tokens = git.example=hunter22"));
    }

    #[test]
    fn tokens_and_private_keys_are_known_by_their_form() {
        for secret in [
            "sk-ant-0123456789abcdef",
            "ghp_0123456789abcdefghij",
            "-----BEGIN RSA PRIVATE KEY-----\nx",
            "npm_0123456789abcdef",
        ] {
            assert!(is_secret_value(secret.as_bytes()), "{secret}");
        }
        for secret in ["id=AKIAIOSFODNN7EXAMPLE", "use glpat-a1a1a1a1a1a1a1a1a1a1, please"] {
            assert!(is_secret_value(secret.as_bytes()), "{secret}");
        }
        for plain in [
            "/usr/lib/AKIAIOSFODNN7EXAMPLE2",
            "/opt/sk-learn-0123456789012345678901234567890123456789",
            "",
            "sk-learn",
            "npm_config",
            "hf_hub and more words than a token has",
            "-----BEGIN CERTIFICATE-----\nx",
        ] {
            assert!(!is_secret_value(plain.as_bytes()), "{plain}");
        }
    }
}
