//! Checks that released versions of the interface do not change. Plugins were built against them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Returns the SHA-256 of an interface's text without its doc comments and blank lines, in hexadecimal. Comments may be
/// reworded; everything else is part of the interface.
fn digest(interface: &str) -> String {
    let is_comment = |line: &&str| line.is_empty() || line.starts_with("///");
    let mut digest = Sha256::new();
    for line in interface.lines().map(str::trim_start).filter(|line| !is_comment(line)) {
        digest.update(line);
        digest.update("\n");
    }
    digest.finalize().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

#[test]
fn a_released_interface_does_not_change() {
    let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
    let sums = fs::read_to_string(wit.join("FROZEN")).unwrap();
    let recorded: BTreeMap<String, String> = sums
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once("  ").expect("each line is a hash, two blanks and a path"))
        .map(|(sum, path)| (path.to_owned(), sum.to_owned()))
        .collect();
    let mut found = BTreeMap::new();
    for version in fs::read_dir(&wit).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        for file in fs::read_dir(version.path()).unwrap().map(Result::unwrap) {
            let path = format!("{}/{}", version.file_name().display(), file.file_name().display());
            found.insert(path, digest(&fs::read_to_string(file.path()).unwrap()));
        }
    }
    assert_eq!(
        found, recorded,
        "plugin-sdk/wit does not match its FROZEN: released versions must not change, because plugins were built \
         against them; add a new version as a new directory with its own line"
    );
}

#[test]
fn only_comments_are_outside_of_the_digest() {
    let text = "/// A clock.\ninterface clock {\n    wall: func() -> u64;\n}\n";
    assert_eq!(digest(text), digest(&text.replace("A clock", "Clocks").replace("{\n", "{\n\n    /// Time.\n")));
    assert_ne!(digest(text), digest(&text.replace("u64", "u32")));
    assert_ne!(digest(text), digest(&text.replace("    wall", "    // wall")));
}
