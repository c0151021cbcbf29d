//! Decides whether a pattern of a grant or want allows a call. Implements the grammar of grants.
//!
//! The daemon has its own implementation. A test checks that both agree on the same cases.

use super::places::Places;
use crate::Capability;
use crate::pattern::matches;

/// Reports whether the text is a valid pattern of the capability.
pub(super) fn is_pattern(capability: Capability, pattern: &str) -> bool {
    match capability {
        Capability::ShellEnvironment => false, // it has no patterns
        Capability::Script | Capability::File | Capability::Mount => is_path(pattern),
        Capability::Command => {
            let words: Vec<&str> = pattern.split(' ').collect();
            let program = words[0];
            let rest_at_end = !words[..words.len() - 1].contains(&"**") || words.len() == 1;
            let is_program = if program.contains('/') { program.starts_with('/') && is_path(program) } else { true };
            is_program && rest_at_end && words.iter().all(|word| !word.is_empty())
        }
        Capability::Network => pattern.rsplit_once(':').is_some_and(|(host, port)| {
            let is_number = |port: &str| port.parse::<u16>().is_ok();
            let is_range = port.split_once('-').is_some_and(|(first, last)| is_number(first) && is_number(last));
            !host.is_empty() && (port == "*" || is_number(port) || is_range)
        }),
        Capability::Process | Capability::Secret => !pattern.is_empty(),
    }
}

fn is_path(pattern: &str) -> bool {
    let places = ["{cwd}", "{session}", "{config}", "{home}"];
    let rest = places.iter().find_map(|place| pattern.strip_prefix(place));
    let begins = match rest {
        Some(rest) => rest.is_empty() || rest.starts_with('/'),
        None => pattern.starts_with('/') || matches!(pattern, "*" | "**"),
    };
    begins && !pattern.split('/').any(|name| name == "..")
}

/// Matches a path with resolved placeholders: `*` and `?` stay within a name, `**` is any text, and `..` never
/// matches.
pub(super) fn path(pattern: &str, path: &str, places: &Places) -> bool {
    let everywhere = matches!(pattern, "*" | "**"); // for a want that cannot be narrower
    let climbs = path.split('/').any(|name| name == "..");
    !climbs && (everywhere || glob(places.resolve(pattern).as_bytes(), path.as_bytes()))
}

/// Matches a program and its arguments. Each word of the pattern matches one argument.
pub(super) fn command(pattern: &str, program: &str, arguments: &[String]) -> bool {
    if pattern == "**" {
        return true;
    }
    let mut words = pattern.split(' ');
    let first = words.next().unwrap_or_default();
    let allowed = if first.starts_with('/') {
        !program.split('/').any(|name| name == "..") && glob(first.as_bytes(), program.as_bytes())
    } else {
        matches(first, program)
    };
    let mut words: Vec<&str> = words.collect();
    let more = words.last() == Some(&"**");
    if more {
        words.pop();
    }
    let enough = if more { arguments.len() >= words.len() } else { arguments.len() == words.len() };
    allowed && enough && words.iter().zip(arguments).all(|(word, argument)| matches(word, argument))
}

/// Matches a host, and a port if there is one.
pub(super) fn network(pattern: &str, host: &str, port: Option<u16>) -> bool {
    let Some((host_pattern, port_pattern)) = pattern.rsplit_once(':') else { return false };
    let bare = |text: &str| text.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let port_matches = |port: u16| match port_pattern.split_once('-') {
        _ if port_pattern == "*" => true,
        Some((first, last)) => {
            first.parse().is_ok_and(|first: u16| first <= port) && last.parse().is_ok_and(|last: u16| port <= last)
        }
        None => port_pattern.parse() == Ok(port),
    };
    matches(&bare(host_pattern), &bare(host)) && port.is_none_or(port_matches)
}

