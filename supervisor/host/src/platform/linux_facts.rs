//! Facts about the machine from the Linux kernel: routes, mounts and names of processes from text files, and access
//! control lists.
//!
//! The crate `procfs` has no IPv6 routes, and it does not preserve the order of mount options.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use agentd_plugin_host::{MountEntry, Route};
use rustix::io::Errno;

/// `RTF_UP` of linux/route.h: the route is usable.
const UP: u32 = 0x0001;
/// `RTF_GATEWAY`.
const GATEWAY: u32 = 0x0002;
/// `RTF_REJECT`: packets on this route are refused.
const REJECT: u32 = 0x0200;
/// `RTF_ANYCAST` and `RTF_LOCAL` of `linux/ipv6_route.h`: routes to addresses of this machine.
const OF_THIS_MACHINE: u32 = 0x0010_0000 | 0x8000_0000;

/// Returns the main routing table of IPv4 and all routes of IPv6, without routes to this machine itself. The kernel
/// does not list IPv6 routes by table.
pub fn routes() -> io::Result<Vec<Route>> {
    let mut routes: Vec<Route> = read("/proc/net/route")?.lines().skip(1).filter_map(ipv4_route).collect();
    // A kernel may lack IPv6.
    routes.extend(read("/proc/net/ipv6_route").unwrap_or_default().lines().filter_map(ipv6_route));
    Ok(routes)
}

/// Parses `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`. Addresses are hexadecimal numbers in native
/// byte order.
fn ipv4_route(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
    let address = |at| Some(Ipv4Addr::from(number(at)?.to_ne_bytes()));
    let flags = number(3).filter(|flags| flags & UP != 0 && flags & REJECT == 0)?;
    Some(Route {
        destination: format!("{}/{}", address(1)?, number(7)?.count_ones()),
        gateway: (flags & GATEWAY != 0).then(|| address(2)).flatten().map(|gateway| gateway.to_string()),
        via: (*fields.first()?).to_owned(),
        metric: fields.get(6)?.parse().ok()?,
    })
}

/// Parses `destination prefix source prefix next-hop metric refcnt use flags device`. All fields but the device are
/// hexadecimal.
fn ipv6_route(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
    let address = |at: usize| u128::from_str_radix(fields.get(at)?, 16).ok().map(Ipv6Addr::from);
    let flags = number(8).filter(|flags| flags & UP != 0 && flags & (REJECT | OF_THIS_MACHINE) == 0)?;
    let destination = address(0).filter(|destination| !destination.is_multicast())?;
    Some(Route {
        destination: format!("{destination}/{}", number(1)?),
        gateway: (flags & GATEWAY != 0).then(|| address(4)).flatten().map(|gateway| gateway.to_string()),
        via: (*fields.get(9)?).to_owned(),
        metric: number(5)?,
    })
}

/// Returns the device number of stat(2) for a device of the mount table.
pub fn device(major: u64, minor: u64) -> u64 {
    nix::sys::stat::makedev(major, minor)
}

/// Returns the mount table of this process's namespace.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(read("/proc/self/mountinfo")?.lines().filter_map(mounted).collect())
}

/// Parses a line of mountinfo (proc(5)): `id parent major:minor root path options [tags ...] - kind source options`.
fn mounted(line: &str) -> Option<MountEntry> {
    let (of_mount, of_file_system) = line.split_once(" - ")?;
    let mut mount = of_mount.split(' ').skip(2);
    let device = mount.next()?.to_owned();
    let path = unescaped(mount.nth(1)?);
    let mut options: Vec<String> = mount.next()?.split(',').map(unescaped).collect();
    let mut file_system = of_file_system.split(' ');
    let kind = unescaped(file_system.next()?);
    let source = unescaped(file_system.next()?);
    for option in file_system.next().unwrap_or_default().split(',').map(unescaped) {
        if !option.is_empty() && !options.contains(&option) {
            options.push(option);
        }
    }
    Some(MountEntry { path, source, kind, options, device })
}

/// Decodes space, tab, newline and backslash, which are written as three octal digits.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'\\').then(|| after.get(..3)).flatten();
        let code = escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Maximum length of the kernel's name of a process in bytes (`TASK_COMM_LEN` without the NUL).
const COMM_LENGTH: usize = 15;

/// Returns the number of processes whose executable file or kernel name has this name. For processes of other users,
/// only the kernel's name is available.
pub fn processes(name: &str) -> io::Result<u32> {
    let mut count = 0;
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let is_process =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u32>().is_ok());
        // A process that exited after it was listed does not count.
        let Some(stat) = is_process.then(|| read(path.join("stat")).ok()).flatten() else { continue };
        let Some((comm, state)) = comm_and_state(&stat) else { continue };
        if matches!(state, "Z" | "X") {
            continue;
        }
        let file = fs::read_link(path.join("exe")).ok();
        let file = file.as_deref().and_then(|file| file.file_name()?.to_str());
        let file = file.map(|file| file.strip_suffix(" (deleted)").unwrap_or(file));
        // If the file is not readable, the truncated kernel name of a long name is compared.
        let cut =
            file.is_none() && name.len() > COMM_LENGTH && name.as_bytes().get(..COMM_LENGTH) == Some(comm.as_bytes());
        if comm == name || file == Some(name) || cut {
            count += 1;
        }
    }
    Ok(count)
}

