//! Which variables hold secrets, told by their names, as CI systems and secret scanners do.

/// Values shorter than this are not masked in what an agent prints: masking every `1` would hide nothing and break everything.
pub(crate) const MIN_MASKED: usize = 6;

/// Words that make a name one of a secret, where they stand between underscores or at an end.
const WORDS: [&str; 12] = [
    "TOKEN",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "APIKEY",
    "PAT",
    "PRIVATEKEY",
    "AUTH",
];

/// Pairs of words that do so only together.
const PAIRS: [(&str, &str); 5] =
    [("API", "KEY"), ("ACCESS", "KEY"), ("PRIVATE", "KEY"), ("SIGNING", "KEY"), ("ENCRYPTION", "KEY")];

/// Whether the value of a variable of this name is treated as a secret.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let words: Vec<&str> = upper.split(['_', '-', '.']).collect();
    // A path to a secret is not one: SSH_AUTH_SOCK, AWS_SHARED_CREDENTIALS_FILE.
    if words.last().is_some_and(|last| ["SOCK", "FILE", "PATH", "DIR", "DIRECTORY", "URL"].contains(last)) {
        return false;
    }
    words.iter().any(|word| WORDS.contains(word)) || words.windows(2).any(|pair| PAIRS.contains(&(pair[0], pair[1])))
}

#[cfg(test)]
mod tests {
    use super::is_secret_name;

    #[test]
    fn secrets_are_told_by_words_and_not_by_letters() {
        for secret in [
            "ANTHROPIC_API_KEY",
            "GITHUB_TOKEN",
            "DB_PASSWORD",
            "aws_secret_access_key",
            "NPM_AUTH",
            "MY_PRIVATE_KEY",
            "GH_PAT",
        ] {
            assert!(is_secret_name(secret), "{secret}");
        }
        for plain in
            ["PATH", "KEYBOARD", "TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK", "AUTHOR", "MONKEY", "PATTERN", "KEY"]
        {
            assert!(!is_secret_name(plain), "{plain}");
        }
    }
}
