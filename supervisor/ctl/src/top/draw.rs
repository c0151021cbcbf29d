//! Draws the view: the header, the list, the conversation with its question, and the footer.
//!
//! No meaning is in a colour alone: each has a word or a mark beside it. Every part is cut to the screen, so that a
//! small terminal shows less and nothing fails. Text of sessions is made harmless before it comes here or in
//! [`paint::cell`].

use agentd_api::feed::SessionBrief;
use agentd_screen::painted;
use agentd_screen::table::Cut;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use tokio::time::Instant;

use super::groups::{Group, attention, state};
use super::keys::HELP;
use super::paint::{cell, one, styled};
use super::sessions::label;
use super::{Asked, Followed, Link, Mode, Top, follow};
use crate::asking::{PAUSE, hint};

/// Rows by which a long question scrolls.
pub(super) const QUESTION_STEP: isize = 5;
/// Fewest rows of the list, if the screen has them.
const LIST: u16 = 3;
/// Seconds without a sign of the daemon that are shown. A heartbeat comes each 15 s.
const QUIET: u64 = 20;
/// Most rows of a message at the bottom.
const MESSAGE: usize = 3;
/// Width from which the list shows the messages of sessions.
const WIDE: usize = 120;
/// Smallest and largest width of the column of places.
const PLACE: (usize, usize) = (4, 16);

/// Styles of the view.
#[derive(Clone, Copy)]
struct Theme {
    colour: bool,
}

