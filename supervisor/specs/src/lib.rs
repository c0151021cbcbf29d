//! Files of specifications: finds and reads them, and validates them together before anything is changed.

mod document;
mod patch;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use agentd_api::SessionName;
use agentd_api::label;
use agentd_api::schedule::ScheduleSpec;
use agentd_api::session::SessionSpec;
use agentd_api::spec::Workspace;

pub use document::Format;
use document::{Parsed, TextMistake};
pub use patch::between;
pub use plan::{Plan, portable};

/// The path that means standard input.
const STDIN: &str = "-";

/// A session as a file requests it.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedSession {
    pub name: SessionName,
    /// The whole specification, with an absolute directory.
    pub spec: SessionSpec,
    pub file: PathBuf,
    pub format: Format,
}

/// A schedule as a file requests it.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedSchedule {
    /// The whole specification, with an absolute directory of its session.
    pub spec: ScheduleSpec,
    pub file: PathBuf,
    pub format: Format,
}

/// Everything that files request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WantedFiles {
    pub sessions: Vec<WantedSession>,
    pub schedules: Vec<WantedSchedule>,
}

/// A mistake in a file of specifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    file: PathBuf,
    position: Option<(usize, usize)>,
    message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", shown(&self.file))?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Returns the name of a file for people.
pub fn shown(file: &Path) -> String {
    if file == Path::new(STDIN) { "standard input".to_owned() } else { file.display().to_string() }
}

/// Reads the sessions and schedules of all files, in their order. Returns every mistake of every file.
pub fn read(paths: &[PathBuf]) -> Result<WantedFiles, Vec<Mistake>> {
    let (mut wanted, mut mistakes) = (WantedFiles::default(), Vec::new());
    for path in paths {
        match files(path) {
            Err(mistake) => mistakes.push(mistake),
            Ok(files) => {
                for file in files {
                    read_file(&file, &mut wanted, &mut mistakes);
                }
            }
        }
    }
    refuse_twins(&wanted, &mut mistakes);
    if mistakes.is_empty() { Ok(wanted) } else { Err(mistakes) }
}

/// Reads a file with exactly one session, and makes its directories absolute. The session needs no name. A session
/// without a directory gets a workspace of its own.
pub fn read_one(file: &Path) -> Result<SessionSpec, Mistake> {
    let mistake = |position, message| Mistake { file: file.to_owned(), position, message };
    let text = text_of(file).map_err(|error| mistake(None, format!("cannot read it: {error}")))?;
    let format = Format::of_name(file).unwrap_or_else(|| Format::of_text(&text));
    let parsed = format.parse(&text).map_err(|TextMistake { position, message }| mistake(position, message))?;
    if !parsed.schedules.is_empty() {
        return Err(mistake(None, "it has schedules; give a file with one session".to_owned()));
    }
    let count = parsed.sessions.len();
    let Ok([mut spec]) = <[SessionSpec; 1]>::try_from(parsed.sessions) else {
        return Err(mistake(None, format!("it has {count} sessions; give a file with one session")));
    };
    if spec.directory.as_os_str().is_empty() && spec.parent.is_none() {
        spec.workspace.get_or_insert(Workspace::New);
    }
    placed(&mut spec, base_of(file)).map_err(|message| mistake(None, message))?;
    Ok(spec)
}

/// Returns the files of a path: the path itself, or the TOML and YAML files in a directory by their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, Mistake> {
    if path == Path::new(STDIN) || !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mistake = |message: String| Mistake { file: path.to_owned(), position: None, message };
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|error| mistake(format!("cannot read the directory: {error}")))?;
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_json = |path: &Path| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let is_one =
        |path: &PathBuf| Format::of_name(path).is_some() && !is_json(path) && !is_hidden(path) && !path.is_dir();
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(is_one).collect();
    files.sort();
    if files.is_empty() {
        return Err(mistake("the directory has no *.toml, *.yaml or *.yml".to_owned()));
    }
    Ok(files)
}

