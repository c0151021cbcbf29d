//! Renders the Markdown of an agent for a terminal, block by block, while it arrives.
//!
//! The crate pulldown-cmark parses the text: `CommonMark` with tables, task lists and strikethrough. Control
//! characters are replaced after parsing, because an entity like `&#27;` becomes a control character there. The only
//! control sequences of the output are the styles of `lines.rs`.
//!
//! A block is complete when the next one begins. Complete items of a list and complete lines of code are shown before
//! the end of their block. The unfinished part therefore stays short.

mod blocks;
mod lines;
mod table;

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag};

use self::blocks::Blocks;
use self::lines::Style;

/// Number of lines after which a block is shown although it may continue.
const LONGEST: usize = 24;
/// Number of bytes after which a text is shown although its line may continue.
const LARGEST: usize = 32 << 10;

/// Text of one answer that arrives in parts.
#[derive(Debug)]
pub struct Markdown {
    colour: bool,
    /// Style of all text: thoughts are dim.
    base: Style,
    /// Text that is not shown yet.
    pending: String,
    /// Length of `pending` up to the last line that was examined for a complete block.
    examined: usize,
    /// Whether a block was shown. An empty line then precedes the next one.
    began: bool,
    /// Whether `pending` continues a block that was shown in part.
    continues: bool,
}

/// Place at which the pending text is divided.
struct Cut {
    /// Length of the part that is shown.
    at: usize,
    /// Text that must precede the rest, so that it is parsed as the same block.
    prefix: String,
    /// Whether the rest continues the block.
    continues: bool,
}

impl Markdown {
    pub fn new(colour: bool) -> Self {
        Self { colour, base: Style::default(), pending: String::new(), examined: 0, began: false, continues: false }
    }

    /// Renders text that is less important than the answer.
    pub fn dim(colour: bool) -> Self {
        Self { base: Style::DIM, ..Self::new(colour) }
    }

    pub fn push(&mut self, text: &str) {
        self.pending.push_str(text);
    }

    /// Removes the complete blocks, and returns their lines.
    pub fn ready(&mut self, width: usize) -> String {
        let mut shown = String::new();
        while self.pending.rfind('\n').is_some_and(|end| end >= self.examined) {
            // A line that is not complete may change the meaning of those before.
            let complete = self.pending.rfind('\n').map_or(0, |newline| newline + 1);
            let Some(cut) = cut(&self.pending[..complete]) else {
                self.examined = self.pending.len();
                break;
            };
            let rest = self.pending.split_off(cut.at);
            shown.push_str(&self.render(width));
            self.began = true;
            self.pending = cut.prefix + &rest;
            self.continues = cut.continues;
            self.examined = 0;
        }
        if self.pending.len() > LARGEST {
            shown.push_str(&self.render(width));
            self.pending.clear();
            (self.began, self.continues, self.examined) = (true, true, 0);
        }
        shown
    }

    /// Returns the lines of the part that is not complete.
    pub fn preview(&self, width: usize) -> String {
        self.render(width)
    }

    /// Ends the text, and returns the lines of its last part.
    pub fn finish(&mut self, width: usize) -> String {
        let shown = self.render(width);
        *self = Self { base: self.base, ..Self::new(self.colour) };
        shown
    }

    fn render(&self, width: usize) -> String {
        if self.pending.trim().is_empty() {
            return String::new();
        }
        let mut blocks = Blocks::new(self.colour, width, self.base);
        for event in Parser::new_ext(&self.pending, options()) {
            blocks.event(event);
        }
        let text = blocks.finish();
        let separate = self.began && !self.continues && !text.is_empty();
        if separate { format!("\n{text}") } else { text }
    }
}

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS
}

/// Start of a line that contains this place.
fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// Returns the place up to which complete lines are complete blocks, items of a list, or lines of code.
fn cut(text: &str) -> Option<Cut> {
    let mut depth = 0_usize;
    let mut last_block: Option<(Range<usize>, bool, bool)> = None; // its place, whether a list, whether fenced code
    let mut blocks = 0_usize;
    let mut last_item = None;
    for (event, range) in Parser::new_ext(text, options()).into_offset_iter() {
        let begins = depth == 0 && matches!(event, Event::Start(_) | Event::Rule | Event::Html(_));
        if begins {
            let fenced = matches!(&event, Event::Start(Tag::CodeBlock(kind)) if kind.is_fenced());
            last_block = Some((range.clone(), matches!(event, Event::Start(Tag::List(_))), fenced));
            (blocks, last_item) = (blocks + 1, None);
        }
        match event {
            Event::Start(tag) => {
                if depth == 1 && matches!(tag, Tag::Item) {
                    last_item = Some(range.start);
                }
                depth += 1;
            }
            Event::End(_) => depth -= 1,
            _ => {}
        }
    }
    let (block, is_list, is_fenced) = last_block?;
    let start = line_start(text, block.start);
    if blocks > 1 && start > 0 {
        return Some(Cut { at: start, prefix: String::new(), continues: false });
    }
    if let Some(item) = last_item.map(|item| line_start(text, item)).filter(|item| is_list && *item > start) {
        return Some(Cut { at: item, prefix: String::new(), continues: true });
    }
    let end = text.len();
    if is_fenced {
        return cut_code(&text[start..block.end]).map(|prefix| Cut { at: end, prefix, continues: true });
    }
    let many = text[..end].lines().count() >= LONGEST;
    many.then(|| Cut { at: end, prefix: String::new(), continues: true })
}

/// Returns the opening fence of a code block that has complete lines and no closing fence.
fn cut_code(block: &str) -> Option<String> {
    let mut lines = block.lines();
    let opening = lines.next()?;
    let last = lines.next_back()?;
    let fence: String = opening.trim_start().chars().take_while(|c| matches!(c, '`' | '~')).collect();
    let closing = last.trim();
    let closes = closing.starts_with(&fence) && closing.trim_matches(['`', '~']).is_empty();
    (!closes && !fence.is_empty()).then(|| format!("{opening}\n"))
}

#[cfg(test)]
mod tests;
