//! Paths: requests of plugins, and patterns of scripts, files, mounts and programs.
//!
//! A pattern consists of a fixed front (a session's directory or whole names) and a tail with wildcards. The
//! front may be a symbolic link such as `/bin`, so it has a second, resolved form. The tail is compared with
//! resolved paths only.

use agentd_glob::Glob;

/// Maximum length of a path and of a pattern in bytes.
const LONGEST: usize = 4096;

/// A placeholder that a path may begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Cwd,
    Session,
    Config,
    Home,
}

impl Place {
    const ALL: [Self; 4] = [Self::Cwd, Self::Session, Self::Config, Self::Home];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Cwd => "{cwd}",
            Self::Session => "{session}",
            Self::Config => "{config}",
            Self::Home => "{home}",
        }
    }

    /// Returns the placeholder that the path begins with, and the rest.
    fn split(path: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|place| Some((place, path.strip_prefix(place.as_str())?)))
    }
}

/// Directories that replace the placeholders in a call. All are absolute without symbolic links. `None` for
/// directories that the call does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// The session's working directory.
    pub cwd: Option<String>,
    /// The session's state directory.
    pub session: Option<String>,
    /// The user's configuration directory of agentd.
    pub config: Option<String>,
    /// The user's home directory.
    pub home: Option<String>,
}

impl Places {
    pub(crate) fn get(&self, place: Place) -> Option<&str> {
        match place {
            Place::Cwd => self.cwd.as_deref(),
            Place::Session => self.session.as_deref(),
            Place::Config => self.config.as_deref(),
            Place::Home => self.home.as_deref(),
        }
    }
}

/// Why a path that a plugin requests is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("is empty")]
    Empty,
    #[error("is longer than {LONGEST} bytes")]
    Long,
    #[error("has a NUL byte")]
    Nul,
    #[error("contains \"..\"")]
    Climbs,
    #[error("is neither absolute nor begins with {{cwd}}, {{session}} or {{config}}")]
    Relative,
}

/// A path that a plugin requests, without redundant parts (`//`, `/./`, a `/` at the end), and with its
/// placeholder resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestedPath {
    /// The path with its placeholder.
    pub(crate) written: String,
    /// The absolute path. `None` if the call does not have the placeholder's directory.
    pub(crate) absolute: Option<String>,
}

impl RequestedPath {
    pub(crate) fn new(path: &str, places: &Places) -> Result<Self, PathError> {
        if path.is_empty() {
            return Err(PathError::Empty);
        }
        if path.len() > LONGEST {
            return Err(PathError::Long);
        }
        if path.contains('\0') {
            return Err(PathError::Nul);
        }
        let (place, rest) = match Place::split(path) {
            Some((place, rest)) if place != Place::Home && (rest.is_empty() || rest.starts_with('/')) => {
                (Some(place), rest)
            }
            _ if path.starts_with('/') => (None, path),
            _ => return Err(PathError::Relative),
        };
        let rest = clean(rest)?;
        let or_root = |path: String| if path.is_empty() { "/".to_owned() } else { path };
        let Some(place) = place else {
            let absolute = or_root(rest);
            return Ok(Self { written: absolute.clone(), absolute: Some(absolute) });
        };
        let absolute = places.get(place).map(|front| or_root(format!("{}{rest}", front.trim_end_matches('/'))));
        Ok(Self { written: format!("{}{rest}", place.as_str()), absolute })
    }
}

/// Returns the names of an absolute path, each after a `/`. Empty for the root.
fn clean(path: &str) -> Result<String, PathError> {
    let mut clean = String::with_capacity(path.len());
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => return Err(PathError::Climbs),
            name => clean.extend(["/", name]),
        }
    }
    Ok(clean)
}

/// The fixed beginning of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Front {
    /// None: the pattern is `*` or `**`.
    Nothing,
    /// A placeholder.
    Place(Place),
    /// Whole names without wildcards. Empty for the root.
    Names(String),
}

