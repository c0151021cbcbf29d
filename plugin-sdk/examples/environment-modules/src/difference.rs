//! Turns a module's effect on a variable into the most specific change.
//!
//! Entries that the module added to a list become prepended or appended entries. So the origin of each part of
//! PATH is known, and later changes in the middle of the list are kept. Any other effect becomes the new value.

use std::collections::BTreeSet;

use agentd_plugin_sdk::Change;

/// Internal variables of modulecmd. They have colons but are not lists of paths.
const NOTES: &[&str] = &["LOADEDMODULES", "_LMFILES_", "__MODULES_", "MODULES_LM", "_ModuleTable"];

/// Returns the changes that turn `before` into `after`.
pub(crate) fn changes(name: &str, before: Option<&[u8]>, after: Option<&[u8]>, why: &str) -> Vec<Change> {
    match (before, after) {
        (before, after) if before == after => Vec::new(),
        (_, None) => vec![Change::unset(name, why)],
        (Some(before), Some(after)) if !NOTES.iter().any(|note| name.starts_with(note)) => {
            added(name, before, after).unwrap_or_else(|| vec![Change::set(name, after)])
        }
        (_, Some(after)) => vec![Change::set(name, after)],
    }
}

/// Returns the entries around an unchanged list, or `None` if the list changed otherwise.
fn added(name: &str, before: &[u8], after: &[u8]) -> Option<Vec<Change>> {
    let entries = |list: &'_ [u8]| list.split(|byte| *byte == b':').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (old, new) = (entries(before), entries(after));
    if old.len() == 1 && old[0].is_empty() {
        return None; // it was not a list yet
    }
    let at = new.windows(old.len()).position(|window| window == old)?;
    let (front, back) = (&new[..at], &new[at + old.len()..]);
    // An existing equal entry would be moved, and an empty entry is invalid.
    let mut seen: BTreeSet<&[u8]> = old.iter().map(Vec::as_slice).collect();
    let fresh = front.iter().chain(back).all(|entry| !entry.is_empty() && seen.insert(entry));
    let prepended = front.iter().rev().map(|entry| Change::prepend(name, entry.as_slice()));
    let appended = back.iter().map(|entry| Change::append(name, entry.as_slice()));
    fresh.then(|| prepended.chain(appended).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, before: Option<&str>, after: Option<&str>) -> Vec<Change> {
        changes(name, before.map(str::as_bytes), after.map(str::as_bytes), "why")
    }

    #[test]
    fn what_was_added_to_a_list_is_its_entries_in_the_order_that_gives_the_list() {
        assert_eq!(
            of("PATH", Some("/bin:/sbin"), Some("/a:/b:/bin:/sbin:/z")),
            [Change::prepend("PATH", "/b"), Change::prepend("PATH", "/a"), Change::append("PATH", "/z")]
        );
    }

    #[test]
    fn what_is_no_addition_is_the_new_value() {
        for (before, after) in [
            (None, "/a"),
            (Some("/bin"), "/a"),
            (Some("/a:/bin"), "/b:/a"),
            (Some("/bin"), "/bin:/bin"),
            (Some("/bin"), "/a:/a:/bin"),
            (Some("/bin"), ":/bin"),
            (Some(""), "/a:"),
        ] {
            assert_eq!(of("PATH", before, Some(after)), [Change::set("PATH", after)], "{before:?} {after}");
        }
        assert_eq!(of("LOADEDMODULES", Some("a"), Some("a:b")), [Change::set("LOADEDMODULES", "a:b")]);
    }

    #[test]
    fn what_is_gone_is_unset_and_what_is_the_same_is_nothing() {
        assert_eq!(of("A", Some("1"), None), [Change::unset("A", "why")]);
        assert_eq!(of("A", Some("1"), Some("1")), []);
        assert_eq!(of("A", None, None), []);
    }
}
