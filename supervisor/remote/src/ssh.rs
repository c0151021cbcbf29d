//! Reaches the agentd of another machine through `ssh`. No port is opened there.
//!
//! ```text
//!  agentctl ─► ssh MACHINE ─► agentctl dial ─► the control socket
//! ```
//!
//! Each connection is one `ssh` that runs `agentctl dial` on the machine. That program connects to the socket, writes
//! [`GREETING`], and then forwards the bytes of both directions. The user's own settings of ssh apply: names, keys,
//! jumps. The connections share one login where ssh has a place for its socket (`ControlMaster` of `ssh_config(5)`).

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};
use std::time::Duration;

use agentd_api::doctor::shell_word;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, BufReader, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::RemoteError;

/// First line of `agentctl dial`. Lines before it come from the start-up files of the machine's shell.
pub const GREETING: &str = "agentctl-dial 1";
/// Name of the program on the machine.
const PROGRAM: &str = "agentctl";
/// Time limit of ssh's attempt to connect, in seconds.
const CONNECT: u64 = 15;
/// Maximum number of bytes before the greeting.
const NOISE: u64 = 64 << 10;
/// Maximum number of bytes and lines of ssh's messages that an error shows.
const MESSAGES: u64 = 8 << 10;
const LINES: usize = 10;
/// Status of a shell that finds no such program (POSIX, "Exit Status for Commands").
const NO_PROGRAM: i32 = 127;
/// Status of ssh after an error of its own (ssh(1)).
const NO_CONNECTION: i32 = 255;
/// Maximum length of the directory of ssh's sockets. ssh appends 58 bytes, and a socket's path has at most 107.
const LONGEST_DIRECTORY: usize = 48;

/// Address of a machine that `ssh` reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshHost {
    /// The machine as the user gave it: its name or its address.
    given: String,
    /// `[USER@]MACHINE`.
    destination: String,
    port: Option<u16>,
    /// Path of agentctl on the machine. Without a path the machine's shell finds it.
    program: Option<String>,
    /// Socket on the machine. Without a path the program there finds it.
    socket: Option<PathBuf>,
    /// Whether the program starts a daemon if none answers.
    starts: bool,
    /// Time limit of a connection during which ssh asks nothing. Without a limit ssh asks at the terminal.
    unattended: Option<Duration>,
    /// Whether ssh may ask at the terminal.
    asks: bool,
}

impl SshHost {
    /// Parses `[USER@]MACHINE` or `ssh://[USER@]MACHINE[:PORT]`.
    pub fn parse(given: &str) -> Result<Self, RemoteError> {
        let wrong = || RemoteError::Address { given: given.to_owned() };
        let rest = given.strip_prefix("ssh://");
        let rest = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let (destination, port) = match rest.and_then(|rest| rest.rsplit_once(':')) {
            Some((destination, port)) if !port.ends_with(']') => {
                (destination, Some(port.parse().map_err(|_| wrong())?))
            }
            _ => (rest.unwrap_or(given), None),
        };
        let machine = destination.rsplit_once('@').map_or(destination, |(_, machine)| machine);
        let is_wrong = |char: char| char.is_whitespace() || char.is_control() || char == '/';
        // ssh would take a word with a hyphen in front as an option.
        if machine.is_empty() || machine.starts_with('-') || destination.starts_with(['-', '@']) {
            return Err(wrong());
        }
        if destination.contains(is_wrong) || (rest.is_none() && destination.contains("://")) {
            return Err(wrong());
        }
        // ssh takes an IPv6 address without brackets.
        let destination = match machine.strip_prefix('[').and_then(|machine| machine.strip_suffix(']')) {
            Some(address) => destination.replace(machine, address),
            None => destination.to_owned(),
        };
        Ok(Self {
            given: given.to_owned(),
            destination,
            port,
            program: None,
            socket: None,
            starts: true,
            unattended: None,
            asks: true,
        })
    }

    /// Sets the name by which the user knows the machine.
    #[must_use]
    pub fn called(self, name: &str) -> Self {
        Self { given: name.to_owned(), ..self }
    }

