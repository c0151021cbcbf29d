//! The system's processes: `libproc.h`, and `sysctl` for what they were started with.
//!
//! Of other users' processes only the pid, the name and the program's path can be had.

use std::ffi::{OsString, c_char, c_int};
use std::io;
use std::mem;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

pub use crate::family::Process;

/// `proc_pidinfo` is to tell of one that has ended and was not waited for, too.
const WITH_ZOMBIES: u64 = 1;

/// The pid of every process.
#[allow(unsafe_code, reason = "a C call")]
pub fn pids() -> io::Result<Vec<i32>> {
    // SAFETY: a null buffer asks for the number of processes.
    let count = told(unsafe { libc::proc_listallpids(std::ptr::null_mut(), 0) })?;
    // Some may start in between.
    let mut pids = vec![0_i32; count + count / 8 + 64];
    let bytes = c_int::try_from(pids.len() * mem::size_of::<i32>()).map_err(io::Error::other)?;
    // SAFETY: the buffer is of that many bytes.
    let count = told(unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), bytes) })?;
    pids.truncate(count);
    Ok(pids)
}

/// Every process of this user's.
pub fn all() -> io::Result<Vec<Process>> {
    // Who has ended since is none.
    Ok(pids()?.into_iter().filter_map(|pid| of(pid).ok()).collect())
}

/// The process that has this pid.
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

/// How much memory the process has resident, bytes.
pub fn resident(pid: i32) -> io::Result<u64> {
    Ok(info::<libc::proc_taskinfo>(pid, libc::PROC_PIDTASKINFO, 0)?.pti_resident_size)
}

/// What the kernel calls it: the first 15 bytes of its program's name.
pub fn name(pid: i32) -> io::Result<Vec<u8>> {
    let info: libc::proc_bsdshortinfo = info(pid, libc::PROC_PIDT_SHORTBSDINFO, 0)?;
    Ok(text(&info.pbsi_comm))
}

/// Where its program is.
#[allow(unsafe_code, reason = "a C call")]
pub fn program(pid: i32) -> io::Result<PathBuf> {
    let mut path = vec![0_u8; usize::try_from(libc::PROC_PIDPATHINFO_MAXSIZE).map_err(io::Error::other)?];
    let size = u32::try_from(path.len()).map_err(io::Error::other)?;
    // SAFETY: the buffer is of that many bytes.
    let length = told(unsafe { libc::proc_pidpath(pid, path.as_mut_ptr().cast(), size) })?;
    path.truncate(length);
    Ok(OsString::from_vec(path).into())
}

/// What it was started with, as [`crate::strings`] reads it.
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

/// The system's structs that `proc_pidinfo` fills: of numbers alone, so that any bytes are a value of them.
///
/// # Safety
///
/// All-zero, and whatever else the kernel writes, must be a value of the type.
#[allow(unsafe_code, reason = "which types the kernel may write to is for this file to promise")]
unsafe trait Plain {}
#[allow(unsafe_code, reason = "as above")]
// SAFETY: integers, and arrays of them.
unsafe impl Plain for libc::proc_bsdinfo {}
#[allow(unsafe_code, reason = "as above")]
// SAFETY: integers, and arrays of them.
unsafe impl Plain for libc::proc_bsdshortinfo {}
#[allow(unsafe_code, reason = "as above")]
// SAFETY: integers.
unsafe impl Plain for libc::proc_taskinfo {}

#[allow(unsafe_code, reason = "a C call")]
fn info<T: Plain>(pid: i32, flavor: c_int, argument: u64) -> io::Result<T> {
    let size = c_int::try_from(mem::size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: all-zero is a value of every plain type.
    let mut info: T = unsafe { mem::zeroed() };
    // SAFETY: the buffer is of that size; the kernel writes no more, and whatever it writes is a value of the type.
    let got = unsafe { libc::proc_pidinfo(pid, flavor, argument, (&raw mut info).cast(), size) };
    if got == size { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// These calls return a number that is not above 0 where they failed.
fn told(count: c_int) -> io::Result<usize> {
    usize::try_from(count).ok().filter(|count| *count > 0).ok_or_else(io::Error::last_os_error)
}

/// What stands before the first NUL.
pub(crate) fn text(characters: &[c_char]) -> Vec<u8> {
    characters.iter().take_while(|&&character| character != 0).map(|character| character.cast_unsigned()).collect()
}
