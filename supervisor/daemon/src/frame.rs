//! The keeper's frames (see `agentd_keeper::protocol`) on tokio's streams.

use std::io;

use agentd_keeper::protocol::MAX_FRAME;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Writes one frame.
pub(crate) async fn write<T: Serialize>(to: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    let mut bytes = vec![0_u8; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length <= MAX_FRAME);
    let length =
        length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the frame is longer than a frame may be"))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes).await?;
    to.flush().await
}

/// Reads one frame; `None` where the stream ends before one begins. Not cancel-safe.
pub(crate) async fn read<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<T>> {
    let mut length = [0_u8; 4];
    match from.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length);
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes is announced")));
    }
    let mut bytes = vec![0_u8; length as usize];
    from.read_exact(&mut bytes).await?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}
