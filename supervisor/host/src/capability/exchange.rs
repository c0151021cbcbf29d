//! An exchange with a host over TCP: tries the host's addresses in order, performs a few steps, and closes the
//! connection.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use agentd_keeper::look::{ExchangeEnd, ExchangeStep, LookupAnswer, LookupRequest, NotConnected};
use agentd_plugin_host::{CONTENT, ExchangeEnding, ExchangeResult, Failure, NetworkProblem, RECEIVE, Step};
use async_recursion::async_recursion as boxed;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use super::file::failure;
use super::look::Purpose;
use super::network::has_no_way;
use super::{Machine, before, network, seconds};

/// Maximum number of a host's addresses that are tried. More addresses would exceed the time limit.
const MAX_ADDRESSES: usize = 16;

/// Time that a place has to answer after the end of an exchange.
const ANSWER: Duration = Duration::from_secs(5);

/// Reason why a connection to one address failed. Of several reasons, the greatest one says most about the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectFailure {
    Other,
    Unreachable,
    TimedOut,
    Refused,
}

impl Machine {
    /// Connects to the host, performs the steps and closes the connection.
    #[boxed]
    pub async fn exchange(
        &self,
        host: &str,
        port: u16,
        steps: &[Step],
        deadline: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        let end = before(deadline);
        let addresses = self.addresses(host, port, end).await?;
        if self.is_elsewhere() {
            return self.exchange_elsewhere((host, port), &addresses, steps, end).await;
        }
        let begun = Instant::now();
        let (mut stream, address) = connect(host, port, &addresses, end).await?;
        let connected = begun.elapsed();
        let mut received = Vec::new();
        let ending = match timeout_at(end.into(), talk(&mut stream, steps, &mut received)).await {
            Ok(ending) => ending?,
            Err(_) => ExchangeEnding::TimedOut,
        };
        Ok(ExchangeResult { address: network::without_port(address), connected, received, ending })
    }
}

impl Machine {
    /// Performs the exchange on a place, in a lookup process.
    async fn exchange_elsewhere(
        &self,
        (host, port): (&str, u16),
        addresses: &[SocketAddr],
        steps: &[Step],
        end: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        let time = end.saturating_duration_since(Instant::now());
        let step = |step: &Step| ExchangeStep {
            send: step.send.clone().into(),
            receive: step.receive.min(RECEIVE).into(),
            until: step.until.clone().into(),
        };
        let request = LookupRequest::Exchange {
            addresses: addresses[..addresses.len().min(MAX_ADDRESSES)].to_vec(),
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            steps: steps.iter().map(step).collect(),
        };
        let subject = format!("{host} port {port}");
        let exchanged = match self.lookers.ask(Purpose::Names, subject, request, end + ANSWER).await?.answer()? {
            LookupAnswer::Exchanged(exchanged) => exchanged,
            LookupAnswer::NotConnected(failures) => return Err(not_connected(host, port, &failures)),
            other => return Err(failure("exchange with", host, other).into()),
        };
        let ending = match exchanged.ending {
            ExchangeEnd::Complete => ExchangeEnding::Complete,
            ExchangeEnd::Closed => ExchangeEnding::Closed,
            ExchangeEnd::TimedOut => ExchangeEnding::TimedOut,
            ExchangeEnd::TooMuch => {
                return Err(Failure::TooLarge(format!("received more than {CONTENT} bytes")).into());
            }
        };
        Ok(ExchangeResult {
            address: network::without_port(exchanged.address),
            connected: Duration::from_micros(exchanged.connected_us),
            received: exchanged.received.into_iter().map(|part| part.0).collect(),
            ending,
        })
    }
}

/// Explains why no address of a host answered a place.
fn not_connected(host: &str, port: u16, failures: &[NotConnected]) -> NetworkProblem {
    let of = |one: &NotConnected| match one.errno {
        _ if one.timed_out => ConnectFailure::TimedOut,
        Some(errno) => failure_of(&io::Error::from_raw_os_error(errno)),
        None => ConnectFailure::Other,
    };
    let worst = failures.iter().map(of).max().unwrap_or(ConnectFailure::Other);
    let reason = |one: &NotConnected| format!("{}: {}", network::without_port(one.address), one.message);
    let reasons: Vec<String> = failures.iter().map(reason).collect();
    problem(worst, format!("cannot connect to {host} port {port}: {}", reasons.join("; ")))
}

async fn connect(
    host: &str,
    port: u16,
    addresses: &[SocketAddr],
    end: Instant,
) -> Result<(TcpStream, SocketAddr), NetworkProblem> {
    let begun = Instant::now();
    let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    let (mut worst, mut reasons) = (ConnectFailure::Other, Vec::new());
    for (at, &address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        let until = Instant::now() + end.saturating_duration_since(Instant::now()) / left;
        let (failure, why) = match timeout_at(until.into(), TcpStream::connect(address)).await {
            // A connection to a local port without a listener can, rarely, connect to itself.
            Ok(Ok(stream)) if stream.local_addr().is_ok_and(|own| own == address) => {
                (ConnectFailure::Refused, "connection refused".to_owned())
            }
            Ok(Ok(stream)) => return Ok((stream, address)),
            Ok(Err(error)) => (failure_of(&error), error.to_string()),
            Err(_) => (ConnectFailure::TimedOut, format!("no answer within {}", seconds(begun, until))),
        };
        worst = worst.max(failure);
        reasons.push(format!("{}: {why}", network::without_port(address)));
    }
    Err(problem(worst, format!("cannot connect to {host} port {port}: {}", reasons.join("; "))))
}

