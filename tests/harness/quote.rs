//! Quotes paths for shells. The tests' directory may contain spaces and other special characters.

use std::ffi::OsStr;

/// Returns a path as one word of a shell's command line.
pub(crate) fn quoted(path: impl AsRef<OsStr>) -> String {
    let path = path.as_ref().to_str().expect("the tests' places have names in UTF-8");
    shlex::try_quote(path).expect("no name has a NUL byte").into_owned()
}

/// Returns a path as the program in a pattern of commands. Words are separated by spaces, so `?` replaces the path's
/// own spaces.
#[allow(dead_code, reason = "the plugin host's own tests have no use for it")]
pub(crate) fn as_pattern(path: impl AsRef<OsStr>) -> String {
    path.as_ref().to_str().expect("the tests' places have names in UTF-8").replace(' ', "?")
}
