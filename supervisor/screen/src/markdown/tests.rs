use super::*;

/// Renders a text that arrives in parts of this many characters.
fn streamed(text: &str, part: usize, width: usize) -> String {
    let mut markdown = Markdown::new(false);
    let mut shown = String::new();
    let chars: Vec<char> = text.chars().collect();
    for part in chars.chunks(part) {
        markdown.push(&part.iter().collect::<String>());
        shown.push_str(&markdown.ready(width));
    }
    shown + &markdown.finish(width)
}

const TEXT: &str = "# Title\n\nSome *light* and **bold** and `code`.\n\n\
    - one\n- two\n  - nested\n\n1. first\n2. second\n\n> said\n\n\
    ```rust\nfn main() {}\n```\n\n| a | b |\n|---|--:|\n| 1 | 22 |\n\n---\n\
    [here](https://e.x/) 2 * 3 * 4 and *.o *.a\n";

const SHOWN: &str = "Title\n\nSome light and bold and `code`.\n\n• one\n• two\n  • nested\n\n1. first\n2. second\n\n\
    │ said\n\n    fn main() {}\n\na │  b\n──┼───\n1 │ 22\n\n────────────────────────────────────────\n\n\
    here (https://e.x/) 2 * 3 * 4 and *.o *.a\n";

#[test]
fn a_text_is_shown_alike_in_whatever_parts_it_arrives() {
    for part in [1, 2, 7, 40, 10_000] {
        assert_eq!(streamed(TEXT, part, 80), SHOWN, "parts of {part}");
    }
}

#[test]
fn a_block_is_shown_once_the_next_one_begins_and_the_rest_is_a_preview() {
    let mut markdown = Markdown::new(false);
    markdown.push("one\n\ntw");
    assert_eq!((markdown.ready(80).as_str(), markdown.preview(80).as_str()), ("", "one\n\ntw\n"));
    markdown.push("o\n");
    assert_eq!((markdown.ready(80).as_str(), markdown.preview(80).as_str()), ("one\n", "\ntwo\n"));
    assert_eq!(markdown.finish(80), "\ntwo\n");
    assert!(markdown.pending.is_empty());
}

#[test]
fn the_lines_of_a_long_code_block_and_the_items_of_a_long_list_are_shown_as_they_come() {
    let mut markdown = Markdown::new(false);
    markdown.push("```\none\ntwo\nthr");
    assert_eq!((markdown.ready(80).as_str(), markdown.preview(80).as_str()), ("    one\n    two\n", "    thr\n"));
    markdown.push("ee\n```\n\n- a\n- b\n");
    assert_eq!(markdown.ready(80), "    three\n\n• a\n");
    assert_eq!(markdown.finish(80), "• b\n");
}

#[test]
fn a_long_paragraph_and_a_long_answer_do_not_wait_for_their_ends() {
    let mut markdown = Markdown::new(false);
    for number in 0..10_000 {
        markdown.push(&format!("line {number}\n"));
        markdown.ready(80);
        assert!(markdown.pending.len() < 1_000, "{}", markdown.pending.len());
    }
}

#[test]
fn a_line_without_an_end_is_shown_in_parts() {
    let mut markdown = Markdown::new(false);
    let mut shown = String::new();
    for _ in 0..100 {
        markdown.push(&"x".repeat(1_000));
        shown.push_str(&markdown.ready(80));
        assert!(markdown.pending.len() <= LARGEST);
    }
    shown.push_str(&markdown.finish(80));
    assert_eq!(shown.matches('x').count(), 100_000);
}

#[test]
fn nothing_in_markdown_reaches_a_terminal_as_a_control_character() {
    let bad = "\x1b]0;gotcha\x07 \u{9b}31m \u{202e}";
    let entity = "&#27;]0;gotcha&#7; &#x9b;31m &#x202e;";
    for evil in [bad, entity] {
        let text = format!(
            "# {evil}\n\n{evil} `{evil}` [{evil}](<http://x/{evil}> \"{evil}\")\n\n```{evil}\n{evil}\n```\n\n\
             > {evil}\n\n- {evil}\n\n| {evil} | b |\n|---|---|\n| {evil} | c |\n\n<b {evil}>\n\n\
             ![{evil}](<{evil}>)\n\n\x20   {evil}\n\n[^{evil}]: {evil}\n"
        );
        for part in [1, 10_000] {
            let shown = streamed(&text, part, 60);
            assert!(!shown.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'), "{shown:?}");
        }
        let mut coloured = Markdown::new(true);
        coloured.push(&text);
        let shown = crate::painted::plain(&coloured.finish(60));
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    }
}

#[test]
fn lines_fit_the_width_and_words_stay_whole() {
    let text = "The quick **brown** fox, jumps over the lazy dog.\n\n- an item that is longer than the line\n\n\
        averyveryverylongwordthatfitsnowhere\n\n| column | another column |\n|---|---|\n| a cell with words | b |\n";
    let shown = streamed(text, 5, 20);
    assert!(shown.lines().all(|line| crate::painted::width(line) <= 20), "{shown}");
    assert!(shown.contains("The quick brown fox,\njumps over the lazy\ndog.\n"), "{shown}");
    assert!(shown.contains("• an item that is\n  longer than the\n  line\n"), "{shown}");
}
