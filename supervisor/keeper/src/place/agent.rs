//! The keeper's part of an agent on a place: the start of the near side, and its reports.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use agentd_api::ByteString;
use zeroize::Zeroize as _;

use crate::attributes::Inherited;
use crate::frame;
use crate::os;
use crate::protocol::{LaunchRecord, PlaceLine, PlaceReport, PlaceRun, PlacedProgram};
use crate::spawn::{self, Program, Spawned};
use crate::wait::{self, Read};

/// Time in milliseconds that the near side has from the end of its stdin or SIGTERM to the kill, at least.
pub(crate) const CANCEL_MS: u64 = 15_000;
pub(crate) const PASS_ON_MS: u64 = 2000;

/// Place of an agent, as the near side reports it.
#[derive(Debug)]
pub(crate) struct AgentPlace {
    /// Name of the place in the configuration.
    pub(crate) name: String,
    pipe: Option<OwnedFd>,
    decoder: frame::Decoder,
    /// Whether the agent was started on the place.
    pub(crate) has_entered: bool,
    /// Last report. `None` until it has come.
    pub(crate) last: Option<PlaceReport>,
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
    let first = frame::encode(&run).map_err(io::Error::other);
    run.program.zeroize();
    run.line.environment.iter_mut().for_each(|variable| variable.value.0.zeroize());
    let mut first = first?;
    match spawn() {
        Ok((spawned, pipe)) => {
            let place = AgentPlace {
                name: way.place.clone(),
                pipe: Some(pipe),
                decoder: frame::Decoder::default(),
                has_entered: false,
                last: None,
            };
            Ok(Started { spawned, place, first })
        }
        Err(error) => {
            first.zeroize();
            Err(error)
        }
    }
}

/// Starts the near side with an empty environment. Returns it with the pipe of its reports.
fn spawn() -> io::Result<(Spawned, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    spawn::nonblocking(&reader)?;
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
    Ok((spawned, reader.into()))
}

impl AgentPlace {
    /// Returns the pipe of the reports.
    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(|pipe| pipe.as_fd())
    }

    /// Reads the available reports. Returns those that change the state of the place: the agent runs, or its line is
    /// lost.
    pub(crate) fn read(&mut self) -> Vec<PlaceReport> {
        let (mut changes, mut buffer) = (Vec::new(), [0; 4 << 10]);
        while let Some(pipe) = &self.pipe {
            match wait::read(pipe, &mut buffer) {
                Ok(Read::Some(n)) => self.decoder.extend(&buffer[..n]),
                Ok(Read::Nothing) => break,
                Ok(Read::End) | Err(_) => self.pipe = None,
            }
        }
        while let Ok(Some(body)) = self.decoder.frame() {
            match serde_json::from_slice(&body) {
                Ok(running @ PlaceReport::Running(_)) => {
                    self.has_entered = true;
                    changes.push(running);
                }
                Ok(last) => {
                    changes.extend(matches!(last, PlaceReport::Lost { .. }).then(|| last.clone()));
                    self.last = Some(last);
                }
                // The near side is this program, so its reports have a known form.
                Err(_) => {}
            }
        }
        changes
    }

    /// Returns the reason of an end by a lost line.
    pub(crate) fn lost(&self, why: &str) -> String {
        format!("the connection to place {:?} is lost: {why}", self.name)
    }
}