/// Matches bytes: `**` crosses `/`, `*` and `?` do not.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', b'*', rest @ ..] => (0..=text.len()).any(|at| glob(rest, &text[at..])),
        [b'*', rest @ ..] => {
            let end = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
            (0..=end).any(|at| glob(rest, &text[at..]))
        }
        [b'?', rest @ ..] => {
            let character = std::str::from_utf8(text).ok().and_then(|text| text.chars().next());
            character.is_some_and(|character| character != '/' && glob(rest, &text[character.len_utf8()..]))
        }
        [byte, rest @ ..] => text.first() == Some(byte) && glob(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_a_name_and_two_do_not() {
        let places = Places::default();
        for (pattern, allowed) in [
            ("/etc/*.conf", "/etc/a.conf"),
            ("/etc/**", "/etc/a/b"),
            ("{cwd}/**", "/work/x/y"),
            ("{cwd}", "/work"),
            ("/etc/?", "/etc/é"),
            ("**", "/any/where"),
        ] {
            assert!(path(pattern, allowed, &places), "{pattern} {allowed}");
        }
        for (pattern, refused) in [
            ("/etc/*.conf", "/etc/x/a.conf"),
            ("/etc/**", "/etcetera"),
            ("{cwd}/**", "/workshop/x"),
            ("/etc/**", "/etc/../root/x"),
            ("/etc/?", "/etc//"),
        ] {
            assert!(!path(pattern, refused, &places), "{pattern} {refused}");
        }
    }

    #[test]
    fn a_commands_words_are_matched_one_by_one() {
        let allowed = |pattern: &str, words: &[&str]| {
            let arguments: Vec<String> = words[1..].iter().map(|&word| word.to_owned()).collect();
            command(pattern, words[0], &arguments)
        };
        assert!(allowed("/usr/bin/git rev-parse *", &["/usr/bin/git", "rev-parse", "a b"]));
        assert!(allowed("git **", &["git"]) && allowed("git log **", &["git", "log", "-1", "x"]));
        assert!(allowed("* **", &["/usr/bin/git", "log"]) && allowed("**", &["/usr/bin/git", "log"]));
        assert!(!allowed("git", &["git", "log"]));
        assert!(!allowed("git log *", &["git", "log"]));
        assert!(!allowed("git log **", &["git"]));
        assert!(!allowed("/usr/*/git", &["/usr/local/bin/git"]));
    }

    #[test]
    fn what_is_no_pattern_is_none() {
        for (capability, pattern) in [
            (Capability::File, "etc/x"),
            (Capability::Script, "{cwd}x"),
            (Capability::Mount, "/a/../b"),
            (Capability::File, "{other}/x"),
            (Capability::Command, "git  log"),
            (Capability::Command, "git ** log"),
            (Capability::Command, "./git"),
            (Capability::Network, "host"),
            (Capability::Network, "host:http"),
            (Capability::Network, ":80"),
            (Capability::Secret, ""),
            (Capability::ShellEnvironment, "*"),
        ] {
            assert!(!is_pattern(capability, pattern), "{capability:?} {pattern}");
        }
        for (capability, pattern) in [
            (Capability::File, "{home}/.config/*"),
            (Capability::Script, "**"),
            (Capability::Command, "/** r load *"),
            (Capability::Command, "**"),
            (Capability::Command, "* **"),
            (Capability::Network, "*.example:27000-27009"),
            (Capability::Network, "[::1]:*"),
            (Capability::Process, "*"),
        ] {
            assert!(is_pattern(capability, pattern), "{capability:?} {pattern}");
        }
    }

    #[test]
    fn a_port_is_a_number_a_range_or_any() {
        for (pattern, host, port) in [
            ("licence.example:27000", "licence.example", Some(27000)),
            ("*.example:27000-27009", "licence.EXAMPLE", Some(27009)),
            ("[::1]:*", "::1", Some(1)),
            ("*:80", "anything", None),
        ] {
            assert!(network(pattern, host, port), "{pattern}");
        }
        assert!(!network("*.example:27000-27009", "licence.example", Some(27010)));
        assert!(!network("licence.example:80", "example", Some(80)));
    }
}