fn problem(worst: ConnectFailure, text: String) -> NetworkProblem {
    match worst {
        ConnectFailure::Refused => NetworkProblem::Refused(text),
        ConnectFailure::TimedOut => NetworkProblem::TimedOut(text),
        ConnectFailure::Unreachable => NetworkProblem::Unreachable(text),
        ConnectFailure::Other => NetworkProblem::Other(Failure::Unavailable(text)),
    }
}

fn failure_of(error: &io::Error) -> ConnectFailure {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => ConnectFailure::Refused,
        Kind::TimedOut => ConnectFailure::TimedOut,
        _ if has_no_way(error) => ConnectFailure::Unreachable,
        _ => ConnectFailure::Other,
    }
}

/// Performs the steps as far as possible. `received` has the data of each step, also if the future is dropped.
async fn talk(
    stream: &mut TcpStream,
    steps: &[Step],
    received: &mut Vec<Vec<u8>>,
) -> Result<ExchangeEnding, NetworkProblem> {
    // Data after the bytes that a step waited for belongs to the next step.
    let (mut ahead, mut total) = (Vec::new(), 0);
    for step in steps {
        received.push(Vec::new());
        let Some(came) = received.last_mut() else { continue };
        if stream.write_all(&step.send).await.is_err() {
            return Ok(ExchangeEnding::Closed);
        }
        let most = step.receive.min(RECEIVE) as usize;
        if most == 0 {
            continue;
        }
        let begin: Vec<u8> = ahead.drain(..most.min(ahead.len())).collect();
        *came = begin;
        let mut looked = 0;
        loop {
            if let Some(end) = found(came, &step.until, looked) {
                let mut behind = came.split_off(end);
                behind.append(&mut ahead);
                ahead = behind;
                break;
            }
            if came.len() == most {
                break;
            }
            looked = came.len();
            match (&mut *stream).take((most - came.len()) as u64).read_buf(came).await {
                Ok(0) | Err(_) => return Ok(ExchangeEnding::Closed),
                Ok(n) => total += n,
            }
            if total > CONTENT {
                let text = format!("received more than {CONTENT} bytes");
                return Err(Failure::TooLarge(text).into());
            }
        }
    }
    Ok(ExchangeEnding::Complete)
}

/// Returns the end of the bytes that a step waits for. The first `looked` bytes do not contain them completely.
fn found(came: &[u8], until: &[u8], looked: usize) -> Option<usize> {
    if until.is_empty() {
        return None;
    }
    let from = looked.saturating_sub(until.len() - 1).min(came.len());
    Some(from + memchr::memmem::find(&came[from..], until)? + until.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_found_across_two_reads() {
        assert_eq!(found(b"ab\r", b"\r\n", 0), None);
        assert_eq!(found(b"ab\r\ncd", b"\r\n", 3), Some(4));
        assert_eq!(found(b"\r\n", b"\r\n", 0), Some(2));
        assert_eq!(found(b"anything", b"", 0), None);
        assert_eq!(found(b"", b"long", 0), None);
    }

    #[test]
    fn of_several_reasons_the_one_is_told_that_says_most() {
        assert!(
            ConnectFailure::Refused > ConnectFailure::TimedOut
                && ConnectFailure::TimedOut > ConnectFailure::Unreachable
        );
        let of = |errno: i32| failure_of(&io::Error::from_raw_os_error(errno));
        assert_eq!(of(nix::libc::ECONNREFUSED), ConnectFailure::Refused);
        assert_eq!(of(nix::libc::ENETUNREACH), ConnectFailure::Unreachable);
        assert_eq!(of(nix::libc::EHOSTUNREACH), ConnectFailure::Unreachable);
        // Routes of the types "blackhole" and "prohibit".
        assert_eq!([of(nix::libc::EINVAL), of(nix::libc::EACCES)], [ConnectFailure::Unreachable; 2]);
        assert_eq!(of(nix::libc::ETIMEDOUT), ConnectFailure::TimedOut);
        assert_eq!(of(nix::libc::EMFILE), ConnectFailure::Other);
    }

    #[tokio::test]
    async fn what_comes_behind_a_line_is_the_next_steps() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        peer.write_all(b"one\ntwo\nthree").await.unwrap();
        drop(peer);
        let line = Step { send: Vec::new(), receive: 100, until: b"\n".to_vec() };
        let mut received = Vec::new();
        let few = Step { receive: 2, ..Step::default() };
        let ending = talk(&mut stream, &[line.clone(), few, line.clone(), line], &mut received).await.unwrap();
        assert_eq!(ending, ExchangeEnding::Closed);
        assert_eq!(received, [&b"one\n"[..], b"tw", b"o\n", b"three"]);
    }
}