/// A pattern of absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathPattern {
    front: Front,
    /// The rest after the front, beginning with a `/`. Empty if the pattern has no more.
    tail: Glob,
    /// Pattern of the last name.
    name: Glob,
    /// The whole pattern without the placeholder, for comparison with other patterns.
    whole: Glob,
}

impl PathPattern {
    pub(crate) fn parse(pattern: &str) -> Result<Self, &'static str> {
        if pattern.len() > LONGEST {
            return Err("a pattern of a path has at most 4096 bytes");
        }
        if pattern.contains('\0') {
            return Err("a path has no NUL byte");
        }
        if matches!(pattern, "*" | "**") {
            let all = Glob::flat("*");
            return Ok(Self { front: Front::Nothing, tail: all.clone(), name: all.clone(), whole: all });
        }
        let (place, rest) = match Place::split(pattern) {
            Some((_, rest)) if !rest.is_empty() && !rest.starts_with('/') => {
                return Err("a \"/\" must follow the placeholder");
            }
            Some((place, rest)) => (Some(place), rest),
            None if pattern.starts_with('/') => (None, pattern),
            None => {
                return Err(
                    "a pattern of paths is absolute, begins with {cwd}, {session}, {config} or {home}, or is \"*\"",
                );
            }
        };
        if rest.split('/').any(|name| name == "..") {
            return Err("\"..\" matches nothing");
        }
        if rest.split('/').skip(1).any(|name| name == "." || name.is_empty()) && rest != "/" {
            return Err("\"//\", \"/./\" and a \"/\" at the end match nothing");
        }
        if rest == "/" && place.is_some() {
            return Err("a \"/\" at the end matches nothing");
        }
        let (names, tail) = match place {
            Some(_) => ("", rest),
            None if rest == "/" => ("/", ""),
            None => match rest.find(['*', '?']) {
                Some(wildcard) => rest.split_at(rest[..wildcard].rfind('/').unwrap_or_default()),
                None => (rest, ""),
            },
        };
        let name = rest.rsplit('/').next().unwrap_or_default();
        Ok(Self {
            front: place.map_or_else(|| Front::Names(names.to_owned()), Front::Place),
            tail: Glob::path(tail),
            name: Glob::path(name),
            whole: Glob::path(rest),
        })
    }

    /// Reports whether the pattern matches every path.
    pub(crate) fn is_everything(&self) -> bool {
        match &self.front {
            Front::Nothing => true,
            Front::Names(names) => names.is_empty() && self.whole == Glob::path("/**"),
            Front::Place(_) => false,
        }
    }

    /// Returns the fixed front, which may be a symbolic link.
    pub(crate) fn front(&self) -> Option<&str> {
        match &self.front {
            Front::Names(names) if !names.is_empty() && names != "/" => Some(names),
            _ => None,
        }
    }

    /// Reports whether the pattern matches an absolute path. `resolved` is the front with links resolved, if
    /// that differs.
    pub(crate) fn matches(&self, path: &str, places: &Places, resolved: Option<&str>) -> bool {
        let behind = |front: &str| path.strip_prefix(front).is_some_and(|tail| self.tail.matches(tail));
        match &self.front {
            Front::Nothing => true,
            Front::Place(place) => places.get(*place).is_some_and(|place| behind(place.trim_end_matches('/'))),
            Front::Names(names) => behind(names) || resolved.is_some_and(behind),
        }
    }

    /// Reports whether the pattern matches a path with a placeholder by text alone.
    pub(crate) fn matches_written(&self, path: &str) -> bool {
        match &self.front {
            Front::Place(place) => path.strip_prefix(place.as_str()).is_some_and(|tail| self.tail.matches(tail)),
            Front::Nothing | Front::Names(_) => self.matches(path, &Places::default(), None),
        }
    }

    /// Reports whether a file of this name can match.
    pub(crate) fn matches_name(&self, name: &str) -> bool {
        self.name.matches(name)
    }

    /// Reports whether some path can match both patterns. Assumes a match of a placeholder with another path or
    /// placeholder unless the names differ, because the directories are not known yet.
    pub(crate) fn may_overlap(&self, other: &Self) -> bool {
        match (&self.front, &other.front) {
            (Front::Nothing, _) | (_, Front::Nothing) => true,
            (Front::Names(_), Front::Names(_)) => self.whole.overlaps(&other.whole),
            (Front::Place(mine), Front::Place(theirs)) if mine == theirs => self.whole.overlaps(&other.whole),
            // The directory of a placeholder can have any name.
            _ => self.whole.is_empty() || other.whole.is_empty() || self.name.overlaps(&other.name),
        }
    }

    /// Reports whether the last name of the pattern can be one that `name` matches.
    pub(crate) fn may_be_named(&self, name: &Glob) -> bool {
        self.name.overlaps(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places {
            cwd: Some("/home/u/work*".to_owned()),
            session: Some("/state/s1".to_owned()),
            config: Some("/home/u/.config/agentd".to_owned()),
            home: Some("/home/u".to_owned()),
        }
    }

    fn matches(pattern: &str, path: &str) -> bool {
        PathPattern::parse(pattern).unwrap().matches(path, &places(), None)
    }

    #[test]
    fn a_pattern_matches_below_its_front_and_nowhere_else() {
        for (pattern, path, expected) in [
            ("/etc/hosts", "/etc/hosts", true),
            ("/etc/hosts", "/etc/hosts2", false),
            ("/etc/hosts", "/etc/hosts/x", false),
            ("/etc/*", "/etc/hosts", true),
            ("/etc/*", "/etc/a/b", false),
            ("/etc/*", "/etcetera", false),
            ("/etc/**", "/etc/a/b", true),
            ("/etc/**", "/etc", false),
            ("/etc/a*/b", "/etc/aa/b", true),
            ("/e*", "/etc", true),
            ("/e*", "/etc/x", false),
            ("/", "/", true),
            ("/", "/etc", false),
            ("/**", "/etc/x", true),
            ("/**", "/", true),
            ("*", "/etc/x", true),
            ("**", "/", true),
            ("{cwd}/**", "/home/u/work*/a/b", true),
            ("{cwd}/**", "/home/u/workers/a", false),
            ("{cwd}/**", "/home/u/work*", false),
            ("{cwd}", "/home/u/work*", true),
            ("{cwd}", "/home/u/work*/a", false),
            ("{home}/.netrc", "/home/u/.netrc", true),
            ("{home}/*", "/home/u2/x", false),
            ("{session}/?.sh", "/state/s1/a.sh", true),
            ("{session}/?.sh", "/state/s1/ab.sh", false),
            ("{config}/*", "/home/u/.config/agentd/x", true),
            ("/a/{cwd}/b", "/a/{cwd}/b", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_place_that_the_call_does_not_have_matches_nothing() {
        let pattern = PathPattern::parse("{cwd}/**").unwrap();
        assert!(!pattern.matches("/a", &Places::default(), None));
        let root = Places { cwd: Some("/".to_owned()), ..Places::default() };
        assert!(pattern.matches("/a", &root, None));
    }

    #[test]
    fn a_path_with_its_placeholder_matches_by_its_text_where_nobody_knows_the_place() {
        let matches = |pattern, path| PathPattern::parse(pattern).unwrap().matches_written(path);
        assert!(matches("{cwd}/*.sh", "{cwd}/x.sh") && matches("/etc/*", "/etc/x") && matches("*", "{cwd}/x"));
        assert!(!matches("{cwd}/*.sh", "{config}/x.sh") && !matches("{cwd}/*.sh", "{cwd}/a/x.sh"));
        assert!(!matches("/**", "{cwd}/x"));
    }

    #[test]
    fn a_front_that_is_a_link_matches_by_where_it_leads_too() {
        let pattern = PathPattern::parse("/bin/l*").unwrap();
        assert_eq!(pattern.front(), Some("/bin"));
        assert!(pattern.matches("/usr/bin/ls", &places(), Some("/usr/bin")));
        assert!(pattern.matches("/bin/ls", &places(), Some("/usr/bin")));
        assert!(!pattern.matches("/usr/bin/x/ls", &places(), Some("/usr/bin")));
        let whole = PathPattern::parse("/bin/sh").unwrap();
        assert_eq!(whole.front(), Some("/bin/sh"));
        assert!(whole.matches("/usr/bin/dash", &places(), Some("/usr/bin/dash")));
        assert!(whole.matches_name("sh") && !whole.matches_name("dash"));
        for none in ["{cwd}/a/b", "/*/x", "*", "/", "/a*"] {
            assert_eq!(PathPattern::parse(none).unwrap().front(), None, "{none}");
        }
    }

    #[test]
    fn what_can_match_nothing_is_no_pattern() {
        for (pattern, words) in [
            ("", "is absolute"),
            ("a/b", "is absolute"),
            ("{cwd", "is absolute"),
            ("{other}/x", "is absolute"),
            ("{cwd}x", "must follow"),
            ("/a/../b", "\"..\""),
            ("{cwd}/..", "\"..\""),
            ("/..", "\"..\""),
            ("/a//b", "match nothing"),
            ("/a/./b", "match nothing"),
            ("/a/", "match nothing"),
            ("{cwd}/", "matches nothing"),
            ("/a\0", "NUL"),
        ] {
            let error = PathPattern::parse(pattern).unwrap_err();
            assert!(error.contains(words), "{pattern}: {error}");
        }
        assert!(PathPattern::parse(&format!("/{}", "a".repeat(4096))).is_err());
        assert!(PathPattern::parse("/a..b/..c/d..").is_ok());
    }

    #[test]
    fn a_path_that_is_asked_for_is_made_absolute_and_never_climbs() {
        let asked = |path| RequestedPath::new(path, &places()).map(|asked| (asked.written, asked.absolute));
        let is = |written: &str, absolute: &str| Ok((written.to_owned(), Some(absolute.to_owned())));
        assert_eq!(asked("{cwd}/a"), is("{cwd}/a", "/home/u/work*/a"));
        assert_eq!(asked("{session}"), is("{session}", "/state/s1"));
        assert_eq!(asked("{config}//a/./b/"), is("{config}/a/b", "/home/u/.config/agentd/a/b"));
        assert_eq!(asked("/"), is("/", "/"));
        assert_eq!(asked("//etc///hosts"), is("/etc/hosts", "/etc/hosts"));
        assert_eq!(asked("/a..b"), is("/a..b", "/a..b"));
        for (path, error) in [
            ("", PathError::Empty),
            ("etc", PathError::Relative),
            ("{cwd}x/a", PathError::Relative),
            ("{home}/a", PathError::Relative),
            ("{", PathError::Relative),
            ("/a/..", PathError::Climbs),
            ("{cwd}/../x", PathError::Climbs),
            ("/a\0b", PathError::Nul),
        ] {
            assert_eq!(asked(path), Err(error), "{path}");
        }
        assert_eq!(asked(&format!("/{}", "a/".repeat(3000))), Err(PathError::Long));
        let nowhere = RequestedPath::new("{cwd}/a", &Places::default()).unwrap();
        assert_eq!((nowhere.written.as_str(), nowhere.absolute), ("{cwd}/a", None));
    }

    #[test]
    fn patterns_that_no_path_matches_at_once_do_not_overlap() {
        let overlap = |a: &str, b: &str| {
            let (a, b) = (PathPattern::parse(a).unwrap(), PathPattern::parse(b).unwrap());
            assert_eq!(a.may_overlap(&b), b.may_overlap(&a));
            a.may_overlap(&b)
        };
        for (a, b, expected) in [
            ("/etc/*", "/etc/hosts", true),
            ("/etc/*", "/opt/**", false),
            ("/**", "/opt/x", true),
            ("*", "{cwd}/x", true),
            ("{cwd}/a", "{cwd}/*", true),
            ("{cwd}/a", "{cwd}/b/*", false),
            ("{cwd}/x", "/home/**", true),
            ("{cwd}/x", "/home/y", false),
            ("{cwd}", "/home/y", true),
            ("{cwd}", "{home}/**", true),
        ] {
            assert_eq!(overlap(a, b), expected, "{a} {b}");
        }
    }
}
