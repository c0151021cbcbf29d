//! Turns the events of the parser into lines.

use pulldown_cmark::{Event, HeadingLevel, Tag, TagEnd};

use super::lines::{Spans, Style};
use super::table::Table;
use crate::painted;
use crate::terminal::harmless;

/// Width of a thematic break.
const RULE: usize = 40;

/// Text before the lines of a block inside a quotation or an item.
#[derive(Debug, Clone)]
struct Margin {
    /// Before the next line, once: the mark of an item.
    first: Option<String>,
    /// Before the other lines.
    rest: String,
}

#[derive(Debug)]
pub(super) struct Blocks {
    colour: bool,
    width: usize,
    out: String,
    text: Spans,
    style: Style,
    margins: Vec<Margin>,
    /// Number of the next item of each open list; `None` in a list with bullets.
    lists: Vec<Option<u64>>,
    /// Whether an empty line precedes the next block.
    separate: bool,
    /// Code of the open code block.
    code: Option<String>,
    table: Option<Table>,
    /// Targets of the open links.
    links: Vec<String>,
}

impl Blocks {
    pub(super) fn new(colour: bool, width: usize, style: Style) -> Self {
        Self {
            colour,
            width: width.max(10),
            out: String::new(),
            text: Spans::default(),
            style,
            margins: Vec::new(),
            lists: Vec::new(),
            separate: false,
            code: None,
            table: None,
            links: Vec::new(),
        }
    }

    pub(super) fn finish(mut self) -> String {
        self.end_text();
        self.out
    }

