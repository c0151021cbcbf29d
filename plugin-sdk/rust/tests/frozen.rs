//! Checks that released versions of the interface do not change. Plugins were built against them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

#[test]
fn the_text_of_a_released_interface_is_what_was_released() {
    let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
    let sums = fs::read_to_string(wit.join("SHA256SUMS")).unwrap();
    let recorded: BTreeMap<String, String> = sums
        .lines()
        .map(|line| line.split_once("  ").expect("lines are as sha256sum writes them"))
        .map(|(sum, path)| (path.to_owned(), sum.to_owned()))
        .collect();
    let mut found = BTreeMap::new();
    for version in fs::read_dir(&wit).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        for file in fs::read_dir(version.path()).unwrap().map(Result::unwrap) {
            let path = format!("{}/{}", version.file_name().display(), file.file_name().display());
            let sum = Sha256::digest(fs::read(file.path()).unwrap());
            found.insert(path, sum.iter().fold(String::new(), |sum, byte| format!("{sum}{byte:02x}")));
        }
    }
    assert_eq!(
        found, recorded,
        "plugin-sdk/wit does not match its SHA256SUMS: released versions must not change, because plugins were built \
         against them; add a new version as a new directory with its own line"
    );
}
