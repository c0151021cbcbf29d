//! A connection that gives other connections a turn after each few kilobytes of input.
//!
//! A client that sends small frames without a pause would occupy a thread of the runtime for megabytes. The runtime
//! itself counts reads, however much a read returns and however long its frames take.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of bytes that a connection reads before other tasks get a turn.
const TURN: usize = 8 << 10;

/// A stream with turns.
#[derive(Debug)]
pub(super) struct Fair<S> {
    stream: S,
    /// Number of bytes that were read in this turn.
    read: usize,
}

impl<S> Fair<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, read: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Fair<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read >= TURN {
            self.read = 0;
            // The task runs again after the others that are ready.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = to.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, to);
        self.read = if polled.is_ready() { self.read + to.filled().len() - before } else { 0 };
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Fair<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_stream_that_is_always_ready_gives_other_tasks_turns() {
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let mut stream = Fair::new(tokio::io::repeat(b'x').take(64 * TURN as u64));
        let (mut length, mut piece) = (0, [0; TURN / 2]);
        loop {
            match stream.read(&mut piece).await.unwrap() {
                0 => break,
                read => length += read,
            }
        }
        other.abort();
        assert_eq!(length, 64 * TURN);
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns >= 32, "{turns} turns");
    }
}
