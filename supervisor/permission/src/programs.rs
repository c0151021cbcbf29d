//! Determines the programs that a command line runs: its simple commands, and the commands in arguments of programs
//! that run other programs.
//!
//! A [`Candidate`] is a text that a pattern can match. One command has several candidates: as written, with the
//! program's bare name, without options before a subcommand (`git -C x push` is `git push`), and without a wrapper
//! (`sudo`, `env`, `timeout 5`). Additional candidates do not harm a denial. An approval considers only candidates
//! that are [`Candidate::whole`].

use super::shell::{Script, Simple, Word, split};
use super::tables::{
    INTERPRETERS, LOOSE, RUN_BY_VARIABLE, SHELLS, STREAM_EDITORS, Wrapper, is_option_of_git_that_runs, wrapper,
};
use agentd_glob::{Fits, HOLE, fits};

use super::words::{assignment, cluster, is_stdin, joined, may_execute, name_of, names, versioned, with_holes};

/// Maximum nesting depth of commands in arguments of other commands.
const MAX_DEPTH: usize = 8;
/// Maximum number of candidates.
const MAX_CANDIDATES: usize = 4096;
/// Maximum total length of all candidates in bytes.
const MAX_CHARACTERS: usize = 256 << 10;
/// Maximum length of a command line in bytes.
const MAX_LINE: usize = 32 << 10;
/// Maximum number of words after a program's name that may be options before its subcommand.
const MAX_OPTIONS: usize = 24;

/// A text that patterns are compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) text: String,
    /// Whether the command certainly runs. Otherwise it may run.
    pub(super) sure: bool,
    /// Whether the candidate is a part of the command line as written. An approval must match all these candidates.
    pub(super) whole: bool,
}

/// The known programs that a command line runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Runs {
    pub(super) candidates: Vec<Candidate>,
    /// Whether the command line may run more programs.
    pub(super) undecided: bool,
    /// Words that may be paths, and the files of redirections.
    pub(super) words: Vec<String>,
    /// Whether the command line changes the directory, so that relative paths are not known.
    pub(super) moves: bool,
    characters: usize,
}

/// Parses a command line.
pub(super) fn runs(line: &str) -> Runs {
    let mut runs = Runs::default();
    if line.len() > MAX_LINE {
        runs.undecided = true;
        return runs;
    }
    runs.script(
        &line.replace(agentd_keeper::mask::MASK, &HOLE.to_string()),
        Context { sure: true, whole: true, depth: 0 },
    );
    runs
}

#[derive(Debug, Clone, Copy)]
struct Context {
    sure: bool,
    whole: bool,
    depth: usize,
}

impl Context {
    fn inner(self) -> Self {
        Self { whole: false, depth: self.depth + 1, ..self }
    }

    fn doubted(self) -> Self {
        Self { sure: false, ..self.inner() }
    }
}

impl Runs {
    fn add(&mut self, text: String, context: Context) {
        self.characters += text.len();
        if self.candidates.len() == MAX_CANDIDATES || self.characters > MAX_CHARACTERS {
            self.undecided = true;
            return;
        }
        let candidate = Candidate { text, sure: context.sure, whole: context.whole };
        if self.candidates.last() != Some(&candidate) {
            self.candidates.push(candidate);
        }
    }

    fn script(&mut self, text: &str, context: Context) {
        if context.depth >= MAX_DEPTH || self.characters > MAX_CHARACTERS {
            self.undecided = true;
            return;
        }
        if text.trim().chars().all(|c| c == HOLE) && text.contains(HOLE) {
            self.undecided = true;
            return;
        }
        let Script { commands, undecided } = split(text);
        self.undecided |= undecided;
        for command in commands {
            self.simple(&command, context);
        }
    }

    fn simple(&mut self, command: &Simple, context: Context) {
        for path in &command.writes {
            if !["/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"].contains(&path.as_str()) {
                self.add(format!("> {path}"), context);
            }
        }
        self.words.extend(command.writes.iter().chain(&command.reads).cloned());
        let stdin = Stdin { text: command.input.as_deref() };
        self.command(&command.words, &stdin, context);
        for at in &command.breaks {
            self.command(&command.words[(*at).min(command.words.len())..], &stdin, context.inner());
        }
        if let Some(input) = &command.input {
            self.here_document_lines(input, context);
        }
    }

