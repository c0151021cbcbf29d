//! One attempt of a delivery, to whichever receiver the hook has.

use std::time::{Duration, Instant};

use agentd_api::hook::{HookAttempt, HookFault, HookMessage, HookOutcome};
use agentd_config::Hook;
use agentd_session::generation::Generation;
use jiff::Timestamp;

use crate::tls::Tls;
use crate::{command, desktop, post};

/// Number of bytes of an answer that are read.
pub(crate) const ANSWER: usize = 4 << 10;

/// A receiver accepted a message.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// HTTP status, or exit status.
    pub(crate) status: Option<i32>,
    /// Begin of the answer.
    pub(crate) answer: String,
}

/// A delivery failed.
#[derive(Debug)]
pub(crate) struct SendFailure {
    pub(crate) code: HookFault,
    /// Description for people, without a secret.
    pub(crate) detail: String,
    /// HTTP status, or exit status.
    pub(crate) status: Option<i32>,
    /// Pause that the receiver asked for.
    pub(crate) asked: Option<Duration>,
    /// Begin of the answer.
    pub(crate) answer: String,
}

impl SendFailure {
    pub(crate) fn new(code: HookFault, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), status: None, asked: None, answer: String::new() }
    }
}

/// A hook with what its attempts share.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) name: String,
    pub(crate) hook: Hook,
    tls: Tls,
}

/// An attempt, with the parts that only the worker needs.
#[derive(Debug)]
pub(crate) struct Attempted {
    pub(crate) attempt: HookAttempt,
    pub(crate) asked: Option<Duration>,
    pub(crate) answer: String,
}

impl Sender {
    pub(crate) fn new(name: String, hook: Hook) -> Self {
        Self { name, hook, tls: Tls::default() }
    }

    /// Makes one attempt within the time limit of the hook.
    pub(crate) async fn attempt(&self, generation: &Generation, message: &HookMessage, number: u32) -> Attempted {
        let begun = Instant::now();
        let timeout = self.hook.timeout.0;
        let sending = async {
            match &self.hook.url {
                Some(url) => {
                    let late = || SendFailure::new(HookFault::HookTimeout, format!("no answer within {timeout:?}"));
                    let posting = post::post(generation, &self.hook, url, &self.tls, message);
                    tokio::time::timeout(timeout, posting).await.unwrap_or_else(|_| Err(late()))
                }
                None if self.hook.desktop => desktop::show(generation, message, timeout).await,
                None => command::run(generation, &self.hook, message).await,
            }
        };
        let sent = sending.await;
        let (outcome, code, status, detail, asked, answer) = match sent {
            Ok(Sent { status, answer }) => (HookOutcome::Delivered, None, status, None, None, answer),
            Err(SendFailure { code, detail, status, asked, answer }) => {
                (HookOutcome::Failed, Some(code), status, Some(detail), asked, answer)
            }
        };
        let attempt = HookAttempt {
            time: Timestamp::now(),
            id: message.data.id.clone(),
            event: message.kind.clone(),
            attempt: number,
            duration_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            outcome,
            code,
            status,
            detail,
            remedy: code.map(|code| code.remedy().to_owned()),
        };
        Attempted { attempt, asked, answer }
    }
}

/// Returns the begin of an answer as text in one piece.
pub(crate) fn answer(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(ANSWER)]).trim_end().to_owned()
}
