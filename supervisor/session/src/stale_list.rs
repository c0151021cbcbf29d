//! Looks at many sessions for staleness: at a bounded number at once, and for a bounded time.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::SessionId;
use agentd_api::session::SessionView;
use agentd_api::staleness::{StaleFinding, UncheckedSession};
use async_recursion::async_recursion as boxed;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Sessions, staleness};

/// Time limit of one request, however many sessions there are.
const LONGEST: Duration = Duration::from_secs(15);
/// Maximum number of sessions that are looked at concurrently. Each look runs git.
const AT_ONCE: usize = 8;

/// Findings of one session, or the reason why it could not be checked.
pub(super) type Looked = Result<Vec<StaleFinding>, String>;

impl Sessions {
    /// Returns the stale sessions among `views` with their present findings, and the sessions that could not be checked
    /// in time. An active session has the findings of its launch.
    #[boxed]
    pub async fn stale(&self, views: Vec<SessionView>) -> (Vec<SessionView>, Vec<UncheckedSession>) {
        let (mut stale, mut unchecked) = (Vec::new(), Vec::new());
        let ids = views.iter().map(|view| view.id.clone()).collect();
        for (mut view, looked) in views.into_iter().zip(self.look_at(ids).await) {
            match looked {
                Ok(findings) if findings.is_empty() => {}
                Ok(findings) => {
                    view.status.staleness = findings;
                    stale.push(view);
                }
                Err(reason) => unchecked.push(UncheckedSession { id: view.id, reason }),
            }
        }
        (stale, unchecked)
    }

    /// Looks at the sessions, and returns the results in order. A session that was removed meanwhile is not stale.
    pub(super) async fn look_at(&self, ids: Vec<SessionId>) -> Vec<Looked> {
        let generation = self.generations().now();
        let mut looks = Vec::new();
        for id in ids {
            let (generation, session) = (Arc::clone(&generation), self.find(id.as_str()).await);
            looks.push(async move {
                match session {
                    Ok(session) => staleness::look(&generation, &session).await,
                    Err(_) => Vec::new(),
                }
            });
        }
        let in_time = bounded(looks, AT_ONCE, LONGEST).await.into_iter();
        in_time.map(|found| found.ok_or_else(|| format!("it was not checked within {} s", LONGEST.as_secs()))).collect()
    }
}

/// Runs the work, at most `at_once` pieces concurrently. Returns the results in order, with `None` for work that lasts
/// longer than `limit`. Such work is dropped.
async fn bounded<T: Clone + Send + 'static>(
    work: Vec<impl Future<Output = T> + Send + 'static>,
    at_once: usize,
    limit: Duration,
) -> Vec<Option<T>> {
    let (running, mut tasks) = (Arc::new(Semaphore::new(at_once)), JoinSet::new());
    let mut results = vec![None; work.len()];
    for (number, one) in work.into_iter().enumerate() {
        let running = Arc::clone(&running);
        tasks.spawn(async move {
            let _permit = running.acquire_owned().await;
            (number, one.await)
        });
    }
    let collect = async {
        while let Some(ended) = tasks.join_next().await {
            if let Ok((number, result)) = ended {
                results[number] = Some(result);
            }
        }
    };
    let _ = tokio::time::timeout(limit, collect).await;
    results
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn work_that_hangs_is_left_out_and_holds_up_no_other_work() {
        let work = |number: u32| async move {
            if number == 1 {
                std::future::pending::<()>().await;
            }
            number
        };
        // Without the hanging work the limit is not reached.
        let limit = Duration::from_mins(5);
        assert_eq!(bounded(vec![work(0), work(2)], 1, limit).await, [Some(0), Some(2)]);
        let limit = Duration::from_millis(50);
        let results = bounded((0..20).map(work).collect(), 2, limit).await;
        assert_eq!((results[0], results[1], results[19]), (Some(0), None, Some(19)));
    }

    #[tokio::test]
    async fn no_more_work_runs_at_once_than_is_allowed() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = |_| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
            }
        };
        bounded((0..50).map(work).collect(), 3, Duration::from_mins(5)).await;
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }
}
