//! The lock file of a state directory, and the record that the daemon writes into it.
//!
//! The kernel (flock(2)) decides which daemon holds the lock. The record only informs others about the holder: a second
//! daemon that starts, and `agentctl doctor`.

use serde::{Deserialize, Serialize};

/// Name of the lock file in the state directory.
pub const FILE: &str = "agentd.lock";

/// The record that the daemon writes into the lock file, as one JSON object. Older daemons write nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Record {
    /// Process id of the daemon.
    pub pid: u32,
    /// Name of the daemon's systemd unit or launchd job. Absent if no service manager started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Path of the daemon's control socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<std::path::PathBuf>,
}

impl Record {
    /// Parses the content of a lock file. Returns `None` if the content is empty or not a record.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// Finds the process that holds an exclusive flock(2) on a file, in the text of `/proc/locks` (proc(5)).
///
/// `device` is the file's `st_dev`. Some file systems (btrfs, overlayfs) show another device number in
/// `/proc/locks`. For these it returns the `recorded` process, if that process holds a lock on the same inode
/// number.
pub fn holder(locks: &str, device: u64, inode: u64, recorded: Option<u32>) -> Option<u32> {
    let mut same_inode = Vec::new();
    for line in locks.lines() {
        // Example: `1: FLOCK  ADVISORY  WRITE 20678 fe:00:10010631 0 EOF`. A waiting process has `->` after the
        // number.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, place, ..] = words.as_slice() else { continue };
        let mut parts = place.split(':');
        let (Ok(pid), Some(major), Some(minor), Some(number)) =
            (pid.parse::<u32>(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if number.parse() != Ok(inode) {
            continue;
        }
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
        if hexadecimal(major) == Some(major_of(device)) && hexadecimal(minor) == Some(minor_of(device)) {
            return Some(pid).filter(|pid| *pid != 0);
        }
        same_inode.push(pid);
    }
    recorded.filter(|pid| same_inode.contains(pid))
}

/// Returns the major number of a device, encoded as by glibc's makedev(3).
fn major_of(device: u64) -> u64 {
    ((device >> 32) & 0xffff_f000) | ((device >> 8) & 0xfff)
}

/// Returns the minor number of a device, encoded as by glibc's makedev(3).
fn minor_of(device: u64) -> u64 {
    ((device >> 12) & 0xffff_ff00) | (device & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "1: FLOCK  ADVISORY  WRITE 20678 fe:00:77 0 EOF\n\
                         2: POSIX  ADVISORY  WRITE 5 fe:00:78 0 EOF\n\
                         3: FLOCK  ADVISORY  WRITE 9 00:2a:78 0 EOF\n\
                         3: -> FLOCK  ADVISORY  WRITE 10 00:2a:78 0 EOF\n";

    #[test]
    fn the_holder_is_found_by_device_and_inode_and_where_the_device_has_two_numbers_by_its_own_word_too() {
        assert_eq!(holder(LOCKS, 0xfe00, 77, None), Some(20678));
        assert_eq!(holder(LOCKS, 0x2a, 78, None), Some(9));
        assert_eq!(holder(LOCKS, 0xfe00, 78, None), None, "a lock of another kind");
        assert_eq!(holder(LOCKS, 0x31, 78, None), None, "the same number in another file system");
        assert_eq!(holder(LOCKS, 0x31, 78, Some(9)), Some(9));
        assert_eq!(holder(LOCKS, 0x31, 78, Some(10)), None, "it waits");
        assert_eq!(holder(LOCKS, 0xfe00, 79, Some(20678)), None);
    }

    #[test]
    fn a_lock_of_a_daemon_that_wrote_nothing_has_no_record_and_a_later_field_is_no_obstacle() {
        assert_eq!(Record::read(""), None);
        let record = Record::read(r#"{"pid":7,"unit":"agentd.service","later":1}"#);
        assert_eq!(record, Some(Record { pid: 7, unit: Some("agentd.service".into()), socket: None }));
    }
}
