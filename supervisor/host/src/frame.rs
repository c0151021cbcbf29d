//! Reads and writes the keeper's frames (`agentd_keeper::protocol`) on streams of tokio.

use std::io;

use agentd_keeper::protocol::MAX_FRAME;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Writes one frame.
pub async fn write<T: Serialize>(to: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    to.write_all(&agentd_keeper::frame::encode(message).map_err(io::Error::other)?).await?;
    to.flush().await
}

/// Writes several frames at once.
pub async fn write_all<'a, T: Serialize + 'a>(
    to: &mut (impl AsyncWrite + Unpin),
    messages: impl IntoIterator<Item = &'a T>,
) -> io::Result<()> {
    let mut frames = Vec::new();
    for message in messages {
        frames.append(&mut agentd_keeper::frame::encode(message).map_err(io::Error::other)?);
    }
    to.write_all(&frames).await?;
    to.flush().await
}

/// Reads one frame. Returns `None` if the stream ends before a frame begins. Not cancel-safe.
pub async fn read<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<T>> {
    let mut length = [0_u8; 4];
    match from.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length);
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes is too long")));
    }
    let mut bytes = vec![0_u8; length as usize];
    from.read_exact(&mut bytes).await?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}
