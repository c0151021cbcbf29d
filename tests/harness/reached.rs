//! Records the problem codes that tests get, with their routes. `tests/it/reached/` compares them with the description.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use agentd_api::problem::Problem;
use agentd_api::route;

use super::paths;

/// Returns the directory of the records, one file for each test program.
pub(crate) fn directory() -> PathBuf {
    paths::kept().join("reached")
}

/// Records a refusal. Does nothing for another body, and for a path without a route.
pub(crate) fn record(method: &str, address: &str, body: &[u8]) {
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let path = address.split('?').next().unwrap_or_default();
    let Some(route) = route::find(method, path) else { return };
    let Ok(problem) = serde_json::from_slice::<Problem>(body) else { return };
    let line = format!("{route} {}\n", problem.code.as_str());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.insert(line.clone()) {
        fs::create_dir_all(directory()).expect("the directory for tests can be written");
        let file = directory().join(std::process::id().to_string());
        let file = OpenOptions::new().append(true).create(true).open(file);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the directory for tests can be written");
    }
}

/// Records the refusal in a raw answer to a raw request.
pub(crate) fn record_raw(request: &[u8], answer: &[u8]) {
    let (request, answer) = (String::from_utf8_lossy(request), String::from_utf8_lossy(answer));
    let mut words = request.split(' ');
    if let (Some(method), Some(address), Some((_, body))) = (words.next(), words.next(), answer.split_once("\r\n\r\n"))
    {
        record(method, address, body.trim().as_bytes());
    }
}
