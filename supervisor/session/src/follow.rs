//! Reads the journal from the driver's position, and condenses records that no rule looks at.
//!
//! Reading blocks on the disk, so it runs outside of the driver's task. The driver applies the result to its
//! [`agentd_decide::state::State`]; nothing is decided here.

use std::path::Path;

use agentd_api::Event;
use agentd_journal::{Line, Reader};
use jiff::Timestamp;

use agentd_decide::acp;

/// Maximum number of steps of one read, so that the driver can attend to other events in between.
const MAX_STEPS: usize = 2_000;
const MAX_BYTES: usize = 4 << 20;

/// Error that ends a driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error("cannot read the journal")]
    Read(#[from] agentd_journal::ReadError),
    #[error("the journal contains an invalid record")]
    Event(#[from] agentd_api::event::InvalidEvent),
    #[error("record {seq} of the journal has an invalid time")]
    Time { seq: u64, source: jiff::Error },
}

/// One step of the fold.
#[derive(Debug)]
pub(super) enum FoldStep {
    /// A record that the state must apply.
    Event(Box<Event>),
    /// A run of agent output that no rule looks at, given by its first `seq` and its last line. A talkative agent
    /// writes little other output.
    AgentOutput { first: u64, seq: u64, time: Timestamp },
}

/// Reads up to record `upto`, or one batch. An empty result means that the journal has no further records.
pub(super) fn read_some(
    reader: Option<Reader>,
    directory: &Path,
    after: u64,
    upto: u64,
) -> Result<(Option<Reader>, Vec<FoldStep>), DriverError> {
    let mut reader = match reader {
        Some(reader) => reader,
        None => Reader::open(directory, after)?,
    };
    let (mut steps, mut bytes) = (Vec::new(), 0);
    let (mut run, mut look) = (OutputRun::default(), Look::default());
    while steps.len() < MAX_STEPS && bytes < MAX_BYTES {
        look.ahead(&reader);
        let Some(line) = reader.next_upto(upto)? else { break };
        bytes += line.bytes.len();
        let may_concern = look.may_concern(line.bytes);
        if !run.take(line, may_concern) {
            steps.extend(run.end()?);
            steps.push(FoldStep::Event(Box::new(Event::parse(line.bytes)?)));
        }
    }
    steps.extend(run.end()?);
    Ok((Some(reader), steps))
}

/// Bytes that the reader has read ahead, which are searched once for all their lines. A search of each line alone takes
/// longer, because most lines are short.
#[derive(Debug, Default)]
struct Look {
    /// Number of searched bytes that are still in front of the reader.
    searched: usize,
    /// Whether a line among them may concern the session.
    is_found: bool,
}

impl Look {
    /// Searches the lines that were read, unless some of the last search are still in front of the reader.
    fn ahead(&mut self, reader: &Reader) {
        if self.searched == 0 {
            let lines = reader.ahead();
            (self.searched, self.is_found) = (lines.len(), acp::concerns_the_session(lines));
        }
    }

    /// Reports whether the next line may concern the session.
    fn may_concern(&mut self, line: &[u8]) -> bool {
        let left = self.searched.checked_sub(line.len() + 1);
        self.searched = left.unwrap_or(0);
        // A line that was not searched was read later.
        left.is_none() || self.is_found
    }
}

/// The first and the last line of a run of agent output.
#[derive(Debug, Default)]
struct OutputRun {
    first: u64,
    seq: u64,
    /// The last line between its `seq` and its data. The records of one append have it in common.
    middle: Vec<u8>,
    time: String,
}

impl OutputRun {
    /// Adds the line to the run, and reports whether the line is part of a run. `may_concern` is whether a rule may
    /// look at the line.
    fn take(&mut self, line: Line<'_>, may_concern: bool) -> bool {
        let rest = line.after_seq();
        let is_like_last = !self.middle.is_empty() && rest.starts_with(&self.middle) && line.bytes.ends_with(b"}");
        if !is_like_last || may_concern {
            let Some(parts) = line.parts().filter(|parts| parts.kind == "agent.out") else { return false };
            if may_concern && acp::concerns_the_session(parts.data) {
                return false;
            }
            self.middle.clear();
            self.middle.extend_from_slice(&rest[..rest.len() - parts.data.len() - 1]);
            self.time.clear();
            self.time.push_str(parts.time);
        }
        if self.seq == 0 {
            self.first = line.seq;
        }
        self.seq = line.seq;
        true
    }

    fn end(&mut self) -> Result<Option<FoldStep>, DriverError> {
        let seq = std::mem::take(&mut self.seq);
        if seq == 0 {
            return Ok(None);
        }
        let time = self.time.parse().map_err(|source| DriverError::Time { seq, source })?;
        Ok(Some(FoldStep::AgentOutput { first: self.first, seq, time }))
    }
}

#[cfg(test)]
mod tests {
    use agentd_journal::{Options, Record, Writer};
    use serde_json::value::RawValue;

    use super::*;
    use agentd_decide::state::State;

    /// Writes the records to a journal, and folds them twice: by [`read_some`], and record by record. With `together`,
    /// one append has all records.
    fn folds(records: &[(&str, &str)], together: bool) -> (State, State) {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, _) = Writer::open(directory.path(), Options::default()).unwrap();
        let data: Vec<_> = records.iter().map(|(_, data)| RawValue::from_string((*data).to_owned()).unwrap()).collect();
        let records: Vec<_> = records.iter().zip(&data).map(|((kind, _), data)| Record { kind, data }).collect();
        for (at, records) in records.chunks(if together { records.len() } else { 1 }).enumerate() {
            let now = Timestamp::from_second(1_000_000 + i64::try_from(at).unwrap()).unwrap();
            writer.append(now, records).unwrap();
        }
        let new = || State::new(Timestamp::UNIX_EPOCH);
        let (mut condensed, mut each) = (new(), new());
        let (_, steps) = read_some(None, directory.path(), 0, u64::MAX).unwrap();
        for step in steps {
            match step {
                FoldStep::Event(event) => condensed.apply(&event),
                FoldStep::AgentOutput { seq, time, .. } => condensed.said(seq, time),
            }
        }
        let mut reader = Reader::open(directory.path(), 0).unwrap();
        while let Some(line) = reader.next().unwrap() {
            each.apply(&Event::parse(line.bytes).unwrap());
        }
        (condensed, each)
    }

    #[test]
    fn a_run_given_by_its_last_line_folds_like_all_its_lines() {
        let update =
            |update: &str| format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"update":{update}}}}}"#);
        let chunk = &update(r#"{"sessionUpdate":"agent_message_chunk"}"#);
        let tool = &update(r#"{"sessionUpdate":"tool_call","toolCallId":"t","status":"pending"}"#);
        let begin = [
            ("launch.started", r#"{"launch":1,"reason":"create"}"#),
            ("agent.started", r#"{"launch":1,"pid":7,"start_time":1,"command":["a"]}"#),
            ("conversation.opened", r#"{"launch":1,"conversation":"c","by":"new"}"#),
            ("turn.queued", r#"{"turn":"t1","prompt":"p"}"#),
            ("turn.started", r#"{"turn":"t1","rpc":3}"#),
            ("turn.silent", r#"{"turn":"t1","seconds":9}"#),
        ];
        let said = [chunk, chunk, tool, chunk].map(|line| ("agent.out", line.as_str()));
        for length in 0..=said.len() {
            let records: Vec<_> = begin.into_iter().chain(said.into_iter().take(length)).collect();
            for together in [false, true] {
                let (condensed, each) = folds(&records, together);
                assert_eq!(condensed, each, "{length}");
                assert_eq!(condensed.seq, records.len() as u64);
            }
        }
    }

    #[test]
    fn runs_have_exactly_the_output_that_concerns_no_rule() {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, _) = Writer::open(directory.path(), Options::default()).unwrap();
        let long = format!("\"{}\"", "x".repeat(100_000));
        let (plain, concerns) = (r#"{"a":1}"#, r#"{"a":"b","id":7}"#);
        let records = [
            ("agent.out", plain),
            ("agent.out", plain),
            ("agent.stderr", r#"{"text":""}"#),
            ("agent.out", plain),
            ("agent.out", concerns),
            ("agent.out", &long),
            ("agent.out", plain),
            ("agent.out", &long),
            ("agent.out", concerns),
            ("agent.out", plain),
        ];
        let data = records.map(|(_, data)| RawValue::from_string(data.to_owned()).unwrap());
        let records: Vec<_> = records.iter().zip(&data).map(|((kind, _), data)| Record { kind, data }).collect();
        writer.append(Timestamp::UNIX_EPOCH, &records).unwrap();
        let (_, steps) = read_some(None, directory.path(), 0, u64::MAX).unwrap();
        let steps: Vec<_> = steps
            .iter()
            .map(|step| match step {
                FoldStep::Event(event) => (event.seq, event.seq),
                FoldStep::AgentOutput { first, seq, .. } => (*first, *seq),
            })
            .collect();
        assert_eq!(steps, [(1, 2), (3, 3), (4, 4), (5, 5), (6, 8), (9, 9), (10, 10)]);
    }
}
