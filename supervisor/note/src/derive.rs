//! Fills in the variables that follow from the others: whether something changed, and what to check first.

use agentd_api::note::NoteVariables;

/// Variables that decide which tools an agent finds.
const OF_TOOLS: [&str; 8] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "LOADEDMODULES",
    "MODULEPATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "JAVA_HOME",
    "NIX_PROFILES",
];

/// Fills in `changed`, `shell_state_lost` and `check_first` of complete variables.
#[must_use]
pub fn derive(mut variables: NoteVariables) -> NoteVariables {
    let NoteVariables { environment, prerequisites, scripts, tool_calls, repository, findings, missing, .. } =
        &variables;
    let changed = variables.new_conversation
        || variables.forced_by.is_some()
        || !(environment.is_empty()
            && prerequisites.is_empty()
            && scripts.is_empty()
            && tool_calls.is_empty()
            && repository.is_empty()
            && findings.is_empty()
            && missing.is_empty());
    let are_tools_other = environment.iter().any(|change| OF_TOOLS.contains(&change.name.as_str()));
    let rules = [
        (!missing.is_empty(), "ask the person how to go on without the missing parts"),
        (variables.hint.is_some(), "read the hint"),
        (!tool_calls.is_empty(), "find out how far the interrupted tool calls came before you repeat them"),
        (!repository.is_empty(), "look at the repository with `git status` and `git log` before you edit files"),
        (are_tools_other, "verify the tools that you need, as with `command -v`"),
        (!environment.is_empty() && !are_tools_other, "read the changed variables that your work depends on"),
        (!prerequisites.is_empty(), "expect failures of what needs the unmet prerequisites"),
        (variables.new_conversation, "look at the files of the working directory, since the earlier messages are gone"),
    ];
    let check_first = rules.iter().filter(|(applies, _)| *applies && changed).map(|(_, what)| (*what).to_owned());
    variables.check_first = check_first.collect();
    (variables.changed, variables.shell_state_lost) = (changed, variables.resumed || variables.restarted);
    variables
}
