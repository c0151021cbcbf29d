//! Helps tests that execute programs which they have written.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable shell script.
///
/// A child process writes it, so this process never has it open. A child of another test would inherit the open file
/// between its fork and its exec, and the script could not be executed meanwhile (`ETXTBSY`, execve(2)).
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
