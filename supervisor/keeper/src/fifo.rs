//! FIFO for one run, in a private directory, for shells that close unknown file descriptors. The directory is removed
//! when the FIFO is dropped.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

/// Name of the link to this program in the directory.
const KEEPER: &str = "agentd-keeper";

#[derive(Debug)]
pub(crate) struct Fifo {
    directory: PathBuf,
    path: PathBuf,
    /// Write end that keeps the reader from seeing an end of file. The program may open the FIFO late or several
    /// times.
    _writer: File,
}

impl Fifo {
    /// Makes the FIFO and opens its read end, which does not block.
    pub(crate) fn make() -> io::Result<(Self, OwnedFd)> {
        // mkdtemp(3) creates the directory with mode 0700.
        let directory = nix::unistd::mkdtemp(Path::new("/tmp/agentd-run-XXXXXX"))?;
        let path = directory.join("capture");
        // A path that needs no quotes in any shell, wherever this program is installed.
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

    /// Returns the directory, which no other user can enter.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of this program's link in the directory.
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
    // Programs may have left sockets in the directory. The system cleans up files that this process cannot remove.
    let _ = std::fs::remove_dir_all(directory);
}
