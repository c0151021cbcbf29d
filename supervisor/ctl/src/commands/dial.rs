//! Implements `agentctl dial`, the end of `agentctl --host` on the daemon's machine: forwards bytes between the control
//! socket and standard input and output.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use agentd_remote::GREETING;

use super::Context;
use crate::error::Error;
use agentd_client::connect_trusted;

/// Connects, writes the greeting, and forwards until one side ends. Then the other side has no reader or writer, so the
/// process ends.
pub(super) async fn dial(context: &Context) -> Result<u8, Error> {
    let Some(path) = context.client.way().socket() else {
        let detail = "dial connects to a socket".to_owned();
        return Err(Error::Usage { detail, hint: "leave --url and --host out".to_owned() });
    };
    let daemon = connect_trusted(path).await?.into_std().map_err(Error::Setup)?;
    daemon.set_nonblocking(false).map_err(Error::Setup)?;
    let requests = daemon.try_clone().map_err(Error::Setup)?;
    // A thread reads standard input: a runtime would wait for its read at the end of the process.
    std::thread::spawn(move || {
        let _ = forward(io::stdin().lock(), &requests);
        // The client has gone.
        let _ = requests.shutdown(Shutdown::Both);
    });
    answers(&daemon).map_err(Error::Output)?;
    Ok(0)
}

fn answers(daemon: &UnixStream) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{GREETING}")?;
    out.flush()?;
    forward(daemon, &mut out)
}

/// Writes what `from` reads, at once. Standard output would hold the last line back.
fn forward(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => to.write_all(&buffer[..length]).and_then(|()| to.flush())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
