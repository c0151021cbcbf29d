//! An agent that repeats what another agent wrote: `scripted-agent transcript FILE`.
//!
//! Each line of the file is a message. A response answers the client's next request, whatever it asks. Behind a request
//! the agent waits for its answer, and behind the response with the conversation it waits for the prompt.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Stdin, stdin};
use std::path::Path;

use serde_json::Value;

use crate::flags::usage;
use crate::send;

pub(crate) fn repeat(file: &Path) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| usage(&error.to_string()));
    let mut client = Client { lines: BufReader::new(stdin()), requests: VecDeque::new() };
    for line in text.lines() {
        let mut message: Value = serde_json::from_str(line).unwrap_or_else(|error| usage(&error.to_string()));
        if message.get("method").is_none() {
            let Some(request) = client.request() else { return };
            message["id"] = request["id"].clone();
            send(&message);
            if !message["result"]["sessionId"].is_null() {
                let Some(prompt) = client.request() else { return };
                client.requests.push_front(prompt);
            }
            continue;
        }
        send(&message);
        if !message["id"].is_null() && !client.has_answered(&message["id"]) {
            return;
        }
    }
    while client.next().is_some() {}
}

struct Client {
    lines: BufReader<Stdin>,
    /// Requests that arrived while the agent waited for an answer.
    requests: VecDeque<Value>,
}

impl Client {
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        let length = self.lines.read_line(&mut line).expect("it can be read");
        (length > 0).then(|| serde_json::from_str(&line).unwrap_or_else(|error| usage(&error.to_string())))
    }

    /// Returns the next request, or `None` at the end of the input.
    fn request(&mut self) -> Option<Value> {
        if let Some(request) = self.requests.pop_front() {
            return Some(request);
        }
        let is_request = |message: &Value| message.get("method").is_some() && !message["id"].is_null();
        loop {
            let message = self.next()?;
            if is_request(&message) {
                return Some(message);
            }
        }
    }

    /// Waits for the answer to a request of the agent. Returns `false` at the end of the input.
    fn has_answered(&mut self, id: &Value) -> bool {
        while let Some(message) = self.next() {
            match (message.get("method").is_some(), &message["id"]) {
                (false, answered) if answered == id => return true,
                (true, request) if !request.is_null() => self.requests.push_back(message),
                _ => {}
            }
        }
        false
    }
}