    /// Adds the lines of a here-document as uncertain commands, because another shell may read the line differently.
    fn here_document_lines(&mut self, text: &str, context: Context) {
        let mut aside = Self { characters: self.characters, ..Self::default() };
        for line in text.lines().take(1000) {
            aside.script(line, context.doubted());
        }
        let known = aside.candidates.into_iter().filter(|one| !one.text.starts_with(HOLE));
        self.candidates.extend(known.take(MAX_CANDIDATES));
        self.characters = aside.characters;
        self.undecided |= self.characters > MAX_CHARACTERS;
    }

    fn command(&mut self, words: &[Word], stdin: &Stdin<'_>, context: Context) {
        if words.is_empty() {
            return;
        }
        if context.depth >= MAX_DEPTH || self.characters > MAX_CHARACTERS {
            self.undecided = true;
            return;
        }
        self.words.extend(words.iter().skip(1).map(|word| word.text.clone()));
        let assigned = words.iter().take_while(|word| assignment(&word.text).is_some()).count();
        for (name, value) in words[..assigned].iter().filter_map(|word| assignment(&word.text)) {
            // zsh's `x==git` has another meaning. An assignment alone runs no program.
            self.undecided |=
                RUN_BY_VARIABLE.iter().any(|pattern| fits(pattern, name) != Fits::No) && !value.is_empty();
        }
        if assigned > 0 {
            self.add(joined(words), context);
        }
        let words = &words[assigned..];
        let Some((program, arguments)) = words.split_first() else { return };
        let context = if assigned > 0 { Context { whole: false, ..context } } else { context };
        let shell = SHELLS.contains(&name_of(&program.text).as_str());
        let is_shown = context.whole && shell && is_plain_shell(program, arguments);
        self.add(joined(words), Context { whole: context.whole && !is_shown, ..context });
        if !program.is_known() {
            self.undecided = true;
            if program.loose {
                self.command(arguments, stdin, context.doubted());
            }
            return;
        }
        let inner = Context { whole: is_shown, ..context.inner() };
        for name in names(&program.text) {
            self.named(&name, arguments, context);
            self.run_by(&name, arguments, stdin, if is_shown { inner } else { context.inner() });
        }
    }

    /// Adds the command with its program's bare name, and without the options before its subcommand.
    fn named(&mut self, name: &str, arguments: &[Word], context: Context) {
        let context = Context { whole: false, ..context };
        let with = |from: usize| {
            let mut words = vec![Word::literal(name)];
            words.extend_from_slice(&arguments[from..]);
            joined(&words)
        };
        self.add(with(0), context);
        // An option may have the next word as its value, so both readings are added.
        let mut reached = [false; MAX_OPTIONS + 2];
        reached[0] = true;
        for at in 0..arguments.len().min(MAX_OPTIONS) {
            let is_option = |word: &Word| word.text.starts_with(['-', '+']) && word.text.len() > 1;
            if !reached[at] || !is_option(&arguments[at]) {
                continue;
            }
            for next in [at + 1, at + 2] {
                let takes_value = next == at + 2;
                if next <= arguments.len() && !(takes_value && arguments[at].text.contains('=')) && !reached[next] {
                    reached[next] = true;
                    self.add(with(next), context);
                }
            }
        }
        if arguments.len() > MAX_OPTIONS && arguments[..MAX_OPTIONS].iter().all(|word| word.text.starts_with('-')) {
            self.undecided = true;
        }
    }

