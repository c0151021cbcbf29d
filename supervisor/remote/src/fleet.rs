//! Works on several machines side by side, each with a time limit.

use std::panic::resume_unwind;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

/// Maximum number of machines that are asked at once.
pub const SIDE_BY_SIDE: usize = 8;

/// Does `work` for each item, for at most [`SIDE_BY_SIDE`] items at once. The results have the order of the items.
/// `None` means work that took longer than `limit`; it was dropped.
///
/// The time of an item begins when its work begins. So `n` items take at most `n / 8`, rounded up, times the limit.
/// Dropping the future drops all work.
pub async fn side_by_side<I, F, T>(items: Vec<I>, limit: Duration, work: impl Fn(I) -> F) -> Vec<Option<T>>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let mut results: Vec<Option<T>> = items.iter().map(|_| None).collect();
    let mut left = items.into_iter().enumerate();
    let mut running = JoinSet::new();
    loop {
        while running.len() < SIDE_BY_SIDE
            && let Some((index, item)) = left.next()
        {
            let work = work(item);
            running.spawn(async move { (index, timeout(limit, work).await.ok()) });
        }
        match running.join_next().await {
            Some(Ok((index, result))) => results[index] = result,
            Some(Err(error)) => {
                if let Ok(panic) = error.try_into_panic() {
                    resume_unwind(panic);
                }
            }
            None => return results,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn at_most_eight_are_at_work_at_once_and_the_order_stays() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let results = run(side_by_side((0..30).collect(), Duration::from_mins(1), |item: usize| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                for _ in 0..(30 - item) {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Ordering::SeqCst);
                item
            }
        }));
        assert_eq!(results, (0..30).map(Some).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::SeqCst), SIDE_BY_SIDE);
    }

    #[test]
    fn work_that_takes_too_long_is_dropped_and_holds_up_nothing_else() {
        struct Dropped(Arc<AtomicUsize>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        let results = run(side_by_side((0..20).collect(), Duration::from_millis(20), |item: usize| {
            let guard = Dropped(Arc::clone(&dropped));
            async move {
                let _guard = guard;
                if item.is_multiple_of(2) {
                    std::future::pending::<()>().await;
                }
                item
            }
        }));
        let wanted: Vec<Option<usize>> = (0..20).map(|item| (item % 2 == 1).then_some(item)).collect();
        assert_eq!((results, dropped.load(Ordering::SeqCst)), (wanted, 20));
    }
}
