//! Plants secrets and searches for them: as bytes, and in the decoded strings of JSON.
//!
//! Each value contains a core that occurs nowhere else on this machine. No encoding escapes a character of the core,
//! so a part of a value is found too. JSON documents are also decoded, because a core may be written as `\u0070...`
//! there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

use super::until;

/// A planted value. Its name describes the place of the plant.
#[derive(Debug, Clone)]
pub(crate) struct Planted {
    pub(crate) name: &'static str,
    core: String,
    /// The value in plain form.
    pub(crate) value: String,
}

impl Planted {
    /// Creates a value from `shape`, with a core instead of `{}`.
    pub(crate) fn new(name: &'static str, shape: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let core = format!("pLaNtEd{}x{number}z", std::process::id());
        Self { name, value: shape.replace("{}", &core), core }
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        memchr::memmem::find(bytes, self.core.as_bytes()).is_some()
    }
}

/// Returns the names of the values that occur in these bytes, or in their decoded JSON, per line or as a whole.
pub(crate) fn found_in(bytes: &[u8], planted: &[Planted]) -> BTreeSet<&'static str> {
    let mut texts = vec![bytes.to_vec()];
    let lines = bytes.split(|byte| *byte == b'\n');
    for document in lines.chain([bytes]).filter_map(|text| serde_json::from_slice::<Value>(text).ok()) {
        said(&document, &mut texts);
    }
    let in_a_text = |one: &&Planted| texts.iter().any(|text| one.is_in(text));
    planted.iter().filter(in_a_text).map(|one| one.name).collect()
}

/// Collects every string of a document, including field names and strings inside nested JSON.
fn said(document: &Value, to: &mut Vec<Vec<u8>>) {
    match document {
        Value::String(text) => {
            to.push(text.as_bytes().to_vec());
            if let Ok(inner @ (Value::Object(_) | Value::Array(_) | Value::String(_))) = serde_json::from_str(text) {
                said(&inner, to);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| said(item, to)),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            to.push(name.as_bytes().to_vec());
            said(value, to);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns `FILE: NAME` for each value that occurs in a file below the directory, or in a file's name.
pub(crate) fn found_below(directory: &Path, planted: &[Planted]) -> Vec<String> {
    assert!(directory.is_dir(), "{} is no directory", directory.display());
    let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = left.pop() {
        // Files may disappear during the search.
        for path in fs::read_dir(&directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())) {
            let mut here = found_in(path.as_os_str().as_encoded_bytes(), planted);
            if path.is_dir() && !path.is_symlink() {
                left.push(path.clone());
            } else if path.is_file() {
                here.extend(found_in(&fs::read(&path).unwrap_or_default(), planted));
            }
            found.extend(here.into_iter().map(|name| format!("{}: {name}", path.display())));
        }
    }
    found
}

/// Searches the arguments of every process repeatedly, until it is stopped.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    /// Number of complete searches.
    looks: Arc<AtomicU64>,
    thread: JoinHandle<Watched>,
}

/// Findings of the searches.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Values that occurred in arguments.
    pub(crate) found: BTreeSet<&'static str>,
    /// Subcommands of agentd's own programs that were seen: `serve`, `hold`, `run` ...
    pub(crate) roles: BTreeSet<String>,
}

impl Watch {
    pub(crate) fn begin(planted: &[Planted]) -> Self {
        let (planted, stop) = (planted.to_vec(), Arc::new(AtomicBool::new(false)));
        let looks = Arc::new(AtomicU64::new(0));
        let (told, looked) = (Arc::clone(&stop), Arc::clone(&looks));
        let thread = std::thread::spawn(move || {
            let mut watched = Watched::default();
            while !told.load(Ordering::Relaxed) {
                watched.look(&planted);
                looked.fetch_add(1, Ordering::Relaxed);
            }
            watched
        });
        Self { stop, looks, thread }
    }

    /// Waits until a complete search has seen all processes that run now and still run then.
    pub(crate) async fn has_seen_all(&self) {
        // The first search that ends may have begun earlier.
        let enough = self.looks.load(Ordering::Relaxed) + 2;
        until("the watch has looked", || self.looks.load(Ordering::Relaxed) >= enough || self.thread.is_finished())
            .await;
    }

    pub(crate) fn end(self) -> Watched {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only looks")
    }
}

impl Watched {
    fn look(&mut self, planted: &[Planted]) {
        let processes = fs::read_dir("/proc").expect("/proc is mounted").filter_map(Result::ok);
        for process in processes.filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit()) {
            let Ok(arguments) = fs::read(process.path().join("cmdline")) else { continue };
            let mut words = arguments.split(|byte| *byte == 0);
            if words.next().is_some_and(|program| program.ends_with(b"/agentd") || program.ends_with(b"/agentd-keeper"))
            {
                self.roles.extend(words.next().map(|role| String::from_utf8_lossy(role).into_owned()));
            }
            self.found.extend(planted.iter().filter(|one| one.is_in(&arguments)).map(|one| one.name));
        }
    }
}

#[test]
fn the_search_finds_what_is_there_however_it_is_written() {
    let planted = [Planted::new("A", "x\"{}"), Planted::new("B", "{}")];
    let escaped = planted[1].value.bytes().map(|byte| format!("\\u{byte:04x}")).collect::<Vec<_>>().concat();
    let nested = serde_json::to_string(&serde_json::json!({ "k": planted[0].value }).to_string()).unwrap();
    let both = BTreeSet::from(["A", "B"]);
    assert_eq!(found_in(format!("{nested}\n[\"{escaped}\"]\n").as_bytes(), &planted), both);
    assert_eq!(found_in(format!("{}{}", planted[0].core, planted[1].value).as_bytes(), &planted), both);
    assert_eq!(found_in(b"{\"k\": \"nothing\"}", &planted), BTreeSet::new());
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("in")).unwrap();
    fs::write(directory.path().join("in/.file"), &planted[0].value).unwrap();
    assert_eq!(found_below(directory.path(), &planted).len(), 1);
}
