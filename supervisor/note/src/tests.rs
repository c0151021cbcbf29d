use std::fs;
use std::path::{Path, PathBuf};

use agentd_api::note::{NoteContextSet, NoteToolCall, NoteVariableChange, NoteVariables};
use agentd_api::session::ResumeNote;
use proptest::prelude::*;

use super::template::variable_names;
use super::*;

/// Renders the variables in both forms.
fn both(variables: &NoteVariables) -> [(&'static str, String); 2] {
    [("brief", ResumeNote::Brief), ("full", ResumeNote::Full)].map(|(name, mode)| {
        let rendered = render(&Template::built_in(), &NoteVariables { mode, ..variables.clone() });
        assert_eq!(rendered.error, None);
        (name, rendered.note.expect("the built-in template has text"))
    })
}

/// The folder `cases` has variables in `NAME.json`, and the notes in `NAME.brief.txt` and `NAME.full.txt`.
#[test]
fn each_case_gives_its_two_notes() {
    let folder = Path::new("cases");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let inputs: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
    assert!(inputs.len() >= 5, "{inputs:?}");
    for input in inputs {
        let variables = serde_json::from_slice(&fs::read(&input).unwrap()).unwrap();
        for (form, note) in both(&derive(variables)) {
            let expected = input.with_extension(format!("{form}.txt"));
            if std::env::var_os("AGENTD_TEST_REWRITE").is_some() {
                fs::write(&expected, format!("{note}\n")).unwrap();
            }
            let text = fs::read_to_string(&expected).unwrap_or_default();
            assert_eq!(format!("{note}\n"), text, "{}: write it with AGENTD_TEST_REWRITE=1", expected.display());
        }
    }
}

#[test]
fn a_brief_note_without_changes_is_one_line_and_every_other_note_is_more() {
    let empty = derive(NoteVariables { resumed: true, directory: "/work".to_owned(), ..NoteVariables::default() });
    let with_hint = NoteVariables { hint: Some("\"h\"".to_owned()), ..empty.clone() };
    for variables in [empty, derive(with_hint)] {
        let [(_, brief), (_, full)] = both(&variables);
        assert!(!brief.contains('\n') && brief.contains("Nothing else has changed"), "{brief}");
        assert!(full.contains('\n'), "{full}");
    }
    let [(_, brief), _] = both(&full_sample());
    assert!(brief.contains('\n') && !brief.contains("Nothing else"), "{brief}");
}

#[test]
fn a_mistake_in_a_template_is_found_when_it_is_parsed_and_names_its_line() {
    let rows = [
        ("one\n{% if resumed %}\n", "line 2", "syntax error"),
        ("one\n\n{{ nmae }}", "line 3", "nmae"),
        // No sample reaches the first branch, since a note is never without a directory.
        ("{% if not directory %}\n{{ whatever }}\n{% endif %}", "line 2", "unknown variable \"whatever\""),
        ("a\n{% for change in environment %}{{ change.nmae }}{% endfor %}", "line 2", "undefined"),
        ("\n{{ hint|shout }}", "line 2", "unknown filter"),
        ("{{ open(\"/etc/passwd\") }}", "line 1", "open"),
        ("{{ debug() }}", "line 1", "debug"),
        ("{% include \"/etc/passwd\" %}", "line 1", "syntax error"),
        ("{{ directory + 1 }}", "line 1", "invalid operation"),
        ("{% if not resumed and not changed %}{{ hint.text.more }}{% endif %}", "line 1", "undefined"),
    ];
    for (text, place, word) in rows {
        let error = Template::parse(text).expect_err(text).to_string();
        assert!(error.starts_with(place) && error.contains(word), "{text:?}: {error}");
    }
    let long = Template::parse(&"x".repeat(65 << 10)).unwrap_err();
    assert!(long.to_string().contains("65536"), "{long}");
}

#[test]
fn a_template_that_needs_too_much_time_or_memory_fails_and_takes_neither() {
    for text in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% set x = a %}{% endfor %}{% endfor %}",
        "{{ \"a\" * 10000000000000 }}",
        "{{ \"a\" * 100000000 }}",
        "{% set n = namespace(x=\"aaaaaaaaaaaaaaaa\") %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f(\"a\") }}",
        "{% set s = \"//////////////////////////////////\" %}{{ s|replace(\"/\", s)|replace(\"/\", s)|replace(\"/\", s)\
            |replace(\"/\", s)|replace(\"/\", s)|replace(\"/\", s)|length }}",
    ] {
        let error = Template::parse(text).expect_err(text);
        assert!(error.line.is_some(), "{text}: {error}");
    }
    let nested = format!("{}{}", "{% if resumed %}".repeat(5000), "{% endif %}".repeat(5000));
    let _ = Template::parse(&nested); // an error or a template, and no overflow of the stack
    let _ = Template::parse(&format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000)));
}

