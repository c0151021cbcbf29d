//! An sshd with keys of its own: beside the test, or on a machine of its own ([`Far`]).

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::machine::{self, Blueprint, Machine};
use super::{process, require, until};

/// Port of an sshd on a machine of its own.
const FAR_PORT: u16 = 2222;

/// A running sshd. Dropping it ends it.
pub(crate) struct Sshd {
    program: PathBuf,
    child: Option<Child>,
    directory: PathBuf,
    address: Ipv4Addr,
    pub(crate) port: u16,
    machine: Option<Machine>,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the sshd's last words\n{}\n---", self.log());
        }
        // `nsenter` ends with the server.
        drop(self.machine.take());
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Clients and programs that a test has not ended. Their arguments name the configuration.
        process::kill_all_of(&self.directory);
    }
}

impl Sshd {
    /// Starts an sshd with its files in `directory`, which it creates. `more` is added to `sshd_config(5)`. Skips the
    /// test without root or sshd.
    pub(crate) async fn start(directory: PathBuf, more: &str) -> Option<Self> {
        let program = require::sshd()?;
        fs::create_dir(&directory).expect("the directory is new");
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let sshd = Self { program, child: None, directory, address: Ipv4Addr::LOCALHOST, port, machine: None };
        sshd.prepare("root", more);
        Some(sshd.run().await)
    }

    /// Writes the keys, and the configurations of the server and of its client.
    fn prepare(&self, user: &str, more: &str) {
        let at = self.directory.display();
        for name in ["host", "user"] {
            let key = self.directory.join(name);
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
            assert!(made.expect("ssh-keygen can be executed").success());
        }
        let authorized = self.directory.join("authorized");
        fs::copy(self.directory.join("user.pub"), &authorized).expect("the key can be copied");
        machine::readable(&authorized);
        fs::create_dir_all("/run/sshd").expect("root can create it");
        let (address, port) = (self.address, self.port);
        let config = format!(
            "Port {port}\nListenAddress {address}\nHostKey \"{at}/host\"\nAuthorizedKeysFile \"{at}/authorized\"\n\
             StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\nPidFile none\nMaxSessions 100\n\
             MaxStartups 100\nAllowStreamLocalForwarding yes\n{more}"
        );
        fs::write(self.directory.join("sshd_config"), config).expect("the configuration can be written");
        let host = fs::read_to_string(self.directory.join("host.pub")).expect("the key can be read");
        fs::write(self.directory.join("known_hosts"), format!("[{address}]:{port} {host}")).expect("it can be written");
        let config = format!(
            "Host lab\nHostName {address}\nPort {port}\nUser {user}\nIdentityFile \"{at}/user\"\nIdentitiesOnly yes\n\
             UserKnownHostsFile \"{at}/known_hosts\"\nGlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n\
             BatchMode yes\nLogLevel ERROR\n",
        );
        fs::write(self.config(), config).expect("the configuration can be written");
    }

    /// Starts the server and waits until it listens.
    async fn run(mut self) -> Self {
        self.begin().await;
        self
    }

    /// Starts the server at its address, and waits until it listens.
    pub(crate) async fn begin(&mut self) {
        let mut command = match &self.machine {
            Some(machine) => machine.command(self.program.to_str().expect("it is a name in UTF-8")),
            None => Command::new(&self.program),
        };
        command.args(["-D", "-f"]).arg(self.directory.join("sshd_config")).arg("-E").arg(self.log_file());
        let child = command.stdin(Stdio::null()).spawn().expect("sshd can be executed");
        if let Some(mut ended) = self.child.replace(child) {
            ended.wait().expect("it can be waited for");
        }
        let at = (self.address, self.port);
        until("sshd listens", || TcpStream::connect(at).is_ok()).await;
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Returns the server's log.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    /// Returns the configuration of the client, which knows the machine `lab`.
    pub(crate) fn config(&self) -> PathBuf {
        self.directory.join("ssh_config")
    }

    /// Returns the file with the key of the user.
    pub(crate) fn key(&self) -> PathBuf {
        self.directory.join("user")
    }

    /// Writes a program `ssh` below the server's directory, which knows the machine `lab`. Returns its directory.
    pub(crate) fn client(&self) -> PathBuf {
        let bin = self.directory.join("bin");
        fs::create_dir(&bin).expect("the directory is new");
        let script = format!("#!/bin/sh\nexec /usr/bin/ssh -F '{}' \"$@\"\n", self.config().display());
        install(&script, &bin.join("ssh"));
        bin
    }
}

/// User of a far machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Login {
    Root,
    /// [`machine::USER`], who exists only there.
    Ordinary,
}