    /// Adds the commands that the program runs.
    fn run_by(&mut self, name: &str, arguments: &[Word], stdin: &Stdin<'_>, inner: Context) {
        let texts = || arguments.iter().map(|word| word.text.as_str());
        if SHELLS.contains(&name) {
            return self.shell(arguments, stdin, inner);
        }
        if let Some(wrapper) = wrapper(name) {
            return self.wrapped(wrapper, arguments, stdin, inner);
        }
        match name {
            "eval" => {
                let line = joined(arguments);
                self.undecided |= line.contains(HOLE);
                self.script(&line, inner);
            }
            "trap" => {
                let handler = arguments.iter().find(|word| !word.text.starts_with('-') || word.text.len() > 2);
                if let Some(handler) = handler {
                    self.undecided |= !handler.is_known();
                    self.script(&handler.text, inner);
                }
            }
            "alias" | "abbr" => {
                // Later uses of the alias are not resolved.
                for (_, value) in texts().filter_map(|text| text.split_once('=')) {
                    self.undecided = true;
                    self.script(value, inner);
                }
            }
            "hash" | "enable" => self.undecided |= texts().any(|text| text.starts_with('-')),
            "bind" | "complete" | "compgen" | "zmodload" | "sysopen" => self.undecided = true,
            "cd" | "pushd" | "popd" | "chdir" => self.moves = true,
            "." | "source" => {
                let first = arguments.first();
                self.undecided |= first.is_some_and(|file| !file.is_known() || is_stdin(&file.text));
                self.input(first.filter(|file| is_stdin(&file.text)).map(|_| stdin), inner);
            }
            "xargs" => self.xargs(arguments, inner),
            "find" | "fd" | "fdfind" => self.find(arguments, inner),
            "busybox" | "toybox" => self.command(arguments, stdin, inner),
            "git" => self.git(arguments, inner),
            _ if LOOSE.contains(&name) => self.loose(arguments, inner),
            _ if INTERPRETERS.iter().any(|(program, _)| versioned(name, program)) => {
                let (_, flags) =
                    INTERPRETERS.iter().find(|(program, _)| versioned(name, program)).unwrap_or(&INTERPRETERS[0]);
                self.code(arguments, flags);
            }
            _ if STREAM_EDITORS.contains(&name) => self.edits(name, arguments),
            _ => {}
        }
    }

    /// Handles `bash -c TEXT`, `bash -s <<EOF` and `bash FILE`.
    fn shell(&mut self, arguments: &[Word], stdin: &Stdin<'_>, inner: Context) {
        let (mut at, mut text, mut from_input) = (0, false, false);
        while let Some(word) = arguments.get(at) {
            if word.text.contains(HOLE) && !text {
                self.undecided = true;
            }
            match word.text.as_str() {
                "--" | "-" => {
                    at += 1;
                    break;
                }
                "--rcfile" | "--init-file" | "--command" | "--init-command" | "--commands" => {
                    self.undecided = true;
                    if let Some(command) = arguments.get(at + 1) {
                        self.script(&command.text, inner);
                    }
                    at += 2;
                }
                long if long.starts_with("--") => {
                    if let Some((_, command)) = long.split_once('=') {
                        self.undecided = true;
                        self.script(command, inner);
                    }
                    at += 1;
                }
                short if short.starts_with(['-', '+']) && short.len() > 1 => {
                    text |= short.starts_with('-') && short.contains(['c', 'C']);
                    from_input |= short.contains('s');
                    at += if short.ends_with(['o', 'O']) { 2 } else { 1 };
                }
                _ => break,
            }
        }
        let operand = arguments.get(at);
        match operand {
            Some(script) if text => {
                // The unknown part may be any command.
                self.undecided |= script.text.contains(HOLE);
                self.script(&script.text, inner);
            }
            Some(file) if !from_input && !is_stdin(&file.text) => self.undecided |= !file.is_known(),
            _ => self.input(Some(stdin), inner),
        }
    }

    /// Handles commands that a shell reads from stdin.
    fn input(&mut self, stdin: Option<&Stdin<'_>>, inner: Context) {
        match stdin {
            Some(Stdin { text: Some(text) }) => {
                self.undecided |= text.contains(HOLE);
                self.script(text, inner);
            }
            Some(_) => self.undecided = true,
            None => {}
        }
    }

