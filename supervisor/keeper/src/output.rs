//! Recognises agent output that no rule of a session inspects.
//!
//! The keeper looks at each line anyway. It reports runs of such output, so that the daemon need not read it.

use std::sync::LazyLock;

use aho_corasick::packed;
use jiff::Timestamp;
use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};

/// Version of [`concerns_the_session`]. It changes when the function recognises other lines, because keepers of an
/// earlier agentd keep running.
pub const RULES: u32 = 1;

/// Run of records of the kind `agent.out` at the end of the journal, none of which concerns the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRun {
    /// [`RULES`] of the keeper.
    pub rules: u32,
    /// `seq` of the first record.
    pub first: u64,
    /// `seq` of the last record.
    pub last: u64,
    /// Time of the last record.
    pub time: Timestamp,
}

/// Reports whether a line may be more than an update that no session rule inspects. Most lines are text updates.
/// Such lines are recognised without parsing. They have no id, no tool call id, no title, no usage, no option and no
/// escape that spells one of these words. Several lines are examined at once if they are given together.
pub fn concerns_the_session(lines: &[u8]) -> bool {
    const WORDS: [&str; 7] = [
        "\"id\"",
        "\"toolCallId\"",
        "\"session_info_update\"",
        "\"usage_update\"",
        "\"current_mode_update\"",
        "\"config_option_update\"",
        "\\u00",
    ];
    // An automaton would stop at each quotation mark.
    static SEARCH: LazyLock<Option<packed::Searcher>> = LazyLock::new(|| packed::Searcher::new(WORDS));
    static FINDERS: LazyLock<[Finder<'static>; 7]> = LazyLock::new(|| WORDS.map(Finder::new));
    match &*SEARCH {
        Some(search) => search.find(lines).is_some(),
        // The processor has no suitable vector instructions.
        None => FINDERS.iter().any(|word| word.find(lines).is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_left_unread_only_if_no_rule_looks_at_it() {
        let update = |update: &str| {
            format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#)
        };
        let text = update(r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hi \"you\""}}"#);
        assert!(!concerns_the_session(text.as_bytes()));
        for line in [
            update(r#"{"sessionUpdate":"tool_call","toolCallId":"c"}"#),
            update(r#"{"sessionUpdate":"tool_call","tool\u0043allId":"c"}"#),
            update(r#"{"sessionUpdate":"session_info_update","title":"t"}"#),
            update(r#"{"sessionUpdate":"current_mode_update","modeId":"m"}"#),
            update(r#"{"sessionUpdate":"config_option_update","configOptions":[]}"#),
            r#"{"id":1,"result":{}}"#.to_owned(),
            r#"{"\u0069d":1,"result":{}}"#.to_owned(),
            r#"{"method":"x","id" : 7}"#.to_owned(),
        ] {
            assert!(concerns_the_session(line.as_bytes()), "{line}");
        }
    }
}
