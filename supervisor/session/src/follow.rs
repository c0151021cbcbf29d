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
    /// A run of agent output that no rule looks at, given by its last line. A talkative agent writes little other
    /// output.
    AgentOutput { seq: u64, time: Timestamp },
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
    let mut run = OutputRun::default();
    while steps.len() < MAX_STEPS && bytes < MAX_BYTES {
        let Some(line) = reader.next_upto(upto)? else { break };
        bytes += line.bytes.len();
        if !run.take(line) {
            steps.extend(run.end()?);
            steps.push(FoldStep::Event(Box::new(Event::parse(line.bytes)?)));
        }
    }
    steps.extend(run.end()?);
    Ok((Some(reader), steps))
}

/// The last line of a run of agent output.
#[derive(Debug, Default)]
struct OutputRun {
    seq: u64,
    time: String,
}

impl OutputRun {
    /// Adds the line to the run, and reports whether the line is part of a run.
    fn take(&mut self, line: Line<'_>) -> bool {
        let Some(parts) = line.parts().filter(|parts| parts.kind == "agent.out") else { return false };
        if acp::concerns_the_session(parts.data) {
            return false;
        }
        self.seq = line.seq;
        self.time.clear();
        self.time.push_str(parts.time);
        true
    }

    fn end(&mut self) -> Result<Option<FoldStep>, DriverError> {
        let seq = std::mem::take(&mut self.seq);
        if seq == 0 {
            return Ok(None);
        }
        let time = self.time.parse().map_err(|source| DriverError::Time { seq, source })?;
        Ok(Some(FoldStep::AgentOutput { seq, time }))
    }
}

#[cfg(test)]
mod tests {
    use agentd_journal::{Options, Record, Writer};
    use serde_json::value::RawValue;

    use super::*;
    use agentd_decide::state::State;

    /// Writes the records to a journal, and folds them twice: by [`read_some`], and record by record.
    fn folds(records: &[(&str, &str)]) -> (State, State) {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, _) = Writer::open(directory.path(), Options::default()).unwrap();
        for (at, (kind, data)) in records.iter().enumerate() {
            let data = RawValue::from_string((*data).to_owned()).unwrap();
            let now = Timestamp::from_second(1_000_000 + i64::try_from(at).unwrap()).unwrap();
            writer.append(now, &[Record { kind, data: &data }]).unwrap();
        }
        let new = || State::new(Timestamp::UNIX_EPOCH);
        let (mut condensed, mut each) = (new(), new());
        let (_, steps) = read_some(None, directory.path(), 0, u64::MAX).unwrap();
        for step in steps {
            match step {
                FoldStep::Event(event) => condensed.apply(&event),
                FoldStep::AgentOutput { seq, time } => condensed.said(seq, time),
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
            let (condensed, each) = folds(&records);
            assert_eq!(condensed, each, "{length}");
            assert_eq!(condensed.seq, records.len() as u64);
        }
    }
}
