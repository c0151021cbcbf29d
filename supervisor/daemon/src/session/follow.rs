//! Reads a journal on from where its driver is: what there is to learn from it, and no more.
//!
//! It blocks on the disk, so it runs beside the driver's task. What it learned is applied by the driver ([`super::state::State`]); nothing
//! is decided here.

use std::path::Path;

use agentd_api::Event;
use agentd_journal::{Line, Reader};
use jiff::Timestamp;

use super::driver::Broken;
use crate::acp;

/// How much is learned, or read, between two looks at everything else.
const GULP: usize = 2_000;
const GULP_BYTES: usize = 4 << 20;

/// One step of the fold.
#[derive(Debug)]
pub(super) enum Learned {
    Event(Box<Event>),
    /// A run of what the agent said and no rule looks at, by its last line: an agent that talks much says little else.
    Said {
        seq: u64,
        time: Timestamp,
    },
}

/// Reads what there is up to `upto`, or a gulp of it. Nothing learned: there is no more.
pub(super) fn read_some(
    reader: Option<Reader>,
    directory: &Path,
    after: u64,
    upto: u64,
) -> Result<(Option<Reader>, Vec<Learned>), Broken> {
    let mut reader = match reader {
        Some(reader) => reader,
        None => Reader::open(directory, after)?,
    };
    let (mut learned, mut bytes) = (Vec::new(), 0);
    let mut run = Run::default();
    while learned.len() < GULP && bytes < GULP_BYTES {
        let Some(line) = reader.next_upto(upto)? else { break };
        bytes += line.bytes.len();
        if !run.take(line) {
            learned.extend(run.end()?);
            learned.push(Learned::Event(Box::new(Event::parse(line.bytes)?)));
        }
    }
    learned.extend(run.end()?);
    Ok((Some(reader), learned))
}

/// The last line of a run, as far as it counts.
#[derive(Debug, Default)]
struct Run {
    seq: u64,
    time: String,
}

impl Run {
    /// Whether the line goes on with a run.
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

    fn end(&mut self) -> Result<Option<Learned>, Broken> {
        let seq = std::mem::take(&mut self.seq);
        if seq == 0 {
            return Ok(None);
        }
        let time = self.time.parse().map_err(|source| Broken::Time { seq, source })?;
        Ok(Some(Learned::Said { seq, time }))
    }
}

#[cfg(test)]
mod tests {
    use agentd_journal::{Options, Record, Writer};
    use serde_json::value::RawValue;

    use super::super::state::State;
    use super::*;

    /// A journal of such records, read in gulps and folded; and the same folded record by record.
    fn folds(records: &[(&str, &str)]) -> (State, State) {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, _) = Writer::open(directory.path(), Options::default()).unwrap();
        for (at, (kind, data)) in records.iter().enumerate() {
            let data = RawValue::from_string((*data).to_owned()).unwrap();
            let now = Timestamp::from_second(1_000_000 + i64::try_from(at).unwrap()).unwrap();
            writer.append(now, &[Record { kind, data: &data }]).unwrap();
        }
        let new = || State::new(Timestamp::UNIX_EPOCH);
        let (mut learned, mut each) = (new(), new());
        let (_, steps) = read_some(None, directory.path(), 0, u64::MAX).unwrap();
        for step in steps {
            match step {
                Learned::Event(event) => learned.apply(&event),
                Learned::Said { seq, time } => learned.said(seq, time),
            }
        }
        let mut reader = Reader::open(directory.path(), 0).unwrap();
        while let Some(line) = reader.next().unwrap() {
            each.apply(&Event::parse(line.bytes).unwrap());
        }
        (learned, each)
    }

    #[test]
    fn a_run_by_its_last_line_is_the_same_as_every_line_of_it() {
        let chunk = r#"{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk"}}}"#;
        let tool = r#"{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"tool_call","toolCallId":"t","status":"pending"}}}"#;
        let begin = [
            ("launch.started", r#"{"launch":1,"reason":"create"}"#),
            ("agent.started", r#"{"launch":1,"pid":7,"start_time":1,"command":["a"]}"#),
            ("conversation.opened", r#"{"launch":1,"conversation":"c","by":"new"}"#),
            ("turn.queued", r#"{"turn":"t1","prompt":"p"}"#),
            ("turn.started", r#"{"turn":"t1","rpc":3}"#),
            ("turn.silent", r#"{"turn":"t1","seconds":9}"#),
        ];
        let said = [("agent.out", chunk), ("agent.out", chunk), ("agent.out", tool), ("agent.out", chunk)];
        for length in 0..=said.len() {
            let records: Vec<_> = begin.into_iter().chain(said.into_iter().take(length)).collect();
            let (learned, each) = folds(&records);
            assert_eq!(learned, each, "{length}");
            assert_eq!(learned.seq, records.len() as u64);
        }
    }
}
