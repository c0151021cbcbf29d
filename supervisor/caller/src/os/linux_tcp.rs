//! Linux: the processes that hold the other end of a TCP connection of this machine, from proc(5).
//!
//! The kernel lists each socket with its user and its inode in `/proc/net/tcp` and `/proc/net/tcp6`. The descriptors
//! of a process name the inodes.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::Holders;

/// Finds the holders of the socket whose own address is `peer` and whose other end is `local`.
///
/// Returns `None` without such a socket, and for a socket that no process holds any more.
pub(crate) fn holders(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<Holders>> {
    let Some((uid, inode)) = socket(local, peer)? else { return Ok(None) };
    let mut holders = Holders { uid, inode, pids: Vec::new(), hidden: Vec::new() };
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        match holds(pid, inode) {
            Ok(true) => holders.pids.push(pid),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && user(pid) == Some(uid) => {
                holders.hidden.push(pid);
            }
            Ok(false) => {}
            // The process is another user's, or has exited meanwhile.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied || is_gone(&error) => {}
            // For example no free descriptor here: the process may be the holder.
            Err(error) => return Err(error),
        }
    }
    Ok(Some(holders))
}

/// Reports whether the process still holds the socket.
pub(crate) fn still_holds(pid: i32, holders: &Holders) -> bool {
    holds(pid, holders.inode).unwrap_or_default()
}

/// Returns the user and the inode of a socket. A socket for IPv6 that is connected over IPv4 is in the other table.
fn socket(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<(u32, u64)>> {
    let tables = [
        ("/proc/net/tcp", narrow(peer.ip()).zip(narrow(local.ip()))),
        ("/proc/net/tcp6", Some((wide(peer.ip()), wide(local.ip())))),
    ];
    for (table, addresses) in tables {
        let Some((own, other)) = addresses else { continue };
        let (own, other) = (format!("{own}:{:04X}", peer.port()), format!("{other}:{:04X}", local.port()));
        let text = match fs::read_to_string(table) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // a kernel without IPv6
            text => text?,
        };
        if let Some(found) = text.lines().find_map(|line| row(line, &own, &other)) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the user and the inode of a row with these addresses. A socket without a process has the inode 0.
fn row(line: &str, own: &str, other: &str) -> Option<(u32, u64)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    if fields.get(1..3)? != [own, other] {
        return None;
    }
    let (uid, inode) = (fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?);
    (inode != 0).then_some((uid, inode))
}

/// Returns an IPv4 address as the table of IPv4 has it: the number in this machine's byte order.
fn narrow(address: IpAddr) -> Option<String> {
    let IpAddr::V4(address) = address.to_canonical() else { return None };
    Some(hexadecimal(&address.octets()))
}

/// Returns an address as the table of IPv6 has it: four numbers in this machine's byte order.
fn wide(address: IpAddr) -> String {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    hexadecimal(&address.octets())
}

fn hexadecimal(octets: &[u8]) -> String {
    let (words, _) = octets.as_chunks::<4>();
    words.iter().fold(String::new(), |text, word| text + &format!("{:08X}", u32::from_ne_bytes(*word)))
}

/// Reports whether a descriptor of the process is the socket.
fn holds(pid: i32, inode: u64) -> io::Result<bool> {
    let wanted = format!("socket:[{inode}]");
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        match fs::read_link(entry?.path()) {
            Ok(target) if target == Path::new(&wanted) => return Ok(true),
            // Another file, or a descriptor that was closed meanwhile.
            Ok(_) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Reports whether an error means that a process or a descriptor does not exist any more.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ESRCH)
}

/// Returns the user with which a process makes files and sockets. `/proc/PID` itself may belong to root instead.
fn user(pid: i32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_row_is_found_by_both_addresses_and_needs_a_process() {
        let line =
            "   7: 0100007F:D431 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 x";
        assert_eq!(row(line, "0100007F:D431", "0100007F:1F90"), Some((1000, 4711)));
        assert_eq!(row(line, "0100007F:1F90", "0100007F:D431"), None);
        assert_eq!(row(&line.replace("4711", "0"), "0100007F:D431", "0100007F:1F90"), None);
        assert_eq!(row("  sl  local_address", "a", "b"), None);
    }

    #[test]
    fn each_end_of_a_connection_is_found_in_this_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, peer) = listener.accept().unwrap();
        let found = holders(far.local_addr().unwrap(), peer).unwrap().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(found.uid == nix::unistd::geteuid().as_raw() && found.pids.contains(&own), "{found:?}");
        assert!(still_holds(own, &found));
        drop(near);
        assert!(!still_holds(own, &found));
        // The closed end is a socket without a process. A child of another test may hold it until it executes its
        // program.
        let is_unheld = || holders(far.local_addr().unwrap(), peer).unwrap().is_none();
        assert!((0..1000).any(|_| is_unheld()));
    }

    #[test]
    fn a_socket_for_ipv6_that_is_connected_over_ipv4_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let Ok(_near) = TcpStream::connect(format!("[::ffff:127.0.0.1]:{port}")) else {
            eprintln!("skipped: this machine has no IPv6");
            return;
        };
        let (far, peer) = listener.accept().unwrap();
        assert!(holders(far.local_addr().unwrap(), peer).unwrap().is_some_and(|found| !found.pids.is_empty()));
    }
}
