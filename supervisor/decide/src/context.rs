//! Rules of what a session remembers beside its conversation: context sets, hint, title and progress. Pure.
//!
//! A change is checked as a whole. A refused change leaves the context unchanged.

use std::path::Path;

use agentd_api::context::{
    ALL_ITEMS, APPLET, Context, ContextChange, ContextChanged, ContextMode, ContextReason, ENDPOINTS, FILES,
    HINT_BYTES, HintChanged, ITEM_BYTES, KNOWN_SETS, NAME_BYTES, PORTS, PROGRESS_BYTES, ProgressReported,
    ProgressRequest, SET_ITEMS, TITLE_BYTES, TitleChanged,
};
use agentd_api::prerequisite::Requester;
use agentd_api::{Body, Code, Problem};

use crate::batch::Batch;
use crate::state::State;

/// Reason why a change of the context, the hint, the title or the progress is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContextRefusal {
    #[error("the context set {set:?} would have {items} items; a set has at most {SET_ITEMS}")]
    SetFull { set: String, items: usize },
    #[error("the context would have {items} items; a session has at most {ALL_ITEMS} in all sets")]
    ContextFull { items: usize },
    #[error("invalid name {name:?} of a context set")]
    Name { name: String },
    #[error("the file {item:?} of the context is not an absolute path")]
    RelativePath { item: String },
    #[error("the endpoint {item:?} of the context is not a URL with a scheme and a host")]
    NotAUrl { item: String },
    #[error("the port {item:?} of the context is not a number from 1 to 65535")]
    NotAPort { item: String },
    #[error("invalid applet: {why}")]
    Applet { why: String },
    #[error("invalid item {item:?} of the context set {set:?}: {why}")]
    Item { set: String, item: String, why: &'static str },
    #[error("invalid {what}: {why}")]
    Text { what: &'static str, why: String },
}

impl ContextRefusal {
    pub fn problem(&self) -> Problem {
        let (code, hint) = match self {
            Self::SetFull { .. } | Self::ContextFull { .. } => (
                Code::ContextFull,
                "the context is unchanged; replace the set with its most relevant items, or empty another set",
            ),
            Self::Name { .. } => {
                (Code::InvalidRequest, "use 1 to 64 lower-case letters, digits, \"-\" and \"_\", as in \"files\"")
            }
            Self::RelativePath { .. } => (Code::InvalidRequest, "give the path from the root directory on"),
            Self::NotAUrl { .. } => (Code::InvalidRequest, "give a whole URL, as in \"http://localhost:8080/api\""),
            Self::NotAPort { .. } => (Code::InvalidRequest, "give the number of the port alone, as in \"8080\""),
            Self::Applet { .. } => (Code::InvalidRequest, "give the slug first, then each parameter as \"key=value\""),
            Self::Item { .. } | Self::Text { .. } => (Code::InvalidRequest, "the request changed nothing; correct it"),
        };
        Problem::new(code, self.to_string()).hint(hint)
    }
}

/// Returns the record that carries out a change, or no record for a change without effect.
pub fn change(state: &State, change: &ContextChange, requester: Option<Requester>) -> Result<Batch, ContextRefusal> {
    let context = changed(&state.context, change)?;
    if context == state.context {
        return Ok(Batch::default());
    }
    Ok(Batch::of(Body::ContextChanged(ContextChanged { reason: ContextReason::Changed, context, requester })))
}

/// Returns the warnings about the names of sets that are new to the session and not known to agentd.
pub fn warnings(before: &Context, change: &ContextChange) -> Vec<String> {
    let unknown = |name: &&String| !KNOWN_SETS.contains(&name.as_str()) && !before.sets.contains_key(*name);
    let named = change.sets.iter().filter(|(_, items)| !items.is_empty()).map(|(name, _)| name);
    let known = KNOWN_SETS.join(", ");
    named
        .filter(unknown)
        .map(|name| format!("the context set {name:?} is new; agentd knows the sets {known}, and checks no other"))
        .collect()
}

/// Returns the context after a change.
fn changed(before: &Context, change: &ContextChange) -> Result<Context, ContextRefusal> {
    let mut context = before.clone();
    for (name, items) in &change.sets {
        check_name(name)?;
        for item in items {
            check_item(name, item)?;
        }
        if name == APPLET {
            check_applet(items)?;
        }
        let old = context.sets.remove(name).unwrap_or_default();
        let new = match change.mode {
            ContextMode::Replace => joined(Vec::new(), items),
            ContextMode::Merge if name == APPLET => merged_applet(old.clone(), items),
            ContextMode::Merge => joined(old.clone(), items),
        };
        if new.len() > SET_ITEMS {
            return Err(ContextRefusal::SetFull { set: name.clone(), items: new.len() });
        }
        // The URL belongs to the applet that was open.
        if name == APPLET && new.first() != old.first() {
            context.applet_url = None;
        }
        if !new.is_empty() {
            context.sets.insert(name.clone(), new);
        }
    }
    if let Some(url) = &change.applet_url {
        check_url(url)?;
        if !context.sets.contains_key(APPLET) {
            return Err(ContextRefusal::Applet { why: "a URL is given, and the context has no applet".to_owned() });
        }
        context.applet_url = Some(url.clone());
    }
    let items = context.sets.values().map(Vec::len).sum();
    if items > ALL_ITEMS {
        return Err(ContextRefusal::ContextFull { items });
    }
    Ok(context)
}

/// Adds the items that a set does not have.
fn joined(mut set: Vec<String>, items: &[String]) -> Vec<String> {
    for item in items {
        if !set.contains(item) {
            set.push(item.clone());
        }
    }
    set
}

fn key_of(parameter: &str) -> &str {
    parameter.split_once('=').map_or(parameter, |(key, _)| key)
}

/// Merges the parameters of one applet by their keys. Another applet replaces the applet.
fn merged_applet(mut old: Vec<String>, new: &[String]) -> Vec<String> {
    if new.is_empty() {
        return old;
    }
    if old.first() != new.first() {
        return new.to_vec();
    }
    for parameter in &new[1..] {
        let same_key = |known: &&mut String| key_of(known) == key_of(parameter);
        match old.iter_mut().skip(1).find(same_key) {
            Some(known) => known.clone_from(parameter),
            None => old.push(parameter.clone()),
        }
    }
    old
}

fn check_name(name: &str) -> Result<(), ContextRefusal> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    if !name.is_empty() && name.len() <= NAME_BYTES && name.bytes().all(fits) {
        return Ok(());
    }
    Err(ContextRefusal::Name { name: shortened(name) })
}

