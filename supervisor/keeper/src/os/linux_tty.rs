//! Linux: reports from proc(5) whether a process waits for terminal input.

use std::fs;

use nix::libc;
use nix::sys::resource::Resource;

/// Resource limits that a login passes on, by their names in `limits.conf(5)`.
pub(crate) const LIMITS: &[(&str, Resource)] = &[
    ("core", Resource::RLIMIT_CORE),
    ("cpu", Resource::RLIMIT_CPU),
    ("data", Resource::RLIMIT_DATA),
    ("fsize", Resource::RLIMIT_FSIZE),
    ("memlock", Resource::RLIMIT_MEMLOCK),
    ("nofile", Resource::RLIMIT_NOFILE),
    ("nproc", Resource::RLIMIT_NPROC),
    ("stack", Resource::RLIMIT_STACK),
    ("as", Resource::RLIMIT_AS),
];

/// Reports whether the process is in read(2) of a terminal. Returns `None` if the kernel does not report the system
/// call.
pub(crate) fn reads_terminal(pid: i32) -> Option<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut words = text.split(' ');
    let Some(call) = words.next().and_then(|word| word.trim().parse::<libc::c_long>().ok()) else {
        // The content `running` means that the process is in no system call.
        return Some(false);
    };
    if call != libc::SYS_read {
        return Some(false);
    }
    let descriptor = u32::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
    let file = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    Some(file.starts_with("/dev/pts") || file.as_os_str() == "/dev/tty")
}
