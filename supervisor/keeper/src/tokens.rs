//! Finds tokens by the format that their issuers use. Such tokens are secrets wherever they appear.
//!
//! A token consists of a prefix that its issuer uses and enough characters of the issuer's alphabet. A token that is
//! encoded or printed in pieces is not found. The mask finds a token with JSON escapes, because it decodes them.
//!
//! The formats are those that GitHub's and GitLab's secret scanning publish (docs.github.com "Supported secret
//! scanning patterns", docs.gitlab.com "Detected secrets"), and the issuers' own pages.

use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, Input, Match, MatchKind, Span, packed};

/// Token format.
struct Form {
    issuer: &'static str,
    beginning: &'static str,
    /// Minimum number of characters after the prefix, and the allowed characters besides letters and digits.
    length: usize,
    besides: &'static [u8],
}

const fn form(issuer: &'static str, beginning: &'static str, length: usize, besides: &'static [u8]) -> Form {
    Form { issuer, beginning, length, besides }
}

const FORMS: &[Form] = &[
    form("GitHub", "ghp_", 36, b""),
    form("GitHub", "gho_", 36, b""),
    form("GitHub", "ghu_", 36, b""),
    form("GitHub", "ghs_", 36, b""),
    form("GitHub", "ghr_", 36, b""),
    form("GitHub", "github_pat_", 60, b"_"),
    form("GitLab", "glpat-", 20, b"-_."),
    form("GitLab", "gldt-", 20, b"-_."),
    form("GitLab", "glrt-", 20, b"-_."),
    form("GitLab", "glptt-", 40, b""),
    form("AWS", "AKIA", 16, b""),
    form("AWS", "ASIA", 16, b""),
    form("Slack", "xoxb-", 20, b"-"),
    form("Slack", "xoxp-", 20, b"-"),
    form("Slack", "xoxa-", 20, b"-"),
    form("Slack", "xoxr-", 20, b"-"),
    form("Slack", "xoxs-", 20, b"-"),
    form("Slack", "xapp-", 20, b"-"),
    form("Stripe", "sk_live_", 20, b""),
    form("Stripe", "rk_live_", 20, b""),
    form("Anthropic", "sk-ant-", 32, b"-_"),
    form("OpenAI", "sk-proj-", 32, b"-_"),
    form("OpenAI", "sk-svcacct-", 32, b"-_"),
    form("OpenAI", "sk-", 40, b""),
    form("npm", "npm_", 36, b""),
    form("PyPI", "pypi-AgEI", 50, b"-_"),
    form("Google", "AIza", 35, b"-_"),
    form("DigitalOcean", "dop_v1_", 64, b""),
    form("DigitalOcean", "doo_v1_", 64, b""),
    form("Hugging Face", "hf_", 34, b""),
    form("SendGrid", "SG.", 60, b"-_."),
    form("Docker", "dckr_pat_", 24, b"-_"),
    form("Azure", "AccountKey=", 86, b"+/="),
    form("JWT", "eyJ", 60, b"-_."),
    form("GitLab", "glcbt-", 20, b"-_."),
    form("GitLab", "glft-", 20, b"-_."),
    form("GitLab", "glsoat-", 20, b"-_."),
    form("GitLab", "glagent-", 40, b"-_"),
    form("Grafana", "glsa_", 32, b"_"),
    form("Groq", "gsk_", 40, b""),
    form("Stripe", "sk_test_", 20, b""),
    form("Sentry", "sntrys_", 40, b"+/=_"),
    form("Sentry", "sntryu_", 40, b""),
    form("Shopify", "shpat_", 32, b""),
    form("RubyGems", "rubygems_", 48, b""),
    form("PlanetScale", "pscale_tkn_", 32, b"-_."),
    form("Pulumi", "pul-", 40, b""),
    form("Perplexity", "pplx-", 40, b""),
    form("Atlassian", "ATATT3xFf", 60, b"-_="),
    form("Artifactory", "AKCp", 60, b""),
    form("Databricks", "dapi", 32, b""),
    form("Doppler", "dp.pt.", 40, b""),
    form("Vault", "hvs.", 24, b"-_"),
    form("Vault", "hvb.", 24, b"-_"),
    form("xAI", "xai-", 60, b""),
    form("Stripe", "whsec_", 32, b"+/="),
    form("Google", "GOCSPX-", 28, b"-_"),
    form("Google", "ya29.", 40, b"-_."),
    form("Linear", "lin_api_", 40, b""),
    form("Tailscale", "tskey-", 20, b"-"),
    form("New Relic", "NRAK-", 27, b""),
    form("Postman", "PMAK-", 40, b"-"),
];

/// Search for the prefixes. The search by vector instructions needs a tenth of the automaton's memory, which counts in
/// a keeper.
enum Search {
    Vectors(packed::Searcher),
    /// For processors without these instructions.
    Automaton(AhoCorasick),
}

