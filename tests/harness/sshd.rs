//! An sshd on a port of its own, for root with a key.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::{require, until};

/// A running sshd. Dropping it ends it.
pub(crate) struct Sshd {
    child: Child,
    directory: PathBuf,
    pub(crate) port: u16,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sshd {
    /// Starts an sshd with its files in `directory`, which it creates. `more` is added to `sshd_config(5)`. Skips the
    /// test without root or sshd.
    pub(crate) async fn start(directory: PathBuf, more: &str) -> Option<Self> {
        let program = require::sshd()?;
        fs::create_dir(&directory).expect("the directory is new");
        for name in ["host", "user"] {
            let key = directory.join(name);
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
            assert!(made.expect("ssh-keygen can be executed").success());
        }
        fs::copy(directory.join("user.pub"), directory.join("authorized")).expect("the key can be copied");
        fs::create_dir_all("/run/sshd").expect("root can create it");
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let at = directory.display();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\n\
             StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\nPidFile none\n{more}"
        );
        fs::write(directory.join("sshd_config"), config).expect("the configuration can be written");
        let child = Command::new(program).args(["-D", "-f"]).arg(directory.join("sshd_config")).spawn();
        let child = child.expect("sshd can be executed");
        let sshd = Self { child, directory, port };
        until("sshd listens", || TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
        Some(sshd)
    }

    /// Returns the file with the key of the user root.
    pub(crate) fn key(&self) -> PathBuf {
        self.directory.join("user")
    }

    /// Writes a program `ssh` below the server's directory, which knows the machine `lab`. Returns its directory.
    pub(crate) fn client(&self) -> PathBuf {
        let bin = self.directory.join("bin");
        fs::create_dir(&bin).expect("the directory is new");
        let config = self.directory.join("ssh_config");
        let text = format!(
            "Host lab\nHostName 127.0.0.1\nPort {}\nUser root\nIdentityFile {}\nIdentitiesOnly yes\n\
             StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n",
            self.port,
            self.key().display()
        );
        fs::write(&config, text).expect("the configuration can be written");
        let script = format!("#!/bin/sh\nexec /usr/bin/ssh -F '{}' \"$@\"\n", config.display());
        install(&script, &bin.join("ssh"));
        bin
    }
}

/// Writes a program by another process. A file that this process has open for writing cannot be executed (ETXTBSY),
/// and a child of another test may inherit the descriptor.
fn install(script: &str, program: &Path) {
    let text = program.with_extension("txt");
    fs::write(&text, script).expect("the script can be written");
    let installed = Command::new("install").args(["-m", "755"]).arg(&text).arg(program).status();
    assert!(installed.expect("install can be executed").success());
}
