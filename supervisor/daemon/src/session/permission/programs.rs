//! What a command line runs: every simple command of it, and what those programs run in turn whose arguments are commands.
//!
//! A [`Candidate`] is a text that a pattern may fit. One command has several: as it is written, with its program by its bare name, without
//! the options before a subcommand (`git -C x push` is `git push`), without what runs it (`sudo`, `env`, `timeout 5`). Too many of them are
//! no harm to a denial; an approval looks only at those that are [`Candidate::whole`].

use super::glob::HOLE;
use super::shell::{Script, Simple, Word, split};
use super::tables::{
    CODE, EDITS_WITH_CODE, LOOSE, RUN_BY_VARIABLE, SHELLS, Wrapper, is_option_of_git_that_runs, wrapper,
};

use super::words::{assignment, cluster, is_stdin, joined, may_execute, name_of, names, versioned, with_holes};

/// How deep a command may stand in another one's argument.
const DEPTH: usize = 8;
/// How many candidates are looked at, and how long they may be together.
const CANDIDATES: usize = 4096;
const CHARACTERS: usize = 256 << 10;
/// The longest command line that is taken apart.
const LONGEST: usize = 32 << 10;
/// How many words behind a program's name may be options before its subcommand.
const OPTIONS: usize = 24;

/// A text that patterns are compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) text: String,
    /// It is run; otherwise it may be.
    pub(super) sure: bool,
    /// It is a part of the line as it is written. An approval has to fit all of these.
    pub(super) whole: bool,
}

/// What a command line runs, as far as it tells.
#[derive(Debug, Clone, Default)]
pub(super) struct Runs {
    pub(super) candidates: Vec<Candidate>,
    /// It may run more than that.
    pub(super) undecided: bool,
    /// The words that may be paths, and the files it writes or reads by redirection.
    pub(super) words: Vec<String>,
    /// It changes the directory, so that a relative path may be anywhere.
    pub(super) moves: bool,
    characters: usize,
}

/// Reads a command line.
pub(super) fn runs(line: &str) -> Runs {
    let mut runs = Runs::default();
    if line.len() > LONGEST {
        runs.undecided = true;
        return runs;
    }
    runs.script(
        &line.replace(agentd_keeper::mask::MASK, &HOLE.to_string()),
        Place { sure: true, whole: true, depth: 0 },
    );
    runs
}

#[derive(Debug, Clone, Copy)]
struct Place {
    sure: bool,
    whole: bool,
    depth: usize,
}

impl Place {
    fn inner(self) -> Self {
        Self { whole: false, depth: self.depth + 1, ..self }
    }

    fn doubted(self) -> Self {
        Self { sure: false, ..self.inner() }
    }
}

impl Runs {
    fn add(&mut self, text: String, place: Place) {
        self.characters += text.len();
        if self.candidates.len() == CANDIDATES || self.characters > CHARACTERS {
            self.undecided = true;
            return;
        }
        let candidate = Candidate { text, sure: place.sure, whole: place.whole };
        if self.candidates.last() != Some(&candidate) {
            self.candidates.push(candidate);
        }
    }

    fn script(&mut self, text: &str, place: Place) {
        if place.depth >= DEPTH || self.characters > CHARACTERS {
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
            self.simple(&command, place);
        }
    }

    fn simple(&mut self, command: &Simple, place: Place) {
        for path in &command.writes {
            if !["/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"].contains(&path.as_str()) {
                self.add(format!("> {path}"), place);
            }
        }
        self.words.extend(command.writes.iter().chain(&command.reads).cloned());
        let given = Given { text: command.input.as_deref() };
        self.command(&command.words, &given, place);
        for at in &command.breaks {
            self.command(&command.words[(*at).min(command.words.len())..], &given, place.inner());
        }
        if let Some(input) = &command.input {
            self.shadow(input, place);
        }
    }

    /// The text of a here-document: were it commands after all, because a shell reads the line otherwise, they would be these.
    fn shadow(&mut self, text: &str, place: Place) {
        let mut aside = Self { characters: self.characters, ..Self::default() };
        for line in text.lines().take(1000) {
            aside.script(line, place.doubted());
        }
        let known = aside.candidates.into_iter().filter(|one| !one.text.starts_with(HOLE));
        self.candidates.extend(known.take(CANDIDATES));
        self.characters = aside.characters;
        self.undecided |= self.characters > CHARACTERS;
    }