    /// Handles wrappers such as `sudo -u kim COMMAND` and `timeout 5 COMMAND`.
    fn wrapped(&mut self, wrapper: &Wrapper, arguments: &[Word], stdin: &Stdin<'_>, inner: Context) {
        let (mut at, mut operands, mut doubt) = (0, wrapper.operands, false);
        while let Some(word) = arguments.get(at) {
            let text = word.text.as_str();
            if word.loose {
                // The word may expand to options, or to nothing.
                doubt = true;
                self.undecided = true;
                at += 1;
            } else if text == "--" {
                at += 1;
                break;
            } else if let Some(long) = text.strip_prefix("--") {
                let (option, value) =
                    long.split_once('=').map_or((long, None), |(option, value)| (option, Some(value)));
                if wrapper.commands.contains(&option) {
                    let command =
                        value.map(str::to_owned).or_else(|| arguments.get(at + 1).map(|word| word.text.clone()));
                    self.script(&command.unwrap_or_default(), inner);
                }
                let takes_value = wrapper.long.contains(&option) || wrapper.commands.contains(&option);
                doubt |= !takes_value && value.is_none();
                at += if takes_value && value.is_none() { 2 } else { 1 };
            } else if text.len() > 1 && text.starts_with(['-', '+']) {
                let (steps, unsure, command) = cluster(&text[1..], wrapper);
                doubt |= unsure;
                if let Some(attached) = command {
                    let behind = arguments.get(at + 1).map(|word| word.text.clone()).unwrap_or_default();
                    // `env -S TEXT WORD...` runs the text followed by the words.
                    let rest = joined(&arguments[(at + steps).min(arguments.len())..]);
                    let text = if attached.is_empty() { behind } else { attached };
                    self.script(&format!("{text} {rest}"), inner);
                }
                at += steps;
            } else if wrapper.assigns && assignment(text).is_some() {
                let (name, _) = assignment(text).unwrap_or_default();
                self.undecided |= RUN_BY_VARIABLE.iter().any(|pattern| fits(pattern, name) != Fits::No);
                at += 1;
            } else if text == "-" && wrapper.flags.contains('-') {
                at += 1;
            } else if operands > 0 {
                operands -= 1;
                at += 1;
            } else {
                break;
            }
        }
        let rest = &arguments[at.min(arguments.len())..];
        if rest.is_empty() && wrapper.is_shell {
            // `sudo -s` and `su` start a shell that reads its stdin.
            self.input(Some(stdin), inner);
        }
        if let ([only], true) = (rest, wrapper.joins) {
            self.script(&only.text, inner);
        }
        self.command(rest, stdin, inner);
        if doubt {
            for skipped in 1..=3.min(rest.len().saturating_sub(1)) {
                self.command(&rest[skipped..], stdin, inner.doubted());
            }
        }
    }

    fn xargs(&mut self, arguments: &[Word], inner: Context) {
        let wrapper = wrapper("xargs-options").expect("the table has it");
        let mut at = 0;
        while let Some(word) = arguments.get(at).filter(|word| word.text.starts_with('-') && word.text.len() > 1) {
            let text = word.text.as_str();
            at += match text.strip_prefix("--") {
                Some("") => {
                    at += 1;
                    break;
                }
                Some(long) if wrapper.long.contains(&long) => 2,
                Some(_) => 1,
                None => cluster(&text[1..], wrapper).0,
            };
        }
        let rest = &arguments[at.min(arguments.len())..];
        let mut words: Vec<Word> = rest.iter().map(with_holes).collect();
        if !words.is_empty() {
            words.push(Word::unknown());
            self.command(&words, &Stdin::default(), inner);
        }
    }

    fn find(&mut self, arguments: &[Word], inner: Context) {
        let starts = ["-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"];
        for (at, _) in arguments.iter().enumerate().filter(|(_, word)| starts.contains(&word.text.as_str())).take(16) {
            let behind = &arguments[at + 1..];
            let end = behind.iter().position(|word| word.text == ";" || word.text == "+").unwrap_or(behind.len());
            let words: Vec<Word> = behind[..end].iter().map(with_holes).collect();
            self.command(&words, &Stdin::default(), inner);
        }
    }

