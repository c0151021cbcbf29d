//! A FIFO for one run, in a directory of its own that nobody else can enter: for shells that close every descriptor they do not know.
//! It is removed when it is dropped.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

#[derive(Debug)]
pub(crate) struct Fifo {
    directory: PathBuf,
    path: PathBuf,
    /// Keeps the reader from meeting an end as long as this is open: the program opens it late, or several times.
    _writer: File,
}

impl Fifo {
    /// The FIFO and its reading end, which does not block.
    pub(crate) fn make() -> io::Result<(Self, OwnedFd)> {
        // mkdtemp(3) gives it the mode 0700.
        let directory = nix::unistd::mkdtemp(Path::new("/tmp/agentd-run-XXXXXX"))?;
        let path = directory.join("capture");
        let opened =
            nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).map_err(io::Error::from).and_then(|()| {
                let flags = OFlag::O_NONBLOCK.bits();
                let reader = File::options().read(true).custom_flags(flags).open(&path)?;
                Ok((reader, File::options().write(true).custom_flags(flags).open(&path)?))
            });
        match opened {
            Ok((reader, writer)) => Ok((Self { directory, path, _writer: writer }, reader.into())),
            Err(error) => {
                remove(&path, &directory);
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        remove(&self.path, &self.directory);
    }
}

fn remove(path: &Path, directory: &Path) {
    // What cannot be removed is an empty thing in a directory that the system clears.
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_dir(directory);
}
