//! Extracts the names of sourced files from a shell's trace.
//!
//! Such a trace contains plain values, including secrets. It is parsed here line by line as it arrives. Only names of
//! files and programs leave this process.
//!
//! This module does not know which files a shell reads by itself, or whether a file matters. A misleading line adds a
//! harmless extra file. If a file may have been missed, the result is marked incomplete.

use agentd_api::ByteString;

use crate::protocol::{Sourced, Trace};

/// Maximum length in bytes of a parsed line. A command that sources a file is shorter.
const LONGEST_LINE: usize = 16 << 10;
/// End of each line in a zsh trace.
const SOURCED: &[u8] = b"<sourcetrace>";
/// Maximum number of files. No start-up sources more.
const MOST_FILES: usize = 10_000;

/// Maximum number of programs, and maximum length of a path (`PATH_MAX` of Linux).
const MOST_PROGRAMS: usize = 200;
const LONGEST_NAME: usize = 4096;
/// bash builtins that also exist as programs.
const BUILTINS: [&str; 38] = [
    "alias", "bind", "break", "builtin", "case", "cd", "command", "complete", "continue", "declare", "echo", "eval",
    "exec", "exit", "export", "false", "for", "hash", "if", "kill", "let", "local", "printf", "pwd", "read",
    "readonly", "return", "set", "shift", "shopt", "test", "trap", "true", "type", "typeset", "ulimit", "umask",
    "unset",
];

/// Parser of one trace.
#[derive(Debug)]
pub(crate) struct Reader {
    form: Trace,
    /// Current line; `None` while an overlong line is skipped.
    partial: Option<Vec<u8>>,
    files: Vec<ByteString>,
    programs: Vec<ByteString>,
    /// Whether the last line shows that the trace lasted until the end.
    reached_end: bool,
    /// Whether a file may have been missed.
    missed: bool,
    /// Whether the trace may have gone to stderr for a while.
    astray: bool,
}

impl Reader {
    pub(crate) fn new(form: Trace) -> Self {
        Self {
            form,
            partial: Some(Vec::new()),
            files: Vec::new(),
            programs: Vec::new(),
            reached_end: false,
            missed: false,
            astray: false,
        }
    }

    /// Parses a piece of the trace.
    pub(crate) fn take(&mut self, mut piece: &[u8]) {
        while let Some(end) = memchr::memchr(b'\n', piece) {
            self.extend(&piece[..end]);
            if let Some(line) = self.partial.replace(Vec::new()) {
                self.line(&line);
            }
            piece = &piece[end + 1..];
        }
        self.extend(piece);
    }

    fn extend(&mut self, piece: &[u8]) {
        let Some(partial) = &mut self.partial else { return };
        if partial.len() + piece.len() > LONGEST_LINE {
            self.partial = None;
        } else {
            partial.extend_from_slice(piece);
        }
    }

    /// Returns the files and programs. Removes the trace from stderr, or all of stderr if they cannot be separated.
    pub(crate) fn finish(self, stderr: &mut Vec<u8>) -> Sourced {
        if self.form == Trace::Zsh {
            let lines = stderr.split_inclusive(|byte| *byte == b'\n');
            *stderr = lines.filter(|line| !line.trim_ascii_end().ends_with(SOURCED)).flatten().copied().collect();
        }
        let traced = |line: &[u8]| line.starts_with(b"+");
        if self.form == Trace::Bash && (self.astray || stderr.split(|byte| *byte == b'\n').any(traced)) {
            stderr.clear();
        }
        Sourced { files: self.files, programs: self.programs, complete: self.reached_end && !self.missed }
    }

    fn line(&mut self, line: &[u8]) {
        // Terminals end lines with a carriage return.
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match self.form {
            Trace::Bash => self.bash(line),
            Trace::Zsh if line.ends_with(SOURCED) => {
                // At a terminal, zsh may print the mark of an unfinished line (PROMPT_SP) first and overwrite it.
                let line = line.rsplit(|byte| *byte == b'\r').next().unwrap_or(line);
                match zsh_name(line) {
                    Some(b"/dev/null") => self.reached_end = true,
                    Some(file) => self.found(file),
                    None => self.missed = true,
                }
            }
            Trace::Zsh => {}
            Trace::Fish => self.fish(line),
            Trace::Names => {
                self.reached_end = true;
                if line.starts_with(b"/") {
                    self.found(line);
                }
            }
        }
    }

    fn found(&mut self, file: &[u8]) {
        let file = ByteString::from(file);
        if self.files.len() == MOST_FILES {
            self.missed = true;
        } else if !self.files.contains(&file) {
            self.files.push(file);
        }
    }

