//! Helps tests that execute programs which they have written.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable shell script.
///
/// A child process writes it. A file that this process had open for writing could not be executed while a child of
/// another test still has the descriptor, between its fork and its exec (`ETXTBSY`, execve(2)).
pub(crate) fn program(path: &Path, script: &str) {
    let mut writer = Command::new("/bin/sh")
        .args(["-c", r#"cat > "$1" && chmod 755 "$1""#, "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    write!(writer.stdin.take().unwrap(), "#!/bin/sh\n{script}\n").unwrap();
    assert!(writer.wait().unwrap().success());
}
