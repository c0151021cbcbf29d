//! Linux: gives a program the bytes of a file that somebody looked at, whatever lies under the file's name when the
//! program opens it.
//!
//! The bytes are in a sealed memfd (`memfd_create(2)`, `F_SEAL_WRITE`), which no process can change. The program is traced
//! (`ptrace(2)`) from its exec until it opens the file: the path in that one system call is `/dev/fd/N` instead, and is
//! put back when the call returns. Then the program goes on untraced. So it has the file under its own name:
//! `BASH_SOURCE`, zsh's `$0` and fish's `status filename` are the script's path, and what it reads is what was looked
//! at.
//!
//! A program that this process started is traced, and no child of it. zsh would take a compiled file (`NAME.zwc`) that
//! is newer than the script instead of it: to the traced program no such file can be opened.

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

/// The number under which the program has the bytes; beside those of the captures (`env/shell.rs` of the daemon).
const DESCRIPTOR: RawFd = 196;
/// Its path, with the NUL.
const INSTEAD: &[u8] = b"/dev/fd/196\0";
/// A path that cannot be opened, with the NUL.
const NOWHERE: &[u8] = b"/dev/null/\0";
/// What zsh adds to a script's name for its compiled form.
const COMPILED: &[u8] = b".zwc";

/// How a stop at a system call differs from a SIGTRAP (`PTRACE_O_TRACESYSGOOD`).
const AT_CALL: i32 = libc::SIGTRAP | 0x80;
/// `PTRACE_GET_SYSCALL_INFO` and its kinds of stops (`linux/ptrace.h`), which libc has for glibc alone.
const GET_SYSCALL_INFO: u16 = 0x420e;
const ENTRY: u8 = 1;
const EXIT: u8 = 2;

/// The system calls that open a file, and which argument is its path.
const OPENING: &[(i64, usize)] = &[
    (libc::SYS_openat, 1),
    (libc::SYS_openat2, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 0),
];

/// Whether a file of this path can be given like this: its path has to have room for the other one.
pub(crate) fn can_substitute(path: &[u8]) -> bool {
    path.len() >= INSTEAD.len() && std::path::Path::new("/dev/fd").exists()
}

/// The bytes as a file that can only be read, under the number that the program will know it by.
#[allow(unsafe_code, reason = "a descriptor with a number of one's choice comes as that number")]
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
    // A process that opens it by its path has an offset of its own, so the one of this descriptor does not matter.
    let got = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(DESCRIPTOR))?;
    // SAFETY: fcntl made this descriptor just now, so nothing else owns it.
    let sealed = unsafe { OwnedFd::from_raw_fd(got) };
    if got == DESCRIPTOR { Ok(Sealed { number: got, _file: sealed }) } else { Err(Errno::EMFILE.into()) }
}

/// In the child before its exec. Async-signal-safe.
pub(crate) fn trace_me() -> io::Result<()> {
    Ok(ptrace::traceme()?)
}

/// A program that is traced until it has opened the file.
#[derive(Debug)]
pub(crate) struct Substitution {
    pid: Pid,
    /// The file's path, without a NUL.
    path: Vec<u8>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The stop at the exec has not come.
    Started,
    /// Nothing of the file was opened yet.
    Watching,
    /// It is in the call that opens a file: where the path is, what stood there, and whether it is the script itself.
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

    /// Whether the program has opened the file, and so is traced no more.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Takes the program through the stops that it has come to; to be called after each SIGCHLD.
    pub(crate) fn step(&mut self) -> Step {
        loop {
            let Some(status) = waited(self.pid) else { return Step::Watching };
            let Some(signal) = status.stopped_signal() else { return Step::Ended(status) };
            // What fails is the program's end, which the next wait tells.
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
        // An exec stops with a SIGTRAP that is not the program's.
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

/// What the program did, if it did something since it was asked last.
#[allow(unsafe_code, reason = "nix's waitpid fails on a process that a real-time signal ended")]
fn waited(pid: Pid) -> Option<ExitStatus> {
    let mut status = 0;
    // SAFETY: the pointer is to a live i32.
    let waited = unsafe { libc::waitpid(pid.as_raw(), &raw mut status, libc::WNOHANG) };
    (waited == pid.as_raw()).then(|| ExitStatus::from_raw(status))
}

/// A system call at its begin or end.
struct Call {
    kind: u8,
    /// At its begin the call's number and arguments; at its end what it returned, and then, in one byte, whether that
    /// is an error.
    words: [u64; 7],
}

#[allow(unsafe_code, reason = "nix has this request for glibc alone")]
fn call(pid: Pid) -> nix::Result<Call> {
    // struct ptrace_syscall_info of linux/ptrace.h: 24 bytes of head, and then what differs by the kind.
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

/// Whether these bytes stand in the program's memory.
fn stands_at(pid: Pid, address: u64, bytes: &[u8]) -> bool {
    // A word that cannot be read is none of these bytes: then the program is not given the file, and has no result.
    bytes.chunks(WORD).enumerate().all(|(n, piece)| {
        ptrace::read(pid, at(address, n)).is_ok_and(|word| word.to_ne_bytes()[..piece.len()] == *piece)
    })
}

/// Writes to the program's memory, which has at least so many bytes there.
fn put(pid: Pid, address: u64, bytes: &[u8]) -> nix::Result<()> {
    for (n, piece) in bytes.chunks(WORD).enumerate() {
        let mut word = ptrace::read(pid, at(address, n))?.to_ne_bytes();
        word[..piece.len()].copy_from_slice(piece);
        ptrace::write(pid, at(address, n), libc::c_long::from_ne_bytes(word))?;
    }
    Ok(())
}

/// The word of this number from an address on.
fn at(address: u64, word: usize) -> *mut c_void {
    let address = usize::try_from(address).unwrap_or(0).wrapping_add(word * WORD);
    std::ptr::without_provenance_mut(address)
}
