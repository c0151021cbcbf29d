//! Whether a process waits for what is typed, as proc(5) shows it.

use std::fs;

use nix::libc;

/// Whether the process is in read(2) of a terminal; `None` where the kernel does not say what it is in.
pub(crate) fn reads_terminal(pid: i32) -> Option<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut words = text.split(' ');
    let Some(call) = words.next().and_then(|word| word.trim().parse::<libc::c_long>().ok()) else {
        // `running`: it is in none.
        return Some(false);
    };
    if call != libc::SYS_read {
        return Some(false);
    }
    let descriptor = u32::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
    let file = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    Some(file.starts_with("/dev/pts") || file.as_os_str() == "/dev/tty")
}
