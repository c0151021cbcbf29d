//! Compresses the files of `dist/`, and writes the table of them that `src/assets.rs` includes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=dist");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?);
    let mut names = Vec::new();
    for entry in fs::read_dir("dist")? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let name = entry.file_name().into_string().map_err(|_| io::Error::other("a name is not UTF-8"))?;
            names.push(name);
        }
    }
    names.sort();
    let mut table = String::from("&[\n");
    for name in &names {
        let content = fs::read(Path::new("dist").join(name))?;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&content)?;
        let compressed = out.join(format!("{name}.gz"));
        fs::write(&compressed, encoder.finish()?)?;
        writeln!(table, "    Asset {{ name: {name:?}, gzip: include_bytes!({:?}) }},", compressed.display())
            .map_err(io::Error::other)?;
    }
    table.push_str("]\n");
    fs::write(out.join("assets.rs"), table)
}