    pub(super) fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some(code) => code.push_str(&text),
                None => self.text.push(&text, self.style),
            },
            Event::Code(code) | Event::InlineMath(code) | Event::DisplayMath(code) => {
                let text = if self.colour { code.into_string() } else { format!("`{code}`") };
                self.text.push(&text, self.style.with(Style::CODE));
            }
            // Markup of HTML is shown unchanged. Nothing is hidden, comments neither.
            Event::Html(html) | Event::InlineHtml(html) => self.text.push(&html, self.style.with(Style::DIM)),
            Event::FootnoteReference(name) => self.text.push(&format!("[^{name}]"), self.style),
            Event::SoftBreak | Event::HardBreak => self.text.push("\n", self.style),
            Event::TaskListMarker(done) => self.text.push(if done { "[x] " } else { "[ ] " }, self.style),
            Event::Rule => {
                self.begin_block();
                let rule = Style::DIM.paint(&"─".repeat(self.width.min(RULE)), self.colour);
                self.line(&rule);
                self.separate = true;
            }
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.begin_block(),
            Tag::Heading { level, .. } => {
                self.begin_block();
                let style = if level == HeadingLevel::H1 { Style::BOLD.with(Style::LINK) } else { Style::BOLD };
                self.style = self.style.with(style);
            }
            Tag::BlockQuote(_) => {
                self.begin_block();
                let mark = Style::DIM.paint("│ ", self.colour);
                self.margins.push(Margin { first: None, rest: mark });
            }
            Tag::CodeBlock(_) => {
                self.begin_block();
                self.code = Some(String::new());
                // Without colours, the indent marks the code. With colours, the code can be copied.
                let rest = if self.colour { String::new() } else { "    ".to_owned() };
                self.margins.push(Margin { first: None, rest });
            }
            Tag::List(first) => {
                self.end_text();
                if self.lists.is_empty() {
                    self.begin_block();
                }
                self.lists.push(first);
            }
            Tag::Item => self.start_item(),
            Tag::Table(alignments) => {
                self.begin_block();
                self.table = Some(Table { alignments, rows: Vec::new() });
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
                if matches!(tag, Tag::TableHead) {
                    self.style = self.style.with(Style::BOLD);
                }
            }
            Tag::Emphasis => self.style = self.style.with(Style::ITALIC),
            Tag::Strong => self.style = self.style.with(Style::BOLD),
            Tag::Strikethrough => self.style = self.style.with(Style::STRUCK),
            Tag::Link { dest_url, .. } => {
                self.links.push(dest_url.into_string());
                self.style = self.style.with(Style::LINK);
            }
            Tag::Image { dest_url, .. } => {
                self.links.push(dest_url.into_string());
                self.text.push("image: ", self.style);
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => {
                self.end_text();
                self.separate = true;
            }
            TagEnd::Heading(level) => {
                self.end_text();
                self.separate = true;
                let style = if level == HeadingLevel::H1 { Style::BOLD.with(Style::LINK) } else { Style::BOLD };
                self.style = self.style.without(style);
            }
            TagEnd::BlockQuote(_) => {
                self.end_text();
                self.margins.pop();
                self.separate = true;
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::List(_) => {
                self.end_text();
                self.lists.pop();
                self.separate |= self.lists.is_empty();
            }
            TagEnd::Item => {
                self.end_text();
                if self.margins.last().is_some_and(|margin| margin.first.is_some()) {
                    self.line(""); // an empty item
                }
                self.margins.pop();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.text);
                if let Some(row) = self.table.as_mut().and_then(|table| table.rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::Table => {
                let table = self.table.take().unwrap_or_default();
                for line in table.lines(self.room(), self.colour) {
                    self.line(&line);
                }
                self.separate = true;
            }
            TagEnd::Emphasis => self.style = self.style.without(Style::ITALIC),
            TagEnd::Strong | TagEnd::TableHead => self.style = self.style.without(Style::BOLD),
            TagEnd::Strikethrough => self.style = self.style.without(Style::STRUCK),
            TagEnd::Link => {
                self.style = self.style.without(Style::LINK);
                self.end_link();
            }
            TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    /// Shows the target of a link, which the text may not name.
    fn end_link(&mut self) {
        let Some(target) = self.links.pop() else { return };
        if !self.text.ends_with(&harmless(&target)) {
            self.text.push(&format!(" ({target})"), self.style.with(Style::DIM));
        }
    }

    fn start_item(&mut self) {
        self.end_text();
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                let mark = format!("{number}. ");
                *number += 1;
                mark
            }
            _ => "• ".to_owned(),
        };
        let rest = " ".repeat(mark.chars().count());
        self.margins.push(Margin { first: Some(mark), rest });
        self.separate = false;
    }

    fn end_code(&mut self) {
        let code = self.code.take().unwrap_or_default();
        for line in code.lines() {
            let line = harmless(line).replace('\t', "    ");
            let line = self.style.with(Style::CODE).paint(&line, self.colour);
            self.line(&line);
        }
        self.margins.pop();
        self.separate = true;
    }

    /// Ends the text before, and puts an empty line before the next block.
    fn begin_block(&mut self) {
        self.end_text();
        if std::mem::take(&mut self.separate) && !self.out.is_empty() {
            let margin: String = self.margins.iter().map(|margin| margin.rest.as_str()).collect();
            self.out.push_str(margin.trim_end());
            self.out.push('\n');
        }
    }

    /// Writes the text so far.
    fn end_text(&mut self) {
        if self.text.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.text);
        for (line, _) in text.wrap(self.room(), self.colour) {
            self.line(&line);
        }
    }

    /// Width inside the margins.
    fn room(&self) -> usize {
        let margins = self.margins.iter().map(|margin| painted::width(&margin.rest)).sum::<usize>();
        self.width.saturating_sub(margins).max(10)
    }

    fn line(&mut self, text: &str) {
        for margin in &mut self.margins {
            let first = margin.first.take();
            self.out.push_str(first.as_deref().unwrap_or(&margin.rest));
        }
        self.out.push_str(text);
        let kept = self.out.trim_end_matches(' ').len();
        self.out.truncate(kept);
        self.out.push('\n');
    }
}
