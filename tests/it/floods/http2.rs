//! Floods of frames over HTTP/2 (RFC 9113): streams that are reset at once, settings, pings, headers without an end.

use tokio::io::AsyncWrite;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Connections of each kind of flood at once.
const TIMES: usize = 8;
/// Most bytes that one connection sends.
const MOST: usize = 1 << 20;
/// Bytes of each write.
const PIECE: usize = 64 << 10;
/// Memory in KiB of a connection: the frames that it has read, the answers that it has not sent, and its streams.
const OF_ONE: u64 = 1 << 10;

/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// Flags of headers.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the header fields of `GET` with this path, without compression (RFC 7541).
fn get(path: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // :method GET, :scheme http, :path and :authority by their numbers in the static table.
    [&[0x82, 0x86, 0x04][..], &text(path), &[0x01], &text("agentd")].concat()
}

/// A flood: the frames of its step with this number.
type Flood = (&'static str, fn(u32) -> Vec<u8>);

const FLOODS: [Flood; 12] = [
    ("rapid reset of a list", |step| {
        let stream = 2 * step + 1;
        [
            frame(HEADERS, END_STREAM | END_HEADERS, stream, &get("/v1/sessions?fields=*")),
            frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()),
        ]
        .concat()
    }),
    ("rapid reset of a stream of events", |step| {
        let stream = 2 * step + 1;
        [
            frame(HEADERS, END_STREAM | END_HEADERS, stream, &get("/v1/events?after=0")),
            frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()),
        ]
        .concat()
    }),
    ("reset by an error of the client", |step| {
        let stream = 2 * step + 1;
        // A window update of 0 is an error of the stream, so the daemon itself resets the stream.
        [
            frame(HEADERS, END_STREAM | END_HEADERS, stream, &get("/v1/sessions")),
            frame(WINDOW_UPDATE, 0, stream, &[0; 4]),
        ]
        .concat()
    }),
    ("streams above the limit", |step| frame(HEADERS, END_HEADERS, 2 * step + 1, &get("/v1/sessions"))),
    ("settings", |_| frame(SETTINGS, 0, 0, &[])),
    ("settings with values", |step| frame(SETTINGS, 0, 0, &[&[0, 4][..], &step.to_be_bytes()].concat())),
    ("pings", |step| frame(PING, 0, 0, &u64::from(step).to_be_bytes())),
    ("headers without an end", |step| {
        let field = [&[0x00, 0x04][..], b"name", &[0x04], b"text"].concat().repeat(100);
        frame(if step == 0 { HEADERS } else { CONTINUATION }, 0, 1, &field)
    }),
    ("empty continuations", |step| frame(if step == 0 { HEADERS } else { CONTINUATION }, 0, 1, &[])),
    ("empty data", |step| match step {
        0 => frame(HEADERS, END_HEADERS, 1, &[&[0x83, 0x86, 0x04, 0x0c][..], b"/v1/sessions"].concat()),
        _ => frame(DATA, 0, 1, &[]),
    }),
    ("priorities", |step| frame(PRIORITY, 0, 2 * step + 1, &[0, 0, 0, 0, 1])),
    ("unknown frames", |step| frame(0xfa, 0xff, step, &[0; 64])),
];

/// Sends frames until the daemon closes the connection, stops reading, or has read enough.
async fn flood(stream: &mut (impl AsyncWrite + Unpin), step: fn(u32) -> Vec<u8>) {
    let (mut number, mut written) = (0, 0);
    while written < MOST {
        let mut piece = Vec::with_capacity(PIECE);
        while piece.len() < PIECE {
            piece.extend(step(number));
            number += 1;
        }
        // A daemon that does not read waits for the client to read its answers.
        let writing = tokio::time::timeout(Duration::from_millis(500), stream.write_all(&piece));
        if !matches!(writing.await, Ok(Ok(()))) {
            return;
        }
        written += piece.len();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn floods_of_frames_end_their_connection_or_cost_little() {
    let mut target = Target::with("").await;
    let socket = target.socket();
    for (what, step) in FLOODS {
        let attack = crowd(TIMES, |number| {
            let socket = socket.clone();
            async move {
                let mut stream = connect(&socket).await;
                let _ = stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await;
                if number % 2 == 0 {
                    // This client never reads.
                    flood(&mut stream, step).await;
                    return;
                }
                let (mut reading, mut writing) = stream.into_split();
                let answers = tokio::spawn(async move {
                    let mut answers = vec![0; PIECE];
                    while reading.read(&mut answers).await.is_ok_and(|length| length > 0) {}
                });
                flood(&mut writing, step).await;
                drop(writing);
                answers.abort();
            }
        });
        target.holds(what, OF_ONE * TIMES as u64, attack).await;
    }
}
