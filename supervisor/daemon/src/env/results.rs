//! What scripts gave, kept in memory for those that say what they depend on.
//!
//! A script with a line `# agentd-depends: WORD...` promises that it gives the same as long as nothing of what it names is
//! other than it was: a file, by its path from the script's directory or from `/`, with `*` and `?` for the names of several; `$NAME`,
//! a variable it reads. The script itself, its working directory and the PATH it is given are always of it. A script without such a line
//! is not asked for here: it is run every time.
//!
//! What is kept is what the script changed, and what each of those variables was before: where one of them is another now, the script
//! is run, so that `LIST="$LIST:more"` is right though nobody declared it. Results hold secrets as scripts set them; they
//! are never written anywhere. There are at most [`MOST`] of them; the one that was asked for longest ago goes first.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

use super::capture::Variables;

/// How many results are kept.
const MOST: usize = 256;
/// Bytes of one result; a larger one is not kept.
const LARGEST: usize = 256 << 10;
/// Files that one script may depend on, and bytes of each; beyond, looking would cost more than running.
const FILES: usize = 256;
const FILE: u64 = 1 << 20;

const WORD: &str = "agentd-depends:";

/// What a script depends on, in one state of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

/// What a script says that it depends on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Declared {
    files: Vec<String>,
    variables: Vec<String>,
}

/// A script, where it is run, and what it depends on, as found.
#[derive(Debug)]
pub(super) struct State {
    script: PathBuf,
    directory: PathBuf,
    content: Vec<u8>,
    declared: Declared,
    /// Each file's content; none where there is no file.
    files: Vec<(PathBuf, Option<Vec<u8>>)>,
}

/// The results, by what the script depended on.
#[derive(Default)]
pub(super) struct Results {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Counts the questions.
    now: u64,
    results: HashMap<Key, Outcome>,
}

/// What one script changed.
struct Outcome {
    /// The number of the question it was asked for last.
    asked: u64,
    changes: Vec<Changed>,
}

/// One variable before the script and after it; none where there is none.
struct Changed {
    name: String,
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

/// How many, and nothing of what is in them.
impl std::fmt::Debug for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Results").field("kept", &kept.results.len()).finish_non_exhaustive()
    }
}

impl Results {
    /// The environment after a script that was run in this state, if its result is known and holds for what is given now.
    pub(super) fn find(&self, key: &Key, given: &Variables) -> Option<Variables> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.now += 1;
        let now = kept.now;
        let outcome = kept.results.get_mut(key)?;
        outcome.asked = now;
        apply(&outcome.changes, given)
    }

    /// Forgets all of them: every script is run again.
    fn forget(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).results.clear();
    }

    /// Keeps what the script made of what it was given.
    pub(super) fn keep(&self, key: Key, given: &Variables, after: &Variables) {
        let changes = difference(given, after);
        if changes.iter().map(Changed::size).sum::<usize>() > LARGEST {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.results.len() >= MOST && !kept.results.contains_key(&key) {
            let oldest = kept.results.iter().min_by_key(|(_, outcome)| outcome.asked).map(|(key, _)| *key);
            oldest.and_then(|oldest| kept.results.remove(&oldest));
        }
        kept.now += 1;
        let asked = kept.now;
        kept.results.insert(key, Outcome { asked, changes });
    }
}

impl super::Pipeline {
    /// Forgets what scripts gave.
    pub(crate) fn forget_results(&self) {
        self.results.forget();
    }
}

impl Changed {
    fn size(&self) -> usize {
        let value = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        self.name.len() + value(&self.before) + value(&self.after)
    }
}

fn by_name(variables: &Variables) -> BTreeMap<&str, &[u8]> {
    variables.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
}

fn difference(given: &Variables, after: &Variables) -> Vec<Changed> {
    let (given, after) = (by_name(given), by_name(after));
    let added = after.keys().filter(|name| !given.contains_key(*name));
    let names = given.keys().chain(added).filter(|name| given.get(*name) != after.get(*name));
    let value = |of: &BTreeMap<&str, &[u8]>, name: &str| of.get(name).map(|value| value.to_vec());
    names
        .map(|&name| Changed { name: name.to_owned(), before: value(&given, name), after: value(&after, name) })
        .collect()
}

/// Nothing where a variable that was changed is not what it was before.
fn apply(changes: &[Changed], given: &Variables) -> Option<Variables> {
    let mut environment = by_name(given);
    if changes.iter().any(|change| environment.get(change.name.as_str()).copied() != change.before.as_deref()) {
        return None;
    }
    for change in changes {
        match &change.after {
            Some(value) => environment.insert(&change.name, value),
            None => environment.remove(change.name.as_str()),
        };
    }
    Some(environment.into_iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect())
}

