//! What a PATH lost since the last one that was accepted: pure.

use super::Variables;

/// The entries that are gone without another in their place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// The last accepted one, entry by entry.
    accepted: Vec<String>,
    pub(crate) lost: Vec<String>,
}

impl Change {
    /// Compares the PATH of a new capture with the last accepted one; `accept` says that a user asked for this capture.
    pub(crate) fn next(&self, accepted: &Variables, new: &Variables, accept: bool) -> Self {
        let new = entries(new);
        let before = if self.accepted.is_empty() { entries(accepted) } else { self.accepted.clone() };
        let gone: Vec<String> = before.iter().filter(|entry| !new.contains(entry)).cloned().collect();
        let added = new.iter().filter(|entry| !before.contains(entry)).count();
        // One that another took the place of is another version of a tool, and not lost.
        if accept || gone.len() <= added {
            return Self { accepted: new, lost: Vec::new() };
        }
        Self { accepted: before, lost: gone }
    }

    /// What there is to say of it.
    pub(crate) fn words(&self) -> Option<String> {
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
    fn entries_that_are_gone_are_named_until_that_is_accepted_or_they_are_back() {
        let first = Change::default().next(&Vec::new(), &with("/a:/b:/c"), false);
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
    fn another_version_in_the_place_of_one_is_not_lost() {
        let first = Change::default().next(&Vec::new(), &with("/n/18/bin:/bin"), false);
        assert_eq!(first.next(&Vec::new(), &with("/n/20/bin:/bin"), false).lost, [""; 0]);
    }

    #[test]
    fn after_a_restart_what_the_disk_had_was_accepted() {
        assert_eq!(Change::default().next(&with("/a:/b"), &with("/a"), false).lost, ["/b"]);
    }
}
