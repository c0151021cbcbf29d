//! A FIFO for one run, in a directory of its own that nobody else can enter: for shells that close every descriptor they do not know.
//! It is removed when it is dropped.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

/// The name of this program in the directory.
const KEEPER: &str = "agentd-keeper";

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
        // What it is called without quotes in any shell, wherever it is installed.
        let own = std::env::current_exe().and_then(|own| std::os::unix::fs::symlink(own, directory.join(KEEPER)));
        let opened = own.and_then(|()| Ok(nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?)).and_then(|()| {
            let flags = OFlag::O_NONBLOCK.bits();
            let reader = File::options().read(true).custom_flags(flags).open(&path)?;
            Ok((reader, File::options().write(true).custom_flags(flags).open(&path)?))
        });
        match opened {
            Ok((reader, writer)) => Ok((Self { directory, path, _writer: writer }, reader.into())),
            Err(error) => {
                remove(&directory);
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory, which no other user can enter.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A path of this program there.
    pub(crate) fn keeper(&self) -> PathBuf {
        self.directory.join(KEEPER)
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

fn remove(directory: &Path) {
    // Programs may have left sockets there. What cannot be removed is in a directory that the system clears.
    let _ = std::fs::remove_dir_all(directory);
}
