//! Placeholders in the arguments and in stdin of a run, for requesters on another machine.
//!
//! `{keeper}` is the path of this program, and `{copy}` the path of a private copy of a file that only the requester
//! has. Both paths need no quotes in any shell.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use agentd_api::ByteString;

use crate::fifo::Fifo;
use crate::protocol::{CopiedFile, RunRequest, RunResult};

/// Directory of the copy in the private directory of the run.
const DIRECTORY: &str = "script";

/// Replaces the placeholders of a request, and makes the copy.
pub(crate) fn fill(request: &mut RunRequest, fifo: &Fifo) -> io::Result<()> {
    let mut paths = vec![("{keeper}", fifo.keeper())];
    if let Some(file) = &request.copy {
        paths.push(("{copy}", copy(file, fifo.directory())?));
    }
    for text in request.args.iter_mut().chain(&mut request.stdin) {
        for (placeholder, path) in &paths {
            *text = replaced(text, placeholder.as_bytes(), path.as_os_str().as_bytes());
        }
    }
    Ok(())
}

/// Names the file's own directory in place of the copy's in the results of a run.
pub(crate) fn restore(request: &RunRequest, directory: &Path, result: &mut RunResult) {
    let Some(file) = &request.copy else { return };
    let from = directory.join(DIRECTORY);
    for text in [&mut result.captured, &mut result.stderr] {
        *text = replaced(text, from.as_os_str().as_bytes(), file.directory.as_bytes());
    }
}

fn copy(file: &CopiedFile, directory: &Path) -> io::Result<PathBuf> {
    let directory = directory.join(DIRECTORY);
    DirBuilder::new().mode(0o700).create(&directory)?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let name = file.name.as_bytes();
    let is_safe = !name.is_empty() && !name.starts_with(b".") && !name.starts_with(b"-") && name.iter().all(is_plain);
    let path = directory.join(if is_safe { file.name.as_os_str() } else { "copy".as_ref() });
    OpenOptions::new().write(true).create_new(true).mode(0o400).open(&path)?.write_all(file.content.as_bytes())?;
    Ok(path)
}

fn replaced(text: &ByteString, from: &[u8], to: &[u8]) -> ByteString {
    let (text, mut filled, mut at) = (text.as_bytes(), Vec::new(), 0);
    for found in memchr::memmem::find_iter(text, from) {
        filled.extend_from_slice(&text[at..found]);
        filled.extend_from_slice(to);
        at = found + from.len();
    }
    filled.extend_from_slice(&text[at..]);
    filled.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_paths_and_results_name_the_files_own_directory() {
        let (fifo, _reader) = Fifo::make().unwrap();
        let file = CopiedFile { directory: "/work/x y".into(), name: "set up.sh".into(), content: "A=1\n".into() };
        let mut request = RunRequest {
            args: vec!["-c".into(), ". '{copy}'; '{keeper}' dump-environment 12".into()],
            copy: Some(file),
            ..RunRequest::default()
        };
        fill(&mut request, &fifo).unwrap();
        let made = fifo.directory().join(DIRECTORY).join("copy");
        let expected = format!(". '{}'; '{}' dump-environment 12", made.display(), fifo.keeper().display());
        assert_eq!(request.args, ["-c".into(), ByteString::from(expected.as_str())]);
        assert_eq!(std::fs::read(&made).unwrap(), b"A=1\n");
        let mut result = crate::run::result(crate::protocol::RunOutcome::Exited(0));
        result.captured = format!("A={}\0", made.display()).into_bytes().into();
        restore(&request, fifo.directory(), &mut result);
        assert_eq!(result.captured, ByteString::from("A=/work/x y/copy\0"));
    }
}