impl Theme {
    fn bold() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn bar() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn coloured(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn need(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    fn bad(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }
}

/// Draws the whole view.
pub(super) fn draw(frame: &mut Frame<'_>, top: &mut Top) {
    let area = frame.area();
    let theme = Theme { colour: top.screen.colour };
    let (header, rest) = split(area, 1);
    let lines = footer(top, usize::from(rest.width), theme);
    let below = u16::try_from(lines.len()).unwrap_or(1).min(rest.height.div_ceil(2));
    let (body, footer) = split(rest, rest.height - below);
    let buffer = frame.buffer_mut();
    put(buffer, header, 0, &self::header(top, usize::from(header.width), theme), Theme::bar());
    for (row, line) in lines.iter().enumerate() {
        put(buffer, footer, row, line, Style::new());
    }
    if matches!(top.mode, Mode::Help) {
        return help(buffer, body);
    }
    let rows = list_rows(top);
    let share = body.height.saturating_mul(2) / 5;
    let height = share.max(LIST).min(u16::try_from(rows.len()).unwrap_or(u16::MAX)).max(1);
    let (upper, lower) = split(body, height);
    let (first, lines) = list(top, &rows, upper, theme);
    top.list_row = first;
    for (row, (line, style)) in lines.into_iter().enumerate() {
        put(buffer, upper, row, &line, style);
    }
    let (title, talk) = split(lower, 1);
    put(buffer, title, 0, &talk_title(top, usize::from(title.width)), Theme::bar());
    conversation(buffer, talk, top, theme);
}

/// Divides an area after this number of rows.
fn split(area: Rect, rows: u16) -> (Rect, Rect) {
    let rows = rows.min(area.height);
    let upper = Rect { height: rows, ..area };
    (upper, Rect { y: area.y + rows, height: area.height - rows, ..area })
}

/// Writes a line into a row of the area, if the area has it. The style is that of the whole row.
fn put(buffer: &mut Buffer, area: Rect, row: usize, line: &Line<'_>, style: Style) {
    let Ok(row) = u16::try_from(row) else { return };
    if row >= area.height || area.width == 0 {
        return;
    }
    let y = area.y + row;
    buffer.set_style(Rect { y, height: 1, ..area }, style);
    buffer.set_line(area.x, y, line, area.width);
}

/// Returns a text on the left and one on the right of a row. The right one is cut first.
fn ends(left: &str, right: &str, width: usize) -> String {
    let used = painted::width(left).min(width);
    let right = cell(right, painted::width(right).min(width.saturating_sub(used + 1)), Cut::End);
    let gap = width.saturating_sub(used + painted::width(&right));
    format!("{}{}{right}", cell(left, used, Cut::End), " ".repeat(gap))
}

fn header(top: &Top, width: usize, theme: Theme) -> Line<'static> {
    let machine = top.client.way().machine().map(|machine| format!(" on {}", one(machine))).unwrap_or_default();
    let (count, needs) = (top.sessions.count(), top.sessions.in_need());
    let sessions = if count == 1 { "1 session".to_owned() } else { format!("{count} sessions") };
    let needs = match needs {
        0 => "none needs you".to_owned(),
        1 => "1 needs you".to_owned(),
        more => format!("{more} need you"),
    };
    let filter = match top.sessions.filter().text() {
        "" => String::new(),
        text => format!(" · filter: {}", one(text)),
    };
    let left = format!(" agentd{machine} · {sessions} · {needs}{filter}");
    let (link, is_bad) = connection(top);
    let text = ends(&left, &format!("{link} "), width);
    Line::styled(text, if is_bad { theme.bad() } else { Style::new() })
}

/// Returns the state of the connection in words, and whether it is bad.
fn connection(top: &Top) -> (String, bool) {
    match &top.link {
        Link::Connecting => ("connecting".to_owned(), false),
        Link::Live { .. } if top.trouble.is_some() => ("connected, with trouble".to_owned(), true),
        Link::Live { sign } => match sign.elapsed().as_secs() {
            seconds @ QUIET.. => (format!("no sign of agentd for {seconds} s"), true),
            _ => ("connected".to_owned(), false),
        },
        Link::Away { since, .. } => (format!("agentd is away, {} s", since.elapsed().as_secs()), true),
    }
}

/// Returns the lines at the bottom: the typed filter, a question, the last message, or the keys.
fn footer(top: &Top, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let told = |text: &str, style: Style| -> Vec<Line<'static>> {
        let rows = painted::words(text, width).into_iter().take(MESSAGE);
        rows.map(|row| Line::styled(row, style)).collect()
    };
    match (&top.mode, &top.message, &top.link) {
        (Mode::Filter(text), ..) => {
            let keys = "   Enter keeps it, Esc clears it";
            let text = Span::styled(format!("filter: {}", one(text)), Theme::bold());
            vec![Line::from(vec![text, Span::styled(" ", Theme::bar()), Span::raw(keys)])]
        }
        (Mode::Stop(_, label), ..) => {
            let text = format!("stop {}? Its agent and all its processes end. y stops it", one(label));
            told(&text, theme.need())
        }
        (_, Some(message), _) => told(&message.text, if message.is_error { theme.bad() } else { Style::new() }),
        (_, None, Link::Away { reason, .. }) => told(&one(reason), theme.bad()),
        (_, None, Link::Live { .. }) if top.trouble.is_some() => {
            told(&top.trouble.as_deref().map(one).unwrap_or_default(), theme.bad())
        }
        (Mode::Help, ..) => vec![Line::raw("any key goes back")],
        _ => vec![Line::raw("? help  a attach  c cancel  s stop  r resume  / filter  Tab next in need  q quit")],
    }
}

fn help(buffer: &mut Buffer, area: Rect) {
    for (row, (keys, meaning)) in HELP.iter().enumerate() {
        let line = Line::from(vec![Span::styled(format!(" {keys:<22} "), Theme::bold()), Span::raw(*meaning)]);
        put(buffer, area, row, &line, Style::new());
    }
}

