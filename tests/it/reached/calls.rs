//! One complete call of each route, which succeeds on a session at rest or is refused for the state that a test made.

use std::path::{Path, PathBuf};

use agentd_api::Route;
use serde_json::{Value, json};

use crate::harness::client::in_query;
use crate::harness::{Client, Response};

/// Names in the calls.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Id or name of the session in the path.
    pub(super) session: String,
    pub(super) directory: PathBuf,
    /// Specification of new sessions.
    pub(super) spec: Value,
    /// Name of the agent in paths and queries.
    pub(super) agent: String,
    /// Change of the session's specification.
    pub(super) change: Value,
}

impl Target {
    pub(super) fn new(session: impl Into<String>, directory: &Path, spec: Value) -> Self {
        Self {
            session: session.into(),
            directory: directory.to_owned(),
            spec,
            agent: "scripted".to_owned(),
            change: json!({ "labels": { "a": "b" } }),
        }
    }

    /// Returns the path of a route, with the query that the call needs.
    pub(super) fn address(&self, route: Route) -> String {
        let name = match route {
            Route::AgentStart => self.agent.as_str(),
            Route::Plugin => "whitelist",
            _ => "gate",
        };
        let path = [
            ("{session}", self.session.as_str()),
            ("{name}", name),
            ("{schedule}", "nightly"),
            ("{turn}", "t1"),
            ("{permission}", "p1"),
            ("{repository}", "lib"),
        ]
        .into_iter()
        .fold(route.path().to_owned(), |path, (parameter, value)| path.replace(parameter, value));
        match route {
            Route::Scripts => format!("{path}?directory={}", in_query(&self.directory)),
            Route::Directories => format!("{path}?path={}/", in_query(&self.directory)),
            Route::Prerequisites => format!("{path}?session={}", self.session),
            Route::Events | Route::Feed => format!("{path}?follow=false"),
            Route::Environment => format!("{path}?at=now"),
            Route::EnvironmentDifference => format!("{path}?from=last&to=now"),
            Route::Catalogue => format!("{path}?agent={}", self.agent),
            _ => path,
        }
    }

    /// Returns the body of a call.
    pub(super) fn body(&self, route: Route) -> Value {
        let directory = json!({ "directory": self.directory });
        let one = json!({ "sessions": [self.session] });
        match route {
            Route::AddAgent => json!({ "name": "added", "command": ["/bin/true"], "dry_run": true }),
            Route::AgentStart | Route::AllowScripts | Route::DenyScripts => directory,
            Route::CheckPrerequisite => json!({ "session": self.session }),
            Route::Keep => json!({ "names": ["KEPT"] }),
            Route::AddSnapshot => json!({ "variables": [] }),
            Route::Prune => json!({ "older_than_seconds": 0, "dry_run": true }),
            Route::AddSchedule | Route::SetSchedule => {
                json!({ "name": "nightly", "at": "2199-01-01T00:00:00Z", "session": self.spec })
            }
            Route::CreateSession => self.spec.clone(),
            Route::ChangeSpec => self.change.clone(),
            Route::AddRepository => json!({ "url": self.directory.join("source"), "name": "lib" }),
            Route::ChangeContext => json!({ "sets": { "files": ["/etc/hostname"] } }),
            Route::SetHint => json!({ "hint": "source setup.sh" }),
            Route::SetTitle => json!({ "title": "a title" }),
            Route::ReportProgress => json!({ "message": "half way" }),
            Route::ProposeScript => json!({ "text": "export A=1", "explanation": "needed" }),
            Route::Prompt => json!({ "prompt": "say so" }),
            Route::Permit => json!({ "option": "yes" }),
            Route::AnswerRequest => json!({ "id": 1, "result": {} }),
            Route::BulkStop | Route::BulkResume | Route::BulkRemove => json!({ "select": one }),
            Route::BulkAnswer => json!({ "select": one, "answer": "deny" }),
            Route::AcpSend => json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} }),
            _ => Value::Null,
        }
    }

    /// Makes the call of a route.
    pub(super) async fn make(&self, client: &Client, route: Route) -> Response {
        let body = self.body(route);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        client.call(route.method().as_str(), &self.address(route), body).await
    }
}
