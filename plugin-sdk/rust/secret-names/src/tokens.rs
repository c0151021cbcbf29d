//! Recognises tokens by the prefixes of their issuers.

/// Prefixes of tokens by issuer: `OpenAI` and Anthropic, GitHub, GitLab, Slack, npm, Google, Hugging Face.
/// Source: patterns of GitHub's and GitLab's secret scanning.
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

/// Tokens that are recognised anywhere in a value: the prefix, the minimum number of characters after it, and
/// the characters allowed besides letters and digits.
///
/// The keeper masks by the same list (`tokens.rs` there); a test compares the two.
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
    (b"glcbt-", 20, b"-_."),
    (b"glft-", 20, b"-_."),
    (b"glsoat-", 20, b"-_."),
    (b"glagent-", 40, b"-_"),
    (b"glsa_", 32, b"_"),
    (b"gsk_", 40, b""),
    (b"sk_test_", 20, b""),
    (b"sntrys_", 40, b"+/=_"),
    (b"sntryu_", 40, b""),
    (b"shpat_", 32, b""),
    (b"rubygems_", 48, b""),
    (b"pscale_tkn_", 32, b"-_."),
    (b"pul-", 40, b""),
    (b"pplx-", 40, b""),
    (b"ATATT3xFf", 60, b"-_="),
    (b"AKCp", 60, b""),
    (b"dapi", 32, b""),
    (b"dp.pt.", 40, b""),
    (b"hvs.", 24, b"-_"),
    (b"hvb.", 24, b"-_"),
    (b"xai-", 60, b""),
    (b"whsec_", 32, b"+/="),
    (b"GOCSPX-", 28, b"-_"),
    (b"ya29.", 40, b"-_."),
    (b"lin_api_", 40, b""),
    (b"tskey-", 20, b"-"),
    (b"NRAK-", 27, b""),
    (b"PMAK-", 40, b"-"),
];

/// Minimum number of bytes after a prefix. A shorter value is a word that happens to begin with the prefix.
const SHORTEST: usize = 16;

/// Reports whether the whole value is a token.
pub(crate) fn is_token(value: &[u8]) -> bool {
    let of_a_token = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    PREFIXES
        .iter()
        .filter_map(|prefix| value.strip_prefix(*prefix))
        .any(|rest| rest.len() >= SHORTEST && rest.iter().all(of_a_token))
}

/// Reports whether the value contains a token of a known form.
pub(crate) fn has_token(value: &[u8]) -> bool {
    (0..value.len()).any(|at| {
        let before = value[..at].last();
        // The first letters of all prefixes. This check alone skips most bytes of most values.
        if !b"gAxsrnpdhSeGywltNP".contains(&value[at])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_letter_of_each_token_is_looked_at() {
        for (beginning, length, _) in ANYWHERE.iter().filter(|(beginning, ..)| *beginning != b"eyJ") {
            let token = [beginning, &"A1B2C3D4".repeat(12).as_bytes()[..*length]].concat();
            assert!(has_token(&token), "{}", String::from_utf8_lossy(&token));
        }
    }
}