#[test]
fn a_note_that_is_too_long_is_cut_at_a_line_and_says_so() {
    let template = Template::parse("{% for i in range(3000) %}line {{ i }} of é{{ \"\\n\" }}{% endfor %}").unwrap();
    let note = template.render(&full_sample()).unwrap();
    assert!(note.len() <= MAX_NOTE && note.starts_with("line 0 of é\nline 1"), "{}", note.len());
    assert!(
        note.ends_with("of é\n[the rest of this note is cut: it is longer than 32 KiB]"),
        "{}",
        &note[note.len() - 100..]
    );
    let template = Template::parse("{% for i in range(30000) %}é{% endfor %}").unwrap();
    let note = template.render(&full_sample()).unwrap();
    assert!(note.len() <= MAX_NOTE && note.starts_with("éé") && note.ends_with("32 KiB]"), "{}", note.len());
}

#[test]
fn a_template_that_fails_only_with_the_variables_of_a_note_gives_the_built_in_note_and_the_reason() {
    let template = Template::parse("{% if environment|length > 3 %}{{ \"a\" * 100000000 }}{% endif %}mine").unwrap();
    let mut variables = full_sample();
    assert_eq!(render(&template, &variables), Rendered { note: Some("mine".to_owned()), error: None });
    variables.environment = vec![variables.environment[0].clone(); 4];
    let rendered = render(&template, &variables);
    assert!(rendered.error.is_some(), "{rendered:?}");
    assert_eq!(rendered.note, render(&Template::built_in(), &variables).note);
}

#[test]
fn a_template_without_text_gives_no_note() {
    let template = Template::parse("{% if changed and not changed %}x{% endif %}\n  \n").unwrap();
    assert_eq!(render(&template, &full_sample()), Rendered { note: None, error: None });
}

#[test]
fn the_built_in_template_is_free_of_mistakes_and_the_sample_has_every_variable() {
    Template::parse(BUILT_IN).unwrap();
    let sample = serde_json::to_value(full_sample()).unwrap();
    let empty = |value: &serde_json::Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let lacking: Vec<_> = sample.as_object().unwrap().iter().filter(|(_, value)| empty(value)).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    assert_eq!(variable_names().into_iter().collect::<Vec<_>>(), {
        let mut names: Vec<String> = sample.as_object().unwrap().keys().cloned().collect();
        names.sort();
        names
    });
}

