//! The keeper's part of an agent on a place: the start of the near side, and its reports.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use agentd_api::event::PlaceRead;
use agentd_api::{Body, ByteString};
use zeroize::Zeroize as _;

use crate::attributes::Inherited;
use crate::frame;
use crate::os;
use crate::protocol::{
    Hide, LaunchRecord, Masks, PlaceLine, PlaceOrder, PlaceReport, PlaceRun, PlacedProgram, StreamCursor,
};
use crate::spawn::{self, Program, Spawned};
use crate::wait::{self, Read};

/// Time in milliseconds that the near side has from the end of its stdin or SIGTERM to the kill, at least.
pub(crate) const CANCEL_MS: u64 = 15_000;
pub(crate) const PASS_ON_MS: u64 = 2000;
/// Number of bytes after which the place gets the position of the journal.
const KEPT: u64 = 1 << 20;

/// Place of an agent, as the near side reports it.
#[derive(Debug)]
pub(crate) struct AgentPlace {
    /// Name of the place in the configuration.
    pub(crate) name: String,
    /// The reports of the near side, and the orders for it.
    pipe: Option<UnixStream>,
    decoder: frame::Decoder,
    /// Whether the agent was started on the place.
    pub(crate) has_entered: bool,
    /// Last report. `None` until it has come.
    pub(crate) last: Option<PlaceReport>,
    /// Position of the journal. Present if the agent stays on its place when the connection is lost.
    pub(crate) position: Option<Position>,
}

/// Position of the journal in the streams of an agent that stays on its place.
#[derive(Debug, Default)]
pub(crate) struct Position {
    /// Counts of what the journal has.
    pub(crate) read: PlaceRead,
    /// Numbers of consumed bytes of stdout and stderr behind that. While a replay of history is left out, the position
    /// stays before it: another keeper then reads the replay again, and leaves it out too.
    ahead: (u64, u64),
    /// Numbers of lines of stdout and stderr that come again, and that the journal has.
    pub(crate) skip: (u64, u64),
    /// Whether the place still has to say which lines of stdin it has.
    pub(crate) is_resuming: bool,
    /// Position that the near side was given last.
    kept: StreamCursor,
}

/// Near side of an agent, with the bytes that its stdin gets first. They have the agent's environment.
pub(crate) struct Started {
    pub(crate) spawned: Spawned,
    pub(crate) place: AgentPlace,
    pub(crate) first: Vec<u8>,
}

/// Starts the near side for the agent of this record.
pub(crate) fn start(session: &str, record: &LaunchRecord, way: &PlaceLine) -> io::Result<Started> {
    if record.enclosure.is_some() {
        return Err(io::Error::other(format!(
            "agentd cannot isolate an agent on place {:?}: use the level \"none\", and the isolation of the place",
            way.place
        )));
    }
    let mut run = PlaceRun {
        line: way.clone(),
        program: PlacedProgram {
            program: record.program.clone(),
            args: record.args.clone(),
            environment: record.environment.clone(),
            directory: record.directory.clone(),
            attributes: record.attributes.clone(),
            session: Some(session.to_owned()),
        },
    };
    if let Some(resident) = &mut run.line.resident {
        resident.masks = Masks { secrets: record.secrets.clone(), fills: record.fills.clone() };
    }
    let first = frame::encode(&run).map_err(io::Error::other);
    run.line.resident.iter_mut().for_each(|resident| resident.masks.zeroize());
    run.program.zeroize();
    run.line.environment.iter_mut().for_each(|variable| variable.value.0.zeroize());
    let mut first = first?;
    match spawn() {
        Ok((spawned, pipe)) => {
            let launch = record.launch;
            let position = way.resident.as_ref().map(|resident| {
                let StreamCursor { out, err } = resident.resume.unwrap_or_default();
                let (read, is_resuming) = (PlaceRead { launch, lines: 0, out, err }, resident.resume.is_some());
                Position { read, is_resuming, ..Position::default() }
            });
            let place = AgentPlace {
                name: way.place.clone(),
                pipe: Some(pipe),
                decoder: frame::Decoder::default(),
                has_entered: false,
                last: None,
                position,
            };
            Ok(Started { spawned, place, first })
        }
        Err(error) => {
            first.zeroize();
            Err(error)
        }
    }
}

/// Starts the near side with an empty environment. Returns it with the connection of its reports.
fn spawn() -> io::Result<(Spawned, UnixStream)> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    let number = writer.as_raw_fd();
    let spawned = spawn::spawn(&Program {
        path: &os::own_program()?.into_os_string().into(),
        arg0: Some(&ByteString::from("agentd-keeper")),
        args: &["place".into(), number.to_string().into()],
        environment: &[],
        directory: &ByteString::from("/"),
        stdin: true,
        inherit: [Some(number), None, None],
        terminal: None,
        inherits: Inherited::default(),
        traced: false,
    })?;
    Ok((spawned, reader))
}

