//! Parses the dependencies that a script declares in a comment, and reads their state.
//!
//! `# agentd-depends: WORD...` names files and variables. `$NAME` alone is a variable that the script receives.
//! Every other word is a path in one of these forms:
//!
//! - absolute, from `/`
//! - below the home directory, as `~/x` or `$HOME/x`
//! - below another variable's value, as `$NAME/x`; the variable is a dependency too
//! - relative, below the script's directory *and* below the session's directory
//!
//! A user's script can thus name `.nvmrc` of the project and `versions.txt` beside the script. `*` and `?` match
//! several files.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::{Key, by_name};
use crate::login::capture::Variables;

/// Limits on the number of files and the bytes of each. Beyond them, reading would cost more than running the
/// script.
const FILES: usize = 256;
const FILE: u64 = 1 << 20;

const WORD: &str = "agentd-depends:";

/// Declared dependencies of a script.
#[derive(Debug, Default, PartialEq, Eq)]
struct Declared {
    files: Vec<String>,
    variables: Vec<String>,
}

/// A script, its working directory, and the state of its dependencies.
#[derive(Debug)]
pub(crate) struct DependencyState {
    script: PathBuf,
    directory: PathBuf,
    content: Vec<u8>,
    declared: Declared,
    /// Content of each file, or `None` for a missing file.
    files: Vec<(PathBuf, Option<Vec<u8>>)>,
}

impl Declared {
    /// Parses the declarations of a script. Returns `None` if the script has no such line.
    fn parse(content: &[u8]) -> Option<Self> {
        let mut declared: Option<Self> = None;
        for line in content.split(|&byte| byte == b'\n') {
            let comment = line.trim_ascii_start().strip_prefix(b"#").map(<[u8]>::trim_ascii);
            let Some(words) = comment.and_then(|comment| comment.strip_prefix(WORD.as_bytes())) else { continue };
            let declared = declared.get_or_insert_default();
            for word in String::from_utf8_lossy(words).split_whitespace() {
                let alone = word.strip_prefix('$').filter(|rest| !rest.contains(['/', '{']));
                match (alone, below_variable(word)) {
                    (Some(name), _) | (None, Some((name, ""))) => declared.variables.push(name.to_owned()),
                    (None, below) => {
                        declared.variables.extend(below.map(|(name, _)| name.to_owned()));
                        declared.files.push(word.to_owned());
                    }
                }
            }
        }
        declared
    }
}

impl DependencyState {
    /// Returns the digest of the state and of the declared variables' given values.
    pub(crate) fn key(&self, given: &Variables) -> Key {
        let given = by_name(given);
        let mut hash = Sha256::new();
        // Each part is preceded by its length, so that different lists of parts never give equal bytes.
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

/// Directories from which a script's dependencies are resolved.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    pub(crate) script: &'a Path,
    /// Working directory of the script.
    pub(crate) directory: &'a Path,
    /// Working directory of the session.
    pub(crate) session: &'a Path,
}

/// Reads the state of a script's dependencies. Returns `None` if its result must not be kept.
pub(crate) async fn look(content: Vec<u8>, places: Places<'_>, given: &Variables) -> Option<DependencyState> {
    let declared = Declared::parse(&content)?;
    let (script, directory) = (places.script.to_owned(), places.directory.to_owned());
    let patterns: Vec<Pattern> = declared.files.iter().flat_map(|word| pattern(word, &places, given)).collect();
    if patterns.is_empty() {
        return Some(DependencyState { script, directory, content, declared, files: Vec::new() });
    }
    let read = move || match read_all(&patterns) {
        Ok(files) => Some(DependencyState { script, directory, content, declared, files }),
        Err(error) => {
            tracing::warn!(
                script = %script.display(),
                %error,
                "cannot read the script's dependencies; the script runs every time"
            );
            None
        }
    };
    agentd_host::work::blocking(read).await.ok().flatten()
}

/// A path whose names may contain `*` and `?`, and its fixed start.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    start: PathBuf,
    rest: String,
}

/// Returns the paths of a declared word. A word that starts with an unset variable has no path.
fn pattern(word: &str, places: &Places<'_>, given: &Variables) -> Vec<Pattern> {
    let at = |start: PathBuf, rest: &str| vec![Pattern { start, rest: rest.to_owned() }];
    let value = |name: &str| {
        let given = given.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let given = given.filter(|value| !value.is_empty()).map(|value| PathBuf::from(OsStr::from_bytes(value)));
        match name {
            "PWD" => Some(places.session.to_owned()),
            "HOME" => given.or_else(std::env::home_dir),
            _ => given,
        }
    };
    if word.starts_with('/') {
        return at("/".into(), word);
    }
    if let Some((name, rest)) = below_variable(word) {
        return value(name).map(|start| at(places.session.join(start), rest)).unwrap_or_default();
    }
    if let Some(rest) = word.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        return value("HOME").map(|home| at(home, rest)).unwrap_or_default();
    }
    let beside = places.script.parent().unwrap_or(Path::new("/"));
    let mut all = at(beside.to_owned(), word);
    if places.session != beside {
        all.extend(at(places.session.to_owned(), word));
    }
    all
}

/// Splits a path into its leading variable and the rest: `$NAME/x` or `${NAME}/x`.
fn below_variable(word: &str) -> Option<(&str, &str)> {
    let word = word.strip_prefix('$')?;
    match word.strip_prefix('{') {
        Some(braced) => braced.split_once('}'),
        None => word.find('/').map(|at| word.split_at(at)),
    }
}

