//! Medians, and the table that a part prints.

use std::fmt;
use std::time::Duration;

/// One line of a table.
#[derive(Debug)]
struct Row {
    figure: String,
    ours: String,
    against: String,
    ratio: Option<f64>,
    goal: String,
    met: Option<bool>,
}

/// Result of a part.
#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), rows: Vec::new() }
    }

    /// Adds a duration and the duration that it is compared with.
    pub(crate) fn times(&mut self, figure: impl Into<String>, ours: Duration, against: Duration) -> &mut Self {
        let ratio = Some(ratio(ours, against));
        self.row(figure.into(), millis(ours), millis(against), ratio)
    }

    /// Adds a figure without a comparison.
    pub(crate) fn alone(&mut self, figure: impl Into<String>, ours: String) -> &mut Self {
        self.row(figure.into(), ours, "-".to_owned(), None)
    }

    /// Adds two figures that are already text.
    pub(crate) fn pair(&mut self, figure: impl Into<String>, ours: String, against: String, ratio: f64) -> &mut Self {
        self.row(figure.into(), ours, against, Some(ratio))
    }

    /// Adds a comparison that cannot be measured on this machine.
    pub(crate) fn absent(&mut self, figure: impl Into<String>, why: &str) -> &mut Self {
        self.row(figure.into(), "-".to_owned(), why.to_owned(), None)
    }

    fn row(&mut self, figure: String, ours: String, against: String, ratio: Option<f64>) -> &mut Self {
        self.rows.push(Row { figure, ours, against, ratio, goal: "-".to_owned(), met: None });
        self
    }

    /// Sets the goal of the last row.
    pub(crate) fn goal(&mut self, goal: impl Into<String>, met: bool) -> &mut Self {
        if let Some(row) = self.rows.last_mut() {
            (row.goal, row.met) = (goal.into(), Some(met));
        }
        self
    }
}

/// Divides the first duration by the second.
pub(crate) fn ratio(ours: Duration, against: Duration) -> f64 {
    ours.as_secs_f64() / against.as_secs_f64().max(f64::MIN_POSITIVE)
}

pub(crate) fn millis(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    if millis < 10.0 { format!("{millis:.2} ms") } else { format!("{millis:.0} ms") }
}

/// Formats the duration of a call, and the number of calls in a second.
pub(crate) fn rate(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    let calls = (1e6 / micros.max(f64::MIN_POSITIVE)).round();
    if micros < 10.0 { format!("{micros:.1} us, {calls}/s") } else { format!("{micros:.0} us, {calls}/s") }
}

/// Formats a number of KiB.
pub(crate) fn kib(kib: u64) -> String {
    match kib {
        0..4096 => format!("{kib} KB"),
        _ => format!("{}.{} MB", kib / 1024, kib % 1024 * 10 / 1024),
    }
}

/// Returns the 95th percentile.
pub(crate) fn p95(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() * 95 / 100).copied().unwrap_or_default()
}

/// Returns the median.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["", "agentd", "against", "ratio", "goal", "met"].map(str::to_owned);
        let mut lines = vec![heads];
        for row in &self.rows {
            lines.push([
                row.figure.clone(),
                row.ours.clone(),
                row.against.clone(),
                row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
                row.goal.clone(),
                row.met.map_or("-", |met| if met { "yes" } else { "NO" }).to_owned(),
            ]);
        }
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
        let widths: [usize; 6] = std::array::from_fn(width);
        writeln!(f, "{}", self.title)?;
        for line in &lines {
            // The first and the last column contain words, and the others contain numbers.
            for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
                match column {
                    0 => write!(f, "  {cell:<width$}")?,
                    5 => writeln!(f, "  {cell}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
        }
        Ok(())
    }
}
