//! Selects the parts of a shell's output that messages may quote, without I/O.
//!
//! The output may contain an unknown secret under any name. Trace lines are therefore left out, together with the
//! values that continue on later lines. In a line that sets any variable, the value is hidden.

use agentd_keeper::mask::MASK;

/// Returns the lines that are neither a trace of `set -x` nor bash's messages about a missing terminal.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    const OF_BASH: [&str; 2] = ["cannot set terminal process group", "no job control in this shell"];
    let mut is_open = false;
    let lines = text.lines().map(str::trim_end).filter(move |line| {
        let goes_on = is_open;
        if goes_on || line.starts_with('+') {
            // In a trace, a value of several lines is quoted. A quote inside the value is `'\''`.
            let quotes = line.matches('\'').count() - line.matches("\\'").count();
            is_open = goes_on != (quotes % 2 == 1);
            return false;
        }
        true
    });
    lines.filter(|line| !line.is_empty() && !OF_BASH.iter().any(|words| line.contains(words)))
}

/// Returns the line without the value that it sets.
pub(crate) fn without_value(line: &str) -> String {
    match value(line).filter(|at| *at < line.len()) {
        Some(at) => format!("{}{MASK}", &line[..at]),
        None => line.to_owned(),
    }
}

/// Returns the offset of the first value that the line sets.
fn value(line: &str) -> Option<usize> {
    [assigned(line), set(line)].into_iter().flatten().min()
}

/// Returns the offset after `NAME=` or `NAME+=`, if the name begins a word.
fn assigned(line: &str) -> Option<usize> {
    line.match_indices('=').map(|(at, _)| at).find_map(|at| {
        let before = &line[..at];
        let before = before.strip_suffix('+').unwrap_or(before);
        let begin = before.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let name = &before[begin.len()..];
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let begins_word = begin.chars().last().is_none_or(|last| last.is_whitespace() || "'\"`;(&|".contains(last));
        (is_name && begins_word).then_some(at + 1)
    })
}

/// Returns the offset after the name in `setenv NAME VALUE`, `set -gx NAME VALUE` or `$env.NAME = VALUE`.
fn set(line: &str) -> Option<usize> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let behind = |word: usize| {
        let word = words.get(word)?;
        // The words are slices of the line.
        Some(word.as_ptr() as usize - line.as_ptr() as usize)
    };
    words.iter().enumerate().find_map(|(at, word)| match *word {
        "setenv" => behind(at + 2),
        "set" => {
            let flags = words[at + 1..].iter().take_while(|word| word.starts_with('-')).count();
            if flags > 0 { behind(at + flags + 2) } else { None }
        }
        word if word.starts_with("$env.") && words.get(at + 1) == Some(&"=") => behind(at + 2),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_lines_are_left_out_with_their_continuations() {
        let text = "+ export K=sekrit\n\n++ export 'K=first\nsecond\nthird'\n\
            bash: no job control in this shell\nnot found  \n";
        assert_eq!(lines(text).collect::<Vec<_>>(), ["not found"]);
        assert_eq!(lines("+ echo 'it'\\''s'\nnot found").collect::<Vec<_>>(), ["not found"]);
    }

    #[test]
    fn the_value_in_a_line_that_sets_any_variable_is_hidden() {
        for (line, expected) in [
            ("FOO_PW=two words", "FOO_PW=‹secret›"),
            ("» export FOO_PW='x' B=2", "» export FOO_PW=‹secret›"),
            ("declare -x FOO_PW+=\"x\"", "declare -x FOO_PW+=‹secret›"),
            ("run 'FOO_PW=x'", "run 'FOO_PW=‹secret›"),
            ("-> set -gx FOO_PW x y", "-> set -gx FOO_PW ‹secret›"),
            ("setenv FOO_PW x", "setenv FOO_PW ‹secret›"),
            ("$env.FOO_PW = \"x\"", "$env.FOO_PW = ‹secret›"),
        ] {
            assert_eq!(without_value(line), expected, "{line}");
        }
        for line in
            ["no luck", "bad option --name=x", "GET http://x/?a=b", "a == b", "FOO=", "set -e", "setenv FOO", "1=2"]
        {
            assert_eq!(without_value(line), line);
        }
    }
}