    fn command(&mut self, words: &[Word], given: &Given<'_>, place: Place) {
        if words.is_empty() {
            return;
        }
        if place.depth >= DEPTH || self.characters > CHARACTERS {
            self.undecided = true;
            return;
        }
        self.words.extend(words.iter().skip(1).map(|word| word.text.clone()));
        let assigned = words.iter().take_while(|word| assignment(&word.text).is_some()).count();
        for (name, value) in words[..assigned].iter().filter_map(|word| assignment(&word.text)) {
            // zsh's `x==git` is another matter; a value alone runs nothing.
            self.undecided |=
                RUN_BY_VARIABLE.iter().any(|pattern| super::glob::fits(pattern, name) != super::glob::Fits::No)
                    && !value.is_empty();
        }
        if assigned > 0 {
            self.add(joined(words), place);
        }
        let words = &words[assigned..];
        let Some((program, arguments)) = words.split_first() else { return };
        let place = if assigned > 0 { Place { whole: false, ..place } } else { place };
        let shell = SHELLS.contains(&name_of(&program.text).as_str());
        let is_shown = place.whole && shell && is_plain_shell(program, arguments);
        self.add(joined(words), Place { whole: place.whole && !is_shown, ..place });
        if !program.is_known() {
            self.undecided = true;
            if program.loose {
                self.command(arguments, given, place.doubted());
            }
            return;
        }
        let inner = Place { whole: is_shown, ..place.inner() };
        for name in names(&program.text) {
            self.named(&name, arguments, place);
            self.run_by(&name, arguments, given, if is_shown { inner } else { place.inner() });
        }
    }

    /// The command by its program's bare name, and without the options before its subcommand.
    fn named(&mut self, name: &str, arguments: &[Word], place: Place) {
        let place = Place { whole: false, ..place };
        let with = |from: usize| {
            let mut words = vec![Word::literal(name)];
            words.extend_from_slice(&arguments[from..]);
            joined(&words)
        };
        self.add(with(0), place);
        // An option may have the word behind it as its value: both ways count.
        let mut reached = [false; OPTIONS + 2];
        reached[0] = true;
        for at in 0..arguments.len().min(OPTIONS) {
            let is_option = |word: &Word| word.text.starts_with(['-', '+']) && word.text.len() > 1;
            if !reached[at] || !is_option(&arguments[at]) {
                continue;
            }
            for next in [at + 1, at + 2] {
                let takes_value = next == at + 2;
                if next <= arguments.len() && !(takes_value && arguments[at].text.contains('=')) && !reached[next] {
                    reached[next] = true;
                    self.add(with(next), place);
                }
            }
        }
        if arguments.len() > OPTIONS && arguments[..OPTIONS].iter().all(|word| word.text.starts_with('-')) {
            self.undecided = true;
        }
    }

