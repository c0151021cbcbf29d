//! Records what a plugin requested in a call and what the host answered. A later call with the same input repeats the
//! requests without the plugin ([`crate::memory`]).
//!
//! A plugin that imports only `log`, `shell-environment` and `script` is a function of its input and of these answers.
//! With equal answers, its result is equal too. At the first other answer the plugin runs, and receives the
//! answers that the host has already given: no request is made twice.

use std::collections::VecDeque;

use super::CallState;
use crate::bindings::provider::agentd::plugin::log::{self, Host as _};
use crate::bindings::provider::agentd::plugin::types::Failure;
use crate::services::{SourcedScript, Variables};

/// A request with its answer.
#[derive(Debug, Clone)]
pub(crate) enum HostCall {
    Log { level: log::Level, message: String },
    Login(Result<Variables, Failure>),
    Locate { paths: Vec<String>, found: Result<Vec<Option<String>>, Failure> },
    Source { path: String, given: Variables, sourced: Result<SourcedScript, Failure> },
}

/// The requests of one call.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    /// Whether the requests of the plugin are recorded.
    records: bool,
    calls: Vec<HostCall>,
    /// Requests that were answered before the plugin ran.
    ahead: VecDeque<HostCall>,
}

impl Transcript {
    /// Records the requests of the plugin from now on. Requests that were repeated without the plugin are answered
    /// first.
    pub(crate) fn record(&mut self) {
        self.records = true;
        self.ahead = std::mem::take(&mut self.calls).into();
    }

    /// Returns the answered requests if they can be repeated: the host refused nothing, and the plugin warned of
    /// nothing.
    pub(crate) fn repeatable(&mut self) -> Option<Vec<HostCall>> {
        let calls = std::mem::take(&mut self.calls);
        let can_repeat = |call: &HostCall| match call {
            HostCall::Log { level, .. } => matches!(level, log::Level::Info | log::Level::Debug),
            HostCall::Login(answer) => answer.is_ok(),
            HostCall::Locate { found, .. } => found.is_ok(),
            HostCall::Source { sourced, .. } => sourced.is_ok(),
        };
        (self.ahead.is_empty() && calls.iter().all(can_repeat)).then_some(calls)
    }

    /// Reports whether requests are recorded.
    pub(super) fn records(&self) -> bool {
        self.records
    }

    /// Returns the next request that was answered before the plugin ran.
    pub(super) fn next(&mut self) -> Option<HostCall> {
        self.ahead.pop_front()
    }

    /// Records a request.
    pub(super) fn note(&mut self, call: impl FnOnce() -> HostCall) {
        if self.records {
            self.calls.push(call());
        }
    }
}

impl CallState {
    /// Repeats the requests of an earlier call. Reports whether each answer equals the earlier one.
    pub(crate) async fn repeat(&mut self, earlier: &[HostCall]) -> wasmtime::Result<bool> {
        for call in earlier {
            let (answered, is_same) = match call {
                HostCall::Log { level, message } => {
                    self.write(*level, message.clone()).await?;
                    (call.clone(), true)
                }
                HostCall::Login(before) => {
                    let now = self.answer_login().await;
                    let is_same = same(before, &now);
                    (HostCall::Login(now), is_same)
                }
                HostCall::Locate { paths, found } => {
                    let now = self.located(paths.clone()).await.map_err(Into::into);
                    let is_same = same(found, &now);
                    (HostCall::Locate { paths: paths.clone(), found: now }, is_same)
                }
                HostCall::Source { path, given, sourced } => {
                    let now = self.answer_source(path, given.clone()).await;
                    let is_same = same(sourced, &now);
                    (HostCall::Source { path: path.clone(), given: Vec::new(), sourced: now }, is_same)
                }
            };
            self.transcript.calls.push(answered);
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn same<T: PartialEq>(before: &Result<T, Failure>, now: &Result<T, Failure>) -> bool {
    matches!((before, now), (Ok(before), Ok(now)) if before == now)
}
