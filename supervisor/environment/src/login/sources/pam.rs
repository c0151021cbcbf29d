//! Reads the files of `pam_env(8)`: files of `NAME=value`, and the module's own configuration with defaults and
//! overrides (`pam_env.conf(5)`).
//!
//! `tests/conformance/sources.rs` compares both with a real `su`.

use std::os::unix::ffi::OsStrExt as _;

use super::{LoginUser, VariableMap, is_name};

/// Splits the content into logical lines. A line that ends with a backslash continues on the next line. A `#`
/// starts a comment, even inside quotes.
fn lines(content: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut begun: Option<Vec<u8>> = None;
    for line in content.split(|byte| *byte == b'\n') {
        let continued = begun.is_some();
        let text = if continued { line } else { line.trim_ascii_start() };
        if !continued && text.starts_with(b"#") {
            continue;
        }
        let mut whole = begun.take().unwrap_or_default();
        let (text, goes_on) = match text.strip_suffix(b"\\") {
            Some(text) => (text, true),
            None => (text, false),
        };
        whole.extend_from_slice(text);
        if goes_on {
            begun = Some(whole);
        } else {
            all.push(whole);
        }
    }
    all.extend(begun);
    for line in &mut all {
        if let Some(comment) = line.iter().position(|byte| *byte == b'#') {
            line.truncate(comment);
        }
    }
    all.retain(|line| !line.trim_ascii().is_empty());
    all
}

/// Applies a file in the format of `/etc/environment`. An invalid line is skipped. A name alone removes the
/// variable.
pub(super) fn apply_environment(content: &[u8], known: &mut VariableMap) {
    for line in lines(content) {
        let line = line.strip_prefix(b"export ").unwrap_or(&line);
        let equals = line.iter().position(|byte| *byte == b'=');
        let name = &line[..equals.unwrap_or(line.len())];
        let Some(name) = std::str::from_utf8(name).ok().filter(|name| is_name(name.as_bytes())) else { continue };
        match equals {
            Some(equals) => known.insert(name.to_owned(), unquoted(&line[equals + 1..])),
            None => known.remove(name),
        };
    }
}

/// Removes a quote at the start. Removes a quote at the end only if there was a quote at the start.
fn unquoted(value: &[u8]) -> Vec<u8> {
    let is_quote = |byte: Option<&u8>| byte.is_some_and(|byte| matches!(byte, b'"' | b'\''));
    if !is_quote(value.first()) {
        return value.to_vec();
    }
    let rest = &value[1..];
    if is_quote(rest.last()) { rest[..rest.len() - 1].to_vec() } else { rest.to_vec() }
}

/// Applies a file in the format of `pam_env.conf(5)`: `NAME [DEFAULT=value] [OVERRIDE=value]`.
pub(super) fn apply_conf(content: &[u8], who: LoginUser<'_>, known: &mut VariableMap) {
    for line in lines(content) {
        let mut words = words(&line).into_iter();
        let Some(name) = words.next().and_then(|word| String::from_utf8(word.text).ok()) else { continue };
        if !is_name(name.as_bytes()) {
            continue;
        }
        let (mut default, mut over) = (None, None);
        for word in words {
            let place = if word.text.starts_with(b"DEFAULT=") {
                &mut default
            } else if word.text.starts_with(b"OVERRIDE=") {
                &mut over
            } else {
                continue;
            };
            let equals = word.text.iter().position(|byte| *byte == b'=').unwrap_or_default();
            // Empty quotes set the variable to an empty value. An unquoted value that expands to nothing does not
            // set it.
            *place = Some((expanded(&word.text[equals + 1..], who, known), word.quoted));
        }
        let counts =
            |value: &Option<(Vec<u8>, bool)>| value.as_ref().is_some_and(|(text, quoted)| *quoted || !text.is_empty());
        match [over, default].into_iter().find(counts).flatten() {
            Some((value, _)) => known.insert(name, value),
            None => known.remove(&name),
        };
    }
}

/// A word of a line. `quoted` records whether it had quotes.
struct Word {
    text: Vec<u8>,
    quoted: bool,
}

/// Splits a line at blanks. Double quotes keep blanks together.
fn words(line: &[u8]) -> Vec<Word> {
    let mut all = Vec::new();
    let mut word: Option<Word> = None;
    let mut inside = false;
    for &byte in line {
        if byte == b'"' {
            inside = !inside;
            word.get_or_insert_with(|| Word { text: Vec::new(), quoted: false }).quoted = true;
        } else if byte.is_ascii_whitespace() && !inside {
            all.extend(word.take());
        } else {
            word.get_or_insert_with(|| Word { text: Vec::new(), quoted: false }).text.push(byte);
        }
    }
    all.extend(word);
    all
}

