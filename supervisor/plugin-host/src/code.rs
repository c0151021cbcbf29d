//! The two kinds of code that a component is compiled to, and which of them this machine lets us run.
//!
//! A system can forbid a process to run what it wrote itself (systemd's `MemoryDenyWriteExecute=`, `PR_SET_MDWE`, `SELinux`,
//! a file system mounted `noexec`), and precompiled code is no exception: it is mapped to be written, linked, and then made
//! executable. There wasmtime's interpreter does the same work from code of its own kind, some ten times slower. It is found
//! out once, when the host is made; the compiler is told, since it cannot know what its parent may do.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::str::FromStr;
use std::{fmt, io};

use memmap2::MmapMut;
use nix::sys::statfs::statfs;
use wasmtime::{Config, ModuleVersionStrategy};

use crate::limits::STACK;

/// What a component is compiled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The machine's own.
    Native,
    /// For the interpreter: nothing of it is ever executable.
    Interpreted,
}

/// A word that is not the name of a kind of code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither \"native\" nor \"interpreted\"")]
pub struct UnknownCode(String);

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Interpreted => "interpreted",
        }
    }

    /// The end of the names of files that hold it.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Native => "cwasm",
            Self::Interpreted => "pulley",
        }
    }

    /// The settings that the compiler's engine and the daemon's must share; only the first has a compiler.
    pub(crate) fn engine_config(self, compiler: bool) -> wasmtime::Result<Config> {
        let mut config = Config::new();
        if self == Self::Interpreted {
            config.target("pulley64")?;
        }
        config.enable_compiler(compiler).epoch_interruption(true).max_wasm_stack(STACK).wasm_memory64(false);
        config.module_version(ModuleVersionStrategy::Custom(version()))?;
        Ok(config)
    }
}

/// What stands in compiled code for the version of who made it. wasmtime itself compares the first number of its version alone, and
/// code that was made before an error of the compiler was corrected must not be run after it.
fn version() -> String {
    let mut wasmtime = DefaultHasher::new();
    ModuleVersionStrategy::WasmtimeVersion.hash(&mut wasmtime); // the whole of it
    format!("agentd {}, wasmtime {:016x}", env!("CARGO_PKG_VERSION"), wasmtime.finish())
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(word: &str) -> Result<Self, UnknownCode> {
        [Self::Native, Self::Interpreted]
            .into_iter()
            .find(|code| code.as_str() == word)
            .ok_or_else(|| UnknownCode(word.to_owned()))
    }
}

/// Why native code cannot be run here.
#[derive(Debug, thiserror::Error)]
enum NoNative {
    #[error("this process may not make memory executable (MemoryDenyWriteExecute= or the like)")]
    Memory(#[source] io::Error),
    #[error("the directory of compiled plugins is on a file system that is mounted noexec")]
    Mount,
}

/// Tries what running a compiled component comes to: memory that was written is made executable.
fn try_native(cache: &Path) -> Result<(), NoNative> {
    MmapMut::map_anon(1).and_then(MmapMut::make_exec).map_err(NoNative::Memory)?;
    // A file of such a mount can be mapped, and what is mapped cannot be made executable. Where it cannot be asked, the
    // first load of a plugin says what is wrong.
    match statfs(cache) {
        Ok(mount) if mount.flags().contains(NOEXEC) => Err(NoNative::Mount),
        _ => Ok(()),
    }
}

/// What statfs(2) says of a mount of which nothing may be executed.
#[cfg(target_os = "linux")]
const NOEXEC: nix::sys::statvfs::FsFlags = nix::sys::statvfs::FsFlags::ST_NOEXEC;
#[cfg(target_os = "macos")]
const NOEXEC: nix::mount::MntFlags = nix::mount::MntFlags::MNT_NOEXEC;

/// Which kind of code can be run here; said in the log.
pub(crate) fn find_out(cache: &Path) -> Code {
    match try_native(cache) {
        Ok(()) => {
            tracing::info!(code = %Code::Native, "plugins are compiled to native code");
            Code::Native
        }
        Err(reason) => {
            tracing::info!(code = %Code::Interpreted, reason = &reason as &dyn std::error::Error, "plugins are interpreted: native code cannot be run here");
            Code::Interpreted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_code_is_read_as_it_is_written_and_nothing_else_is() {
        for code in [Code::Native, Code::Interpreted] {
            assert_eq!(code.to_string().parse(), Ok(code));
        }
        assert_eq!(
            Code::from_str("Native").unwrap_err().to_string(),
            "\"Native\" is neither \"native\" nor \"interpreted\""
        );
    }

    #[test]
    fn the_two_kinds_never_share_a_name_of_a_file() {
        assert_ne!(Code::Native.extension(), Code::Interpreted.extension());
    }
}
