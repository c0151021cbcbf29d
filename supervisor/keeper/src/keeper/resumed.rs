//! An agent that stayed on its place while its keeper was gone. The end of the journal gives the position in its
//! streams, and the lines for it.

use std::io;
use std::path::Path;

use agentd_api::event::{AgentResumed, AgentStarted, Body, PlaceRead};
use agentd_journal::{ReadError, Reader, first_seq, last_seq};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Keeper, refused};
use crate::agent;
use crate::machine::Input;
use crate::protocol::{FromKeeper, LaunchRecord, StreamCursor};

impl Keeper<'_> {
    /// Continues with an agent that stayed on its place while its keeper was gone.
    pub(super) fn resume(&mut self, record: &LaunchRecord) -> (FromKeeper, Option<Input>) {
        let resumed = self.try_resume(record);
        match resumed {
            Ok(resumed) => {
                let pid = resumed.pid;
                self.log.write_body(&Body::AgentResumed(resumed));
                (FromKeeper::Launched { pid }, Some(Input::Launched))
            }
            Err(error) => {
                let message = error.to_string();
                self.exec_error = Some(message.clone());
                (refused("not-executed", message), Some(Input::NotLaunched))
            }
        }
    }

    fn try_resume(&mut self, record: &LaunchRecord) -> io::Result<AgentResumed> {
        let found = find(&self.args.state, record.launch, u64::MAX).map_err(io::Error::other)?;
        let found = found.ok_or_else(|| io::Error::other("the journal has no position in the agent's output"))?;
        let mut record = record.clone();
        if let Some(resident) = record.place.as_mut().and_then(|line| line.resident.as_mut()) {
            resident.resume = Some(StreamCursor { out: found.read.out, err: found.read.err });
        }
        let launched = agent::launch(&self.args.session, &record, None);
        record.zeroize();
        let (mut agent, AgentStarted { launch, pid, start_time, .. }) = launched?;
        if let Some(position) = agent.place.as_mut().and_then(|place| place.position.as_mut()) {
            (position.read, position.skip) = (found.read, found.after);
        }
        self.agent = Some(agent);
        Ok(AgentResumed { launch, pid, start_time })
    }
}

/// Number of records of the first look at the end of the journal.
const LAST: u64 = 4096;

/// End of the journal, as a keeper left it.
#[derive(Debug, Default)]
pub(super) struct Journalled {
    /// The last position, with all lines that were recorded for the agent.
    pub(super) read: PlaceRead,
    /// Numbers of lines of stdout and stderr that were recorded after that position.
    pub(super) after: (u64, u64),
    /// The last lines for the agent, with their numbers counted from 1.
    pub(super) lines: Vec<(u64, Box<RawValue>)>,
}

/// Reads the end of the journal, with all lines for the agent after the first `known` ones. Returns `None` without a
/// position of this launch.
pub(super) fn find(directory: &Path, launch: u64, known: u64) -> Result<Option<Journalled>, ReadError> {
    let (first, last) = (first_seq(directory)?, last_seq(directory)?);
    let mut count = LAST;
    loop {
        let after = last.saturating_sub(count).max(first.saturating_sub(1));
        let found = look(directory, after, last, launch)?;
        let has_all = found
            .as_ref()
            .is_some_and(|found| found.lines.first().map_or(found.read.lines, |(number, _)| number - 1) <= known);
        if has_all || after < first {
            return Ok(found);
        }
        count = count.saturating_mul(8);
    }
}

fn look(directory: &Path, after: u64, last: u64, launch: u64) -> Result<Option<Journalled>, ReadError> {
    let mut reader = Reader::open(directory, after)?;
    let (mut lines, mut counts, mut read) = (Vec::new(), (0, 0), None);
    while let Some(line) = reader.next_upto(last)? {
        let Some(parts) = line.parts() else { continue };
        match parts.kind {
            "agent.in" => lines.extend(raw(parts.data)),
            "agent.out" | "agent.noise" => counts.0 += 1,
            "agent.stderr" => counts.1 += 1,
            "place.read" => {
                if let Ok(position) = serde_json::from_slice::<PlaceRead>(parts.data)
                    && position.launch == launch
                {
                    // The lines so far have numbers up to that of the position.
                    (read, counts) = (Some((position, lines.len() as u64)), (0, 0));
                }
            }
            // The lines before belong to another launch.
            "agent.started" => lines.clear(),
            _ => {}
        }
    }
    let Some((read, before)) = read else { return Ok(None) };
    let first = (read.lines + 1).saturating_sub(before);
    let lines: Vec<(u64, Box<RawValue>)> = (first..).zip(lines).collect();
    let all = lines.last().map_or(read.lines, |(number, _)| *number);
    Ok(Some(Journalled { read: PlaceRead { lines: all, ..read }, after: counts, lines }))
}

fn raw(data: &[u8]) -> Option<Box<RawValue>> {
    String::from_utf8(data.to_owned()).ok().and_then(|data| RawValue::from_string(data).ok())
}

/// Returns whether the placeholders of a line are filled in, and whether those of contents are.
pub(super) fn fillings(line: &RawValue) -> (bool, bool) {
    #[derive(Deserialize)]
    struct Request {
        #[serde(default)]
        method: String,
    }
    let method = serde_json::from_str::<Request>(line.get()).map(|request| request.method).unwrap_or_default();
    let is_prompt = method == "session/prompt";
    (!is_prompt && method.starts_with("session/"), is_prompt)
}