fn check_item(set: &str, item: &str) -> Result<(), ContextRefusal> {
    let refused = |why| Err(ContextRefusal::Item { set: set.to_owned(), item: shortened(item), why });
    if item.trim().is_empty() {
        return refused("it is empty");
    }
    if item.len() > ITEM_BYTES {
        return refused("it is longer than 4096 bytes");
    }
    if item.chars().any(char::is_control) {
        return refused("it has a control character, such as a line break");
    }
    match set {
        FILES if !Path::new(item).is_absolute() => Err(ContextRefusal::RelativePath { item: item.to_owned() }),
        ENDPOINTS => check_url(item),
        // `+80` and ` 80` parse as numbers in other languages; a port is digits alone.
        PORTS if !item.bytes().all(|byte| byte.is_ascii_digit()) || !matches!(item.parse::<u16>(), Ok(1..)) => {
            Err(ContextRefusal::NotAPort { item: item.to_owned() })
        }
        _ => Ok(()),
    }
}

fn check_url(item: &str) -> Result<(), ContextRefusal> {
    let url = item.parse::<http::Uri>().ok();
    let is_whole = url.is_some_and(|url| url.scheme().is_some() && url.host().is_some_and(|host| !host.is_empty()));
    if is_whole && item.len() <= ITEM_BYTES { Ok(()) } else { Err(ContextRefusal::NotAUrl { item: shortened(item) }) }
}

fn check_applet(items: &[String]) -> Result<(), ContextRefusal> {
    let refused = |why: String| Err(ContextRefusal::Applet { why });
    let Some((slug, parameters)) = items.split_first() else { return Ok(()) };
    if slug.contains(|c: char| c == '=' || c.is_whitespace()) {
        return refused(format!("the slug {slug:?} has a blank or \"=\""));
    }
    let mut keys = Vec::new();
    for parameter in parameters {
        match parameter.split_once('=') {
            Some((key, _)) if !key.is_empty() && !keys.contains(&key) => keys.push(key),
            Some((key, _)) if !key.is_empty() => return refused(format!("the parameter {key:?} is given twice")),
            _ => return refused(format!("the parameter {parameter:?} has no key")),
        }
    }
    Ok(())
}