    /// Parses `+ . FILE`, with a `+` for each level, and `+ cat FILE`, as in `$(cat FILE)`.
    fn bash(&mut self, line: &[u8]) {
        self.astray |= memchr::memmem::find(line, b"BASH_XTRACEFD").is_some();
        let depth = line.iter().take_while(|byte| **byte == b'+').count();
        let Some(command) = line[depth..].strip_prefix(b" ").filter(|_| depth > 0) else { return };
        self.reached_end |= memchr::memmem::find(command, b" dump-environment ").is_some();
        self.missed |= self.astray || [&b"set +x"[..], b"set +o xtrace", b"set -"].contains(&command);
        // For these commands, every word that is not an option is a file. An argument of other commands may be a
        // secret.
        let prints = [&b"cat "[..], b"tac ", b"command cat ", b"/bin/cat ", b"/usr/bin/cat "];
        if let Some(rest) = prints.iter().find_map(|word| command.strip_prefix(*word)) {
            let names = rest.split(|byte| *byte == b' ').filter(|name| name.starts_with(b"/"));
            names.filter_map(unquote).for_each(|name| self.found(&name));
            return;
        }
        if depth > 1 {
            self.program(command);
        }
        let words = [&b". "[..], b"source ", b"builtin source ", b"builtin . ", b"command . ", b"command source "];
        let Some(rest) = words.iter().find_map(|word| command.strip_prefix(*word)) else { return };
        match unquote(rest) {
            // bash searches for this file along PATH.
            Some(name) if !name.contains(&b'/') => self.missed = true,
            Some(name) => self.found(&name),
            None => self.missed = true,
        }
    }

    /// Records the command's first word if it can be a program's name. An assignment never can, because its value may
    /// be a secret.
    fn program(&mut self, command: &[u8]) {
        // bash quotes a path that contains a blank.
        let (end, besides): (u8, &[u8]) =
            if command.starts_with(b"'/") { (b'\'', b"._+-/@ ") } else { (b' ', b"._+-/@") };
        let command = if end == b'\'' { &command[1..] } else { command };
        let word = command.split(|byte| *byte == end).next().unwrap_or_default();
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || besides.contains(byte);
        let begins = word.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'/');
        let is_name = begins && word.len() <= LONGEST_NAME && word.iter().all(is_plain);
        if !is_name || BUILTINS.iter().any(|builtin| builtin.as_bytes() == word) {
            return;
        }
        let name = ByteString::from(word);
        if self.programs.len() < MOST_PROGRAMS && !self.programs.contains(&name) {
            self.programs.push(name);
        }
    }

    /// Parses `TIME<TAB>SUM<TAB>--> source FILE` of `--profile-startup`, with a `-` for each level.
    fn fish(&mut self, line: &[u8]) {
        let Some(command) = line.splitn(3, |byte| *byte == b'\t').nth(2) else { return };
        let depth = command.iter().take_while(|byte| **byte == b'-').count();
        let Some(command) = command[depth..].strip_prefix(b"> ") else { return };
        // The trace shows the last of fish's own files. fish writes its trace at its end, so an `exec` leaves no
        // trace.
        self.reached_end |= command.starts_with(b"builtin source ");
        let words = [&b"source "[..], b". ", b"builtin source "];
        let Some(rest) = words.iter().find_map(|word| command.strip_prefix(*word)) else { return };
        // Skips the loop of fish's own config.fish over the conf.d directories, and its own parts.
        if rest.trim_ascii() == b"$file" || rest.starts_with(b"$__fish_") {
            return;
        }
        let name = match rest.trim_ascii_end() {
            [quote @ (b'\'' | b'"'), inner @ .., last] if quote == last => inner,
            name => name,
        };
        if name.iter().any(|byte| b"$(*\\ '\"".contains(byte)) || !name.contains(&b'/') {
            self.missed = true;
        } else {
            self.found(name);
        }
    }
}

/// Parses `+FILE:1> <sourcetrace>`. Returns `None` if the start-up files changed the prompt's format.
fn zsh_name(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_suffix(SOURCED)?.strip_suffix(b"> ")?;
    let colon = memchr::memrchr(b':', rest)?;
    let name = &rest[rest.iter().take_while(|byte| **byte == b'+').count()..colon];
    rest[colon + 1..].iter().all(u8::is_ascii_digit).then_some(name)
}

