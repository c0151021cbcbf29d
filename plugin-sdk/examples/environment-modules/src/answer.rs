//! Parser for the output of `modulecmd` for the shell "r".
//!
//! Of all output forms of modulecmd, only this one can be parsed exactly. Within `'…'` each `\` and each `'`
//! follows a `\`, and every other byte has no special meaning, including newlines.
//!
//! The forms for python, perl, ruby and lisp escape only the quote, so the end of a value that ends with `\` is
//! ambiguous. The form for sh cannot have a newline in a value.
//!
//! ```text
//! Sys.setenv('NAME'='VALUE')
//! Sys.unsetenv('NAME')
//! mlstatus <- TRUE
//! ```
//!
//! Other lines come from the modulefile's own output, or are statements for a shell (`setwd`, `system`). They
//! are counted and otherwise ignored.

/// The changes that modulecmd requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Variables in the order of output. `None` for a variable that is unset.
    pub(crate) variables: Vec<(String, Option<Vec<u8>>)>,
    /// Whether modulecmd reports success. `None` for releases before 4, which do not report it.
    pub(crate) status: Option<bool>,
    /// Number of lines that do not set or unset a variable.
    pub(crate) others: usize,
}

const SET: &[u8] = b"Sys.setenv('";
const UNSET: &[u8] = b"Sys.unsetenv('";
const STATUS: &[u8] = b"mlstatus <- ";

/// Parses the whole output. The error says which part is invalid.
pub(crate) fn parse(output: &[u8]) -> Result<Answer, String> {
    let mut answer = Answer::default();
    let mut rest = output;
    while !rest.is_empty() {
        if let Some(statement) = rest.strip_prefix(SET) {
            let (name, after) = quoted(statement).ok_or("a name has no end")?;
            let name = name_of(name)?;
            let unfinished = || format!("the value of {name} has no end");
            let value = after.strip_prefix(b"='").ok_or_else(|| format!("{name} has no value"))?;
            let (value, after) = quoted(value).ok_or_else(unfinished)?;
            rest = end_of(after).ok_or_else(unfinished)?;
            answer.variables.push((name, Some(value)));
        } else if let Some(statement) = rest.strip_prefix(UNSET) {
            let (name, after) = quoted(statement).ok_or("a name has no end")?;
            let name = name_of(name)?;
            rest = end_of(after).ok_or_else(|| format!("the statement that unsets {name} has no end"))?;
            answer.variables.push((name, None));
        } else {
            let (line, after) = line(rest);
            rest = after;
            match line.strip_prefix(STATUS) {
                Some(b"TRUE") => answer.status = Some(true),
                Some(b"FALSE") => answer.status = Some(false),
                _ if line.is_empty() => {}
                _ => answer.others += 1,
            }
        }
    }
    Ok(answer)
}

/// Returns the text up to the first quote without a preceding `\`, and the rest after that quote.
fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut bytes = text.iter().copied().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\'' => return Some((value, &text[at + 1..])),
            b'\\' => value.push(bytes.next()?.1),
            byte => value.push(byte),
        }
    }
    None
}

fn name_of(name: Vec<u8>) -> Result<String, String> {
    let name = String::from_utf8(name).map_err(|_| "a variable's name is not UTF-8")?;
    let is_name = !name.is_empty() && !name.contains(['=', '\0']);
    is_name.then(|| name.clone()).ok_or_else(|| format!("{name:?} is not a variable name"))
}

/// Returns the text after the end of a statement.
fn end_of(text: &[u8]) -> Option<&[u8]> {
    let after = text.strip_prefix(b")")?;
    match after.strip_prefix(b"\n") {
        None if !after.is_empty() => None,
        rest => Some(rest.unwrap_or_default()),
    }
}

fn line(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a value as modulecmd 5.2 does: `regsub -all {([\\'])} $value {\\\1}`.
    fn written(name: &str, value: &[u8]) -> Vec<u8> {
        let mut text = format!("Sys.setenv('{name}'='").into_bytes();
        for byte in value {
            if matches!(byte, b'\\' | b'\'') {
                text.push(b'\\');
            }
            text.push(*byte);
        }
        text.extend(b"')\n");
        text
    }

    #[test]
    fn what_modulecmd_prints_is_read() {
        // Recorded from `modulecmd.tcl r load odd`, release 5.2.0.
        let output = "Sys.unsetenv('GONE')\nSys.setenv('MANPATH'='/opt/odd/man')\n\
            Sys.setenv('ODD'='it\\'s \\\\ a \"quote\"\nline2 é ends\\\\\\\\')\nSys.setenv('EMPTY'='')\necho \
            hi\nmlstatus <- TRUE\n";
        let answer = parse(output.as_bytes()).unwrap();
        let set = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
        assert_eq!(
            answer.variables,
            [
                ("GONE".to_owned(), None),
                set("MANPATH", "/opt/odd/man"),
                set("ODD", "it's \\ a \"quote\"\nline2 é ends\\\\"),
                set("EMPTY", ""),
            ]
        );
        assert_eq!((answer.status, answer.others), (Some(true), 1));
    }

    #[test]
    fn every_value_of_the_bytes_that_matter_is_read_as_it_was_written() {
        let alphabet: &[&[u8]] =
            &[b"\\", b"'", b"\n", b")", b"'\n", b"='", b"a", &[0xff], "é".as_bytes(), b"Sys.setenv('X'='y')\n"];
        let mut values: Vec<Vec<u8>> = vec![Vec::new()];
        for _ in 0..4 {
            let longer = |value: &Vec<u8>| {
                let value = value.clone();
                alphabet.iter().map(move |more| [&value[..], more].concat())
            };
            values = values.iter().flat_map(longer).collect();
            for value in &values {
                let output = [written("A", value), written("B", b"next"), b"mlstatus <- FALSE\n".to_vec()].concat();
                let answer = parse(&output).unwrap();
                let expected = [("A".to_owned(), Some(value.clone())), ("B".to_owned(), Some(b"next".to_vec()))];
                assert_eq!(answer.variables, expected, "{}", String::from_utf8_lossy(&output));
                assert_eq!((answer.status, answer.others), (Some(false), 0));
            }
        }
    }

    #[test]
    fn output_that_is_cut_or_spoilt_is_an_error_and_not_half_an_environment() {
        let whole = [written("A", b"1"), written("LONG", b"a'b\\c\nd")].concat();
        for end in written("A", b"1").len() + SET.len()..whole.len() - 2 {
            assert!(parse(&whole[..end]).is_err(), "{}", String::from_utf8_lossy(&whole[..end]));
        }
        for spoilt in ["Sys.setenv('A'='1') x\n", "Sys.setenv('A')\n", "Sys.setenv(''='1')\n", "Sys.unsetenv('A'\n"] {
            assert!(parse(spoilt.as_bytes()).is_err(), "{spoilt}");
        }
    }

    #[test]
    fn what_is_no_variable_is_counted() {
        let answer = parse(b"setwd('/tmp')\n\nmlstatus <- 'text'\nno newline").unwrap();
        assert_eq!(answer, Answer { variables: Vec::new(), status: None, others: 3 });
    }
}