/// Row of the list.
enum Row<'a> {
    Title(Group, usize),
    Session(Group, &'a SessionBrief),
    /// There is no session to show, for this reason.
    Empty(&'static str),
}

fn list_rows(top: &Top) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    let (mut title, mut before) = (0, None);
    for (group, brief) in top.sessions.listed() {
        if before != Some(group) {
            (title, before) = (rows.len(), Some(group));
            rows.push(Row::Title(group, 0));
        }
        if let Some(Row::Title(_, count)) = rows.get_mut(title) {
            *count += 1;
        }
        rows.push(Row::Session(group, brief));
    }
    if rows.is_empty() {
        rows.push(Row::Empty(match &top.link {
            _ if top.sessions.count() > 0 => "no session matches the filter",
            Link::Live { .. } => "there is no session: agentctl run starts one",
            Link::Connecting => "the sessions are read",
            Link::Away { .. } => "agentd is away",
        }));
    }
    rows
}

/// Returns the first row of the list that is shown, and the shown lines. The selected session is among them.
fn list(top: &Top, rows: &[Row<'_>], area: Rect, theme: Theme) -> (usize, Vec<(Line<'static>, Style)>) {
    let (height, width) = (usize::from(area.height), usize::from(area.width));
    let selected = top.sessions.selected().map(|brief| &brief.id);
    let at = rows.iter().position(|row| matches!(row, Row::Session(_, brief) if Some(&brief.id) == selected));
    let at = at.unwrap_or_default();
    let mut first = top.list_row.min(rows.len().saturating_sub(height));
    // The title of the group is shown with its first session.
    let above = if at > 0 && matches!(rows[at - 1], Row::Title(..)) && height > 1 { at - 1 } else { at };
    first = first.min(above);
    if at >= first + height {
        first = at + 1 - height;
    }
    let shown = rows.iter().enumerate().skip(first).take(height);
    let places = place_width(rows, width);
    let lines = shown.map(|(row, content)| match content {
        Row::Title(group, count) => {
            let style = if *group == Group::NeedsYou { theme.need() } else { Theme::bold() };
            (Line::styled(cell(&format!("{} ({count})", group.title()), width, Cut::End), style), Style::new())
        }
        Row::Session(group, brief) => {
            let is_selected = row == at;
            let line = session(*group, brief, is_selected, Widths { all: width, places }, theme);
            (line, if is_selected { Theme::bar() } else { Style::new() })
        }
        Row::Empty(text) => (Line::raw((*text).to_owned()), Style::new()),
    });
    (first, lines.collect())
}

/// Returns the width of the column of places with its space. It is 0 if no session of the list is on a place.
fn place_width(rows: &[Row<'_>], width: usize) -> usize {
    let names = rows.iter().filter_map(|row| match row {
        Row::Session(_, brief) => brief.place.as_deref(),
        Row::Title(..) | Row::Empty(_) => None,
    });
    let longest = names.map(|name| painted::width(&one(name))).max();
    longest.map_or(0, |longest| 1 + longest.clamp(PLACE.0, (width / 10).clamp(PLACE.0, PLACE.1)))
}

/// Widths of the lines of the list.
#[derive(Clone, Copy)]
struct Widths {
    all: usize,
    /// Column of places with its space, or 0 without the column.
    places: usize,
}

/// Returns the line of a session: marks, name, state, agent, place, directory and, on a wide screen, the message.
fn session(group: Group, brief: &SessionBrief, is_selected: bool, widths: Widths, theme: Theme) -> Line<'static> {
    let Widths { all: width, places } = widths;
    let mark = if is_selected { '>' } else { ' ' };
    let need = if attention(brief).is_some() { '!' } else { ' ' };
    let (name, words) = ((width / 5).clamp(8, 24), (width * 2 / 5).clamp(8, 34));
    let agent = brief.agent.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
    let left = width.saturating_sub(2 + name + 1 + words + 1 + 10 + places + 1);
    let place = if places > 0 {
        format!(" {}", cell(brief.place.as_deref().unwrap_or_default(), places - 1, Cut::End))
    } else {
        String::new()
    };
    let message = brief.message.as_deref().filter(|_| width >= WIDE);
    let directory = if message.is_some() { left / 2 } else { left };
    let mut text = format!(
        "{mark}{need}{} {} {}{place} {}",
        cell(&label(brief), name, Cut::End),
        cell(&state(brief), words, Cut::End),
        cell(&agent, 10, Cut::End),
        cell(&brief.directory.to_string_lossy(), directory, Cut::Start),
    );
    if let Some(message) = message {
        text.push(' ');
        text.push_str(&cell(message, left - directory - 1, Cut::End));
    }
    let style = if group == Group::NeedsYou && !is_selected { theme.need() } else { Style::new() };
    Line::styled(text, style)
}