impl Search {
    fn new() -> Option<Self> {
        let beginnings = || FORMS.iter().map(|form| form.beginning);
        let vectors = packed::Config::new().match_kind(packed::MatchKind::LeftmostLongest).builder();
        if let Some(search) = { vectors }.extend(beginnings()).build() {
            return Some(Self::Vectors(search));
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(beginnings());
        automaton.ok().map(Self::Automaton)
    }

    /// Returns the first prefix at this position or after it.
    fn find(&self, text: &[u8], from: usize) -> Option<Match> {
        let place = Span::from(from..text.len());
        match self {
            Self::Vectors(search) => search.find_in(text, place),
            Self::Automaton(search) => search.find(Input::new(text).span(place)),
        }
    }
}

static BEGINNINGS: LazyLock<Option<Search>> = LazyLock::new(Search::new);

/// Makes up a token of each format except JWT, for tests of code that must know all formats.
pub fn examples() -> impl Iterator<Item = String> {
    let forms = FORMS.iter().filter(|form| form.issuer != "JWT");
    forms.map(|form| format!("{}{}", form.beginning, &"A1B2C3D4".repeat(12)[..form.length]))
}

/// Returns the positions of the tokens in the text, in order, with their issuers.
pub fn find(text: &[u8]) -> impl Iterator<Item = (Range<usize>, &'static str)> {
    let mut from = 0;
    let found = std::iter::from_fn(move || {
        let found = BEGINNINGS.as_ref()?.find(text, from)?;
        from = found.end();
        Some(found)
    });
    found.filter_map(move |found| {
        let form = &FORMS[found.pattern().as_usize()];
        if !begins_a_word(&text[..found.start()]) {
            return None;
        }
        let behind = &text[found.end()..];
        let of_it = |byte: &u8| byte.is_ascii_alphanumeric() || form.besides.contains(byte);
        let length = behind.iter().take_while(|byte| of_it(byte)).count();
        let token = &behind[..length];
        let fits = match form.issuer {
            // An AWS id has exactly this length and is in upper case.
            "AWS" => length == form.length && token.iter().all(|byte| !byte.is_ascii_lowercase()),
            "JWT" => length >= form.length && is_jwt(token),
            _ => length >= form.length && token.iter().any(u8::is_ascii_digit),
        };
        fits.then(|| (found.start()..found.end() + length, form.issuer))
    })
}

/// Reports whether a token can begin after this text, because no word continues. The `n` of `\n` in JSON is no word.
fn begins_a_word(before: &[u8]) -> bool {
    match before {
        [] | [.., b'\\', b'n' | b'r' | b't'] => true,
        [.., last] => !last.is_ascii_alphanumeric() && !b"_-+/".contains(last),
    }
}

/// Reports whether the text has a JWT's header, payload and signature (RFC 7519). The first two are JSON objects.
fn is_jwt(behind: &[u8]) -> bool {
    let mut parts = behind.split(|byte| *byte == b'.');
    let (header, payload, signature) = (parts.next(), parts.next(), parts.next());
    header.is_some_and(|header| header.len() >= 12)
        && payload.is_some_and(|payload| payload.starts_with(b"eyJ") && payload.len() >= 8)
        && signature.is_some_and(|signature| signature.len() >= 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuers(text: &str) -> Vec<&'static str> {
        find(text.as_bytes()).map(|(_, issuer)| issuer).collect()
    }

    #[test]
    fn a_token_of_each_format_is_found_and_half_a_token_is_not() {
        for form in FORMS.iter().filter(|form| form.issuer != "JWT") {
            let token =
                format!("{}{}", form.beginning, "A1B2C3D4".repeat(12).chars().take(form.length).collect::<String>());
            assert_eq!(issuers(&format!("is \"{token}\", so")), [form.issuer], "{token}");
            assert_eq!(issuers(&token[..token.len() - 8]), [""; 0], "{token}");
            assert_eq!(issuers(&format!("x{token}")), [""; 0], "{token}");
        }
        let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P";
        assert_eq!(issuers(&format!(r"\n{jwt}\n")), ["JWT"]);
        for plain in [
            "0123456789abcdef0123456789abcdef01234567",
            "sk-learn-and-something-else-that-is-rather-long-and-plain",
            "hf_hub",
            "AKIAlower",
            "eyJhbGciOiJIUzI1NiJ9",
            "npm_config_registry_and_more_of_these_names",
            "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ",
        ] {
            assert_eq!(issuers(plain), [""; 0], "{plain}");
        }
    }

    #[test]
    fn no_token_is_found_in_agentds_own_sources() {
        for file in ["src/mask.rs", "src/keeper/mod.rs", "../../README.md", "../DESIGN.md", "../../Cargo.lock"] {
            let text = std::fs::read(file).unwrap();
            assert_eq!(find(&text).count(), 0, "{file}");
        }
    }
}
