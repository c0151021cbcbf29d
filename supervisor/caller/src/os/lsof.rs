//! On macOS, finds the processes that hold the other end of a TCP connection of this machine, from lsof(8).
//!
//! macOS lists no sockets in files. Its own lsof is in the same place on each machine. For an ordinary user lsof lists
//! the processes of this user only, so another user's connection has no holder.

use std::net::SocketAddr;
#[cfg(target_os = "macos")]
use std::{
    io,
    process::{Command, Stdio},
};

use super::Holders;

/// Finds the holders of the socket whose own address is `peer` and whose other end is `local`.
#[cfg(target_os = "macos")]
pub(crate) fn holders(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<Holders>> {
    let mut command = Command::new("/usr/sbin/lsof");
    command.args(["-nP", "-w", "-F", "pun", &format!("-iTCP:{}", peer.port())]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    Ok(listed(&String::from_utf8_lossy(&output.stdout), local, peer))
}

/// Reports whether the process still holds the socket. The list is of this moment, so it does.
#[cfg(target_os = "macos")]
pub(crate) fn still_holds(pid: i32, holders: &Holders) -> bool {
    holders.pids.contains(&pid)
}

/// Reads the list: a line `pPID` and `uUID` for each process, and a line `nFROM->TO` for each of its connections.
fn listed(text: &str, local: SocketAddr, peer: SocketAddr) -> Option<Holders> {
    let wanted = format!("{peer}->{local}");
    let (mut pid, mut uid) = (None, None);
    let mut holders: Option<Holders> = None;
    for line in text.lines() {
        let Some((kind, value)) = line.split_at_checked(1) else { continue };
        match kind {
            "p" => (pid, uid) = (value.parse().ok(), None),
            "u" => uid = value.parse().ok(),
            "n" if value == wanted => {
                let (pid, uid) = (pid?, uid?);
                let empty = Holders { uid, inode: 0, pids: Vec::new(), hidden: Vec::new() };
                holders.get_or_insert(empty).pids.push(pid);
            }
            _ => {}
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processes_of_the_other_end_are_read_from_the_list() {
        let text =
            "p812\nu501\nf9\nn127.0.0.1:8080->127.0.0.1:54321\np900\nu501\nf31\nn127.0.0.1:54321->127.0.0.1:8080\n";
        let (local, peer) = ("127.0.0.1:8080".parse().unwrap(), "127.0.0.1:54321".parse().unwrap());
        let found = listed(text, local, peer).unwrap();
        assert_eq!((found.uid, found.pids), (501, vec![900]));
        assert_eq!(listed("", local, peer), None);
    }
}