/// Expands `${NAME}` to a variable and `@{HOME}` and similar to an item of the login. A backslash escapes `$` and
/// `@`.
fn expanded(value: &[u8], who: LoginUser<'_>, known: &VariableMap) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match (byte, behind.first()) {
            (b'\\', Some(&escaped @ (b'$' | b'@'))) => {
                out.push(escaped);
                rest = &behind[1..];
            }
            (b'$' | b'@', Some(b'{')) => {
                let Some(end) = behind.iter().position(|byte| *byte == b'}') else {
                    out.push(byte);
                    continue;
                };
                let name = String::from_utf8_lossy(&behind[1..end]);
                if byte == b'$' {
                    out.extend_from_slice(known.get(&*name).map_or(&[][..], Vec::as_slice));
                } else {
                    out.extend_from_slice(item(&name, who));
                }
                rest = &behind[end + 1..];
            }
            _ => out.push(byte),
        }
    }
    out
}

/// Returns a PAM item of a login on this machine.
fn item<'a>(name: &str, who: LoginUser<'a>) -> &'a [u8] {
    match name {
        "HOME" => who.home.as_os_str().as_bytes(),
        "SHELL" => who.shell.as_os_str().as_bytes(),
        "PAM_USER" => who.name.as_bytes(),
        // PAM_TTY, PAM_RHOST and others are empty for a local login without a terminal.
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn root() -> LoginUser<'static> {
        LoginUser { name: "root", uid: 0, home: Path::new("/root"), shell: Path::new("/bin/bash") }
    }

    fn pairs(known: &VariableMap) -> Vec<(&str, String)> {
        known.iter().map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value).into_owned())).collect()
    }

    /// The expected values are those of `su -` on Debian 12.
    #[test]
    fn lines_of_etc_environment_are_read_as_pam_reads_them() {
        let mut known = VariableMap::from([("GONE".to_owned(), b"1".to_vec())]);
        let text = "# c\nexport A=x y\n  B=1\nC=\"two words\"\nD='one'\nE=before#after\nF=\"a # b\"\nG = 1\nH=x  \n\
            I=a\"b\"c\nJ=\nK=\"\"\nL=a\\\nb\nB-D=1\nM=$HOME\nN=a=b\nO=\"x\" # c\nexport  P=1\nGONE\n";
        apply_environment(text.as_bytes(), &mut known);
        let expected = [
            ("A", "x y"),
            ("B", "1"),
            ("C", "two words"),
            ("D", "one"),
            ("E", "before"),
            ("F", "a "),
            ("H", "x  "),
            ("I", "a\"b\"c"),
            ("J", ""),
            ("K", ""),
            ("L", "ab"),
            ("M", "$HOME"),
            ("N", "a=b"),
            ("O", "x\" "),
        ];
        assert_eq!(pairs(&known), expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn lines_of_pam_env_conf_have_defaults_overrides_and_items() {
        let mut known = VariableMap::from([("NONE".to_owned(), b"1".to_vec())]);
        let text = "A DEFAULT=plain\nB\tDEFAULT=\"two words\"\nC DEFAULT=@{HOME}/bin:@{SHELL}\n\
            D DEFAULT=a OVERRIDE=${A}\nE DEFAULT=a OVERRIDE=${NOPE}\nF DEFAULT=\"\"\nNONE\nG DEFAULT=a\\$b\\@c\n\
            H DEFAULT=one\\\ntwo\nI \\\n  DEFAULT=x\n\
            J DEFAULT=a#b\nK DEFAULT=@{PAM_RHOST}\nL DEFAULT=${open\n";
        apply_conf(text.as_bytes(), root(), &mut known);
        let expected = [
            ("A", "plain"),
            ("B", "two words"),
            ("C", "/root/bin:/bin/bash"),
            ("D", "plain"),
            ("E", "a"),
            ("F", ""),
            ("G", "a$b@c"),
            ("H", "onetwo"),
            ("I", "x"),
            ("J", "a"),
            ("L", "${open"),
        ];
        assert_eq!(pairs(&known), expected.map(|(name, value)| (name, value.to_owned())));
    }
}