    /// Returns the name or the address by which the user knows the machine.
    pub fn name(&self) -> &str {
        &self.given
    }

    /// Sets the path of agentctl on the machine, unless it is set.
    #[must_use]
    pub fn program(self, program: Option<String>) -> Self {
        Self { program: self.program.or(program), ..self }
    }

    /// Sets the socket on the machine. It replaces an earlier one.
    #[must_use]
    pub fn socket(self, socket: Option<PathBuf>) -> Self {
        Self { socket: socket.or(self.socket), ..self }
    }

    /// Starts no daemon on the machine.
    #[must_use]
    pub fn without_start(self) -> Self {
        Self { starts: false, ..self }
    }

    /// Returns `[USER@]MACHINE` for ssh.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// Lets ssh ask nothing at the terminal. Connections still share a login.
    #[must_use]
    pub fn asking_nothing(self) -> Self {
        Self { asks: false, ..self }
    }

    /// Lets ssh ask nothing at the terminal, and end an attempt to connect after `limit`, in whole seconds.
    ///
    /// Such a connection uses a shared login that exists, and begins none. So no process of ssh outlives the
    /// connection: its process group is killed with it, with the programs that ssh started (`ProxyCommand`).
    #[must_use]
    pub fn unattended(self, limit: Duration) -> Self {
        Self { unattended: Some(limit), ..self }
    }

    /// Returns the line for the machine's shell.
    fn line(&self) -> String {
        let mut words = vec![shell_word(self.program.as_deref().unwrap_or(PROGRAM)), "dial".to_owned()];
        if let Some(socket) = &self.socket {
            words.extend(["--socket".to_owned(), shell_word(&socket.display().to_string())]);
        }
        if !self.starts {
            words.push("--no-start".to_owned());
        }
        words.join(" ")
    }