/// Returns the line above the conversation: the session, and the state of its connection.
fn talk_title(top: &mut Top, width: usize) -> Line<'static> {
    let selected = top.sessions.selected().map(|brief| (label(brief), state(brief), brief.place.clone()));
    let (Some((label, state, place)), Some(followed)) = (selected, &mut top.followed) else { return Line::raw("") };
    let place = place.map(|place| format!(" · on {}", one(&place))).unwrap_or_default();
    let is_at_end = followed.transcript().is_at_end();
    let link = match &followed.link {
        follow::Link::Opening => "opening".to_owned(),
        follow::Link::Live if matches!(top.link, Link::Away { .. }) => "agentd is away".to_owned(),
        follow::Link::Live if is_at_end => "live".to_owned(),
        follow::Link::Live => "live, End shows the end".to_owned(),
        follow::Link::Away => "agentd is away, the session continues".to_owned(),
        follow::Link::Over(reason) => reason.clone(),
    };
    let queued = match followed.queued() {
        0 => String::new(),
        number => format!(" · {number} queued"),
    };
    let title = followed.title().map(|title| format!(" · {}", one(title))).unwrap_or_default();
    let left = format!(" {} · {state}{place}{queued}{title}", one(&label));
    // The connection is never cut for a long title.
    let link = format!("{link} ");
    let room = width.saturating_sub(painted::width(&link) + 1);
    Line::raw(ends(cell(&left, painted::width(&left).min(room), Cut::End).trim_end(), &link, width))
}

/// Draws the conversation, and the open question below it.
fn conversation(buffer: &mut Buffer, area: Rect, top: &mut Top, theme: Theme) {
    let (height, width) = (usize::from(area.height), usize::from(area.width));
    let Some(followed) = &mut top.followed else { return };
    let question = top.asked.as_mut().map(|asked| question(followed, asked, width, height)).unwrap_or_default();
    let talk = height - question.len().min(height);
    let rows = followed.rows(width, talk);
    // A short conversation begins at the top, and the question follows it.
    let below = rows.len();
    for (row, text) in rows.iter().enumerate() {
        put(buffer, area, row, &styled(text), Style::new());
    }
    let last = question.len().saturating_sub(1);
    for (row, text) in question.iter().enumerate() {
        let style = if row == last { theme.need() } else { Style::new() };
        put(buffer, area, below + row, &styled(text), style);
    }
}

/// Returns the painted rows of a question and of the keys that answer it. Notes whether its last row is shown.
fn question(followed: &Followed, asked: &mut Asked, width: usize, height: usize) -> Vec<String> {
    let Some(request) = followed.question() else { return Vec::new() };
    let lines = followed.question_lines(request);
    let rows: Vec<String> = lines.iter().flat_map(|line| painted::rows(line, width)).collect();
    let room = height.saturating_sub(1);
    asked.first_row = asked.first_row.min(rows.len().saturating_sub(room));
    if room > 0 && asked.first_row + room >= rows.len() {
        asked.is_seen = true;
    }
    let hint = if !asked.is_seen {
        "PgDn shows the rest of the question".to_owned()
    } else if asked.quiet.is_over(Instant::now()) {
        hint(request)
    } else {
        PAUSE.to_owned()
    };
    let mut shown: Vec<String> = rows.into_iter().skip(asked.first_row).take(room).collect();
    shown.push(painted::clip(&hint, width));
    shown
}