impl Declared {
    /// What the script's lines say; nothing where it has no such line.
    fn parse(content: &[u8]) -> Option<Self> {
        let mut declared: Option<Self> = None;
        for line in content.split(|&byte| byte == b'\n') {
            let comment = line.trim_ascii_start().strip_prefix(b"#").map(<[u8]>::trim_ascii);
            let Some(words) = comment.and_then(|comment| comment.strip_prefix(WORD.as_bytes())) else { continue };
            let declared = declared.get_or_insert_default();
            for word in String::from_utf8_lossy(words).split_whitespace() {
                match word.strip_prefix('$') {
                    Some(name) => declared.variables.push(name.to_owned()),
                    None => declared.files.push(word.to_owned()),
                }
            }
        }
        declared
    }
}

impl State {
    /// The state together with what the script is given of what it declares.
    pub(super) fn key(&self, given: &Variables) -> Key {
        let given = by_name(given);
        let mut hash = Sha256::new();
        // Each part with its length before it: no two lists of parts are the same bytes.
        let mut part = |part: Option<&[u8]>| {
            hash.update(part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
            hash.update(part.unwrap_or_default());
        };
        for path in [&self.script, &self.directory] {
            part(Some(path.as_os_str().as_encoded_bytes()));
        }
        part(Some(&self.content));
        for name in self.declared.variables.iter().map(String::as_str).chain(["PATH"]) {
            part(Some(name.as_bytes()));
            part(given.get(name).copied());
        }
        for (path, content) in &self.files {
            part(Some(path.as_os_str().as_encoded_bytes()));
            part(content.as_deref());
        }
        Key(hash.finalize().into())
    }
}

/// A script of this content that is run in this directory, and what it depends on, read where that is files; nothing where its result is
/// not to be kept.
pub(super) async fn look(script: PathBuf, content: Vec<u8>, directory: PathBuf) -> Option<State> {
    let declared = Declared::parse(&content)?;
    if declared.files.is_empty() {
        return Some(State { script, directory, content, declared, files: Vec::new() });
    }
    let read = move || match read_all(&script, &declared.files) {
        Ok(files) => Some(State { script, directory, content, declared, files }),
        Err(error) => {
            tracing::warn!(script = %script.display(), %error, "what the script depends on cannot be looked at: it is run every time");
            None
        }
    };
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

fn read_all(script: &Path, patterns: &[String]) -> io::Result<Vec<(PathBuf, Option<Vec<u8>>)>> {
    let mut files = Vec::new();
    for pattern in patterns {
        let start = if pattern.starts_with('/') { Path::new("/") } else { script.parent().unwrap_or(Path::new("/")) };
        let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
        let mut found = Vec::new();
        expand(start.to_owned(), &parts, &mut found)?;
        for path in found {
            if files.len() == FILES {
                return Err(io::Error::other(format!("it depends on more than {FILES} files")));
            }
            let content = read(&path)?;
            files.push((path, content));
        }
    }
    Ok(files)
}

/// The paths that a pattern stands for, in order: itself, where it has neither `*` nor `?`.
fn expand(at: PathBuf, parts: &[&str], found: &mut Vec<PathBuf>) -> io::Result<()> {
    let Some((part, rest)) = parts.split_first() else {
        found.push(at);
        return Ok(());
    };
    if !part.contains(['*', '?']) {
        return expand(at.join(part), rest, found);
    }
    for name in list(&at)?.unwrap_or_default() {
        // As in a shell: a hidden file only where the pattern shows its dot.
        if agentd_plugins::glob(part, &name) && (part.starts_with('.') || !name.starts_with('.')) {
            expand(at.join(name), rest, found)?;
        }
    }
    Ok(())
}

/// A file's content, or the names in a directory.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Asked before it is opened: opening a pipe waits for who writes to it.
    let Some(metadata) = there(std::fs::metadata(path))? else { return Ok(None) };
    if metadata.is_dir() {
        return Ok(list(path)?.map(|names| names.join("\0").into_bytes()));
    }
    if !metadata.is_file() {
        return Err(io::Error::other(format!("{} is neither a file nor a directory", path.display())));
    }
    let Some(file) = there(std::fs::File::open(path))? else { return Ok(None) };
    let mut content = Vec::new();
    file.take(FILE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > FILE {
        return Err(io::Error::other(format!("{} has more than {FILE} bytes", path.display())));
    }
    Ok(Some(content))
}

/// The names in a directory, in order.
fn list(directory: &Path) -> io::Result<Option<Vec<String>>> {
    let Some(entries) = there(std::fs::read_dir(directory))? else { return Ok(None) };
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<String>>>()?;
    names.sort();
    Ok(Some(names))
}

fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn variables(list: &[(&str, &str)]) -> Variables {
        list.iter().map(|&(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect()
    }

    struct Place {
        directory: TempDir,
    }

    impl Place {
        fn new(script: &str) -> Self {
            let place = Self { directory: TempDir::new().unwrap() };
            place.write("env.sh", script);
            place
        }

        fn write(&self, name: &str, content: &str) {
            std::fs::write(self.directory.path().join(name), content).unwrap();
        }

        fn key(&self, given: &[(&str, &str)]) -> Option<Key> {
            let path = self.directory.path();
            let content = std::fs::read(path.join("env.sh")).unwrap();
            let looking = look(path.join("env.sh"), content, path.to_owned());
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(looking).map(|state| state.key(&variables(given)))
        }
    }

    #[test]
    fn a_script_without_the_line_has_no_key() {
        assert_eq!(Place::new("export A=1\n# agentd depends: x\n").key(&[]), None);
        assert!(Place::new("export A=1\n  #agentd-depends:\n").key(&[]).is_some());
    }

    #[test]
    fn declarations_add_up() {
        let declared = Declared::parse(b"# agentd-depends: a.txt $HOME\nexport A=1\n# agentd-depends: conf/*.toml\n");
        let declared = declared.unwrap();
        assert_eq!(
            (declared.files, declared.variables),
            (vec!["a.txt".into(), "conf/*.toml".into()], vec!["HOME".into()])
        );
    }

    #[test]
    fn what_is_declared_makes_another_key_and_what_is_not_does_not() {
        let place = Place::new("# agentd-depends: a.txt *.conf $MODE\n");
        place.write("a.txt", "1");
        place.write("x.conf", "1");
        let given = [("MODE", "fast"), ("PATH", "/bin"), ("OTHER", "1")];
        let key = place.key(&given).unwrap();
        let mut seen = vec![key];
        let mut is_new = |what: &str, key: Option<Key>| {
            let key = key.unwrap();
            assert!(!seen.contains(&key), "{what}");
            seen.push(key);
        };
        is_new("a variable", place.key(&[("MODE", "slow"), given[1]]));
        is_new("no variable", place.key(&[given[1]]));
        is_new("the PATH", place.key(&[given[0], ("PATH", "/usr/bin")]));
        assert_eq!(place.key(&[given[0], given[1], ("OTHER", "2")]), Some(key));
        place.write("b.txt", "not declared");
        assert_eq!(place.key(&given), Some(key));
        place.write("a.txt", "2");
        is_new("a file", place.key(&given));
        place.write("y.conf", "");
        is_new("a file more that the pattern stands for", place.key(&given));
        std::fs::remove_file(place.directory.path().join("a.txt")).unwrap();
        is_new("no file", place.key(&given));
        place.write("env.sh", "# agentd-depends: a.txt *.conf $MODE\nexport A=1\n");
        is_new("the script", place.key(&given));
    }

    #[test]
    fn what_cannot_be_looked_at_has_no_key() {
        assert_eq!(Place::new("# agentd-depends: /dev/null\n").key(&[]), None);
        let place = Place::new("# agentd-depends: large\n");
        place.write("large", &"x".repeat(usize::try_from(FILE).unwrap() + 1));
        assert_eq!(place.key(&[]), None);
    }

    #[test]
    fn a_result_is_what_was_changed_and_holds_for_what_else_is_given() {
        let (results, key) = (Results::default(), Key([1; 32]));
        assert_eq!(results.find(&key, &variables(&[])), None);
        results.keep(key, &variables(&[("A", "1"), ("GONE", "x")]), &variables(&[("A", "1"), ("LIST", "a")]));
        let found = results.find(&key, &variables(&[("GONE", "x"), ("OTHER", "2")]));
        assert_eq!(found, Some(variables(&[("LIST", "a"), ("OTHER", "2")])));
    }

    #[test]
    fn a_variable_that_the_script_changed_must_be_what_it_was_before() {
        let (results, key) = (Results::default(), Key([1; 32]));
        results.keep(key, &variables(&[("LIST", "a")]), &variables(&[("LIST", "a:b")]));
        assert!(results.find(&key, &variables(&[("LIST", "a")])).is_some());
        assert_eq!(results.find(&key, &variables(&[("LIST", "c")])), None);
        assert_eq!(results.find(&key, &variables(&[])), None);
    }

    #[test]
    fn the_result_that_was_asked_for_longest_ago_goes_first_and_a_large_one_is_not_kept() {
        let results = Results::default();
        let key = |n: usize| Key(std::array::from_fn(|at| u8::try_from(n >> (8 * (at % 2)) & 0xff).unwrap()));
        let given = variables(&[]);
        for n in 0..MOST {
            results.keep(key(n), &given, &given);
        }
        assert!(results.find(&key(0), &given).is_some());
        results.keep(key(MOST), &given, &given);
        assert!(results.find(&key(0), &given).is_some() && results.find(&key(1), &given).is_none());
        let large = "x".repeat(LARGEST);
        results.keep(key(MOST + 1), &given, &variables(&[("A", &large)]));
        assert_eq!(results.find(&key(MOST + 1), &given), None);
    }
}