/// Returns name and state from proc(5) `stat`. The name is in parentheses and may contain parentheses.
fn comm_and_state(stat: &str) -> Option<(&str, &str)> {
    let (before, after) = stat.rsplit_once(')')?;
    Some((before.split_once('(')?.1, after.split_whitespace().next()?))
}

/// Reads a file as text. Names of interfaces, paths and processes need not be UTF-8.
fn read(path: impl AsRef<std::path::Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// Reports whether a file may have an access control list. An unexpected error counts as a list.
pub fn has_access_list(path: &Path) -> bool {
    let mut nothing: [u8; 0] = [];
    let size = rustix::fs::lgetxattr(path, "system.posix_acl_access", &mut nothing);
    !matches!(size, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_access_list_is_known_to_have_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!has_access_list(file.path()));
        assert!(has_access_list(&file.path().join("below")), "what cannot be looked at may have one");
        let mut set = std::process::Command::new("setfacl");
        set.args(["-m", "u:4711:rw"]).arg(file.path());
        if set.status().is_ok_and(|status| status.success()) {
            assert!(has_access_list(file.path()));
        }
    }

    #[test]
    fn routes_are_read_with_their_gateway_and_without_this_machines_own() {
        let four = [
            "eth0\t00000000\t0102000A\t0003\t0\t0\t100\t00000000\t0\t0\t0",
            "eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0",
            "*\t0000000A\t00000000\t0201\t0\t0\t0\t000000FF\t0\t0\t0",
        ];
        // Expected output of a little-endian machine.
        if cfg!(target_endian = "little") {
            let routes: Vec<Route> = four.into_iter().filter_map(ipv4_route).collect();
            let route = |destination: &str, gateway: Option<&str>, metric| Route {
                destination: destination.to_owned(),
                gateway: gateway.map(str::to_owned),
                via: "eth0".to_owned(),
                metric,
            };
            assert_eq!(routes, [route("0.0.0.0/0", Some("10.0.2.1"), 100), route("10.0.2.0/24", None, 0)]);
        }
        let none = "00000000000000000000000000000000";
        let link = format!("fe800000000000000000000000000000 40 {none} 00 {none} 00000100 1 0 00000001     eth0");
        let default = format!("{none} 00 {none} 00 fe800000000000000000000000000001 00000400 1 0 00000003     eth0");
        let route = ipv6_route(&default).unwrap();
        assert_eq!(
            (route.destination.as_str(), route.gateway.as_deref(), route.metric),
            ("::/0", Some("fe80::1"), 1024)
        );
        assert_eq!(ipv6_route(&link).unwrap().destination, "fe80::/64");
        let local = format!("00000000000000000000000000000001 80 {none} 00 {none} 00000000 2 0 80200001       lo");
        let reject = format!("{none} 00 {none} 00 {none} ffffffff 1 0 00200200       lo");
        let multicast = format!("ff000000000000000000000000000000 08 {none} 00 {none} 00000100 1 0 00000001     eth0");
        assert_eq!([local, reject, multicast].iter().filter_map(|line| ipv6_route(line)).count(), 0);
    }

    #[test]
    fn a_mount_with_tags_and_odd_names_is_read() {
        let line = [
            r"36 35 98:0 /mnt1 /mnt\040two rw,noatime master:1 propagate_from:2",
            r"nfs4 host:/a\134b rw,vers=4.2,noatime",
        ]
        .join(" - ");
        let expected = MountEntry {
            path: "/mnt two".to_owned(),
            source: r"host:/a\b".to_owned(),
            kind: "nfs4".to_owned(),
            options: ["rw", "noatime", "vers=4.2"].map(str::to_owned).to_vec(),
            device: "98:0".to_owned(),
        };
        assert_eq!(mounted(&line), Some(expected.clone()));
        assert_eq!(mounted(&line.replace(" master:1 propagate_from:2", "")), Some(expected));
        assert_eq!(mounted("garbage"), None);
        assert!(mounts().unwrap().iter().any(|mounted| mounted.path == "/proc" && mounted.kind == "proc"));
    }

    #[test]
    fn a_process_is_found_by_its_file_and_by_the_kernels_name_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let long = "agentd-test-with-a-long-name";
        let file = directory.path().join(long);
        fs::copy("/bin/sleep", &file).unwrap();
        assert_eq!(processes(long).unwrap(), 0);
        let mut child = std::process::Command::new(&file).arg("600").spawn().unwrap();
        assert_eq!(processes(long).unwrap(), 1);
        assert_eq!(processes(&long[..COMM_LENGTH]).unwrap(), 1);
        assert_eq!(processes(&long[..COMM_LENGTH - 1]).unwrap(), 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processes(long).unwrap(), 0);
    }

    #[test]
    fn a_name_with_parentheses_is_read_whole() {
        assert_eq!(comm_and_state("42 (a) R (b) Z 7 40"), Some(("a) R (b", "Z")));
    }
}
