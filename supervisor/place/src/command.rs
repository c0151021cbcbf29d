//! A client of the user's own, with its own tools.

use crate::state::{EngineState, some};
use crate::{ClientError, LaunchNames};
use agentd_api::event::PlaceState;

/// Settings of a place with a client of the user's own. `{name}`, `{session}`, `{launch}`, `{directory}` and `{keeper}`
/// are replaced in the words, except in those of `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandPlace {
    /// Client, whose stdin and stdout lead to `agentd-keeper enter`.
    pub client: Vec<String>,
    /// Program that prints the states of all launches.
    pub status: Vec<String>,
    /// Program that ends a launch.
    pub cancel: Vec<String>,
    /// Program that ends and removes all that a launch left behind.
    pub sweep: Vec<String>,
    /// Program and its arguments that give the parent of an agent that stays to an engine.
    pub submit: Vec<String>,
}

/// Words that are replaced between braces.
pub const WORDS: [&str; 5] = ["name", "session", "launch", "directory", "keeper"];

/// Replaces the words in braces. Other braces stay.
pub(crate) fn replaced(command: &[String], launch: &LaunchNames<'_>, keeper: &str) -> Result<Vec<String>, ClientError> {
    let needs_directory = command.iter().any(|word| word.contains("{directory}"));
    let directory = match launch.directory.to_str() {
        Some(directory) => directory,
        None if needs_directory => return Err(ClientError::Directory(launch.directory.to_owned())),
        None => "",
    };
    let (name, number) = (launch.name(), launch.launch.to_string());
    let values = [name.as_str(), launch.session, &number, directory, keeper];
    Ok(command.iter().map(|word| replace_words(word, &values)).collect())
}

/// Returns the command line with its words replaced, or `None` if it is empty.
pub(crate) fn optional(
    command: &[String],
    launch: &LaunchNames<'_>,
    keeper: &str,
) -> Result<Option<Vec<String>>, ClientError> {
    if command.is_empty() { Ok(None) } else { replaced(command, launch, keeper).map(Some) }
}

/// Replaces in one pass, so that a value that contains braces stays unchanged.
fn replace_words(text: &str, values: &[&str; WORDS.len()]) -> String {
    let (mut replaced, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once('{') {
        replaced.push_str(before);
        let word = behind.split_once('}').and_then(|(word, after)| {
            let at = WORDS.iter().position(|known| *known == word)?;
            Some((values[at], after))
        });
        if let Some((value, after)) = word {
            replaced.push_str(value);
            rest = after;
        } else {
            replaced.push('{');
            rest = behind;
        }
    }
    replaced + rest
}

/// Parses the lines `NAME STATE [JOB [MESSAGE]]`. STATE is a [`PlaceState`], and `-` means no job.
pub(crate) fn parse_status(output: &str) -> Result<Vec<EngineState>, String> {
    let lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| parse_line(line).ok_or_else(|| format!("{line:?} is no line NAME STATE [JOB [MESSAGE]]")))
        .collect()
}

fn parse_line(line: &str) -> Option<EngineState> {
    let (name, rest) = line.split_once(char::is_whitespace)?;
    let word = |text: &str| -> (String, String) {
        let text = text.trim_start();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        (word.to_owned(), rest.trim().to_owned())
    };
    let (state, rest) = word(rest);
    let (job, message) = word(&rest);
    let facts = EngineState { job: some(&job).filter(|job| job != "-"), ..EngineState::named(name) };
    let message = some(&message);
    let known = match state.as_str() {
        "submitted" => PlaceState::Submitted,
        "queued" => PlaceState::Queued,
        "starting" => PlaceState::Starting,
        "running" => PlaceState::Running,
        "ending" => PlaceState::Ending,
        "ended" => PlaceState::Ended,
        "lost" => PlaceState::Lost,
        _ => return Some(facts.unknown(&state)),
    };
    Some(EngineState { state: Some(known), message, ..facts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::launch_1;
    use crate::words;

    #[test]
    fn words_in_braces_are_replaced_once_and_other_braces_stay() {
        let command =
            words(["run", "--name={name}", "{session}/{launch}", "{directory}", "{keeper}", "{x} {", "{{name}}"]);
        let expected = ["run", "--name=agentd-k1-x-3", "k1-x/3", "/work/a b", "/k {name}", "{x} {", "{agentd-k1-x-3}"];
        assert_eq!(replaced(&command, &launch_1(), "/k {name}").unwrap(), expected);
        assert_eq!(optional(&[], &launch_1(), "k").unwrap(), None);
    }

    #[test]
    fn a_directory_that_is_not_text_is_refused_only_where_it_is_needed() {
        use std::os::unix::ffi::OsStrExt as _;
        let directory = std::ffi::OsStr::from_bytes(b"/a\xff").as_ref();
        let launch = LaunchNames { directory, ..launch_1() };
        assert_eq!(replaced(&words(["a"]), &launch, "k").unwrap(), ["a"]);
        let error = replaced(&words(["{directory}"]), &launch, "k").unwrap_err();
        assert_eq!(error, ClientError::Directory(directory.to_owned()));
    }

    #[test]
    fn a_line_of_states_has_a_name_a_state_a_job_and_a_message() {
        let output =
            "agentd-a-1 queued 17 behind two others\n\n agentd-b-1\tended  -\nagentd-c-1 odd 3 x\nagentd-d-1 running\n";
        let states = parse_status(output).unwrap();
        let (a, b, c, d) = (&states[0], &states[1], &states[2], &states[3]);
        assert_eq!((a.state, a.job.as_deref()), (Some(PlaceState::Queued), Some("17")));
        assert_eq!(a.message.as_deref(), Some("behind two others"));
        assert_eq!((b.state, &b.job, &b.message), (Some(PlaceState::Ended), &None, &None));
        assert_eq!((c.state, c.message.as_deref()), (None, Some("the engine reports the state \"odd\"")));
        assert_eq!(d.state, Some(PlaceState::Running));
        assert!(parse_status("agentd-a-1\n").unwrap_err().contains("NAME STATE"));
    }

    #[test]
    fn every_state_of_an_engine_has_its_word() {
        for state in PlaceState::NAMES.iter().filter(|state| state.name != PlaceState::Away.as_str()) {
            let parsed = parse_status(&format!("agentd-a-1 {}", state.name)).unwrap();
            assert_eq!(parsed[0].state.map(PlaceState::as_str), Some(state.name));
        }
    }
}
