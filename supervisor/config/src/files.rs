//! Locates and reads the files of the configuration, and checks that only root can change the administrator's files.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use agentd_api::configuration::Mistake;

use super::template::TemplateFile;
use agentd_api::chain;

/// Locations of the configuration's files.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Directory of the administrator. It contains `agentd.toml` and `conf.d/*.toml`.
    pub system: PathBuf,
    /// File of the user.
    pub user: PathBuf,
    /// Whether the user named the file explicitly. A missing file is then an error.
    pub named: bool,
}

/// Reason why a file is not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{path:?} belongs to user {owner}; the administrator's configuration and its directory must belong to root"
    )]
    NotRoots { path: PathBuf, owner: u32 },
    #[error(
        "{path:?} is writable by other users than root (mode {mode:04o}); the administrator's configuration and its \
         directory must be writable by root only", mode = .mode & 0o7777
    )]
    Writable { path: PathBuf, mode: u32 },
}

impl Unreadable {
    fn mistake(&self) -> Mistake {
        let (Self::Read { path, .. } | Self::NotRoots { path, .. } | Self::Writable { path, .. }) = self;
        Mistake { file: Some(path.clone()), message: chain(self), ..Mistake::default() }
    }
}

/// Maximum length in bytes to which a file that a configuration file names is read.
const MAX_NAMED: u64 = 1 << 20;

/// Content of one file.
#[derive(Debug, Clone)]
pub(super) struct Text {
    pub(super) path: PathBuf,
    pub(super) content: String,
    pub(super) of_user: bool,
    /// The template that the file names. It is read together with the file, so that both belong together while a
    /// former configuration stays in force.
    pub(super) template: Option<TemplateFile>,
}

/// Appends the administrator's files to `texts`. If a file cannot be read, `texts` contains the files before it.
pub(super) fn read_system(system: &Path, texts: &mut Vec<Text>) -> Result<(), Mistake> {
    for path in system_files(system).map_err(|error| error.mistake())? {
        let content = read_of_root(&path).map_err(|error| error.mistake())?;
        let template = TemplateFile::of(&path, &content, read_of_root);
        texts.push(Text { path, content, of_user: false, template });
    }
    Ok(())
}

/// Reads a file that is to become a file of the administrator. Its current owner does not matter.
pub(super) fn read_as_administrators(file: &Path) -> Result<Text, Mistake> {
    let path = file.to_owned();
    match std::fs::read_to_string(file) {
        Ok(content) => {
            let template = TemplateFile::of(&path, &content, read_of_user);
            Ok(Text { path, content, of_user: false, template })
        }
        Err(source) => Err(Unreadable::Read { path, source }.mistake()),
    }
}

/// Returns the `*.toml` files of a directory, sorted by name. A directory that cannot be listed has no files.
pub fn drop_ins(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| is_toml(path)).collect();
    found.sort();
    found
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// Reads the user's file. A missing file is an error only if the user named it.
pub(super) fn read_user(sources: &Sources) -> Result<Option<Text>, Mistake> {
    let path = sources.user.clone();
    match std::fs::read_to_string(&path) {
        Ok(content) => {
            let template = TemplateFile::of(&path, &content, read_of_user);
            Ok(Some(Text { path, content, of_user: true, template }))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !sources.named => Ok(None),
        Err(source) => Err(Unreadable::Read { path, source }.mistake()),
    }
}

/// Returns the administrator's files in the order in which they apply.
fn system_files(system: &Path) -> Result<Vec<PathBuf>, Unreadable> {
    let drop_ins = system.join("conf.d");
    let mut files = Vec::from_iter(Some(system.join("agentd.toml")).filter(|path| path.exists()));
    match std::fs::read_dir(&drop_ins) {
        Ok(entries) => {
            let mut found = Vec::new();
            for entry in entries {
                let path = entry.map_err(|source| Unreadable::Read { path: drop_ins.clone(), source })?.path();
                if is_toml(&path) {
                    found.push(path);
                }
            }
            found.sort();
            files.extend(found);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(Unreadable::Read { path: drop_ins, source }),
    }
    if !files.is_empty() {
        for directory in [system, &drop_ins].into_iter().filter(|directory| directory.exists()) {
            let metadata = std::fs::metadata(directory);
            of_root(directory, &metadata.map_err(|source| Unreadable::Read { path: directory.to_owned(), source })?)?;
        }
    }
    Ok(files)
}

/// Reads a file that a user's file names. Devices and pipes could block.
fn read_of_user(path: &Path) -> Result<String, Unreadable> {
    let failed = |source| Unreadable::Read { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")));
    }
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(MAX_NAMED).read_to_string(&mut text)).map_err(failed)?;
    Ok(text)
}

/// Reads a file of the administrator and follows links. The file and the directory that contains it must belong to
/// root and must not be writable by other users.
fn read_of_root(path: &Path) -> Result<String, Unreadable> {
    let failed = |source| Unreadable::Read { path: path.to_owned(), source };
    let real = path.canonicalize().map_err(failed)?;
    if let Some(directory) = real.parent() {
        of_root(directory, &std::fs::metadata(directory).map_err(failed)?)?;
    }
    let mut file = File::open(&real).map_err(failed)?;
    of_root(path, &file.metadata().map_err(failed)?)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn of_root(path: &Path, metadata: &Metadata) -> Result<(), Unreadable> {
    if metadata.uid() != 0 {
        return Err(Unreadable::NotRoots { path: path.to_owned(), owner: metadata.uid() });
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(Unreadable::Writable { path: path.to_owned(), mode: metadata.mode() });
    }
    Ok(())
}
