//! An exchange with a host over TCP, for a daemon on another machine. The daemon's own exchanges do not need this
//! process.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use agentd_api::ByteString;
use serde::{Deserialize, Serialize};

/// Maximum number of received bytes of one exchange.
const MOST: usize = 1 << 20;

/// One step of an exchange: sends bytes, then receives until an end is found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeStep {
    /// Bytes to send.
    pub send: ByteString,
    /// Maximum number of bytes to receive.
    pub receive: u64,
    /// Bytes at which the step ends. Empty for a step that receives as many bytes as possible.
    pub until: ByteString,
}

/// Result of an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchanged {
    /// The address that answered, with its port.
    pub address: SocketAddr,
    /// Time to the connection in microseconds.
    pub connected_us: u64,
    /// Received bytes of each step.
    pub received: Vec<ByteString>,
    /// End of the exchange.
    pub ending: ExchangeEnd,
}

/// End of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeEnd {
    /// All steps were performed.
    Complete,
    /// The other end closed the connection.
    Closed,
    /// The time was over.
    TimedOut,
    /// The other end sent too much.
    TooMuch,
}

/// Reason why a connection to an address failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotConnected {
    /// The address.
    pub address: SocketAddr,
    /// Value of `errno`, if the system returned one.
    pub errno: Option<i32>,
    /// Whether the time was over.
    pub timed_out: bool,
    /// The system's message.
    pub message: String,
}

/// Connects to the first address that answers, and performs the steps. Each address gets an equal part of the time.
pub(super) fn exchange(
    addresses: &[SocketAddr],
    time: Duration,
    steps: &[ExchangeStep],
) -> Result<Exchanged, Vec<NotConnected>> {
    let end = Instant::now() + time;
    let mut failures = Vec::new();
    for (at, &address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        let part = (end.saturating_duration_since(Instant::now()) / left).max(Duration::from_millis(1));
        let begun = Instant::now();
        match TcpStream::connect_timeout(&address, part) {
            // A connection to a local port without a listener can, rarely, connect to itself.
            Ok(stream) if stream.local_addr().is_ok_and(|own| own == address) => failures.push(NotConnected {
                address,
                errno: Some(nix::libc::ECONNREFUSED),
                timed_out: false,
                message: "connection refused".to_owned(),
            }),
            Ok(stream) => {
                let connected_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                let mut received = Vec::new();
                let ending = talk(stream, steps, end, &mut received);
                let received = received.into_iter().map(ByteString::from).collect();
                return Ok(Exchanged { address, connected_us, received, ending });
            }
            Err(error) => failures.push(NotConnected {
                address,
                errno: error.raw_os_error(),
                timed_out: error.kind() == ErrorKind::TimedOut,
                message: error.to_string(),
            }),
        }
    }
    Err(failures)
}

fn talk(mut stream: TcpStream, steps: &[ExchangeStep], end: Instant, received: &mut Vec<Vec<u8>>) -> ExchangeEnd {
    // Data after the bytes that a step waited for belongs to the next step.
    let (mut ahead, mut total) = (Vec::new(), 0);
    for step in steps {
        received.push(Vec::new());
        let Some(came) = received.last_mut() else { continue };
        let Some(left) = rest(end) else { return ExchangeEnd::TimedOut };
        if stream.set_write_timeout(Some(left)).is_err() || stream.write_all(step.send.as_bytes()).is_err() {
            return ExchangeEnd::Closed;
        }
        let most = usize::try_from(step.receive).unwrap_or(usize::MAX).min(MOST);
        if most == 0 {
            continue;
        }
        *came = ahead.drain(..most.min(ahead.len())).collect();
        loop {
            let until = step.until.as_bytes();
            let found = (!until.is_empty()).then(|| memchr::memmem::find(came, until)).flatten();
            if let Some(at) = found {
                let mut behind = came.split_off(at + until.len());
                behind.append(&mut ahead);
                ahead = behind;
                break;
            }
            if came.len() == most {
                break;
            }
            let Some(left) = rest(end) else { return ExchangeEnd::TimedOut };
            let mut part = vec![0; (most - came.len()).min(16 << 10)];
            if stream.set_read_timeout(Some(left)).is_err() {
                return ExchangeEnd::Closed;
            }
            match stream.read(&mut part) {
                Ok(0) => return ExchangeEnd::Closed,
                Ok(n) => {
                    came.extend_from_slice(&part[..n]);
                    total += n;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return ExchangeEnd::TimedOut;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return ExchangeEnd::Closed,
            }
            if total > MOST {
                return ExchangeEnd::TooMuch;
            }
        }
    }
    ExchangeEnd::Complete
}

/// Returns the rest of the time, or `None` if it is over.
fn rest(end: Instant) -> Option<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_steps_of_an_exchange_divide_what_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let mut asked = [0; 3];
            peer.read_exact(&mut asked).unwrap();
            peer.write_all(b"one\ntwo\nthree").unwrap();
            asked
        });
        let line = |send: &str| ExchangeStep { send: send.into(), receive: 100, until: "\n".into() };
        let few = ExchangeStep { receive: 2, ..ExchangeStep::default() };
        let exchanged = exchange(&[address], Duration::from_secs(20), &[line("ask"), few, line(""), line("")]).unwrap();
        assert_eq!(&peer.join().unwrap(), b"ask");
        assert_eq!(exchanged.ending, ExchangeEnd::Closed);
        assert_eq!(exchanged.received, ["one\n", "tw", "o\n", "three"].map(ByteString::from));
    }

    #[test]
    fn a_port_without_a_listener_is_refused_and_a_silent_peer_runs_out_of_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let step = ExchangeStep { receive: 1, ..ExchangeStep::default() };
        let silent = exchange(&[address], Duration::from_millis(50), std::slice::from_ref(&step)).unwrap();
        assert_eq!(silent.ending, ExchangeEnd::TimedOut);
        drop(listener);
        let refused = exchange(&[address], Duration::from_secs(5), &[step]).unwrap_err();
        assert_eq!(refused[0].errno, Some(nix::libc::ECONNREFUSED));
    }
}