/// Returns the page about the note, and its blocks of Jinja.
fn page() -> (String, Vec<String>) {
    let page = fs::read_to_string("../../docs/guide/note.md").unwrap();
    let blocks = page.split("```jinja\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    let blocks = blocks.collect();
    (page, blocks)
}

#[test]
fn the_example_of_the_page_is_a_template_and_its_last_block_is_the_built_in_one() {
    let (_, blocks) = page();
    let [example, built_in] = &blocks[..] else { panic!("{blocks:#?}") };
    let note = Template::parse(example).unwrap().render(&full_sample()).unwrap();
    let expected = "Welcome back after 3 days.\nYour directory is /work.\n* PATH was changed by env-script.\n\
                    Ask before you work: the provider modules is missing.";
    assert_eq!(note, expected);
    assert_eq!(built_in, BUILT_IN, "copy supervisor/note/src/note.j2 to the page");
}

#[test]
fn the_page_describes_every_variable_and_every_field_of_an_entry() {
    let (page, _) = page();
    let table = page.split("| variable | contents |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows: Vec<(&str, &str)> = table.lines().skip(2).map(|row| row[1..].split_once('|').unwrap()).collect();
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut described: Vec<String> = rows.iter().flat_map(|(names, _)| quoted(names)).collect();
    described.sort();
    assert_eq!(described, variable_names().into_iter().collect::<Vec<_>>());
    let sample = serde_json::to_value(full_sample()).unwrap();
    for (names, contents) in rows {
        let value = &sample[quoted(names)[0].as_str()];
        let entry = value.as_array().and_then(|list| list[0].as_object());
        for field in entry.into_iter().flat_map(|entry| entry.keys()).filter(|field| *field != "text") {
            assert!(quoted(contents).contains(field), "{names}: {field}");
        }
    }
}

#[test]
fn texts_are_one_printable_line_of_limited_length() {
    assert_eq!(text::name("/work/a_b-c.d"), "/work/a_b-c.d");
    assert_eq!(text::name(""), "\"\"");
    assert_eq!(text::name("a b"), "\"a b\"");
    assert_eq!(text::quoted("it's é 日本"), "\"it's é 日本\"");
    assert_eq!(text::quoted("a\"b\\c\nd\u{1b}[2J"), "\"a\\\"b\\\\c\\nd\\u{1b}[2J\"");
    // Direction of writing, zero width, tags and variation selectors: all can hide text.
    for hidden in ['\u{202e}', '\u{200b}', '\u{2066}', '\u{e0041}', '\u{fe0f}', '\u{e0100}', '\u{2028}', '\u{feff}'] {
        assert_eq!(text::quoted(&hidden.to_string()), format!("\"\\u{{{:x}}}\"", u32::from(hidden)));
    }
    assert_eq!(text::line("a \"b\"\n"), "a \"b\"\\n");
    let long = text::quoted(&"x".repeat(1000));
    assert!(long.ends_with("x…\"") && long.chars().count() == text::MAX_TEXT + 3, "{long}");
}

#[test]
fn lengths_of_time_are_words() {
    let rows = [
        (0, "less than a minute"),
        (60, "1 minute"),
        (3599, "59 minutes"),
        (3600, "1 hour"),
        (7200, "2 hours"),
        (86_400, "1 day"),
        (86_400 * 20, "20 days"),
    ];
    for (seconds, words) in rows {
        assert_eq!(text::duration(seconds), words);
    }
}

proptest! {
    #[test]
    fn no_text_breaks_the_note_or_its_limit(
        hostile in any::<String>(),
        many in 0..3000_usize,
        new_conversation in any::<bool>(),
        resumed in any::<bool>(),
    ) {
        let safe = text::quoted(&hostile);
        prop_assert!(!safe.contains(|c: char| c.is_control()), "{safe:?}");
        prop_assert!(safe.starts_with('"') && safe.ends_with('"') && safe.chars().count() <= 10 * text::MAX_TEXT + 3);
        let named = text::name(&hostile);
        let change = NoteVariableChange { name: named.clone(), text: format!("{named} added"), ..Default::default() };
        let call = NoteToolCall { title: safe.clone(), text: safe.clone(), kind: None };
        let set = NoteContextSet { name: named.clone(), items: vec![safe.clone()], text: format!("{named}: {safe}") };
        let variables = derive(NoteVariables {
            resumed,
            new_conversation,
            directory: named.clone(),
            hint: Some(safe.clone()),
            context: vec![set],
            environment: vec![change; many],
            tool_calls: vec![call; many % 20],
            crash: Some(text::line(&hostile)),
            restarted: !resumed,
            ..NoteVariables::default()
        });
        for (_, note) in both(&variables) {
            prop_assert!(note.len() <= MAX_NOTE);
            prop_assert!(note.chars().all(|c| c == '\n' || !c.is_control()));
            prop_assert!(note.lines().all(|line| !line.trim().is_empty()));
        }
    }

    #[test]
    fn no_template_makes_the_parser_or_the_renderer_panic(
        parts in proptest::collection::vec(prop_oneof![
            Just("{{ ".to_owned()), Just(" }}".to_owned()), Just("{% ".to_owned()), Just(" %}".to_owned()),
            Just("if changed".to_owned()), Just("endif".to_owned()), Just("for x in environment".to_owned()),
            Just("endfor".to_owned()), Just("x.text".to_owned()), Just("directory".to_owned()),
            Just("|length".to_owned()),
            Just(" * 99999999999".to_owned()), Just("[1:]".to_owned()), Just(" ~ ".to_owned()), any::<String>(),
        ], 0..12),
    ) {
        if let Ok(template) = Template::parse(&parts.concat()) {
            let _ = template.render(&full_sample());
        }
    }
}