fn read_file(file: &Path, wanted: &mut WantedFiles, mistakes: &mut Vec<Mistake>) {
    let mut mistake = |position, message| mistakes.push(Mistake { file: file.to_owned(), position, message });
    let text = match text_of(file) {
        Ok(text) => text,
        Err(error) => return mistake(None, format!("cannot read it: {error}")),
    };
    let format = Format::of_name(file).unwrap_or_else(|| Format::of_text(&text));
    let (sessions, schedules) = match format.parse(&text) {
        Ok(Parsed { sessions, schedules }) => (sessions, schedules),
        Err(TextMistake { position, message }) => return mistake(position, message),
    };
    let base = base_of(file);
    for (index, spec) in sessions.into_iter().enumerate() {
        match checked(spec, base) {
            Ok((name, spec)) => wanted.sessions.push(WantedSession { name, spec, file: file.to_owned(), format }),
            Err((Some(name), message)) => mistake(None, format!("session \"{name}\": {message}")),
            Err((None, message)) => mistake(None, format!("session {}: {message}", index + 1)),
        }
    }
    for mut spec in schedules {
        match spec.session.as_mut().map_or(Ok(()), |session| placed(session, base)) {
            Ok(()) => wanted.schedules.push(WantedSchedule { spec, file: file.to_owned(), format }),
            Err(message) => mistake(None, format!("schedule \"{}\": {message}", spec.name)),
        }
    }
}

/// Reads a file, or standard input.
fn text_of(file: &Path) -> std::io::Result<String> {
    if file != Path::new(STDIN) {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the directory to which the paths in a file are relative.
fn base_of(file: &Path) -> &Path {
    if file == Path::new(STDIN) { Path::new("") } else { file.parent().unwrap_or(Path::new("")) }
}

/// Validates a session by itself, and makes its directory absolute. A mistake has the session's name, if it has one.
fn checked(mut spec: SessionSpec, base: &Path) -> Result<(SessionName, SessionSpec), (Option<SessionName>, String)> {
    let Some(name) = spec.name.clone() else { return Err((None, "it has no name".to_owned())) };
    placed(&mut spec, base).map_err(|message| (Some(name.clone()), message))?;
    Ok((name, spec))
}

/// Validates the labels of a session, and makes its directories absolute.
fn placed(spec: &mut SessionSpec, base: &Path) -> Result<(), String> {
    for (key, value) in &spec.labels {
        label::check(key, value).map_err(|error| format!("{error}; {}", error.hint()))?;
    }
    // The directory in a workspace is relative to the workspace, which agentd creates.
    // A session that continues another one has that session's directory.
    let is_given = spec.workspace.is_none() && (spec.parent.is_none() || !spec.directory.as_os_str().is_empty());
    let directories = is_given.then_some(&mut spec.directory);
    let further = spec.directories.iter_mut();
    let worktrees = spec.repos.iter_mut().filter(|repository| repository.worktree);
    let workflow = spec.workflow.as_mut().and_then(|workflow| workflow.directory.as_mut());
    for path in directories
        .into_iter()
        .chain(further)
        .chain(workflow)
        .chain(worktrees.filter_map(|repository| repository.path.as_mut()))
    {
        *path = resolved(path, base)?;
    }
    Ok(())
}

/// Makes a session's directory absolute: below the home directory after `~/`, else below the file's directory.
fn resolved(directory: &Path, base: &Path) -> Result<PathBuf, String> {
    if directory.as_os_str().is_empty() {
        return Err("it has no directory; `.` is the directory of the file".to_owned());
    }
    let path = match directory.strip_prefix("~") {
        Ok(rest) => std::env::home_dir().ok_or("the home directory is unknown")?.join(rest),
        Err(_) => base.join(directory),
    };
    let path = std::path::absolute(&path).map_err(|error| format!("cannot find its directory: {error}"))?;
    let path = real(&path);
    if path.to_str().is_none() {
        return Err(format!("the name of its directory {} is not UTF-8", path.display()));
    }
    Ok(path)
}

/// Returns a path without symbolic links, as far as the path exists.
fn real(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    let mut components = path.components();
    match (components.next_back(), components.as_path()) {
        (Some(Component::Normal(name)), rest) => real(rest).join(name),
        (Some(Component::ParentDir), rest) => real(rest).parent().unwrap_or(Path::new("/")).to_owned(),
        _ => path.to_owned(),
    }
}

/// Refuses a name that two sessions or two schedules have.
fn refuse_twins(wanted: &WantedFiles, mistakes: &mut Vec<Mistake>) {
    let mut seen: BTreeMap<(&str, &str), &Path> = BTreeMap::new();
    let sessions = wanted.sessions.iter().map(|one| ("session", one.name.as_str(), &one.file));
    let schedules = wanted.schedules.iter().map(|one| ("schedule", one.spec.name.as_str(), &one.file));
    for (kind, name, file) in sessions.chain(schedules) {
        if let Some(first) = seen.insert((kind, name), file) {
            let message = format!("{kind} \"{name}\": {} has a {kind} with this name too", shown(first));
            mistakes.push(Mistake { file: file.clone(), position: None, message });
        }
    }
}
