//! Resource limits on macOS, and whether a process waits for terminal input.

use nix::sys::resource::Resource;

/// Resource limits that a login passes on, by their names in `limits.conf(5)`.
pub(crate) const LIMITS: &[(&str, Resource)] = &[
    ("core", Resource::RLIMIT_CORE),
    ("cpu", Resource::RLIMIT_CPU),
    ("data", Resource::RLIMIT_DATA),
    ("fsize", Resource::RLIMIT_FSIZE),
    ("nofile", Resource::RLIMIT_NOFILE),
    ("stack", Resource::RLIMIT_STACK),
    ("as", Resource::RLIMIT_AS),
];

/// Returns `None`, because the kernel does not report what a process waits for.
pub(crate) fn reads_terminal(_pid: i32) -> Option<bool> {
    None
}