/// Returns the beginning of a text, for an error message.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the text without blanks around it, or `None` for an empty text.
fn checked(what: &'static str, text: &str, bytes: usize, lines: bool) -> Result<Option<String>, ContextRefusal> {
    let text = text.trim();
    if text.len() > bytes {
        return Err(ContextRefusal::Text { what, why: format!("it has {} bytes; the limit is {bytes}", text.len()) });
    }
    let allowed = |c: char| !c.is_control() || (lines && matches!(c, '\n' | '\t'));
    if !text.chars().all(allowed) {
        return Err(ContextRefusal::Text { what, why: "it has a control character".to_owned() });
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// Returns the record that sets or removes the environment hint.
pub fn set_hint(state: &State, hint: Option<&str>, requester: Option<Requester>) -> Result<Batch, ContextRefusal> {
    let hint = hint.map(|hint| checked("hint", hint, HINT_BYTES, true)).transpose()?.flatten();
    if hint == state.hint {
        return Ok(Batch::default());
    }
    Ok(Batch::of(Body::HintChanged(HintChanged { hint, requester })))
}

/// Returns the record that sets or removes the title.
pub fn set_title(state: &State, title: Option<&str>, requester: Option<Requester>) -> Result<Batch, ContextRefusal> {
    let title = title.map(|title| checked("title", title, TITLE_BYTES, false)).transpose()?.flatten();
    if title == state.title.set {
        return Ok(Batch::default());
    }
    Ok(Batch::of(Body::TitleChanged(TitleChanged { title, requester })))
}

/// Returns the record of reported progress. Repeated progress gives no record.
pub fn report_progress(
    state: &State,
    progress: &ProgressRequest,
    requester: Option<Requester>,
) -> Result<Batch, ContextRefusal> {
    let ProgressRequest { message, percent } = progress;
    if percent.is_some_and(|percent| percent > 100) {
        return Err(ContextRefusal::Text { what: "progress", why: "the percentage is more than 100".to_owned() });
    }
    let Some(message) = checked("progress", message, PROGRESS_BYTES, false)? else {
        return Err(ContextRefusal::Text { what: "progress", why: "the message is empty".to_owned() });
    };
    if state.progress.as_ref().is_some_and(|known| (&known.message, &known.percent) == (&message, percent)) {
        return Ok(Batch::default());
    }
    Ok(Batch::of(Body::ProgressReported(ProgressReported { message, percent: *percent, requester })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn change_of(mode: ContextMode, sets: &[(&str, &[&str])]) -> ContextChange {
        let items = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect();
        let sets = sets.iter().map(|&(name, list)| (name.to_owned(), items(list))).collect();
        ContextChange { mode, sets, applet_url: None }
    }

    fn merge(sets: &[(&str, &[&str])]) -> ContextChange {
        change_of(ContextMode::Merge, sets)
    }

    fn context(sets: &[(&str, &[&str])]) -> Context {
        changed(&Context::default(), &merge(sets)).unwrap()
    }

    #[test]
    fn merged_items_follow_the_known_ones_once_each() {
        let before = context(&[(FILES, &["/a", "/b"]), (PORTS, &["80"])]);
        let after = changed(&before, &merge(&[(FILES, &["/c", "/a", "/c"])])).unwrap();
        assert_eq!(after, context(&[(FILES, &["/a", "/b", "/c"]), (PORTS, &["80"])]));
        let replaced = changed(&after, &change_of(ContextMode::Replace, &[(FILES, &["/z"]), (PORTS, &[])])).unwrap();
        assert_eq!(replaced, context(&[(FILES, &["/z"])]));
    }

    #[test]
    fn an_applet_is_replaced_by_another_and_its_parameters_are_merged_by_key() {
        let mut before = context(&[(APPLET, &["wave", "zoom=2", "signal=clk"])]);
        before.applet_url = Some("http://localhost/wave".to_owned());
        let after = changed(&before, &merge(&[(APPLET, &["wave", "zoom=4", "page=1"])])).unwrap();
        assert_eq!(after.sets[APPLET], ["wave", "zoom=4", "signal=clk", "page=1"]);
        assert_eq!(after.applet_url, before.applet_url);
        let other = changed(&before, &merge(&[(APPLET, &["plot"])])).unwrap();
        assert_eq!((other.sets[APPLET].as_slice(), other.applet_url), (["plot".to_owned()].as_slice(), None));
        let gone = changed(&before, &change_of(ContextMode::Replace, &[(APPLET, &[])])).unwrap();
        assert!(gone.is_empty(), "{gone:?}");
    }

    #[test]
    fn a_wrong_item_is_refused_with_its_reason() {
        for (set, item, words) in [
            (FILES, "notes.md", "absolute path"),
            (FILES, "", "empty"),
            (FILES, "/a\nb", "control character"),
            (ENDPOINTS, "localhost:8080", "not a URL"),
            (ENDPOINTS, "/v1", "not a URL"),
            (ENDPOINTS, "http://", "not a URL"),
            (PORTS, "0", "not a number"),
            (PORTS, "65536", "not a number"),
            (PORTS, "+80", "not a number"),
            (PORTS, "http", "not a number"),
            (APPLET, "a b", "slug"),
            ("other", "\u{1b}[2J", "control character"),
            ("Bad Name", "x", "invalid name"),
        ] {
            let refused = changed(&Context::default(), &merge(&[(set, &[item])])).unwrap_err().problem();
            assert!(refused.detail.contains(words) && refused.hint.is_some(), "{set} {item:?}: {}", refused.detail);
        }
        for parameters in [&["wave", "zoom"][..], &["wave", "=2"], &["wave", "a=1", "a=2"]] {
            changed(&Context::default(), &merge(&[(APPLET, parameters)])).unwrap_err();
        }
        let url = ContextChange { applet_url: Some("http://x/".to_owned()), ..ContextChange::default() };
        changed(&Context::default(), &url).unwrap_err();
        for (set, item) in [(FILES, "/"), (ENDPOINTS, "wss://h/x?y"), (PORTS, "65535"), ("other", "ä b")] {
            changed(&Context::default(), &merge(&[(set, &[item])])).unwrap();
        }
    }

    #[test]
    fn the_eleventh_item_of_a_set_and_the_fifty_first_of_all_are_refused_with_the_limit() {
        let ports = |from: u16, count: u16| (from..from + count).map(|n| n.to_string()).collect::<Vec<_>>();
        let sets = |names: &[&str]| {
            let sets = names.iter().map(|&name| (name.to_owned(), ports(1, 10))).collect();
            ContextChange { sets, ..ContextChange::default() }
        };
        let full = changed(&Context::default(), &sets(&["ports", "a", "b", "c", "d"])).unwrap();
        let eleven = ContextChange { sets: [(PORTS.to_owned(), ports(11, 1))].into(), ..ContextChange::default() };
        let refused = changed(&full, &eleven).unwrap_err();
        assert_eq!(refused, ContextRefusal::SetFull { set: PORTS.to_owned(), items: 11 });
        assert!(refused.problem().detail.contains("at most 10"));
        let refused = changed(&full, &merge(&[("e", &["x"])])).unwrap_err();
        assert_eq!(refused, ContextRefusal::ContextFull { items: 51 });
        assert!(refused.problem().detail.contains("at most 50"));
        // Items that are known already need no room.
        assert_eq!(changed(&full, &merge(&[(PORTS, &["1"])])).unwrap(), full);
    }

    #[test]
    fn an_unknown_set_is_warned_about_when_it_is_new() {
        let change = merge(&[("flies", &["/a"]), (FILES, &["/a"])]);
        let warned = warnings(&Context::default(), &change);
        assert!(warned.len() == 1 && warned[0].contains("\"flies\"") && warned[0].contains("files"), "{warned:?}");
        let after = changed(&Context::default(), &change).unwrap();
        assert_eq!(warnings(&after, &change), Vec::<String>::new());
    }

    #[test]
    fn texts_are_bounded_and_a_change_without_effect_writes_nothing() {
        let state = State::new(jiff::Timestamp::UNIX_EPOCH);
        let is_empty = |batch: Result<Batch, ContextRefusal>| batch.unwrap().entries.is_empty();
        assert!(is_empty(set_hint(&state, None, None)) && is_empty(set_hint(&state, Some("  "), None)));
        assert!(!is_empty(set_hint(&state, Some("source setup.sh\nmodule load gcc"), None)));
        set_hint(&state, Some("\u{7}"), None).unwrap_err();
        set_hint(&state, Some(&"x".repeat(HINT_BYTES + 1)), None).unwrap_err();
        set_title(&state, Some("two\nlines"), None).unwrap_err();
        set_title(&state, Some(&"x".repeat(TITLE_BYTES + 1)), None).unwrap_err();
        let progress = |message: &str, percent| {
            report_progress(&state, &ProgressRequest { message: message.to_owned(), percent }, None)
        };
        assert!(!is_empty(progress("half", Some(50))));
        progress(" ", None).unwrap_err();
        progress("more", Some(101)).unwrap_err();
    }

    proptest! {
        #[test]
        fn no_series_of_changes_exceeds_the_limits_or_leaves_an_empty_set(
            changes in proptest::collection::vec(
                (
                    any::<bool>(),
                    proptest::collection::btree_map(
                        "(files|ports|x|y|z|u|v)",
                        proptest::collection::vec(1..40_u16, 0..12),
                        1..4,
                    ),
                ),
                1..30,
            ),
        ) {
            let mut context = Context::default();
            for (replace, sets) in changes {
                let mode = if replace { ContextMode::Replace } else { ContextMode::Merge };
                let item = |name: &str, n: u16| if name == FILES { format!("/{n}") } else { n.to_string() };
                let items = |name: &str, numbers: &[u16]| numbers.iter().map(|n| item(name, *n)).collect();
                let sets = sets.iter().map(|(name, numbers)| (name.clone(), items(name, numbers))).collect();
                let change = ContextChange { mode, sets, applet_url: None };
                if let Ok(after) = changed(&context, &change) {
                    prop_assert!(after.sets.values().all(|items| (1..=SET_ITEMS).contains(&items.len())));
                    prop_assert!(after.sets.values().map(Vec::len).sum::<usize>() <= ALL_ITEMS);
                    context = after;
                }
            }
        }
    }
}
