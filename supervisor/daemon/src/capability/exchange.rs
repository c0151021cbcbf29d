//! One exchange with a host over TCP: one address after the other, a few steps, closed.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use agentd_plugins::{CONTENT, ExchangeEnding, Exchanged, Failure, NetworkProblem, RECEIVE, Step};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use super::network::has_no_way;
use super::{Machine, before, network, seconds};

/// How many of a host's addresses are tried: more would have no time.
const ADDRESSES: usize = 16;

/// Why one address could not be connected to. Of several, the greatest says most of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Missed {
    Other,
    Unreachable,
    TimedOut,
    Refused,
}

impl Machine {
    /// Connects, makes the steps, closes.
    pub async fn exchange(
        &self,
        host: &str,
        port: u16,
        steps: &[Step],
        deadline: Instant,
    ) -> Result<Exchanged, NetworkProblem> {
        let end = before(deadline);
        let addresses = self.addresses(host, port, end).await?;
        let begun = Instant::now();
        let (mut stream, address) = connect(host, port, &addresses, end).await?;
        let connected = begun.elapsed();
        let mut received = Vec::new();
        let ending = match timeout_at(end.into(), talk(&mut stream, steps, &mut received)).await {
            Ok(ending) => ending?,
            Err(_) => ExchangeEnding::TimedOut,
        };
        Ok(Exchanged { address: network::bare(address), connected, received, ending })
    }
}

async fn connect(
    host: &str,
    port: u16,
    addresses: &[SocketAddr],
    end: Instant,
) -> Result<(TcpStream, SocketAddr), NetworkProblem> {
    let begun = Instant::now();
    let addresses = &addresses[..addresses.len().min(ADDRESSES)];
    let (mut worst, mut told) = (Missed::Other, Vec::new());
    for (at, &address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        let until = Instant::now() + end.saturating_duration_since(Instant::now()) / left;
        let (missed, why) = match timeout_at(until.into(), TcpStream::connect(address)).await {
            // A port of this machine that nobody listens on can, now and then, be connected to from itself.
            Ok(Ok(stream)) if stream.local_addr().is_ok_and(|own| own == address) => {
                (Missed::Refused, "it was refused".to_owned())
            }
            Ok(Ok(stream)) => return Ok((stream, address)),
            Ok(Err(error)) => (missed(&error), error.to_string()),
            Err(_) => (Missed::TimedOut, format!("it did not answer within {}", seconds(begun, until))),
        };
        worst = worst.max(missed);
        told.push(format!("{}: {why}", network::bare(address)));
    }
    let text = format!("cannot connect to {host} port {port}: {}", told.join("; "));
    Err(match worst {
        Missed::Refused => NetworkProblem::Refused(text),
        Missed::TimedOut => NetworkProblem::TimedOut(text),
        Missed::Unreachable => NetworkProblem::Unreachable(text),
        Missed::Other => NetworkProblem::Other(Failure::Unavailable(text)),
    })
}

fn missed(error: &io::Error) -> Missed {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => Missed::Refused,
        Kind::TimedOut => Missed::TimedOut,
        _ if has_no_way(error) => Missed::Unreachable,
        _ => Missed::Other,
    }
}

/// Makes the steps as far as it goes; what came is in `received`, step by step, whenever this is dropped.
async fn talk(
    stream: &mut TcpStream,
    steps: &[Step],
    received: &mut Vec<Vec<u8>>,
) -> Result<ExchangeEnding, NetworkProblem> {
    // What came behind the bytes that a step waited for is the next step's.
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
                let text = format!("more than {CONTENT} bytes came");
                return Err(Failure::TooLarge(text).into());
            }
        }
    }
    Ok(ExchangeEnding::Complete)
}

/// Where the bytes end that were waited for, none of which lie wholly in the first `looked`.
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
        assert!(Missed::Refused > Missed::TimedOut && Missed::TimedOut > Missed::Unreachable);
        let of = |errno: i32| missed(&io::Error::from_raw_os_error(errno));
        assert_eq!(of(nix::libc::ECONNREFUSED), Missed::Refused);
        assert_eq!(of(nix::libc::ENETUNREACH), Missed::Unreachable);
        assert_eq!(of(nix::libc::EHOSTUNREACH), Missed::Unreachable);
        // Routes of the types "blackhole" and "prohibit".
        assert_eq!([of(nix::libc::EINVAL), of(nix::libc::EACCES)], [Missed::Unreachable; 2]);
        assert_eq!(of(nix::libc::ETIMEDOUT), Missed::TimedOut);
        assert_eq!(of(nix::libc::EMFILE), Missed::Other);
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