    /// What the program runs in turn.
    fn run_by(&mut self, name: &str, arguments: &[Word], given: &Given<'_>, inner: Place) {
        let texts = || arguments.iter().map(|word| word.text.as_str());
        if SHELLS.contains(&name) {
            return self.shell(arguments, given, inner);
        }
        if let Some(wrapper) = wrapper(name) {
            return self.wrapped(wrapper, arguments, given, inner);
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
                // What is called so later is not looked up.
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
                self.input(first.filter(|file| is_stdin(&file.text)).map(|_| given), inner);
            }
            "xargs" => self.xargs(arguments, inner),
            "find" | "fd" | "fdfind" => self.find(arguments, inner),
            "busybox" | "toybox" => self.command(arguments, given, inner),
            "git" => self.git(arguments, inner),
            _ if LOOSE.contains(&name) => self.loose(arguments, inner),
            _ if CODE.iter().any(|(program, _)| versioned(name, program)) => {
                let (_, flags) = CODE.iter().find(|(program, _)| versioned(name, program)).unwrap_or(&CODE[0]);
                self.code(arguments, flags);
            }
            _ if EDITS_WITH_CODE.contains(&name) => self.edits(name, arguments),
            _ => {}
        }
    }

    /// `bash -c TEXT`, `bash -s <<EOF`, `bash FILE`.
    fn shell(&mut self, arguments: &[Word], given: &Given<'_>, inner: Place) {
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
                // What is not known of it may be any command.
                self.undecided |= script.text.contains(HOLE);
                self.script(&script.text, inner);
            }
            Some(file) if !from_input && !is_stdin(&file.text) => self.undecided |= !file.is_known(),
            _ => self.input(Some(given), inner),
        }
    }

    /// Commands that come on stdin.
    fn input(&mut self, given: Option<&Given<'_>>, inner: Place) {
        match given {
            Some(Given { text: Some(text) }) => {
                self.undecided |= text.contains(HOLE);
                self.script(text, inner);
            }
            Some(_) => self.undecided = true,
            None => {}
        }
    }

    /// `sudo -u kim COMMAND`, `timeout 5 COMMAND`.
    fn wrapped(&mut self, wrapper: &Wrapper, arguments: &[Word], given: &Given<'_>, inner: Place) {
        let (mut at, mut operands, mut doubt) = (0, wrapper.operands, false);
        while let Some(word) = arguments.get(at) {
            let text = word.text.as_str();
            if word.loose {
                // It may be options, or nothing.
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
                    // `env -S TEXT WORD...` is the text with the words behind it.
                    let rest = joined(&arguments[(at + steps).min(arguments.len())..]);
                    let text = if attached.is_empty() { behind } else { attached };
                    self.script(&format!("{text} {rest}"), inner);
                }
                at += steps;
            } else if wrapper.assigns && assignment(text).is_some() {
                let (name, _) = assignment(text).unwrap_or_default();
                self.undecided |=
                    RUN_BY_VARIABLE.iter().any(|pattern| super::glob::fits(pattern, name) != super::glob::Fits::No);
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
            // `sudo -s`, `su`: a shell that reads its input.
            self.input(Some(given), inner);
        }
        if let ([only], true) = (rest, wrapper.joins) {
            self.script(&only.text, inner);
        }
        self.command(rest, given, inner);
        if doubt {
            for skipped in 1..=3.min(rest.len().saturating_sub(1)) {
                self.command(&rest[skipped..], given, inner.doubted());
            }
        }
    }

    fn xargs(&mut self, arguments: &[Word], inner: Place) {
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
            self.command(&words, &Given::default(), inner);
        }
    }

    fn find(&mut self, arguments: &[Word], inner: Place) {
        let starts = ["-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"];
        for (at, _) in arguments.iter().enumerate().filter(|(_, word)| starts.contains(&word.text.as_str())).take(16) {
            let behind = &arguments[at + 1..];
            let end = behind.iter().position(|word| word.text == ";" || word.text == "+").unwrap_or(behind.len());
            let words: Vec<Word> = behind[..end].iter().map(with_holes).collect();
            self.command(&words, &Given::default(), inner);
        }
    }

    fn git(&mut self, arguments: &[Word], inner: Place) {
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
                self.command(&rest, &Given::default(), inner);
            }
        }
        if arguments.iter().any(|word| word.text == "filter-branch") {
            self.loose(arguments, inner);
        }
    }

    /// A program that runs some part of what it is given, here or elsewhere: each part may be it.
    fn loose(&mut self, arguments: &[Word], inner: Place) {
        for (at, word) in arguments.iter().enumerate().take(48) {
            if word.text.contains(char::is_whitespace) {
                self.script(&word.text, inner.doubted());
            }
            self.command(
                &arguments[at..],
                &Given::default(),
                Place { depth: (DEPTH - 2).max(inner.depth + 1), ..inner.doubted() },
            );
        }
        self.undecided |= arguments.len() > 48;
    }

    /// An interpreter: with code in its arguments or on its stdin nothing is known, with a file it is a program like another.
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
            // `python -m NAME`, `node --version`.
            is_file |= text == "-m" || ["-V", "-v", "--version", "--help", "-h"].contains(&text);
        }
        self.undecided |= !is_file;
    }

    /// awk and sed: their programs can run others, and seldom do.
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

/// What comes on a command's stdin.
#[derive(Debug, Default)]
struct Given<'a> {
    text: Option<&'a str>,
}

/// `bash -c TEXT` and nothing else, with a shell of the system: what is approved is the text.
fn is_plain_shell(program: &Word, arguments: &[Word]) -> bool {
    let system = ["", "/bin/", "/usr/bin/", "/usr/local/bin/"];
    let is_of_system =
        system.iter().any(|place| program.text.strip_prefix(place).is_some_and(|name| !name.contains('/')));
    is_of_system
        && matches!(arguments, [flag, text] if ["-c", "-lc", "-ilc", "-ic", "-cl"].contains(&flag.text.as_str()) && text.is_known())
}