impl Login {
    pub(crate) fn name(self) -> &'static str {
        if self == Self::Root { "root" } else { machine::USER }
    }

    fn uid(self) -> u32 {
        if self == Self::Root { 0 } else { machine::UID }
    }
}

/// An sshd on a machine of its own, whose host name is `far`. Dropping it ends the machine and removes its files.
///
/// The user's home directory exists only for this test. All other files are those of this machine.
pub(crate) struct Far {
    sshd: Sshd,
    login: Login,
    directory: TempDir,
}

impl Far {
    /// Boots a machine that is reached over the loopback interface. `more` is added to `sshd_config(5)`.
    pub(crate) async fn boot(login: Login, more: &str) -> Option<Self> {
        Self::on(login, more, |blueprint| blueprint).await
    }

    /// Boots a machine with a cable that a test can pull.
    pub(crate) async fn on_a_cable(login: Login, more: &str) -> Option<Self> {
        require::namespaces()?;
        Self::on(login, more, Blueprint::cable).await
    }

    async fn on(login: Login, more: &str, network: impl FnOnce(Blueprint) -> Blueprint) -> Option<Self> {
        let program = require::sshd()?;
        require::machines()?;
        let directory = tempfile::Builder::new().prefix("agentd-ssh-").tempdir().expect("a temporary directory");
        let at = directory.path();
        machine::readable(at);
        let home = at.join("home");
        machine::home(&home, login.uid());
        let machine = network(Blueprint::new("far").accounts(at, &home, &home)).boot();
        let address = machine.address().unwrap_or_else(|| machine::loopback(FAR_PORT)[1]);
        let machine = Some(machine);
        let sshd = Sshd { program, child: None, directory: at.to_owned(), address, port: FAR_PORT, machine };
        sshd.prepare(login.name(), more);
        Some(Self { sshd: sshd.run().await, login, directory })
    }

    /// Returns the directory of all files of the machine's own.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the home directory of the machine's user.
    pub(crate) fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    pub(crate) fn login(&self) -> Login {
        self.login
    }

    pub(crate) fn machine(&self) -> &Machine {
        self.sshd.machine.as_ref().expect("it runs until it is dropped")
    }

    /// Returns the configuration of the client, which knows the machine by the name `lab`.
    pub(crate) fn config(&self) -> PathBuf {
        self.sshd.config()
    }

    pub(crate) fn log(&self) -> String {
        self.sshd.log()
    }

    /// Returns the command line that runs the command whose words follow.
    pub(crate) fn argv(&self) -> Vec<String> {
        let config = self.config().into_os_string().into_string().expect("the tests' places have names in UTF-8");
        vec!["/usr/bin/ssh".to_owned(), "-F".to_owned(), config, "lab".to_owned()]
    }

    /// Builds a command for the user's shell there.
    pub(crate) fn command(&self, line: &str) -> Command {
        let argv = self.argv();
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).arg(line).env_clear().stdin(Stdio::null());
        command
    }

    /// Describes the processes of the machine that are not part of sshd.
    pub(crate) fn left(&self) -> Vec<String> {
        self.machine().others(&["sshd"])
    }

    /// Returns the process that listens for connections.
    fn listener(&self) -> Vec<u32> {
        process::children(self.sshd.child.as_ref().expect("it runs").id())
    }

    /// Ends the server as `systemctl stop ssh` does: it accepts no connections, and open connections continue.
    pub(crate) async fn stop(&self) {
        let listener = self.listener();
        assert_eq!(listener.len(), 1, "sshd runs");
        process::signal_each(&listener, Signal::SIGTERM);
        process::gone(&listener).await;
    }

    /// Kills the server and the processes of all its connections. Programs that the connections run continue.
    pub(crate) async fn kill(&self) {
        let all = self.machine().running("sshd");
        process::signal_each(&all, Signal::SIGKILL);
        process::gone(&all).await;
    }

    /// Starts the server again at the same address and port.
    pub(crate) async fn start(&mut self) {
        self.sshd.begin().await;
    }
}

/// Writes a program by another process. A file that this process has open for writing cannot be executed (ETXTBSY),
/// and a child of another test may inherit the descriptor.
pub(crate) fn install(script: &str, program: &Path) {
    let text = program.with_extension("txt");
    fs::write(&text, script).expect("the script can be written");
    let installed = Command::new("install").args(["-m", "755"]).arg(&text).arg(program).status();
    assert!(installed.expect("install can be executed").success());
}
