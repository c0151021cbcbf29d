//! Generates lists of the plugin templates, the SDK's sources and the units, for the program to include.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Extensions of the files that belong to a template; other files are left from a build.
const EXTENSIONS: [&str; 8] = ["js", "json", "md", "py", "rs", "sh", "toml", "wit"];
/// Extensions of the files that service managers read.
const UNITS: [&str; 4] = ["plist", "service", "slice", "socket"];
const NAMES: [&str; 3] = ["build", "gitignore", "test"];
/// Parts of the SDK that a plugin project contains. The SDK's own tests do not belong to them.
const SDK: [&str; 4] = ["Cargo.toml", "secret-names", "src", "toolchain.sh"];

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the package is"))
        .join("../..")
        .canonicalize()
        .expect("the package lies in the repository");
    let mut templates = Vec::new();
    collect(&root.join("plugin-sdk/templates"), "", &mut templates);
    for part in SDK {
        collect(&root.join("plugin-sdk/rust").join(part), &format!("sdk/{part}"), &mut templates);
    }
    write("templates.rs", templates);
    let mut units = Vec::new();
    collect(&root.join("units"), "", &mut units);
    units.retain(|(name, ..)| UNITS.iter().any(|known| Path::new(name).extension().is_some_and(|it| it == *known)));
    write("units.rs", units);
}

/// Writes a list of names, contents and executable flags as a Rust expression.
fn write(list_name: &str, mut files: Vec<(String, PathBuf, bool)>) {
    files.sort();
    let mut list = String::from("&[\n");
    for (name, path, executable) in files {
        let path = path.to_str().expect("a path in a repository is UTF-8");
        writeln!(list, "({name:?}, include_str!({path:?}), {executable}),").expect("a string takes all");
    }
    list.push_str("]\n");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where to write"));
    fs::write(out.join(list_name), list).expect("the list can be written");
}

/// Adds every file below `path`, named relative to `path`, to a list.
fn collect(path: &Path, name: &str, into: &mut Vec<(String, PathBuf, bool)>) {
    let metadata = fs::metadata(path).expect("it was listed a moment ago");
    if metadata.is_dir() {
        println!("cargo::rerun-if-changed={}", path.display()); // cargo looks at all that is in it
        for entry in fs::read_dir(path).expect("a directory of the repository can be read") {
            let entry = entry.expect("its entries can be read");
            let below = entry.file_name().into_string().expect("names in the repository are UTF-8");
            let name = if name.is_empty() { below } else { format!("{name}/{below}") };
            collect(&entry.path(), &name, into);
        }
        return;
    }
    let known = path.extension().is_some_and(|it| EXTENSIONS.iter().chain(&UNITS).any(|known| it == *known))
        || NAMES.iter().any(|known| path.ends_with(known));
    if known {
        println!("cargo::rerun-if-changed={}", path.display());
        into.push((name.to_owned(), path.to_owned(), metadata.permissions().mode() & 0o100 != 0));
    }
}
