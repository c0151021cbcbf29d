//! Frame format: a length (u32, little endian) and as many bytes of JSON. [`crate::protocol`] defines the contents.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::MAX_FRAME;

/// Error of reading or writing a frame. The connection is unusable after any of these errors.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("cannot read or write a frame")]
    Io(#[source] io::Error),
    #[error("a frame of {0} bytes is longer than the {MAX_FRAME} allowed")]
    TooLong(u64),
    #[error("the connection ended within a frame")]
    Cut,
    #[error("cannot parse a frame")]
    Content(#[source] serde_json::Error),
}

/// Encodes a message as a frame, including the length.
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

/// Reads one frame, blocking. Returns `None` if the connection ends before the frame.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>, FrameError> {
    let mut decoder = Decoder::default();
    loop {
        if let Some(body) = decoder.frame()? {
            return serde_json::from_slice(&body).map(Some).map_err(FrameError::Content);
        }
        // Read no more than this frame: the bytes after it belong to the next call.
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

/// Incremental decoder: takes bytes as they arrive and returns complete frames. Its memory grows with the bytes
/// received, not with the length that a frame claims.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Adds received bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the body of the next complete frame, if there is one.
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

    /// Reports whether no bytes of an incomplete frame are buffered.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the buffer position of the first frame's end.
    fn end(&self) -> Result<Option<usize>, FrameError> {
        let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length);
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(u64::from(length)));
        }
        Ok(Some(4 + length as usize))
    }

    /// Returns how many bytes are missing until the end of the length or of the frame.
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
        fn frames_decode_for_every_split_of_the_bytes(
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
    fn a_frame_with_a_too_large_length_is_refused_before_it_is_read() {
        let mut decoder = Decoder::default();
        decoder.extend(&(MAX_FRAME + 1).to_le_bytes());
        assert!(matches!(decoder.frame(), Err(FrameError::TooLong(_))));
        assert!(matches!(read::<String>(&mut &[0xff_u8; 4][..]), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn a_stream_that_ends_within_a_frame_is_an_error() {
        let frame =
            encode(&FromKeeper::Grown(Tail { seq: 3, blocked: false, errno: None, ended: false, output: None }))
                .unwrap();
        for length in 1..frame.len() {
            assert!(matches!(read::<FromKeeper>(&mut &frame[..length]), Err(FrameError::Cut)), "{length}");
        }
    }
}