fn read_all(patterns: &[Pattern]) -> io::Result<Vec<(PathBuf, Option<Vec<u8>>)>> {
    let mut files = Vec::new();
    for Pattern { start, rest } in patterns {
        let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
        let mut found = Vec::new();
        expand(start.clone(), &parts, &mut found)?;
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

/// Expands a pattern to paths in sorted order. A path without `*` and `?` expands to itself.
fn expand(at: PathBuf, parts: &[&str], found: &mut Vec<PathBuf>) -> io::Result<()> {
    let Some((part, rest)) = parts.split_first() else {
        found.push(at);
        return Ok(());
    };
    if !part.contains(['*', '?']) {
        return expand(at.join(part), rest, found);
    }
    for name in list(&at)?.unwrap_or_default() {
        if agentd_glob::matches_file_name(part, &name) {
            expand(at.join(name), rest, found)?;
        }
    }
    Ok(())
}

/// Returns the content of a file, or the names in a directory.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // The metadata is read first, because opening a pipe waits for its writer.
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

/// Returns the sorted names in a directory.
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
        /// Contains `work`, `home` and `config` with the script.
        directory: TempDir,
    }

    impl Place {
        fn new(script: &str) -> Self {
            let place = Self { directory: TempDir::new().unwrap() };
            for name in ["work", "home", "config"] {
                std::fs::create_dir(place.at(name)).unwrap();
            }
            place.write("config/env.sh", script);
            place
        }

        fn at(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn write(&self, name: &str, content: &str) {
            std::fs::write(self.at(name), content).unwrap();
        }

        fn key(&self, given: &[(&str, &str)]) -> Option<Key> {
            let (script, work, home) = (self.at("config/env.sh"), self.at("work"), self.at("home"));
            let content = std::fs::read(&script).unwrap();
            let mut given = given.to_vec();
            given.push(("HOME", home.to_str().unwrap()));
            let given = variables(&given);
            let looking = look(content, Places { script: &script, directory: &work, session: &work }, &given);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(looking).map(|state| state.key(&given))
        }
    }

    #[test]
    fn a_script_without_the_line_has_no_key() {
        assert_eq!(Place::new("export A=1\n# agentd depends: x\n").key(&[]), None);
        assert!(Place::new("export A=1\n  #agentd-depends:\n").key(&[]).is_some());
    }

    #[test]
    fn declarations_add_up_and_a_path_below_a_variable_depends_on_both() {
        let text =
            b"# agentd-depends: a.txt $HOME ${MODE}\nexport A=1\n# agentd-depends: conf/*.toml $X/y ${Z}/w ~/v\n";
        let declared = Declared::parse(text).unwrap();
        assert_eq!(declared.files, ["a.txt", "conf/*.toml", "$X/y", "${Z}/w", "~/v"]);
        assert_eq!(declared.variables, ["HOME", "MODE", "X", "Z"]);
    }

    #[test]
    fn a_declared_change_changes_the_key_and_other_changes_do_not() {
        let place = Place::new("# agentd-depends: a.txt *.conf $MODE\n");
        place.write("config/a.txt", "1");
        place.write("config/x.conf", "1");
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
        place.write("config/b.txt", "not declared");
        assert_eq!(place.key(&given), Some(key));
        place.write("config/a.txt", "2");
        is_new("a file", place.key(&given));
        place.write("config/y.conf", "");
        is_new("a file more that the pattern stands for", place.key(&given));
        std::fs::remove_file(place.at("config/a.txt")).unwrap();
        is_new("no file", place.key(&given));
        place.write("config/env.sh", "# agentd-depends: a.txt *.conf $MODE\nexport A=1\n");
        is_new("the script", place.key(&given));
    }

    #[test]
    fn paths_are_resolved_from_the_home_a_variable_or_the_sessions_directory() {
        let place = Place::new(
            "# agentd-depends: ~/a ~/d/*.x $HOME/b ${HOME}/c .nvmrc ../work/up $ROOT/e $PWD/f ./g $UNSET/h ~\n",
        );
        std::fs::create_dir(place.at("home/d")).unwrap();
        std::fs::create_dir(place.at("root")).unwrap();
        let root = place.at("root").display().to_string();
        let given = [("ROOT", root.as_str())];
        let mut before = place.key(&given).unwrap();
        for file in [
            "home/a",
            "home/d/1.x",
            "home/b",
            "home/c",
            "work/.nvmrc",
            "config/.nvmrc",
            "work/up",
            "root/e",
            "work/f",
            "work/g",
            "home/z",
        ] {
            place.write(file, "1");
            let after = place.key(&given).unwrap();
            assert_ne!(before, after, "{file}");
            before = after;
        }
        assert_eq!(place.key(&given), Some(before));
        for (file, name) in [("work/other", "beside"), ("home/d/1.y", "no match"), ("root/f", "another")] {
            place.write(file, "1");
            assert_eq!(place.key(&given), Some(before), "{file}: {name}");
        }
        assert_ne!(place.key(&[("ROOT", "/elsewhere")]), Some(before), "the variable");
        assert_ne!(place.key(&[("ROOT", root.as_str()), ("UNSET", "/x")]), Some(before), "a variable that is set now");
    }

    #[test]
    fn unreadable_dependencies_have_no_key() {
        assert_eq!(Place::new("# agentd-depends: /dev/null\n").key(&[]), None);
        let place = Place::new("# agentd-depends: large\n");
        place.write("config/large", &"x".repeat(usize::try_from(FILE).unwrap() + 1));
        assert_eq!(place.key(&[]), None);
    }
}
