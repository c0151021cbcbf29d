//! Frames: a length (u32, little endian) and that many bytes of JSON. See [`crate::protocol`] for what is in them.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::MAX_FRAME;

/// Why a frame cannot be read or written. After one of these the connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("cannot transfer a frame")]
    Io(#[source] io::Error),
    #[error("a frame of {0} bytes is longer than the {MAX_FRAME} allowed")]
    TooLong(u64),
    #[error("the connection ended within a frame")]
    Cut,
    #[error("a frame is not what was expected")]
    Content(#[source] serde_json::Error),
}

/// The frame with its length.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message).map_err(FrameError::Content)?;
    let length = frame.len() as u64 - 4;
    match u32::try_from(length) {
        Ok(length) if length <= MAX_FRAME => frame[..4].copy_from_slice(&length.to_le_bytes()),
        _ => return Err(FrameError::TooLong(length)),
    }
    Ok(frame)
}

/// Writes one frame, blocking.
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> Result<(), FrameError> {
    to.write_all(&encode(message)?).and_then(|()| to.flush()).map_err(FrameError::Io)
}

/// Reads one frame, blocking; `None` where the connection ends before it.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>, FrameError> {
    let mut decoder = Decoder::default();
    loop {
        if let Some(body) = decoder.frame()? {
            return serde_json::from_slice(&body).map(Some).map_err(FrameError::Content);
        }
        // Never more than this frame: what follows is another reader's.
        let wanted = decoder.wanted().min(64 << 10);
        let before = decoder.buffer.len();
        let n = from.take(wanted as u64).read_to_end(&mut decoder.buffer).map_err(FrameError::Io)?;
        match (n, before) {
            (0, 0) => return Ok(None),
            (0, _) => return Err(FrameError::Cut),
            _ => {}
        }
    }
}

/// Takes bytes as they come, and gives frames as they are complete. Its memory follows what came, not what a length promises.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The body of the next frame, where it is complete.
    pub fn frame(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let Some(end) = self.end()? else { return Ok(None) };
        if self.buffer.len() < end {
            return Ok(None);
        }
        let rest = self.buffer.split_off(end);
        let mut frame = std::mem::replace(&mut self.buffer, rest);
        frame.drain(..4);
        Ok(Some(frame))
    }

    /// Whether there is a part of a frame.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Where the frame ends that the buffer begins with.
    fn end(&self) -> Result<Option<usize>, FrameError> {
        let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length);
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(u64::from(length)));
        }
        Ok(Some(4 + length as usize))
    }

    /// How many bytes are missing to the length or to the frame's end.
    fn wanted(&self) -> usize {
        self.end().ok().flatten().unwrap_or(4).saturating_sub(self.buffer.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{FromKeeper, Tail};

    proptest! {
        #[test]
        fn frames_come_back_however_the_bytes_are_cut(
            bodies in proptest::collection::vec(".{0,300}", 0..8),
            cuts in proptest::collection::vec(1_usize..40, 1..20),
        ) {
            let mut stream = Vec::new();
            for body in &bodies {
                stream.extend(encode(body).unwrap());
            }
            let mut from = stream.as_slice();
            for body in &bodies {
                prop_assert_eq!(&read::<String>(&mut from).unwrap().unwrap(), body);
            }
            prop_assert!(read::<String>(&mut from).unwrap().is_none());

            let (mut decoder, mut got, mut cuts) = (Decoder::default(), Vec::new(), cuts.iter().cycle());
            while !stream.is_empty() {
                let n = (*cuts.next().unwrap()).min(stream.len());
                decoder.extend(&stream.drain(..n).collect::<Vec<_>>());
                while let Some(body) = decoder.frame().unwrap() {
                    got.push(serde_json::from_slice::<String>(&body).unwrap());
                }
            }
            prop_assert_eq!(got, bodies);
            prop_assert!(decoder.is_empty());
        }
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused_before_it_is_read() {
        let mut decoder = Decoder::default();
        decoder.extend(&(MAX_FRAME + 1).to_le_bytes());
        assert!(matches!(decoder.frame(), Err(FrameError::TooLong(_))));
        assert!(matches!(read::<String>(&mut &[0xff_u8; 4][..]), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn a_stream_that_ends_within_a_frame_is_an_error() {
        let frame = encode(&FromKeeper::Grown(Tail { seq: 3, blocked: false, errno: None, ended: false })).unwrap();
        for length in 1..frame.len() {
            assert!(matches!(read::<FromKeeper>(&mut &frame[..length]), Err(FrameError::Cut)), "{length}");
        }
    }
}
