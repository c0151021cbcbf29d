//! Files and images of a prompt.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use agentd_api::prompt::{EmbeddedResource, Link, Media, PromptPart};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::args::run::FileArgs;
use crate::error::Error;
use crate::machine::Machine;

/// Maximum size of a file in bytes that a prompt contains. Of a larger one the agent gets the address.
const LARGEST: u64 = 8 << 20;
/// Name of standard input.
const STDIN: &str = "-";

/// Reads the files and images of the command line, for an agent on `machine`.
pub(crate) fn parts(args: &FileArgs, machine: &Machine) -> Result<Vec<PromptPart>, Error> {
    let both = args.file.iter().chain(&args.image);
    if both.filter(|path| path.as_os_str() == STDIN).count() > 1 {
        return Err(Error::Usage {
            detail: "standard input is named twice".to_owned(),
            hint: "give `-` for one file or image only".to_owned(),
        });
    }
    let files = args.file.iter().map(|path| part(path, false, machine));
    files.chain(args.image.iter().map(|path| part(path, true, machine))).collect()
}

/// Reads a file, a directory or standard input of this machine.
fn part(path: &Path, is_image: bool, machine: &Machine) -> Result<PromptPart, Error> {
    let failed = |source: io::Error| Error::File { path: path.to_owned(), source };
    let (uri, bytes) = if path.as_os_str() == STDIN {
        let mut bytes = Vec::new();
        io::stdin().take(LARGEST + 1).read_to_end(&mut bytes).map_err(Error::Input)?;
        (None, bytes)
    } else {
        let path = Machine::This.absolute(path)?;
        let facts = path.metadata().map_err(failed)?;
        let is_linked = !is_image && (facts.is_dir() || facts.len() > LARGEST);
        if is_linked && let Some(host) = machine.other() {
            let detail =
                format!("{} is a directory or a large file, which agents on {host} cannot read", path.display());
            let hint = format!("give files of at most {} MiB, or name a path on {host} in the prompt", LARGEST >> 20);
            return Err(Error::Usage { detail, hint });
        }
        if is_linked {
            return Ok(link(&path, (!facts.is_dir()).then_some(facts.len())));
        }
        let uri = match machine {
            Machine::This => address(&path),
            // The path would name another file there.
            Machine::Other(_) => format!("attachment:{}", escaped(Path::new(path.file_name().unwrap_or_default()))),
        };
        (Some(uri), std::fs::read(&path).map_err(failed)?)
    };
    if bytes.len() as u64 > LARGEST {
        let detail = format!("{} has more than {} MiB", path.display(), LARGEST >> 20);
        return Err(Error::Usage { detail, hint: "give a smaller file, or its address in the prompt".to_owned() });
    }
    match image_type(&bytes) {
        Some(mime_type) => {
            Ok(PromptPart::Image(Media { data: STANDARD.encode(&bytes), mime_type: mime_type.to_owned(), uri }))
        }
        None if is_image => Err(Error::Usage {
            detail: format!("{} is no image in PNG, JPEG, GIF or WebP", path.display()),
            hint: "convert it, or give it with --file".to_owned(),
        }),
        None => Ok(resource(uri.unwrap_or_else(|| "stdin:".to_owned()), bytes)),
    }
}

/// Returns the part for a file that a text names, if it is readable: a link for a directory and for a large file.
pub(crate) fn named(path: &Path) -> Option<PromptPart> {
    path.exists().then(|| part(path, false, &Machine::This).ok()).flatten()
}

fn resource(uri: String, bytes: Vec<u8>) -> PromptPart {
    let (text, blob) = match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => (Some(text), None),
        Ok(text) => (None, Some(STANDARD.encode(text))),
        Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
    };
    PromptPart::Resource { resource: EmbeddedResource { uri, mime_type: None, text, blob } }
}

fn link(path: &Path, size: Option<u64>) -> PromptPart {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    PromptPart::ResourceLink(Link { uri: address(path), name, mime_type: None, size })
}

/// Bytes that are escaped in the path of an address: all but those of RFC 3986, section 3.3.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Returns the address of a file (RFC 8089).
pub(crate) fn address(path: &Path) -> String {
    format!("file://{}", escaped(path))
}

fn escaped(path: &Path) -> impl std::fmt::Display {
    percent_encode(path.as_os_str().as_encoded_bytes(), ESCAPED)
}

/// Returns the media type of an image that models take, by its first bytes.
fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Returns the files of this machine that words of a text name, as `@path`. A path is relative to `directory`.
pub(crate) fn mentioned(text: &str, directory: &Path) -> Vec<PromptPart> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for word in text.split_whitespace().filter_map(|word| word.strip_prefix('@')) {
        let word = word.trim_end_matches([',', ';', ':', ')', '?', '!']);
        // A full stop ends a sentence, unless the file's name ends with one.
        let names = [word, word.trim_end_matches('.')];
        let path = names.iter().filter(|name| !name.is_empty()).map(|name| directory.join(name));
        if let Some(path) = path.into_iter().find(|path| path.exists()).filter(|path| !paths.contains(path)) {
            paths.push(path);
        }
    }
    paths.iter().filter_map(|path| named(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = &[0x89, b'P', b'N', b'G', 0x0d, 0x0a];

    fn args(file: &[&Path], image: &[&Path]) -> FileArgs {
        let own = |paths: &[&Path]| paths.iter().map(|&path| path.to_owned()).collect();
        FileArgs { file: own(file), image: own(image) }
    }

    #[test]
    fn a_file_is_a_text_an_image_a_link_or_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("a b.rs"), "fn a() {}").unwrap();
        std::fs::write(at("c.png"), PNG).unwrap();
        std::fs::write(at("d.bin"), [0, 1, 255]).unwrap();
        std::fs::File::create(at("e.log")).unwrap().set_len(LARGEST + 1).unwrap();
        let (text, image, bytes, large) = (at("a b.rs"), at("c.png"), at("d.bin"), at("e.log"));
        let parts =
            parts(&args(&[&text, &image, &bytes, &large, directory.path()], &[&image]), &Machine::This).unwrap();
        let kinds: Vec<String> = parts.iter().map(PromptPart::describe).collect();
        let name = directory.path().file_name().unwrap().to_string_lossy();
        let folder = format!("link {name}");
        assert_eq!(kinds, ["file a%20b.rs", "image c.png", "file d.bin", "link e.log", &folder, "image c.png"]);
        assert_eq!(parts[0].content(), Some("fn a() {}"));
        assert_eq!(parts[2].content(), Some("AAH/"));
        assert!(parts.iter().all(|part| part.check().is_ok()));
    }

    #[test]
    fn what_is_no_image_or_not_there_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("a.txt");
        std::fs::write(&text, "text").unwrap();
        let stdin = Path::new(STDIN);
        for (args, expected) in [
            (args(&[], &[&text]), "is no image"),
            (args(&[&directory.path().join("none")], &[]), "none"),
            (args(&[stdin], &[stdin]), "named twice"),
        ] {
            let error = parts(&args, &Machine::This).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn words_with_an_at_sign_name_files_that_exist() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a.rs", "b.rs", "c."] {
            std::fs::write(directory.path().join(name), name).unwrap();
        }
        let found = mentioned("look at @a.rs, (not kim@b.rs) and @b.rs. @c. @a.rs @none @", directory.path());
        let texts: Vec<&str> = found.iter().filter_map(PromptPart::content).collect();
        assert_eq!(texts, ["a.rs", "b.rs", "c."]);
    }
}