/// Parses the first word in bash's trace format: bare, `'...'` with `'\''` in it, or `$'...'`. Returns `None` for
/// another form.
fn unquote(text: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    let mut rest = text;
    loop {
        match rest {
            [] | [b' ', ..] => return (!name.is_empty()).then_some(name),
            [b'\'', tail @ ..] => {
                let end = memchr::memchr(b'\'', tail)?;
                name.extend_from_slice(&tail[..end]);
                rest = &tail[end + 1..];
            }
            [b'$', b'\'', ..] => return None,
            [b'\\', byte, tail @ ..] | [byte, tail @ ..] => {
                name.push(*byte);
                rest = tail;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: Trace, text: &str, stderr: &str) -> (Vec<String>, bool, String) {
        let mut reader = Reader::new(form);
        // In small pieces, as a pipe may return them.
        text.as_bytes().chunks(7).for_each(|piece| reader.take(piece));
        let mut stderr = stderr.as_bytes().to_vec();
        let sourced = reader.finish(&mut stderr);
        let files = sourced.files.iter().map(|file| file.display().into_owned()).collect();
        (files, sourced.complete, String::from_utf8(stderr).unwrap())
    }

    #[test]
    fn only_the_names_of_sourced_files_are_kept_of_a_bash_trace() {
        let text = "+ export API_KEY=sekrit\n++ cat -s /h/.token ./other\n++ grep /sekrit /h/x\n+ . /h/.bashrc\n\
                    ++ builtin source '/h/a b'\\''c.sh'\n+++ . /h/.bashrc\n+ echo '. /x'\n\
                    + /k/agentd-keeper dump-environment 199\n";
        let (files, complete, stderr) = read(Trace::Bash, text, "a word\n");
        assert_eq!((files, complete), (["/h/.token", "/h/.bashrc", "/h/a b'c.sh"].map(str::to_owned).to_vec(), true));
        assert_eq!(stderr, "a word\n");
    }

    #[test]
    fn only_the_names_of_programs_in_bash_substitutions_are_kept() {
        let text = "+ ls /h\n++ starship init bash\n++ API_KEY=sekrit\n+++ /h/bin/mise activate bash\n\
                    ++ '[' -f /x ']'\n\
                    ++ export K=sekrit\n++ echo sekrit\n++ 'a b' x\n++ '/a b/x' y\n++ starship x\n++++/sekrit\n";
        let mut reader = Reader::new(Trace::Bash);
        reader.take(text.as_bytes());
        assert_eq!(reader.finish(&mut Vec::new()).programs, ["starship".into(), "/h/bin/mise".into(), "/a b/x".into()]);
    }

    #[test]
    fn a_bash_trace_that_stops_or_moves_is_incomplete_and_its_stderr_is_withheld() {
        let end = "+ /k/agentd-keeper dump-environment 199\n";
        assert!(read(Trace::Bash, end, "").1);
        for text in ["+ . x.sh\n", "+ set +x\n", "+ . $'/a\\nb'\n"] {
            assert!(!read(Trace::Bash, &format!("{text}{end}"), "").1, "{text}");
        }
        assert!(!read(Trace::Bash, "+ . /x\n", "").1, "it did not come to the end");
        let (_, complete, stderr) = read(Trace::Bash, &format!("+ unset BASH_XTRACEFD\n{end}"), "> export K=sekrit\n");
        assert_eq!((complete, stderr.as_str()), (false, ""));
        assert_eq!(read(Trace::Bash, end, "hello\n+ export K=sekrit\n").2, "");
    }

    #[test]
    fn a_zsh_trace_is_parsed_and_removed_from_stderr() {
        let text = "+/etc/zsh/zshrc:1> <sourcetrace>\nhello\n++/h/a b:c.sh:1> <sourcetrace>\n";
        let end = "+/dev/null:1> <sourcetrace>\n";
        let (files, complete, stderr) = read(Trace::Zsh, &format!("{text}{end}"), &format!("{text}{end}"));
        assert_eq!((files, complete), (vec!["/etc/zsh/zshrc".to_owned(), "/h/a b:c.sh".to_owned()], true));
        assert_eq!(stderr, "hello\n");
        let marked = format!("\x1b[7m#\x1b[27m   \r \r+/h/.zlogin:1> <sourcetrace>\r\n{end}");
        assert_eq!(read(Trace::Zsh, &marked, "").0, ["/h/.zlogin"]);
        assert!(!read(Trace::Zsh, text, "").1, "an rc file turned it off");
        let (_, complete, stderr) = read(Trace::Zsh, &format!("x <sourcetrace>\n{end}"), "x <sourcetrace>\n");
        assert_eq!((complete, stderr.as_str()), (false, ""));
    }

    #[test]
    fn fish_files_are_named_as_they_are_written() {
        let text = "Time\tSum\tCommand\n9\t9\t> builtin source /usr/share/fish/config.fish\n1\t1\t--> source $file\n\
                    1\t1\t---> source ~/sub.fish\n1\t1\t> builtin source /h/.config/fish/config.fish\n\
                    1\t1\t-> . '/h/x.fish'\n";
        let (files, complete, _) = read(Trace::Fish, text, "");
        let expected = ["/usr/share/fish/config.fish", "~/sub.fish", "/h/.config/fish/config.fish", "/h/x.fish"]
            .map(str::to_owned);
        assert_eq!((files, complete), (expected.to_vec(), true));
        for unknown in ["1\t1\t-> source $mine\n", "1\t1\t-> source (ls)/x\n", "1\t1\t-> source x.fish\n"] {
            assert!(!read(Trace::Fish, &format!("{text}{unknown}"), "").1, "{unknown}");
        }
        assert!(!read(Trace::Fish, "", "").1, "an exec leaves no trace");
    }

    #[test]
    fn a_line_without_an_end_takes_no_memory() {
        let mut reader = Reader::new(Trace::Bash);
        for _ in 0..1000 {
            reader.take(&[b'x'; 1000]);
            assert!(reader.partial.as_ref().is_none_or(|line| line.len() <= LONGEST_LINE));
        }
        reader.take(b"\n+ . /x\n");
        assert_eq!(reader.finish(&mut Vec::new()).files, ["/x".into()]);
    }
}
