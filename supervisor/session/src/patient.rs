//! Retries reads while file descriptors, memory or threads are scarce. Such an error is temporary and proves nothing
//! about the data.

use std::error::Error;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::pulse;
use agentd_api::chain;
use agentd_host::exhausted;

const RETRY: Duration = Duration::from_millis(250);

/// Runs `work` on a blocking thread, repeatedly while it fails for scarcity. Ends at success, at another error, or
/// when the daemon ends.
pub(super) async fn patiently<T, E, W>(shutdown: &CancellationToken, mut work: impl FnMut() -> W) -> Result<T, E>
where
    T: Send + 'static,
    E: Error + Send + 'static,
    W: FnOnce() -> Result<T, E> + Send + 'static,
{
    loop {
        pulse::gets_on();
        match pulse::blocking(work()).await {
            Err(error) if exhausted::in_text(&chain(&error)).is_some() && !shutdown.is_cancelled() => {
                tracing::warn!(
                    error = %chain(&error),
                    "cannot read the journal for lack of resources; retrying"
                );
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
    async fn a_read_that_fails_for_scarcity_is_retried_and_other_failures_are_not() {
        let shutdown = CancellationToken::new();
        let read = async |errors: &[i32]| {
            let mut errors = errors.iter().copied();
            let work = || {
                let error = errors.next().map(io::Error::from_raw_os_error);
                move || error.map_or(Ok(7), Err)
            };
            patiently(&shutdown, work).await.map_err(|error| error.raw_os_error())
        };
        assert_eq!(read(&[libc::EMFILE, libc::ENOMEM]).await, Ok(7));
        assert_eq!(read(&[libc::EMFILE, libc::EACCES]).await, Err(Some(libc::EACCES)));
        shutdown.cancel();
        assert_eq!(read(&[libc::EMFILE]).await, Err(Some(libc::EMFILE)), "a daemon that ends does not retry");
    }
}
