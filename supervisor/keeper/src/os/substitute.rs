//! Linux: gives a program the checked bytes of a file, even if the file was replaced since the check.
//!
//! The bytes are in a sealed memfd (`memfd_create(2)`, `F_SEAL_WRITE`), which no process can change. The program is
//! traced (`ptrace(2)`) from its exec until it opens the file. In that one system call, the path is replaced with
//! `/dev/fd/N`, and restored when the call returns. The program then continues untraced.
//!
//! The program therefore sees the file under its own name: `BASH_SOURCE`, zsh's `$0` and fish's `status filename` are
//! the script's path. It reads exactly the checked bytes.
//!
//! Only the started program is traced, and none of its children. zsh would prefer a compiled file (`NAME.zwc`) that
//! is newer than the script. The traced program cannot open such a file.

use std::ffi::c_void;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{Sealed, Step};

/// File descriptor number of the bytes in the program. It is next to those of the captures (`env/shell.rs` of the
/// daemon).
const DESCRIPTOR: RawFd = 196;
/// Path of the file descriptor, with the NUL.
const INSTEAD: &[u8] = b"/dev/fd/196\0";
/// Path that cannot be opened, with the NUL.
const NOWHERE: &[u8] = b"/dev/null/\0";
/// Suffix that zsh adds to a script's name for its compiled form.
const COMPILED: &[u8] = b".zwc";

/// Signal number of a stop at a system call, which differs from a SIGTRAP (`PTRACE_O_TRACESYSGOOD`).
const AT_CALL: i32 = libc::SIGTRAP | 0x80;
/// `PTRACE_GET_SYSCALL_INFO` and its kinds of stops (`linux/ptrace.h`). The crate `libc` defines them only for glibc.
const GET_SYSCALL_INFO: u16 = 0x420e;
const ENTRY: u8 = 1;
const EXIT: u8 = 2;

/// System calls that open a file, and the index of their path argument.
const OPENING: &[(i64, usize)] = &[
    (libc::SYS_openat, 1),
    (libc::SYS_openat2, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 0),
];

/// Reports whether a file with this path can be substituted. The replacement must fit into the memory of its path.
pub(crate) fn can_substitute(path: &[u8]) -> bool {
    path.len() >= INSTEAD.len() && std::path::Path::new("/dev/fd").exists()
}

