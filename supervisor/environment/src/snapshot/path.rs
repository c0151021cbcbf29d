//! Compares a new PATH with the last accepted PATH, without I/O.

use super::Variables;

/// PATH entries that disappeared without a replacement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostEntries {
    /// Entries of the last accepted PATH.
    accepted: Vec<String>,
    pub lost: Vec<String>,
}

impl LostEntries {
    /// Compares the PATH of a new capture with the last accepted PATH. `accept` reports that a user requested this
    /// capture.
    pub fn next(&self, accepted: &Variables, new: &Variables, accept: bool) -> Self {
        let new = entries(new);
        let before = if self.accepted.is_empty() { entries(accepted) } else { self.accepted.clone() };
        let gone: Vec<String> = before.iter().filter(|entry| !new.contains(entry)).cloned().collect();
        let added = new.iter().filter(|entry| !before.contains(entry)).count();
        // A replaced entry usually is another version of a tool, so it is not lost.
        if accept || gone.len() <= added {
            return Self { accepted: new, lost: Vec::new() };
        }
        Self { accepted: before, lost: gone }
    }

    /// Describes the lost entries.
    pub fn words(&self) -> Option<String> {
        (!self.lost.is_empty()).then(|| {
            let lost = self.lost.join(", ");
            format!(
                "its PATH has lost {lost}, which the last accepted one had; `agentctl snapshot refresh` accepts that"
            )
        })
    }
}

fn entries(variables: &Variables) -> Vec<String> {
    let path = variables.iter().find(|(name, _)| name == "PATH").map(|(_, value)| String::from_utf8_lossy(value));
    let path = path.unwrap_or_default();
    path.split(':').filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(path: &str) -> Variables {
        vec![("PATH".to_owned(), path.as_bytes().to_vec())]
    }

    #[test]
    fn lost_path_entries_are_reported_until_they_are_accepted_or_return() {
        let first = LostEntries::default().next(&Vec::new(), &with("/a:/b:/c"), false);
        assert_eq!(first.words(), None);
        let second = first.next(&with("/a:/b:/c"), &with("/a"), false);
        assert_eq!(second.lost, ["/b", "/c"]);
        let third = second.next(&with("/a"), &with("/a:/c"), false);
        assert_eq!(third.lost, ["/b"], "it is compared with the last accepted one");
        assert!(third.words().unwrap().contains("/b"));
        assert_eq!(third.next(&with("/a:/c"), &with("/c:/b:/a"), false).lost, [""; 0]);
        assert_eq!(third.next(&with("/a:/c"), &with("/a:/c"), true).lost, [""; 0]);
    }

    #[test]
    fn a_replaced_path_entry_is_not_lost() {
        let first = LostEntries::default().next(&Vec::new(), &with("/n/18/bin:/bin"), false);
        assert_eq!(first.next(&Vec::new(), &with("/n/20/bin:/bin"), false).lost, [""; 0]);
    }

    #[test]
    fn after_a_restart_the_stored_path_is_the_accepted_path() {
        assert_eq!(LostEntries::default().next(&with("/a:/b"), &with("/a"), false).lost, ["/b"]);
    }
}