    fn git(&mut self, arguments: &[Word], inner: Context) {
        for pair in arguments.windows(2).filter(|pair| ["-c", "--config-env"].contains(&pair[0].text.as_str())) {
            let key = pair[1].text.split('=').next().unwrap_or_default().to_ascii_lowercase();
            self.undecided |= key.contains(HOLE) || is_option_of_git_that_runs(&key);
        }
        for word in arguments {
            let text = word.text.to_ascii_lowercase();
            self.undecided |= text.starts_with("--exec-path=") || text.starts_with("ext::");
            // `git config alias.p push`, `git -calias.p=push p`
            self.undecided |= text.trim_start_matches("-c").starts_with("alias.");
        }
        let commands = ["-x", "--exec", "foreach", "run", "--extcmd"];
        for (at, word) in arguments.iter().enumerate().take(64) {
            let (option, attached) =
                word.text.split_once('=').map_or((word.text.as_str(), None), |(a, b)| (a, Some(b)));
            if !commands.contains(&option) {
                continue;
            }
            if let Some(command) = attached {
                self.script(command, inner);
            } else {
                let rest = arguments[at + 1..]
                    .iter()
                    .skip_while(|word| word.text.starts_with("--"))
                    .cloned()
                    .collect::<Vec<_>>();
                if let Some(first) = rest.first() {
                    self.script(&first.text, inner);
                }
                self.command(&rest, &Stdin::default(), inner);
            }
        }
        if arguments.iter().any(|word| word.text == "filter-branch") {
            self.loose(arguments, inner);
        }
    }

    /// Handles a program that runs some part of its arguments, here or on another machine: each part is a candidate.
    fn loose(&mut self, arguments: &[Word], inner: Context) {
        for (at, word) in arguments.iter().enumerate().take(48) {
            if word.text.contains(char::is_whitespace) {
                self.script(&word.text, inner.doubted());
            }
            self.command(
                &arguments[at..],
                &Stdin::default(),
                Context { depth: (MAX_DEPTH - 2).max(inner.depth + 1), ..inner.doubted() },
            );
        }
        self.undecided |= arguments.len() > 48;
    }

    /// Handles an interpreter. Code in its arguments or on stdin is unknown. With a file, the interpreter is an
    /// ordinary program.
    fn code(&mut self, arguments: &[Word], flags: &str) {
        let mut is_file = false;
        for word in arguments {
            let text = word.text.as_str();
            if !text.starts_with('-') || text == "-" {
                is_file = text != "-" && !is_stdin(text) && word.is_known();
                break;
            }
            let long = ["--eval", "--print", "--execute", "--run"];
            let is_long = text.starts_with("--");
            if is_long && long.iter().any(|option| text.starts_with(option))
                || !is_long && text[1..].contains(|c| flags.contains(c))
            {
                self.undecided = true;
                return;
            }
            // Options without code, such as in `python -m NAME` and `node --version`.
            is_file |= text == "-m" || ["-V", "-v", "--version", "--help", "-h"].contains(&text);
        }
        self.undecided |= !is_file;
    }

    /// Handles awk and sed, whose programs can run other programs, although most do not.
    fn edits(&mut self, name: &str, arguments: &[Word]) {
        for word in arguments {
            let text = word.text.as_str();
            let runs = if name.ends_with("sed") {
                text.contains(HOLE) && !text.starts_with(HOLE) || may_execute(text)
            } else {
                ["system", "getline", "|", "@load", "close"].iter().any(|way| text.contains(way))
            };
            self.undecided |= runs;
        }
    }
}

/// Text on a command's stdin.
#[derive(Debug, Default)]
struct Stdin<'a> {
    text: Option<&'a str>,
}

/// Reports whether the command is exactly `bash -c TEXT` with a shell of the system. The approval then applies to the
/// text.
fn is_plain_shell(program: &Word, arguments: &[Word]) -> bool {
    let system = ["", "/bin/", "/usr/bin/", "/usr/local/bin/"];
    let is_of_system =
        system.iter().any(|place| program.text.strip_prefix(place).is_some_and(|name| !name.contains('/')));
    is_of_system
        && matches!(
            arguments,
            [flag, text] if ["-c", "-lc", "-ilc", "-ic", "-cl"].contains(&flag.text.as_str()) && text.is_known()
        )
}
