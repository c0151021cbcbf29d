//! Selects the prerequisites of a session, without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use agentd_api::prerequisite::RequiredBy;
use agentd_plugin_host::glob;

use agentd_config::Prerequisite;

/// The properties of a session that select its prerequisites.
#[derive(Debug, Clone, Copy)]
pub struct SessionTraits<'a> {
    /// Name of the session's agent.
    pub agent: &'a str,
    /// Working directory of the session.
    pub directory: &'a Path,
    /// Tags of the session.
    pub tags: &'a [String],
    /// Prerequisites that the session's request names.
    pub requires: &'a [String],
}

/// Returns the names of the session's prerequisites, including undeclared ones that its request names.
pub fn needed(declared: &BTreeMap<String, Prerequisite>, who: SessionTraits<'_>) -> BTreeSet<String> {
    let of_all = declared.iter().filter(|(_, one)| is_for(&one.required_by, who)).map(|(name, _)| name);
    of_all.chain(who.requires).cloned().collect()
}

fn is_for(required_by: &RequiredBy, who: SessionTraits<'_>) -> bool {
    let RequiredBy { all, agents, directories, tags } = required_by;
    let directory = who.directory.to_string_lossy();
    *all || agents.iter().any(|agent| agent == who.agent)
        || directories.iter().any(|pattern| glob(pattern, &directory))
        || tags.iter().any(|tag| who.tags.contains(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(agent: &str, directory: &str, tags: &[&str], requires: &[&str]) -> String {
        let declared = toml::from_str(
            "[vpn]\nplugin = \"vpn\"\nrequired_by = \"all\"\n\
             [claude]\nplugin = \"tcp\"\nrequired_by = { agents = [\"claude\"] }\n\
             [work]\nplugin = \"mount\"\nrequired_by = { directories = [\"/work/**\"], tags = [\"lab\"] }\n\
             [named]\nplugin = \"tcp\"\n",
        )
        .unwrap();
        let own = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let (tags, requires) = (own(tags), own(requires));
        let who = SessionTraits { agent, directory: Path::new(directory), tags: &tags, requires: &requires };
        needed(&declared, who).into_iter().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn any_of_what_is_said_is_enough_and_what_nobody_is_said_to_need_is_for_who_names_it() {
        assert_eq!(names("demo", "/home/kim", &[], &[]), "vpn");
        assert_eq!(names("claude", "/home/kim", &[], &[]), "claude vpn");
        assert_eq!(names("demo", "/work/a/b", &[], &[]), "vpn work");
        assert_eq!(names("demo", "/workshop", &["lab", "x"], &[]), "vpn work");
        assert_eq!(names("demo", "/home/kim", &[], &["named", "vpn"]), "named vpn");
    }

    #[test]
    fn one_that_nobody_declares_is_needed_all_the_same() {
        assert_eq!(names("demo", "/", &[], &["gone"]), "gone vpn");
    }
}