    /// Returns the arguments of ssh. `sockets` is the directory for sockets of shared logins.
    fn arguments(&self, sockets: Option<&Path>) -> Vec<String> {
        // Notices an unreachable machine, at the start and later, within half a minute.
        let connect = self.unattended.map_or(CONNECT, |limit| limit.as_secs().max(1));
        let mut options = vec![
            format!("ConnectTimeout={connect}"),
            "ServerAliveInterval=10".to_owned(),
            "ServerAliveCountMax=3".to_owned(),
        ];
        if self.unattended.is_some() || !self.asks {
            options.push("BatchMode=yes".to_owned());
        }
        if self.unattended.is_some() {
            // A setting of the user would leave a process behind.
            options.push("ControlMaster=no".to_owned());
        }
        if let Some(sockets) = sockets {
            options.push(format!("ControlPath={}/%C", sockets.display()));
            if self.unattended.is_none() {
                options.push("ControlMaster=auto".to_owned());
                options.push("ControlPersist=60".to_owned());
            }
        }
        let mut arguments: Vec<String> = vec!["-T".to_owned()];
        arguments.extend(options.into_iter().flat_map(|option| ["-o".to_owned(), option]));
        arguments.extend(self.port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]));
        arguments.extend(["--".to_owned(), self.destination.clone(), self.line()]);
        arguments
    }

    /// Connects to the control socket of the machine. ssh asks for a password or for a host key at the terminal, unless
    /// it is unattended.
    pub async fn connect(&self) -> Result<SshStream, RemoteError> {
        let mut command = Command::new("ssh");
        command.args(self.arguments(socket_directory().as_deref())).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.unattended.is_some() {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|source| self.failed("cannot execute ssh", &source))?;
        let mut stream =
            SshStream::of(child, self.unattended.is_some()).map_err(|source| self.failed("cannot run ssh", &source))?;
        match greeted(&mut stream.output).await {
            Ok(true) => {
                stream.read_messages();
                Ok(stream)
            }
            Ok(false) => Err(self.explained(stream).await),
            Err(source) => Err(self.failed("cannot read from ssh", &source)),
        }
    }

    /// Returns the error for a machine that did not answer within `limit`.
    pub fn late(&self, limit: Duration) -> RemoteError {
        RemoteError::Late { host: self.given.clone(), destination: self.destination.clone(), seconds: limit.as_secs() }
    }

    fn failed(&self, what: &str, source: &io::Error) -> RemoteError {
        RemoteError::Unreachable {
            host: self.given.clone(),
            what: format!("{what}: {source}"),
            last_lines: Vec::new(),
            hint: "agentctl --host needs the program ssh on this machine".to_owned(),
        }
    }

    /// Explains why no greeting came.
    async fn explained(&self, mut stream: SshStream) -> RemoteError {
        let mut messages = Vec::new();
        if let Some(errors) = stream.errors.take() {
            // The master of a shared login keeps the pipe open after the end of this ssh.
            let read = async { errors.take(MESSAGES).read_to_end(&mut messages).await };
            let ended = stream.child.wait();
            tokio::pin!(read, ended);
            tokio::select! {
                _ = &mut read => {}
                _ = &mut ended => { let _ = tokio::time::timeout(Duration::from_millis(200), read).await; }
            }
        }
        let status = stream.child.wait().await.ok().and_then(|status| status.code());
        let text = String::from_utf8_lossy(&messages);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last_lines = lines[lines.len().saturating_sub(LINES)..].iter().map(|&line| line.to_owned()).collect();
        let (what, hint) = match status {
            Some(NO_CONNECTION) => {
                ("ssh could not connect".to_owned(), format!("try it alone: ssh {} true", self.destination))
            }
            Some(NO_PROGRAM) => (
                format!("the machine has no program {}", self.program.as_deref().unwrap_or(PROGRAM)),
                "set AGENTD_HOST_PROGRAM to its path there: a shell without a terminal may have another PATH"
                    .to_owned(),
            ),
            Some(status) => (
                format!("`{}` ended there with status {status}", self.line()),
                "the program there must be the agentctl of this version or a newer one".to_owned(),
            ),
            None => ("a signal ended ssh".to_owned(), "run the command again".to_owned()),
        };
        RemoteError::Unreachable { host: self.given.clone(), what, last_lines, hint }
    }
}

impl fmt::Display for SshHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.given)
    }
}

/// Reads up to the greeting, and reports whether it came.
async fn greeted(output: &mut BufReader<ChildStdout>) -> io::Result<bool> {
    let mut limited = output.take(NOISE);
    let mut line = Vec::new();
    while limited.read_until(b'\n', &mut line).await? > 0 {
        if line.trim_ascii() == GREETING.as_bytes() {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

/// Returns the directory for sockets of shared logins: of this user alone, below `XDG_RUNTIME_DIR`.
fn socket_directory() -> Option<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())?;
    let directory = runtime.join("agentctl-ssh");
    let is_plain = |path: &Path| path.to_str().is_some_and(|path| !path.contains(['%', ' ', '"', '\'']));
    if directory.as_os_str().len() > LONGEST_DIRECTORY || !is_plain(&directory) {
        return None;
    }
    if let Err(error) = fs::DirBuilder::new().mode(0o700).create(&directory)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return None;
    }
    let facts = fs::symlink_metadata(&directory).ok()?;
    let is_private = facts.mode().trailing_zeros() >= 6; // no permission of the group and of others
    (facts.is_dir() && facts.uid() == geteuid().as_raw() && is_private).then_some(directory)
}

/// Connection through one `ssh`. Dropping it ends the ssh.
#[derive(Debug)]
pub struct SshStream {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The messages of ssh, until they are forwarded.
    errors: Option<ChildStderr>,
    /// Whether ssh leads a process group of its own, which ends with this connection.
    is_group: bool,
}

