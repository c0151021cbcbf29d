//! The system's processes, from `libproc.h` and from `sysctl` for arguments and environments.
//!
//! For processes of other users only the pid, the name and the program's path are available.

use std::ffi::{OsString, c_char, c_int};
use std::io;
use std::mem;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

pub use crate::family::Process;

/// Argument of `proc_pidinfo` that includes zombies.
const WITH_ZOMBIES: u64 = 1;

/// Returns the pids of all processes.
#[allow(unsafe_code, reason = "a C call")]
pub fn pids() -> io::Result<Vec<i32>> {
    // SAFETY: a null buffer asks for the number of processes.
    let count = counted(unsafe { libc::proc_listallpids(std::ptr::null_mut(), 0) })?;
    // More processes may start between the two calls.
    let mut pids = vec![0_i32; count + count / 8 + 64];
    let bytes = c_int::try_from(pids.len() * mem::size_of::<i32>()).map_err(io::Error::other)?;
    // SAFETY: the buffer is of that many bytes.
    let count = counted(unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), bytes) })?;
    pids.truncate(count);
    Ok(pids)
}

/// Returns all processes of this user.
pub fn all() -> io::Result<Vec<Process>> {
    // Skip processes that have ended in the meantime.
    Ok(pids()?.into_iter().filter_map(|pid| of(pid).ok()).collect())
}

/// Returns the process with this pid.
pub fn of(pid: i32) -> io::Result<Process> {
    let info: libc::proc_bsdinfo = info(pid, libc::PROC_PIDTBSDINFO, WITH_ZOMBIES)?;
    let id = |id: u32| i32::try_from(id).map_err(io::Error::other);
    Ok(Process {
        pid,
        start_time: info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec,
        parent: id(info.pbi_ppid)?,
        group: id(info.pbi_pgid)?,
        zombie: info.pbi_status == libc::SZOMB,
    })
}

/// Returns the resident memory of a process in bytes.
pub fn resident(pid: i32) -> io::Result<u64> {
    Ok(info::<libc::proc_taskinfo>(pid, libc::PROC_PIDTASKINFO, 0)?.pti_resident_size)
}

/// Returns the kernel's name of a process: the first 15 bytes of its program's name.
pub fn name(pid: i32) -> io::Result<Vec<u8>> {
    let info: libc::proc_bsdshortinfo = info(pid, libc::PROC_PIDT_SHORTBSDINFO, 0)?;
    Ok(text(&info.pbsi_comm))
}

/// Returns the path of a process's program.
#[allow(unsafe_code, reason = "a C call")]
pub fn program(pid: i32) -> io::Result<PathBuf> {
    let mut path = vec![0_u8; usize::try_from(libc::PROC_PIDPATHINFO_MAXSIZE).map_err(io::Error::other)?];
    let size = u32::try_from(path.len()).map_err(io::Error::other)?;
    // SAFETY: the buffer is of that many bytes.
    let length = counted(unsafe { libc::proc_pidpath(pid, path.as_mut_ptr().cast(), size) })?;
    path.truncate(length);
    Ok(OsString::from_vec(path).into())
}

/// Returns the arguments and the environment of a process, in the form that [`crate::strings`] parses.
#[allow(unsafe_code, reason = "a C call")]
pub fn strings(pid: i32) -> io::Result<Vec<u8>> {
    let mut name = [libc::CTL_KERN, libc::KERN_PROCARGS2, pid];
    let mut size = 0_usize;
    // SAFETY: the name has three numbers, and a null buffer asks for the size.
    let status =
        unsafe { libc::sysctl(name.as_mut_ptr(), 3, std::ptr::null_mut(), &raw mut size, std::ptr::null_mut(), 0) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut block = vec![0_u8; size];
    // SAFETY: the name has three numbers, and the buffer is of that many bytes.
    let status = unsafe {
        libc::sysctl(name.as_mut_ptr(), 3, block.as_mut_ptr().cast(), &raw mut size, std::ptr::null_mut(), 0)
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    block.truncate(size);
    Ok(block)
}

/// Structs of the system that `proc_pidinfo` fills. They consist of numbers only, so any bytes are a valid
/// value.
///
/// # Safety
///
/// All-zero, and whatever else the kernel writes, must be a value of the type.
#[allow(unsafe_code, reason = "this file guarantees which types the kernel may write to")]
unsafe trait Plain {}
#[allow(unsafe_code, reason = "as above")]
// SAFETY: the struct has only integers and arrays of integers.
unsafe impl Plain for libc::proc_bsdinfo {}
#[allow(unsafe_code, reason = "as above")]
// SAFETY: the struct has only integers and arrays of integers.
unsafe impl Plain for libc::proc_bsdshortinfo {}
#[allow(unsafe_code, reason = "as above")]
// SAFETY: the struct has only integers.
unsafe impl Plain for libc::proc_taskinfo {}

/// Calls `proc_pidinfo` for one of the structs.
#[allow(unsafe_code, reason = "a C call")]
fn info<T: Plain>(pid: i32, flavor: c_int, argument: u64) -> io::Result<T> {
    let size = c_int::try_from(mem::size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: all-zero is a value of every plain type.
    let mut info: T = unsafe { mem::zeroed() };
    // SAFETY: the buffer is of that size; the kernel writes no more, and whatever it writes is a value of the type.
    let got = unsafe { libc::proc_pidinfo(pid, flavor, argument, (&raw mut info).cast(), size) };
    if got == size { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// Converts the result of these C functions into a count or an error. A result of 0 or less means failure.
fn counted(count: c_int) -> io::Result<usize> {
    usize::try_from(count).ok().filter(|count| *count > 0).ok_or_else(io::Error::last_os_error)
}

/// Returns the bytes before the first NUL.
pub(crate) fn text(characters: &[c_char]) -> Vec<u8> {
    characters.iter().take_while(|&&character| character != 0).map(|character| character.cast_unsigned()).collect()
}
