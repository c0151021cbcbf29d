//! The two kinds of code that components are compiled to, and which kind this machine can run.
//!
//! A system can forbid a process to execute memory that it wrote: systemd's `MemoryDenyWriteExecute=`,
//! `PR_SET_MDWE`, `SELinux`, or a `noexec` mount. Precompiled code is affected too, because it is mapped
//! writable, linked, and then made executable.
//!
//! On such a system wasmtime's interpreter (pulley) runs the plugins from its own code format, about ten times
//! slower. The host finds out once, at its start. The compiler gets the result as an argument, because it
//! cannot know its parent's restrictions.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::str::FromStr;
use std::{fmt, io};

use memmap2::MmapMut;
use nix::sys::statfs::statfs;
use wasmtime::{Config, ModuleVersionStrategy, OptLevel, RegallocAlgorithm};

use crate::limits::STACK;

/// The kind of code that a component is compiled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Machine code.
    Native,
    /// Code for the interpreter. It needs no executable memory.
    Interpreted,
}

/// Error for a word that names no kind of code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither \"native\" nor \"interpreted\"")]
pub struct UnknownCode(String);

/// Maximum length in bytes of a component that is compiled without optimisation, which halves the time. A call of such
/// a plugin spends its time in the interface. Larger ones contain interpreters of languages.
const SMALL: usize = 256 << 10;

/// Returns the name of the kind, as `agentd compile --code` takes it.
impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Interpreted => "interpreted",
        }
    }

    /// Returns the file name extension of code of this kind.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Native => "cwasm",
            Self::Interpreted => "pulley",
        }
    }

    /// Returns the engine settings. The compiler's engine and the daemon's must share them, except that only
    /// the compiler's has a compiler, for a component of `length` bytes.
    pub(crate) fn engine_config(self, length: Option<usize>) -> wasmtime::Result<Config> {
        let mut config = Config::new();
        if self == Self::Interpreted {
            config.target("pulley64")?;
        }
        config.enable_compiler(length.is_some()).epoch_interruption(true).max_wasm_stack(STACK).wasm_memory64(false);
        if length.is_some_and(|length| length <= SMALL) {
            config.cranelift_opt_level(OptLevel::None).cranelift_regalloc_algorithm(RegallocAlgorithm::SinglePass);
        }
        config.module_version(ModuleVersionStrategy::Custom(version()))?;
        Ok(config)
    }
}

/// Returns the version string that compiled code carries.
///
/// By default wasmtime compares only the major version. This string has the whole version, so that code from
/// before a fix in the compiler is not run after the update.
fn version() -> String {
    let mut wasmtime = DefaultHasher::new();
    ModuleVersionStrategy::WasmtimeVersion.hash(&mut wasmtime); // the complete version
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

/// Why native code cannot run.
#[derive(Debug, thiserror::Error)]
enum NoNative {
    #[error("this process may not make memory executable (MemoryDenyWriteExecute= or the like)")]
    Memory(#[source] io::Error),
    #[error("the directory of compiled plugins is on a file system that is mounted noexec")]
    Mount,
}

/// Checks whether written memory can be made executable, which running native code requires.
fn try_native(cache: &Path) -> Result<(), NoNative> {
    MmapMut::map_anon(1).and_then(MmapMut::make_exec).map_err(NoNative::Memory)?;
    // A file on a noexec mount can be mapped, but the mapping cannot be made executable. If statfs fails, the
    // first load of a plugin reports the problem.
    match statfs(cache) {
        Ok(mount) if mount.flags().contains(NOEXEC) => Err(NoNative::Mount),
        _ => Ok(()),
    }
}

/// The flag of statfs(2) for a noexec mount.
#[cfg(target_os = "linux")]
const NOEXEC: nix::sys::statvfs::FsFlags = nix::sys::statvfs::FsFlags::ST_NOEXEC;
#[cfg(target_os = "macos")]
const NOEXEC: nix::mount::MntFlags = nix::mount::MntFlags::MNT_NOEXEC;

/// Finds out which kind of code can run from the cache directory, and logs the result.
pub(crate) fn find_out(cache: &Path) -> Code {
    match try_native(cache) {
        Ok(()) => {
            tracing::info!(code = %Code::Native, "plugins are compiled to native code");
            Code::Native
        }
        Err(reason) => {
            tracing::info!(
                code = %Code::Interpreted,
                reason = &reason as &dyn std::error::Error,
                "plugins are interpreted: native code cannot be run here"
            );
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
