//! Comparison of a terminal with an agent: allowed differences and mistakes.

use std::collections::BTreeSet;
use std::path::Path;

use super::case::{Case, Value};
use crate::conformance::Environment;

/// Names that are not compared, with the reason. Their values describe one shell, one window or one prompt, and no
/// program of the user reads them as a setting. A `*` means any end. README.md has the names too.
pub(super) const NOT_COMPARED: [(&[&str], &str); 5] = [
    (
        &["_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM"],
        "of the shell that shows the environment, and of its window",
    ),
    (&["A__z"], "how ksh93 passes attributes of variables on to another ksh93"),
    (
        &["CMD_DURATION_MS", "LAST_EXIT_CODE", "NU_VERSION", "PROMPT_*", "TRANSIENT_PROMPT_*"],
        "the prompt of nushell and how its last command ended",
    ),
    (
        &["TMUX", "TMUX_PANE", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "STY", "WINDOW", "ZELLIJ*"],
        "the window of a multiplexer",
    ),
    (
        &["DIRENV_DIFF", "DIRENV_DIR", "DIRENV_FILE", "DIRENV_WATCHES", "MISE_SHELL", "__MISE_*"],
        "notes of the hooks of direnv and mise, for undoing their changes",
    ),
];

fn is_compared(name: &str) -> bool {
    let patterns = NOT_COMPARED.iter().flat_map(|(patterns, _)| patterns.iter());
    !patterns.into_iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == *pattern,
    })
}

/// Prefix of the variables that agentd sets for its agents.
const OF_AGENTD: &str = "AGENTD_";

/// Environment and attributes of a terminal or an agent.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) variables: Environment,
    /// Umask, nice value and limits with their names, in the kernel's format.
    pub(super) attributes: Vec<(String, String)>,
}

impl Side {
    /// Takes the attributes from files as a process has them in `/proc`, or from copies of those.
    pub(super) fn of_process(variables: Environment, process: &Path) -> Self {
        let text = |file: &str| std::fs::read_to_string(process.join(file)).unwrap_or_default();
        let status = text("status");
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap_or_default();
        // proc(5): the fields behind the name, which may hold anything, begin with the third; nice is the nineteenth.
        let stat = text("stat");
        let nice = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(16)).unwrap_or_default();
        let mut attributes = vec![("umask".to_owned(), umask.trim().to_owned()), ("nice".to_owned(), nice.to_owned())];
        for line in text("limits").lines().skip(1) {
            let (name, values) = line.split_at(line.len().min(26));
            let values: Vec<&str> = values.split_whitespace().take(2).collect();
            attributes.push((name.trim().to_owned(), values.join(" of ")));
        }
        Self { variables, attributes }
    }
}

/// Returns every difference that no policy explains, and each wrong statement of the case. `dropped` has the names that
/// agentd left out with a reason.
pub(super) fn differences(case: &Case, terminal: &Side, agent: &Side, dropped: &[String]) -> Vec<String> {
    let (theirs, ours) = (&terminal.variables, &agent.variables);
    let mut problems = Vec::new();
    for (name, expected) in &case.terminal {
        let got = theirs.get(name).map(|value| String::from_utf8_lossy(value));
        let right = match expected {
            Value::Is(value) => got.as_ref().is_some_and(|got| got == value),
            Value::There(there) => got.is_some() == *there,
        };
        if !right {
            problems.push(format!("the case is wrong: at the terminal {name} is {got:?}, not {expected:?}"));
        }
    }
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let mut differing = BTreeSet::new();
    for name in names {
        let (their, our) = (theirs.get(name), ours.get(name));
        if their == our || !is_compared(name) || name.starts_with(OF_AGENTD) {
            continue;
        }
        differing.insert(name);
        let said = our.is_none() && dropped.contains(name);
        if !said && !case.differs.contains_key(name) {
            problems.push(format!("{name}: terminal {}, agent {}", shown(their), shown(our)));
        }
    }
    // The kernel gives the number of a closed terminal to the next one, so two names can be equal by chance.
    let is_terminal = |name: &&String| theirs.get(*name).is_some_and(|value| value.starts_with(b"/dev/pts/"));
    for name in case.differs.keys().filter(|name| !differing.contains(name) && !is_terminal(name)) {
        problems.push(format!("the case is wrong: it says that {name} differs, and it does not"));
    }
    if case.attributes {
        let pairs = terminal.attributes.iter().zip(&agent.attributes);
        let unequal = pairs.filter(|(their, our)| their != our);
        problems.extend(unequal.map(|(their, our)| format!("{}: terminal {}, agent {}", their.0, their.1, our.1)));
        assert_eq!(terminal.attributes.len(), agent.attributes.len(), "{terminal:?} {agent:?}");
    }
    problems
}

fn shown(value: Option<&Vec<u8>>) -> String {
    const MOST: usize = 300;
    match value {
        None => "has none".to_owned(),
        Some(value) if value.len() > MOST => {
            format!("{:?} and {} bytes more", String::from_utf8_lossy(&value[..MOST]), value.len() - MOST)
        }
        Some(value) => format!("{:?}", String::from_utf8_lossy(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(variables: &[(&str, &str)]) -> Side {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        Side { variables, attributes: Vec::new() }
    }

    #[test]
    fn a_difference_needs_a_reason_and_a_reason_needs_a_difference() {
        let case: Case =
            toml::from_str("about = 'x'\n[differs]\nB = 'the policy that makes it so'\n[terminal]\nA = '1'\n").unwrap();
        let terminal = side(&[("A", "1"), ("B", "1"), ("LC_PAPER", "x"), ("PWD", "/a"), ("C", "1")]);
        let dropped = ["LC_PAPER".to_owned()];
        let good = side(&[("A", "1"), ("AGENTD_SESSION", "s"), ("PWD", "/b"), ("C", "1")]);
        assert_eq!(differences(&case, &terminal, &good, &dropped), Vec::<String>::new());
        let bad = side(&[("A", "1"), ("B", "1"), ("D", "1")]);
        assert_eq!(
            differences(&case, &terminal, &bad, &dropped),
            [
                "C: terminal \"1\", agent has none",
                "D: terminal has none, agent \"1\"",
                "the case is wrong: it says that B differs, and it does not",
            ]
        );
        let other = side(&[("A", "2"), ("B", "1")]);
        let problems = differences(&case, &other, &good, &dropped);
        assert!(problems[0].starts_with("the case is wrong: at the terminal A is Some(\"2\")"), "{problems:?}");
        let chance = side(&[("A", "1"), ("B", "/dev/pts/3")]);
        assert_eq!(
            differences(&case, &chance, &chance, &[]),
            Vec::<String>::new(),
            "names of terminals are used again"
        );
    }

    #[test]
    fn the_readme_names_each_name_that_is_not_compared() {
        let readme = include_str!("../README.md");
        for (patterns, why) in NOT_COMPARED {
            let names: Vec<String> = patterns.iter().map(|pattern| format!("`{pattern}`")).collect();
            let row = format!("| {} | {why} |", names.join(" "));
            assert!(readme.contains(&row), "README.md of the corpus lacks the row\n{row}");
        }
        assert!(!is_compared("PROMPT_INDICATOR") && is_compared("PROMPT") && is_compared("MISE_ENV"));
    }
}