impl Drop for SshStream {
    fn drop(&mut self) {
        // ssh is not reaped yet if it has an id, so the number belongs to no other process.
        if let Some(pid) = self.child.id().filter(|_| self.is_group).and_then(|pid| i32::try_from(pid).ok()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

impl SshStream {
    fn of(mut child: Child, is_group: bool) -> io::Result<Self> {
        let missing = || io::Error::other("ssh has no pipe");
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let errors = child.stderr.take();
        Ok(Self { child, input, output, errors, is_group })
    }

    /// Discards further messages of ssh, so that their pipe does not fill. A lost connection has an error of its own.
    fn read_messages(&mut self) {
        if let Some(mut errors) = self.errors.take() {
            tokio::spawn(async move { tokio::io::copy(&mut errors, &mut tokio::io::sink()).await });
        }
    }
}

impl AsyncRead for SshStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_read(context, buffer)
    }
}

impl AsyncWrite for SshStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.input).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.input).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.input).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_machine_with_a_user_and_a_port() {
        for (given, destination, port) in [
            ("lab", "lab", None),
            ("kim@lab.example", "kim@lab.example", None),
            ("ssh://kim@lab:2222", "kim@lab", Some(2222)),
            ("ssh://lab/", "lab", None),
            ("ssh://kim@[::1]:22", "kim@::1", Some(22)),
            ("ssh://[fe80::1]", "fe80::1", None),
        ] {
            let host = SshHost::parse(given).unwrap();
            assert_eq!((host.destination.as_str(), host.port), (destination, port), "{given}");
        }
        for wrong in [
            "",
            "-oProxyCommand=x",
            "kim@-x",
            "@lab",
            "kim@",
            "ssh://",
            "ssh://lab:x",
            "ssh://lab:99999",
            "a b",
            "lab/x",
            "http://lab",
            "ssh://lab/x",
            "lab\n",
        ] {
            assert!(matches!(SshHost::parse(wrong), Err(RemoteError::Address { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn the_line_for_the_shell_quotes_its_words() {
        let host = SshHost::parse("lab").unwrap();
        assert_eq!(host.line(), "agentctl dial");
        let host = host.program(Some("/opt/my tools/agentctl".into())).socket(Some("/run/a b".into())).without_start();
        assert_eq!(host.line(), "'/opt/my tools/agentctl' dial --socket '/run/a b' --no-start");
        let arguments = host.arguments(None);
        assert_eq!(&arguments[arguments.len() - 3..], ["--", "lab", &host.line()]);
        assert!(!arguments.iter().any(|argument| argument.starts_with("Control")), "{arguments:?}");
        let shares = host.arguments(Some(Path::new("/run/x")));
        assert!(
            shares.contains(&"ControlPath=/run/x/%C".to_owned()) && shares.contains(&"ControlMaster=auto".to_owned())
        );
        assert!(shares.contains(&"ConnectTimeout=15".to_owned()) && !shares.contains(&"BatchMode=yes".to_owned()));
    }

    #[test]
    fn an_ssh_that_asks_nothing_still_shares_its_login() {
        let arguments = SshHost::parse("lab").unwrap().asking_nothing().arguments(Some(Path::new("/run/x")));
        for option in ["BatchMode=yes", "ControlMaster=auto", "ControlPath=/run/x/%C"] {
            assert!(arguments.iter().any(|argument| argument == option), "{option}: {arguments:?}");
        }
    }

    #[test]
    fn an_unattended_ssh_asks_nothing_and_leaves_no_shared_login_behind() {
        let host = SshHost::parse("lab").unwrap().unattended(Duration::from_millis(2500));
        let arguments = host.arguments(Some(Path::new("/run/x")));
        for option in ["BatchMode=yes", "ConnectTimeout=2", "ControlMaster=no", "ControlPath=/run/x/%C"] {
            assert!(arguments.contains(&option.to_owned()), "{option}: {arguments:?}");
        }
        let forbidden = |argument: &String| argument.contains("Persist") || argument == "ControlMaster=auto";
        assert!(!arguments.iter().any(forbidden), "{arguments:?}");
        let brief = SshHost::parse("lab").unwrap().unattended(Duration::from_millis(10));
        assert!(brief.arguments(None).contains(&"ConnectTimeout=1".to_owned()));
    }
}
