//! The actions of the scripted agent that ask for permission, and the tools that it then runs.

use std::io::Read as _;
use std::process::Stdio;
use std::thread;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::flags::usage;
use super::processes::{myself, note_pid};
use super::{Agent, Input, print_raw, send};

impl Agent {
    /// `tool CMD`: asks for permission, runs CMD by /bin/sh, and reports its output.
    pub(crate) fn tool(&mut self, command: &str) {
        let call = format!("call-{}", self.requests);
        self.update(&json!({
            "sessionUpdate": "tool_call", "toolCallId": call, "title": command, "kind": "execute", "status": "pending",
            "rawInput": { "command": command },
        }));
        let options = json!([
            { "optionId": "once", "name": "Allow once", "kind": "allow_once" },
            { "optionId": "always", "name": "Always allow", "kind": "allow_always" },
            { "optionId": "no", "name": "Reject", "kind": "reject_once" },
        ]);
        let tool_call = json!({ "toolCallId": call, "title": command, "kind": "execute" });
        let answer = self.permission(&tool_call, &options);
        if answer != "once" && answer != "always" {
            let status = json!({ "sessionUpdate": "tool_call_update", "toolCallId": call, "status": "failed" });
            self.update(&status);
            return self.say(&format!("not allowed: {answer}"));
        }
        self.run_tool(&call, command);
    }

    /// Runs CMD without asking, or with a permission already given.
    pub(crate) fn run_tool(&mut self, call: &str, command: &str) {
        self.update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": call, "status": "in_progress" }));
        let mut child = myself()
            .args(["tool", command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a tool can be started");
        if let Some(pidfile) = &self.flags.pidfile {
            note_pid(pidfile, "tool", child.id());
        }
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid fits"));
        let sender = self.sender.clone();
        thread::spawn(move || {
            let mut output = Vec::new();
            child.stdout.take().expect("stdout is a pipe").read_to_end(&mut output).ok();
            child.wait().ok();
            sender.send(Input::ToolDone(String::from_utf8_lossy(&output).into_owned())).ok();
        });
        let output = loop {
            match self.wait_for(None, |input| matches!(input, Input::ToolDone(_))) {
                Some(Input::ToolDone(output)) => break output,
                _ if self.cancelled => drop(signal::killpg(pid, Signal::SIGKILL)),
                _ => {}
            }
        };
        self.update(&json!({
            "sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed",
            "content": [{ "type": "content", "content": { "type": "text", "text": output } }],
        }));
        self.say(&output);
    }

    /// `ask`: a permission request with two options that allow once, like qwen's. Prints the id of the selected
    /// option.
    pub(crate) fn ask_twice_allowed(&mut self) {
        let options = json!([
            { "optionId": "no", "name": "No", "kind": "reject_once" },
            { "optionId": "always", "name": "Always", "kind": "allow_always" },
            { "optionId": "yes-and-watch", "name": "Yes, and show me", "kind": "allow_once" },
            { "optionId": "yes", "name": "Yes", "kind": "allow_once" },
        ]);
        let tool_call = json!({ "toolCallId": "asked", "title": "do something", "kind": "edit" });
        let answer = self.permission(&tool_call, &options);
        self.say(&format!("chosen {answer}"));
    }

    /// `ask-as ID`: a permission request whose id is spelled ID, which may contain half an emoji. Prints `answered`
    /// if the answer has the same spelling.
    pub(crate) fn ask_as(&mut self, id: &str) {
        let params = json!({ "toolCall": { "toolCallId": "asked", "title": "do something" }, "options": [] });
        let method = "session/request_permission";
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        print_raw(format!("{line}\n").as_bytes());
        let wanted = format!(r#""id":{id},"#);
        if self.wait_for(None, |input| matches!(input, Input::Text(line) if line.contains(&wanted))).is_some() {
            self.say("answered");
        }
    }

    /// `ask-for JSON`: announces the tool call `before`, if present, and asks for `call` verbatim. Prints the
    /// selected option.
    pub(crate) fn ask_for(&mut self, text: &str) {
        let Ok(asked) = serde_json::from_str::<Value>(text) else { usage(&format!("{text:?} is not JSON")) };
        if !asked["before"].is_null() {
            self.update(&asked["before"]);
        }
        let options = json!([
            { "optionId": "yes", "name": "Yes", "kind": "allow_once" },
            { "optionId": "no", "name": "No", "kind": "reject_once" },
        ]);
        let answer = self.permission(&asked["call"], &options);
        self.say(&format!("chosen {answer}"));
    }

    /// `elicit JSON`: asks a question with these parameters. Prints the answer.
    pub(crate) fn elicit(&mut self, text: &str) {
        let Ok(mut params) = serde_json::from_str::<Value>(text) else { usage(&format!("{text:?} is not JSON")) };
        params["sessionId"] = json!(self.conversation.as_ref().map(|conversation| conversation.id.clone()));
        let answer = self.request("elicitation/create", &params);
        self.say(&format!("told {}", answer.get("result").unwrap_or(&answer["error"])));
    }

    /// `notify METHOD PARAMETERS`: sends a notification. A `sessionId` becomes the id of the conversation.
    pub(crate) fn notify(&self, text: &str) {
        let (method, params) = text.split_once(' ').expect("a method and parameters");
        let mut params: Value = serde_json::from_str(params).expect("parameters as JSON");
        if let (Some(id), Some(conversation)) = (params.get_mut("sessionId"), &self.conversation) {
            *id = json!(conversation.id);
        }
        send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    pub(crate) fn permission(&mut self, tool_call: &Value, options: &Value) -> String {
        let session = self.conversation.as_ref().map(|conversation| conversation.id.clone());
        let params = json!({ "sessionId": session, "toolCall": tool_call, "options": options });
        let answer = self.request("session/request_permission", &params);
        let outcome = &answer["result"]["outcome"];
        outcome["optionId"].as_str().or(outcome["outcome"].as_str()).unwrap_or("error").to_owned()
    }

    /// `request METHOD PARAMETERS`: makes a request, and says its result as JSON, or `code` and the error's code.
    pub(crate) fn ask_client(&mut self, text: &str) {
        let (method, params) = text.split_once(' ').expect("a method and parameters");
        let mut params: Value = serde_json::from_str(params).expect("parameters as JSON");
        if let Some(conversation) = &self.conversation {
            params["sessionId"] = json!(conversation.id);
        }
        let answer = self.request(method, &params);
        match answer.get("result") {
            Some(result) => self.say(&result.to_string()),
            None => self.say(&format!("code {}", answer["error"]["code"])),
        }
    }
}
