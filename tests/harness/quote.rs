//! Paths of this test's places in what a shell reads: where the tests run, their names may have spaces and more in them.

use std::ffi::OsStr;

/// A path as one word of a shell's line, whatever it is made of.
pub(crate) fn quoted(path: impl AsRef<OsStr>) -> String {
    let path = path.as_ref().to_str().expect("the tests' places have names in UTF-8");
    shlex::try_quote(path).expect("no name has a NUL byte").into_owned()
}

/// A path as the program of a pattern of commands, whose words have spaces between them: `?` stands for its own.
#[allow(dead_code, reason = "the plugin host's own tests have no use for it")]
pub(crate) fn as_pattern(path: impl AsRef<OsStr>) -> String {
    path.as_ref().to_str().expect("the tests' places have names in UTF-8").replace(' ', "?")
}