impl AgentPlace {
    /// Returns the connection of the reports.
    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(|pipe| pipe.as_fd())
    }

    /// Reads the available reports. Returns those that change the state of the place.
    pub(crate) fn read(&mut self) -> Vec<PlaceReport> {
        let (mut reports, mut buffer) = (Vec::new(), [0; 4 << 10]);
        while let Some(pipe) = &self.pipe {
            match wait::read(pipe, &mut buffer) {
                Ok(Read::Some(n)) => self.decoder.extend(&buffer[..n]),
                Ok(Read::Nothing) => break,
                Ok(Read::End) | Err(_) => self.pipe = None,
            }
        }
        while let Ok(Some(mut body)) = self.decoder.frame() {
            match serde_json::from_slice(&body) {
                Ok(last @ (PlaceReport::Refused { .. } | PlaceReport::Lost { .. } | PlaceReport::Ended { .. })) => {
                    reports.extend(matches!(last, PlaceReport::Lost { .. }).then(|| last.clone()));
                    self.last = Some(last);
                }
                Ok(report) => {
                    self.has_entered |= matches!(report, PlaceReport::Running(_));
                    reports.push(report);
                }
                // The near side is this program, so its reports have a known form.
                Err(_) => {}
            }
            // The report of an attached agent has secrets.
            body.zeroize();
        }
        reports
    }

    /// Notes consumed output. Returns the record of the new position, which follows the records of the output. With
    /// `stays`, the position does not move yet.
    pub(crate) fn consume(&mut self, stdout: u64, stderr: u64, stays: bool) -> Option<Body> {
        let position = self.position.as_mut()?;
        position.ahead = (position.ahead.0 + stdout, position.ahead.1 + stderr);
        if stays || position.ahead == (0, 0) {
            return None;
        }
        let (out, err) = std::mem::take(&mut position.ahead);
        position.read.out += out;
        position.read.err += err;
        (position.skip == (0, 0)).then_some(Body::PlaceRead(position.read))
    }

    /// Counts a line for the journal. Reports whether the journal has it already.
    pub(crate) fn skips(&mut self, is_stdout: bool) -> bool {
        let Some(position) = &mut self.position else { return false };
        let left = if is_stdout { &mut position.skip.0 } else { &mut position.skip.1 };
        let skips = *left > 0;
        *left -= u64::from(skips);
        skips
    }

    /// Counts a line for the agent.
    pub(crate) fn count_line(&mut self) {
        if let Some(position) = &mut self.position {
            position.read.lines += 1;
        }
    }

    /// Reports whether output waits until the place has named its secrets.
    pub(crate) fn is_resuming(&self) -> bool {
        self.position.as_ref().is_some_and(|position| position.is_resuming)
    }

    /// Tells the near side how far the journal reaches, if that is much further than before. After the agent's end,
    /// each step counts: the place keeps its output until the journal has it.
    pub(crate) fn report_kept(&mut self) {
        let least = if self.last.is_some() { 1 } else { KEPT };
        let Some(position) = &mut self.position else { return };
        let PlaceRead { out, err, .. } = position.read;
        if out + err < position.kept.out + position.kept.err + least {
            return;
        }
        position.kept = StreamCursor { out, err };
        let kept = position.kept;
        self.order(&PlaceOrder::Kept(kept));
    }

    /// Tells the near side that the end of stdin is meant for the agent.
    pub(crate) fn announce_close(&mut self) {
        if self.position.is_some() {
            self.order(&PlaceOrder::Close);
        }
    }

    /// Gives the place more values to mask, for a keeper that continues with the agent.
    pub(crate) fn hide(&mut self, hide: &Hide) {
        if self.position.is_some() {
            let mut order = PlaceOrder::Hide(Masks { secrets: hide.secrets.clone(), fills: Vec::new() });
            self.order(&order);
            if let PlaceOrder::Hide(masks) = &mut order {
                masks.zeroize();
            }
        }
    }

    fn order(&mut self, order: &PlaceOrder) {
        let Ok(mut bytes) = frame::encode(order) else { return };
        // A near side that does not read its few orders is stuck, and a part of an order would confuse it.
        if let Some(pipe) = &mut self.pipe
            && !matches!(pipe.write(&bytes), Ok(n) if n == bytes.len())
        {
            self.pipe = None;
        }
        bytes.zeroize();
    }

    /// Returns the reason of an end by a lost line.
    pub(crate) fn lost(&self, why: &str) -> String {
        format!("the connection to place {:?} is lost: {why}", self.name)
    }
}
