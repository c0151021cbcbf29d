//! Reads that are tried again while descriptors, memory or threads are scarce: that passes, and says nothing of what was read.

use std::error::Error;
use std::time::Duration;

use agentd_api::SessionId;
use tokio_util::sync::CancellationToken;

use crate::env::chain;
use crate::pulse;
use crate::scarce;

const RETRY: Duration = Duration::from_millis(250);

/// Does on a thread of the pool what `work` gives, again and again until it succeeds, fails for another reason than scarcity, or
/// the daemon ends.
pub(super) async fn patiently<T, E, W>(
    id: &SessionId,
    shutdown: &CancellationToken,
    mut work: impl FnMut() -> W,
) -> Result<T, E>
where
    T: Send + 'static,
    E: Error + Send + 'static,
    W: FnOnce() -> Result<T, E> + Send + 'static,
{
    loop {
        pulse::gets_on();
        match pulse::blocking(work()).await {
            Err(error) if scarce::in_text(&chain(&error)).is_some() && !shutdown.is_cancelled() => {
                tracing::warn!(agentd.session = %id, error = %chain(&error), "the journal is read later");
                pulse::elsewhere(tokio::time::sleep(RETRY)).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use nix::libc;

    use super::*;

    #[tokio::test]
    async fn what_fails_for_scarcity_is_tried_again_and_what_fails_otherwise_is_not() {
        let (id, shutdown) = ("abcdefghjkmn".parse().unwrap(), CancellationToken::new());
        let read = async |errors: &[i32]| {
            let mut errors = errors.iter().copied();
            let work = || {
                let error = errors.next().map(io::Error::from_raw_os_error);
                move || error.map_or(Ok(7), Err)
            };
            patiently(&id, &shutdown, work).await.map_err(|error| error.raw_os_error())
        };
        assert_eq!(read(&[libc::EMFILE, libc::ENOMEM]).await, Ok(7));
        assert_eq!(read(&[libc::EMFILE, libc::EACCES]).await, Err(Some(libc::EACCES)));
        shutdown.cancel();
        assert_eq!(read(&[libc::EMFILE]).await, Err(Some(libc::EMFILE)), "a daemon that ends waits for nothing");
    }
}