/// Makes a sealed file with these bytes, under the file descriptor number that the program uses.
#[allow(unsafe_code, reason = "fcntl returns a file descriptor with a chosen number as a plain integer")]
pub(crate) fn seal(content: &[u8]) -> io::Result<Sealed> {
    let file = memfd_create(c"agentd-script", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut rest = content;
    while !rest.is_empty() {
        match nix::unistd::write(&file, rest) {
            Ok(n) => rest = &rest[n..],
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    // A process that opens the file by its path has its own offset, so this descriptor's offset does not matter.
    let got = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(DESCRIPTOR))?;
    // SAFETY: fcntl made this descriptor just now, so nothing else owns it.
    let sealed = unsafe { OwnedFd::from_raw_fd(got) };
    if got == DESCRIPTOR { Ok(Sealed { number: got, _file: sealed }) } else { Err(Errno::EMFILE.into()) }
}

/// Starts tracing in the child before its exec. Async-signal-safe.
pub(crate) fn trace_me() -> io::Result<()> {
    Ok(ptrace::traceme()?)
}

/// Tracing of a program until it has opened the file.
#[derive(Debug)]
pub(crate) struct Substitution {
    pid: Pid,
    /// Path of the file, without a NUL.
    path: Vec<u8>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The stop at the exec has not come yet.
    Started,
    /// The program has not tried to open the file yet.
    Watching,
    /// The program is in the system call that opens a file. Holds the address of the path, its original bytes, and
    /// whether the file is the script.
    Opening {
        address: u64,
        before: Vec<u8>,
        is_script: bool,
    },
    Done,
}

impl Substitution {
    pub(crate) fn new(pid: i32, path: &[u8]) -> Self {
        Self { pid: Pid::from_raw(pid), path: path.to_vec(), stage: Stage::Started }
    }

    /// Reports whether the program has opened the file, so that it is no longer traced.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Handles the program's stops. Must be called after each SIGCHLD.
    pub(crate) fn step(&mut self) -> Step {
        loop {
            let Some(status) = waited(self.pid) else { return Step::Watching };
            let Some(signal) = status.stopped_signal() else { return Step::Ended(status) };
            // An error here means that the program is gone, which the next wait reports.
            let _ = self.stopped(signal);
            if self.is_done() {
                return Step::Done;
            }
        }
    }

    fn stopped(&mut self, signal: i32) -> nix::Result<()> {
        if signal == AT_CALL {
            self.at_call()?;
            return if self.is_done() { ptrace::detach(self.pid, None) } else { ptrace::syscall(self.pid, None) };
        }
        let stage = &mut self.stage;
        if matches!(stage, Stage::Started) {
            ptrace::setoptions(self.pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL)?;
            *stage = Stage::Watching;
        }
        // The SIGTRAP of an exec stop is not for the program.
        let own = Signal::try_from(signal).ok().filter(|signal| *signal != Signal::SIGTRAP);
        ptrace::syscall(self.pid, own)
    }

    fn at_call(&mut self) -> nix::Result<()> {
        let call = call(self.pid)?;
        match &self.stage {
            Stage::Watching if call.kind == ENTRY => {
                let number = i64::try_from(call.words[0]).unwrap_or(-1);
                let Some((_, argument)) = OPENING.iter().find(|(opening, _)| *opening == number) else { return Ok(()) };
                let address = call.words[1 + argument];
                let script = [&self.path[..], b"\0"].concat();
                let compiled = [&self.path[..], COMPILED, b"\0"].concat();
                for (path, instead, is_script) in [(script, INSTEAD, true), (compiled, NOWHERE, false)] {
                    if stands_at(self.pid, address, &path) {
                        put(self.pid, address, instead)?;
                        self.stage = Stage::Opening { address, before: path, is_script };
                        break;
                    }
                }
                Ok(())
            }
            Stage::Opening { address, before, is_script } if call.kind == EXIT => {
                put(self.pid, *address, &before[..INSTEAD.len().min(before.len())])?;
                let failed = call.words[1].to_ne_bytes()[0] != 0;
                self.stage = if *is_script && !failed { Stage::Done } else { Stage::Watching };
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Returns the program's next status change, if there is one.
#[allow(unsafe_code, reason = "nix's waitpid fails on a process that a real-time signal ended")]
fn waited(pid: Pid) -> Option<ExitStatus> {
    let mut status = 0;
    // SAFETY: the pointer is to a live i32.
    let waited = unsafe { libc::waitpid(pid.as_raw(), &raw mut status, libc::WNOHANG) };
    (waited == pid.as_raw()).then(|| ExitStatus::from_raw(status))
}

/// System call of the program, at its entry or exit.
struct Call {
    kind: u8,
    /// At the entry, the call's number and arguments. At the exit, its return value, and then one byte that is 1 for
    /// an error.
    words: [u64; 7],
}

#[allow(unsafe_code, reason = "nix has this request only for glibc")]
fn call(pid: Pid) -> nix::Result<Call> {
    // struct ptrace_syscall_info of linux/ptrace.h: a head of 24 bytes, then a part that depends on the kind.
    let mut info = [0_u64; 11];
    let size = std::mem::size_of_val(&info);
    // SAFETY: the kernel writes at most `size` bytes to a live array of that size.
    let got = unsafe { libc::ptrace(GET_SYSCALL_INFO.into(), pid.as_raw(), size, info.as_mut_ptr()) };
    Errno::result(got)?;
    let mut words = [0; 7];
    words.copy_from_slice(&info[3..10]);
    Ok(Call { kind: info[0].to_ne_bytes()[0], words })
}

const WORD: usize = size_of::<libc::c_long>();

/// Reports whether the program's memory has these bytes at the address.
fn stands_at(pid: Pid, address: u64, bytes: &[u8]) -> bool {
    // An unreadable word does not match. The program is then not given the file, and there is no result.
    bytes.chunks(WORD).enumerate().all(|(n, piece)| {
        ptrace::read(pid, at(address, n)).is_ok_and(|word| word.to_ne_bytes()[..piece.len()] == *piece)
    })
}

/// Writes bytes over at least as many bytes of the program's memory.
fn put(pid: Pid, address: u64, bytes: &[u8]) -> nix::Result<()> {
    for (n, piece) in bytes.chunks(WORD).enumerate() {
        let mut word = ptrace::read(pid, at(address, n))?.to_ne_bytes();
        word[..piece.len()].copy_from_slice(piece);
        ptrace::write(pid, at(address, n), libc::c_long::from_ne_bytes(word))?;
    }
    Ok(())
}

/// Returns the address of the word with this index.
fn at(address: u64, word: usize) -> *mut c_void {
    let address = usize::try_from(address).unwrap_or(0).wrapping_add(word * WORD);
    std::ptr::without_provenance_mut(address)
}
