//! Runs work that blocks outside the runtime's own threads.

use std::any::Any;

use tokio::task::JoinError;

type AnyResult = Box<dyn Any + Send>;

/// Runs `work` like `tokio::task::spawn_blocking`. It begins before the future is polled. Dropping the future does not
/// end the work.
///
/// # Errors
///
/// The error of `tokio::task::spawn_blocking`: the work panicked, or the runtime ended before the work began.
pub fn blocking<T, W>(work: W) -> impl Future<Output = Result<T, JoinError>> + use<T, W>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    // The future does not contain the work. Otherwise each caller's future would have room for it, twice.
    let running = erased(Box::new(move || Box::new(work()) as AnyResult));
    async move {
        match running.await?.downcast() {
            Ok(result) => Ok(*result),
            Err(_) => unreachable!("the work returns the type that its caller awaits"),
        }
    }
}

/// One function for all work. tokio's own function is generic, and the compiler would make the code of a task for each
/// caller.
fn erased(work: Box<dyn FnOnce() -> AnyResult + Send>) -> tokio::task::JoinHandle<AnyResult> {
    tokio::task::spawn_blocking(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_returns_its_result_and_its_panic() {
        assert_eq!(blocking(|| vec![1_u8, 2]).await.expect("it ran"), [1, 2]);
        let panic = blocking(|| -> u8 { panic!("on purpose") }).await.expect_err("it panicked").into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    }
}
