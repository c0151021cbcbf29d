//! Patterns of commands: `PROGRAM ARGUMENT…`. Words are separated by single spaces, and each word is a pattern.
//! `?` also matches a space within a word.

use super::path::{PathPattern, Places};
use agentd_glob::Glob;

/// Maximum length of a pattern in bytes.
const LONGEST: usize = 4096;
/// The last word of a pattern that allows any further arguments.
const REST: &str = "**";

/// The program part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Program {
    Any,
    /// A name without a slash, which is looked up in the standard directories of programs. Matches no program
    /// that is requested by path.
    Name(Glob),
    Path(Box<PathPattern>),
}

/// A pattern of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandPattern {
    program: Program,
    arguments: Vec<Glob>,
    /// Whether further arguments may follow.
    rest: bool,
}

impl CommandPattern {
    pub(crate) fn parse(pattern: &str) -> Result<Self, &'static str> {
        if pattern.len() > LONGEST {
            return Err("a pattern of a command has at most 4096 bytes");
        }
        if pattern.contains('\0') {
            return Err("a command has no NUL byte");
        }
        let mut words: Vec<&str> = pattern.split(' ').collect();
        if words.iter().any(|word| word.is_empty()) {
            return Err("the words of a command have one space between them, and none before or after");
        }
        let rest = words.last() == Some(&REST);
        if rest && words.len() > 1 {
            words.pop();
        }
        let (program, arguments) = (words[0], &words[1..]);
        if arguments.contains(&REST) {
            return Err("\"**\" stands for any further arguments, and so at the end");
        }
        let program = match program {
            "*" | "**" => Program::Any,
            path if path.starts_with('/') => Program::Path(Box::new(PathPattern::parse(path)?)),
            name if name.contains('/') => return Err("a program is an absolute path, or a name without \"/\""),
            name => Program::Name(Glob::path(name)),
        };
        Ok(Self { program, arguments: arguments.iter().map(|word| Glob::flat(word)).collect(), rest })
    }

    /// Reports whether the pattern matches every command.
    pub(crate) fn is_everything(&self) -> bool {
        let any = match &self.program {
            Program::Any => true,
            Program::Path(path) => path.is_everything(),
            Program::Name(_) => false,
        };
        any && self.rest && self.arguments.is_empty()
    }

    /// Returns the fixed beginning of the program's path, which may be a symbolic link.
    pub(crate) fn front(&self) -> Option<&str> {
        match &self.program {
            Program::Path(path) => path.front(),
            Program::Any | Program::Name(_) => None,
        }
    }

    /// Reports whether the arguments match.
    pub(crate) fn matches_arguments(&self, arguments: &[String]) -> bool {
        let own = self.arguments.len();
        arguments.len() >= own
            && (self.rest || arguments.len() == own)
            && self.arguments.iter().zip(arguments).all(|(pattern, argument)| pattern.matches(argument))
    }

    /// Reports whether a program requested by this name or path can match, before the machine resolves the
    /// program.
    pub(crate) fn may_match_program(&self, asked: &str) -> bool {
        match &self.program {
            Program::Any => true,
            Program::Name(name) => !asked.contains('/') && name.matches(asked),
            Program::Path(path) => path.matches_name(asked.rsplit('/').next().unwrap_or_default()),
        }
    }

    /// Reports whether the pattern matches a program requested by this name or path and resolved to this file.
    /// Both must match, because one file can be many programs that depend on their name (busybox).
    pub(crate) fn matches_program(&self, asked: &str, file: &str, resolved_front: Option<&str>) -> bool {
        let is_file = match &self.program {
            Program::Any | Program::Name(_) => true,
            Program::Path(path) => path.matches(file, &Places::default(), resolved_front),
        };
        is_file && self.may_match_program(asked)
    }

    /// Reports whether the pattern denies a program. For a denial, a match of the requested name or of the file
    /// is sufficient.
    pub(crate) fn denies_program(&self, asked: &str, file: &str, resolved_front: Option<&str>) -> bool {
        let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        match &self.program {
            Program::Any => true,
            Program::Name(name) => name.matches(&last(asked)) || name.matches(&last(file)),
            Program::Path(path) => {
                [asked, file].into_iter().any(|program| path.matches(program, &Places::default(), resolved_front))
            }
        }
    }

    /// Reports whether some command matches both patterns.
    pub(crate) fn may_overlap(&self, other: &Self) -> bool {
        let programs = match (&self.program, &other.program) {
            (Program::Any, _) | (_, Program::Any) => true,
            (Program::Path(mine), Program::Path(theirs)) => mine.may_overlap(theirs),
            (Program::Name(mine), Program::Name(theirs)) => mine.overlaps(theirs),
            (Program::Name(name), Program::Path(path)) | (Program::Path(path), Program::Name(name)) => {
                path.may_be_named(name)
            }
        };
        let (mine, theirs) = (self.arguments.len(), other.arguments.len());
        let numbers = (mine >= theirs || self.rest) && (theirs >= mine || other.rest);
        programs && numbers && self.arguments.iter().zip(&other.arguments).all(|(a, b)| a.overlaps(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports whether the command is allowed, with the program's path equal to its file.
    fn matches(pattern: &str, command: &[&str]) -> bool {
        let pattern = CommandPattern::parse(pattern).unwrap();
        let arguments: Vec<String> = command[1..].iter().map(|&word| word.to_owned()).collect();
        let file = if command[0].starts_with('/') { command[0].to_owned() } else { format!("/usr/bin/{}", command[0]) };
        pattern.matches_arguments(&arguments) && pattern.matches_program(command[0], &file, None)
    }

    #[test]
    fn words_are_compared_one_by_one() {
        for (pattern, command, expected) in [
            ("/usr/bin/git status", &["/usr/bin/git", "status"][..], true),
            ("/usr/bin/git status", &["/usr/bin/git", "status", "-v"], false),
            ("/usr/bin/git status", &["/usr/bin/git"], false),
            ("/usr/bin/git status", &["/usr/bin/git", "status "], false),
            ("/usr/bin/git status", &["/usr/bin/git status"], false),
            ("/usr/bin/git status **", &["/usr/bin/git", "status"], true),
            ("/usr/bin/git status **", &["/usr/bin/git", "status", "-v", "--long"], true),
            ("/usr/bin/git status **", &["/usr/bin/git", "push"], false),
            ("/usr/bin/git * x", &["/usr/bin/git", "", "x"], true),
            ("/usr/bin/git * x", &["/usr/bin/git", "a b", "x"], true),
            ("/usr/bin/git * x", &["/usr/bin/git", "a", "b", "x"], false),
            ("/usr/bin/git --format=*", &["/usr/bin/git", "--format=a/b c"], true),
            ("/usr/bin/git --format=*", &["/usr/bin/git", "--output=x"], false),
            ("/usr/bin/git -?", &["/usr/bin/git", "-v"], true),
            ("/usr/bin/git -?", &["/usr/bin/git", "-vv"], false),
            ("/usr/bin/* -v", &["/usr/bin/gcc", "-v"], true),
            ("/usr/bin/* -v", &["/usr/bin/x/gcc", "-v"], false),
            ("/usr/bin/** -v", &["/usr/bin/x/gcc", "-v"], true),
            // A space inside a word.
            ("/opt/the?lab/check -v", &["/opt/the lab/check", "-v"], true),
            ("/usr/bin/git one?argument", &["/usr/bin/git", "one argument"], true),
            ("git **", &["git", "x"], true),
            ("git **", &["/usr/bin/git", "x"], false),
            ("/usr/bin/git **", &["git", "x"], true),
            ("/usr/local/bin/git **", &["git", "x"], false),
            ("g* **", &["gcc"], true),
            ("* **", &["/opt/x", "y"], true),
            ("* **", &["x"], true),
            ("*", &["x"], true),
            ("*", &["x", "y"], false),
            ("**", &["/opt/x", "y"], true),
        ] {
            assert_eq!(matches(pattern, command), expected, "{pattern} {command:?}");
        }
    }

    #[test]
    fn a_program_is_known_by_its_name_and_by_its_file() {
        let ls = CommandPattern::parse("/bin/ls **").unwrap();
        assert_eq!(ls.front(), Some("/bin/ls"));
        assert!(ls.matches_program("/bin/ls", "/usr/bin/ls", Some("/usr/bin/ls")));
        assert!(ls.matches_program("ls", "/usr/bin/ls", Some("/usr/bin/ls")));
        // The name matches but the file differs, because another user created the link.
        assert!(!ls.matches_program("/home/u/ls", "/usr/bin/sh", Some("/usr/bin/ls")));
        // The file matches but the name differs, so this is another program.
        let busybox = Some("/usr/bin/busybox");
        assert!(ls.matches_program("/bin/ls", "/usr/bin/busybox", busybox));
        assert!(!ls.matches_program("/usr/bin/busybox", "/usr/bin/busybox", busybox));
    }

    #[test]
    fn a_program_is_denied_by_any_of_its_names() {
        let denies = |pattern: &str, asked: &str, file: &str| {
            CommandPattern::parse(pattern).unwrap().denies_program(asked, file, Some("/usr/bin/dash"))
        };
        assert!(denies("/bin/sh **", "/home/u/x", "/usr/bin/dash"));
        assert!(denies("/bin/sh **", "/bin/sh", "/bin/sh"));
        assert!(denies("sh **", "/bin/sh", "/usr/bin/dash") && denies("dash **", "sh", "/usr/bin/dash"));
        assert!(denies("**", "x", "y"));
        assert!(!denies("/bin/sh **", "/bin/true", "/usr/bin/true") && !denies("sh **", "true", "/usr/bin/true"));
    }

    #[test]
    fn what_is_no_command_is_no_pattern() {
        for (pattern, words) in [
            ("", "one space"),
            (" ls", "one space"),
            ("ls ", "one space"),
            ("ls  -l", "one space"),
            ("/bin/ls ** -l", "at the end"),
            ("bin/ls", "absolute path"),
            ("{cwd}/tool", "absolute path"),
            ("/bin/../ls", "\"..\""),
            ("ls\0", "NUL"),
        ] {
            let error = CommandPattern::parse(pattern).unwrap_err();
            assert!(error.contains(words), "{pattern}: {error}");
        }
        assert!(CommandPattern::parse(&"a ".repeat(3000)).is_err());
    }

    #[test]
    fn only_any_program_with_any_arguments_is_everything() {
        for (pattern, expected) in
            [("**", true), ("* **", true), ("/** **", true), ("*", false), ("* * **", false), ("/bin/** **", false)]
        {
            assert_eq!(CommandPattern::parse(pattern).unwrap().is_everything(), expected, "{pattern}");
        }
    }

    #[test]
    fn commands_overlap_by_program_and_by_every_argument() {
        for (a, b, expected) in [
            ("/bin/git status", "/bin/git **", true),
            ("/bin/git status", "/bin/git push **", false),
            ("/bin/git status", "/bin/git status x **", false),
            ("git status", "/usr/bin/git *", true),
            ("git status", "/usr/bin/hg *", false),
            ("* **", "/bin/ls", true),
            ("/bin/a **", "/bin/b **", false),
        ] {
            let (a, b) = (CommandPattern::parse(a).unwrap(), CommandPattern::parse(b).unwrap());
            assert_eq!(a.may_overlap(&b), expected, "{a:?} {b:?}");
            assert_eq!(b.may_overlap(&a), expected, "{b:?} {a:?}");
        }
    }
}
