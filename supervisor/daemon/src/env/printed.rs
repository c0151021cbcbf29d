//! What may be told of what a shell printed: pure.
//!
//! A secret that nothing else knows may be in it under any name. So lines of a trace are left out with the values that go on behind them,
//! and of a line that sets a variable the value is hidden, whatever the variable is called.

use agentd_keeper::mask::MASK;

/// The lines that are no trace of `set -x`, nor what bash says of having no terminal.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    const OF_BASH: [&str; 2] = ["cannot set terminal process group", "no job control in this shell"];
    let mut is_open = false;
    let lines = text.lines().map(str::trim_end).filter(move |line| {
        let goes_on = is_open;
        if goes_on || line.starts_with('+') {
            // A value of several lines stands between quotes there; a quote in it is `'\''`.
            let quotes = line.matches('\'').count() - line.matches("\\'").count();
            is_open = goes_on != (quotes % 2 == 1);
            return false;
        }
        true
    });
    lines.filter(|line| !line.is_empty() && !OF_BASH.iter().any(|words| line.contains(words)))
}

/// The line without the value that it sets.
pub(super) fn shown(line: &str) -> String {
    match value(line).filter(|at| *at < line.len()) {
        Some(at) => format!("{}{MASK}", &line[..at]),
        None => line.to_owned(),
    }
}

/// Where the first value that the line sets begins.
fn value(line: &str) -> Option<usize> {
    [assigned(line), set(line)].into_iter().flatten().min()
}

/// Behind `NAME=` and `NAME+=`, where the name begins a word.
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

/// Behind the name in `setenv NAME VALUE`, `set -gx NAME VALUE` and `$env.NAME = VALUE`.
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
    fn lines_of_a_trace_are_left_out_with_what_goes_on_behind_them() {
        let text = "+ export K=sekrit\n\n++ export 'K=first\nsecond\nthird'\nbash: no job control in this shell\nnot found  \n";
        assert_eq!(lines(text).collect::<Vec<_>>(), ["not found"]);
        assert_eq!(lines("+ echo 'it'\\''s'\nnot found").collect::<Vec<_>>(), ["not found"]);
    }

    #[test]
    fn of_a_line_that_sets_a_variable_the_value_is_hidden_whatever_it_is_called() {
        for (line, expected) in [
            ("FOO_PW=two words", "FOO_PW=‹secret›"),
            ("» export FOO_PW='x' B=2", "» export FOO_PW=‹secret›"),
            ("declare -x FOO_PW+=\"x\"", "declare -x FOO_PW+=‹secret›"),
            ("run 'FOO_PW=x'", "run 'FOO_PW=‹secret›"),
            ("-> set -gx FOO_PW x y", "-> set -gx FOO_PW ‹secret›"),
            ("setenv FOO_PW x", "setenv FOO_PW ‹secret›"),
            ("$env.FOO_PW = \"x\"", "$env.FOO_PW = ‹secret›"),
        ] {
            assert_eq!(shown(line), expected, "{line}");
        }
        for line in
            ["no luck", "bad option --name=x", "GET http://x/?a=b", "a == b", "FOO=", "set -e", "setenv FOO", "1=2"]
        {
            assert_eq!(shown(line), line);
        }
    }
}
