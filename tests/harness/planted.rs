//! Secrets that a test plants, and the search for them afterwards: as bytes, and in whatever the bytes say as JSON.
//!
//! Each value has a core in it that stands nowhere else on this machine and has no character that anything escapes, so that a
//! part of a value is found too. A JSON document is read besides, because there a core may be written as `\u0070...`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

use super::until;

/// A planted value; what it is called says where it was planted.
#[derive(Debug, Clone)]
pub(crate) struct Planted {
    pub(crate) name: &'static str,
    core: String,
    /// The value, as whoever has it sees it.
    pub(crate) value: String,
}

impl Planted {
    /// `shape` with a core in the place of `{}`.
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

/// The names of those that stand in these bytes, or in what they say where they are JSON, a line or a whole.
pub(crate) fn found_in(bytes: &[u8], planted: &[Planted]) -> BTreeSet<&'static str> {
    let mut texts = vec![bytes.to_vec()];
    let lines = bytes.split(|byte| *byte == b'\n');
    for document in lines.chain([bytes]).filter_map(|text| serde_json::from_slice::<Value>(text).ok()) {
        said(&document, &mut texts);
    }
    let in_a_text = |one: &&Planted| texts.iter().any(|text| one.is_in(text));
    planted.iter().filter(in_a_text).map(|one| one.name).collect()
}

/// Every string of a document, names of fields too, and what those say that are JSON themselves.
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

/// `FILE: NAME` for each that stands in a file below the directory, or in a file's name.
pub(crate) fn found_below(directory: &Path, planted: &[Planted]) -> Vec<String> {
    assert!(directory.is_dir(), "{} is no directory", directory.display());
    let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = left.pop() {
        // What is there may be taken away while one looks.
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

/// Looks at the arguments of every process, again and again, until it is told to stop.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    /// How often it has looked at all of them.
    looks: Arc<AtomicU64>,
    thread: JoinHandle<Watched>,
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Those that stood in arguments.
    pub(crate) found: BTreeSet<&'static str>,
    /// What agentd's own programs were seen to be asked to do: `serve`, `hold`, `run` ...
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

    /// Until it has seen whatever runs now, if that runs until then.
    pub(crate) async fn has_seen_all(&self) {
        // The first look that ends may have begun before.
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
