//! Runs work on files.

/// Runs work on files outside the shared runtime threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match agentd_host::work::blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The daemon is shutting down, and this task ends with it.
            Err(_) => std::future::pending().await,
        },
    }
}
