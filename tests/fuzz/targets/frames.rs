//! Frames between the daemon and its helpers: any bytes, which arrive in portions of any size. The first byte selects
//! the portions.
//!
//! Properties:
//! - The incremental decoder and the blocking reader find the frames that the format defines, for each portion size.
//! - A length beyond the limit is refused. A cut frame is never complete.
//! - A message that parses is written and read again without a change.
//! - The memory follows the received bytes, not the length in a frame.

#![no_main]

mod meter;

use agentd_keeper::frame::{self, Decoder, FrameError};
use agentd_keeper::protocol::{FromKeeper, MAX_FRAME, RunRequest, RunResult, ToKeeper};
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

fuzz_target!(|data: &[u8]| {
    let Some((portion, stream)) = data.split_first() else { return };
    meter::bounded(data, 256 << 10, 64, || frames(stream, usize::from(*portion) + 1));
});

/// End of a stream of frames.
#[derive(Debug, PartialEq)]
enum End {
    Whole,
    Cut,
    TooLong,
}

/// Splits a stream by the definition of the format.
fn expected(mut stream: &[u8]) -> (Vec<&[u8]>, End) {
    let mut bodies = Vec::new();
    loop {
        let Some((length, rest)) = stream.split_first_chunk::<4>() else {
            return (bodies, if stream.is_empty() { End::Whole } else { End::Cut });
        };
        let length = u32::from_le_bytes(*length);
        if length > MAX_FRAME {
            return (bodies, End::TooLong);
        }
        let Some((body, rest)) = rest.split_at_checked(length as usize) else { return (bodies, End::Cut) };
        bodies.push(body);
        stream = rest;
    }
}

fn frames(stream: &[u8], portion: usize) {
    let (bodies, end) = expected(stream);
    let (mut decoder, mut found, mut refused) = (Decoder::default(), Vec::new(), false);
    'stream: for piece in stream.chunks(portion) {
        decoder.extend(piece);
        loop {
            match decoder.frame() {
                Ok(Some(body)) => found.push(body),
                Ok(None) => break,
                Err(FrameError::TooLong(length)) => {
                    assert!(length > u64::from(MAX_FRAME));
                    refused = true;
                    break 'stream;
                }
                Err(error) => panic!("the decoder cannot fail with {error:?}"),
            }
        }
    }
    assert_eq!(found, bodies, "portions of {portion} bytes");
    assert_eq!((refused, decoder.is_empty()), (end == End::TooLong, end == End::Whole), "{end:?}");
    blocking(stream, &bodies, &end);
    for body in bodies {
        same::<ToKeeper>(body);
        same::<FromKeeper>(body);
        same::<RunRequest>(body);
        same::<RunResult>(body);
    }
}

/// Reads the stream as a helper does. It stops at the first frame that is not JSON.
fn blocking(stream: &[u8], bodies: &[&[u8]], end: &End) {
    let (mut from, mut bodies) = (stream, bodies.iter());
    loop {
        match (frame::read::<Box<RawValue>>(&mut from), bodies.next()) {
            (Ok(Some(read)), Some(body)) => {
                let body = std::str::from_utf8(body).expect("JSON is UTF-8");
                assert_eq!(read.get(), body.trim_matches([' ', '\t', '\r', '\n']));
            }
            (Err(FrameError::Content(_)), Some(body)) => {
                assert!(serde_json::from_slice::<&RawValue>(body).is_err());
                return;
            }
            (Ok(None), None) => return assert_eq!(*end, End::Whole),
            (Err(FrameError::Cut), None) => return assert_eq!(*end, End::Cut),
            (Err(FrameError::TooLong(_)), None) => return assert_eq!(*end, End::TooLong),
            other => panic!("{other:?}, at the end {end:?}"),
        }
    }
}

/// Checks that a message that parses is written and read again without a change.
fn same<T: serde::Serialize + serde::de::DeserializeOwned>(body: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(body) else { return };
    let written = frame::encode(&message).expect("a message that was read can be written");
    let again: T = frame::read(&mut written.as_slice()).expect("a written frame can be read").expect("a frame");
    assert_eq!(frame::encode(&again).expect("as above"), written);
}
