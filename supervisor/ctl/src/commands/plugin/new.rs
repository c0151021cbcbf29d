//! Implements `agentctl plugin new`: writes a project that builds and has a test, with the interface and, for
//! Rust, the SDK.
//!
//! Promises: no existing file is overwritten, and the project does not depend on the place of its creation.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::templates::{self, Part};
use crate::args::plugin::{Language, NewPluginArgs};
use crate::commands::print;
use crate::error::{Error, NewError};
use agentd_screen::terminal::Screen;

/// Name of the plugin in the templates.
const PLACEHOLDER: &str = "my-plugin";
/// Maximum length of a plugin's name in the interface.
const LONGEST_NAME: usize = 64;

pub(super) fn new(args: NewPluginArgs) -> Result<u8, Error> {
    check_name(&args.name)?;
    let directory = args.dir.unwrap_or_else(|| PathBuf::from(&args.name));
    let parts = templates::parts(args.lang, args.world);
    write(&directory, &args.name, &parts)?;
    let shown = Screen::stdout().line(&directory.display().to_string());
    let name = &args.name;
    let language = match args.lang {
        Language::Rust => "Rust",
        Language::Python => "Python",
        Language::JavaScript => "JavaScript",
    };
    print(&format!(
        "{shown}: a plugin in {language}\n\n\
         cd {shown}\n\
         ./build      builds {name}.wasm\n\
         ./test       runs its tests: natively, and in agentd's box against recorded answers\n"
    ))?;
    Ok(0)
}

fn check_name(name: &str) -> Result<(), NewError> {
    let wrong = |what| Err(NewError::Name { name: name.to_owned(), what });
    let known = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    match name.as_bytes() {
        [] => wrong("it is empty"),
        bytes if bytes.len() > LONGEST_NAME => wrong("it is too long"),
        bytes if !bytes.iter().copied().all(known) => wrong("it has characters other than a-z, 0-9 and -"),
        [b'a'..=b'z', ..] => Ok(()),
        _ => wrong("it does not begin with a letter"),
    }
}

fn write(directory: &Path, name: &str, parts: &[Part]) -> Result<(), NewError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| NewError::Make { path, source }
    };
    let free = match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => false,
        Err(error) => return Err(failed(directory)(error)),
    };
    if !free {
        return Err(NewError::Exists(directory.to_owned()));
    }
    for part in parts {
        let path = directory.join(&part.path);
        let parent = path.parent().unwrap_or(directory);
        fs::create_dir_all(parent).map_err(failed(parent))?;
        let mode = if part.executable { 0o777 } else { 0o666 }; // less what the umask takes
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).map_err(failed(&path))?;
        file.write_all(part.text.replace(PLACEHOLDER, name).as_bytes()).map_err(failed(&path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::plugin::World;

    #[test]
    fn a_name_is_what_the_interface_allows_and_begins_with_a_letter() {
        for right in ["a", "corp-modules", "x9", &"a".repeat(64)] {
            check_name(right).unwrap();
        }
        for wrong in ["", "9a", "-a", "A", "a_b", "a/b", "../a", "a.b", "ä", &"a".repeat(65)] {
            let error = check_name(wrong).unwrap_err();
            assert!(error.hint().is_some_and(|hint| hint.contains("a-z")), "{wrong}");
        }
    }

    #[test]
    fn a_project_is_whole_bears_its_name_and_overwrites_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        for lang in [Language::Rust, Language::Python, Language::JavaScript] {
            for world in [World::Provider, World::Prerequisite] {
                let directory = scratch.path().join(format!("{lang:?}-{world:?}"));
                write(&directory, "corp-tools", &templates::parts(lang, world)).unwrap();
                for script in ["build", "test"] {
                    let metadata = fs::metadata(directory.join(script)).unwrap();
                    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o100, 0o100);
                }
                let wit = fs::read_to_string(directory.join("wit/deps/agentd-plugin/agentd-plugin.wit")).unwrap();
                assert!(wit.contains("package agentd:plugin@1.0.0;"));
                let mut left = vec![directory.clone()];
                while let Some(path) = left.pop() {
                    if path.is_dir() {
                        left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                    } else {
                        assert!(!fs::read_to_string(&path).unwrap().contains(PLACEHOLDER), "{}", path.display());
                    }
                }
                let again = write(&directory, "corp-tools", &templates::parts(lang, world)).unwrap_err();
                assert!(matches!(again, NewError::Exists(_)), "{again}");
            }
        }
        let file = scratch.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(write(&file, "a", &[]), Err(NewError::Exists(_))));
        let empty = scratch.path().join("empty");
        fs::create_dir(&empty).unwrap();
        write(&empty, "a", &templates::parts(Language::Rust, World::Provider)).unwrap();
    }
}
