//! Implements `run COMMAND`: a tool call as real agents make it. The call is announced, permitted by the
//! client, and run in its own process session, with its output streamed.

use std::io::{self, PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{Agent, Input, Woken};

/// Interval at which the command is checked, and minimum interval between updates of its output.
const TICK: Duration = Duration::from_millis(20);
/// Time limit for children that the command left behind to close the output after the command's end.
const DRAIN: Duration = Duration::from_millis(100);
/// Maximum size of the output: each update repeats all output so far (ACP: content is replaced).
const OUTPUT_LIMIT: usize = 32 << 10;

impl<W: Write> Agent<W> {
    pub(super) fn run_command(&mut self, command: &str) -> io::Result<()> {
        let number = self.next_rpc; // the number of the permission request
        let id = format!("call-{number}");
        self.tell(&json!({
            "sessionUpdate": "tool_call",
            "toolCallId": id,
            "title": command,
            "kind": "execute",
            "status": "pending",
            "rawInput": { "command": command },
        }))?;
        if !self.is_permitted(&id, command)? {
            self.tell(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "failed" }))?;
            return self.say(&format!("I did not run `{command}`: it was not permitted.\n")).map(drop);
        }
        let mut output = Output::default();
        let ended = match self.start(number, command) {
            Ok(child) => self.watch(child, number, &mut output)?,
            Err(error) => {
                output.push(format!("cannot start sh: {error}\n").as_bytes());
                None
            }
        };
        let status = if ended.is_some_and(|status| status.success()) { "completed" } else { "failed" };
        let mut update = output.update(&id, status);
        if let Some(code) = ended.and_then(|status| status.code()) {
            update["rawOutput"] = json!({ "exitCode": code });
        }
        self.tell(&update)?;
        if let Some(ended) = ended {
            self.say(&format!("`{command}` ended with {ended}.\n"))?;
        }
        Ok(())
    }

    fn is_permitted(&mut self, id: &str, command: &str) -> io::Result<bool> {
        let session = self.turn.as_ref().map(|turn| turn.session.clone()).unwrap_or_default();
        let answer = self.ask(
            "session/request_permission",
            &json!({
                "sessionId": session,
                "toolCall": {
                    "toolCallId": id,
                    "title": command,
                    "kind": "execute",
                    "status": "pending",
                    "rawInput": { "command": command },
                },
                "options": [
                    { "optionId": "allow-once", "name": "Allow once", "kind": "allow_once" },
                    { "optionId": "reject-once", "name": "Reject", "kind": "reject_once" },
                ],
            }),
        )?;
        Ok(answer.is_some_and(|answer| answer["result"]["outcome"]["optionId"] == "allow-once"))
    }

    fn start(&self, number: u64, command: &str) -> io::Result<Child> {
        let session = self.turn.as_ref().map(|turn| turn.session.as_str()).unwrap_or_default();
        let directory = self.open.get(session).unwrap_or(&self.settings.directory);
        // One pipe for stdout and stderr preserves the order of the output.
        let (reader, writer) = io::pipe()?;
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).current_dir(directory).stdin(Stdio::null());
        shell.stdout(writer.try_clone()?).stderr(writer);
        own_process_session(&mut shell);
        let child = shell.spawn()?;
        drop(shell); // closes the writing end of this process
        let sender = self.sender.clone();
        thread::Builder::new().name("output".into()).spawn(move || read_output(number, reader, &sender))?;
        Ok(child)
    }

    /// Streams the output until the command ends. Returns `None` if the command was killed because the turn was
    /// cancelled.
    fn watch(&mut self, mut child: Child, number: u64, output: &mut Output) -> io::Result<Option<ExitStatus>> {
        let id = &format!("call-{number}");
        self.tell(&output.update(id, "in_progress"))?;
        let mut open = true;
        let mut ended: Option<(ExitStatus, Instant)> = None;
        loop {
            let tick = Instant::now() + TICK;
            loop {
                match self.wait_until(tick)? {
                    Woken::Time => break,
                    Woken::Output(of, bytes) if of == number => output.push(&bytes),
                    Woken::OutputEnd(of) if of == number => {
                        open = false;
                        break;
                    }
                    Woken::Output(..) | Woken::OutputEnd(_) | Woken::Something => {}
                    Woken::Cancelled => {
                        if ended.is_none() {
                            kill_process_session(&mut child)?;
                        }
                        return Ok(None);
                    }
                }
            }
            if std::mem::take(&mut output.changed) {
                self.tell(&output.update(id, "in_progress"))?;
            }
            if ended.is_none() {
                ended = child.try_wait()?.map(|status| (status, Instant::now()));
            }
            if let Some((status, since)) = ended
                && (!open || since.elapsed() > DRAIN)
            {
                return Ok(Some(status));
            }
        }
    }
}

/// Output of a command, up to the limit.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    cut: bool,
    changed: bool,
}

impl Output {
    fn push(&mut self, bytes: &[u8]) {
        let room = OUTPUT_LIMIT - self.bytes.len();
        self.changed |= room > 0 || !self.cut;
        self.cut |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn update(&self, id: &str, status: &str) -> Value {
        let mut update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "status": status });
        if !self.bytes.is_empty() {
            let mut text = String::from_utf8_lossy(&self.bytes).into_owned();
            if self.cut {
                text.push_str("\n(the rest of the output is left out)\n");
            }
            update["content"] = json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
        }
        update
    }
}

fn read_output(number: u64, mut pipe: PipeReader, inbox: &SyncSender<Input>) {
    let mut buffer = vec![0; 8 << 10];
    loop {
        let input = match pipe.read(&mut buffer) {
            Ok(0) | Err(_) => Input::OutputEnd(number),
            Ok(count) => Input::Output(number, buffer[..count].to_vec()),
        };
        let end = matches!(input, Input::OutputEnd(_));
        if inbox.send(input).is_err() || end {
            return;
        }
    }
}

#[allow(unsafe_code, reason = "std has no safe way to start a process in a session of its own")]
fn own_process_session(command: &mut Command) {
    // SAFETY: between fork and exec only setsid(2) is called, which is async-signal-safe. Nothing is allocated:
    // making an io::Error of an errno does not allocate.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(Into::into));
    }
}

/// Kills the command and its children, except children in further sessions.
fn kill_process_session(child: &mut Child) -> io::Result<()> {
    // The command is not reaped yet, so the pid is still valid.
    let group = Pid::from_raw(child.id().cast_signed());
    match killpg(group, Signal::SIGKILL) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => child.wait().map(drop),
        Err(errno) => Err(errno.into()),
    }
}
