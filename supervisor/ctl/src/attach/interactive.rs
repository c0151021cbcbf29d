//! The part of an attachment that a person at a terminal uses: keys, drawing, and the ways out.

use std::io;

use agentd_api::session::PermissionAnswer;
use agentd_api::{Body, Event};
use crossterm::event::Event as KeyEvent;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::facts::Facts;
use super::live::{Action, Live, State};
use super::{Attached, Attachment, End, Goal, earlier, tty};
use crate::error::Error;
use crate::output::Sink;
use crate::render::{Output, Renderer};
use agentd_client::Client;

/// The terminal and what belongs to it.
pub(super) struct Interactive {
    pub(super) live: Live,
    /// Facts of the events before those shown.
    earlier: Option<oneshot::Receiver<Facts>>,
    terminate: Signal,
    hang_up: Signal,
}

/// Event at the terminal.
pub(super) enum Happened {
    Key(Option<io::Result<KeyEvent>>),
    Earlier(Box<Facts>),
    /// A signal that ends the process.
    Signal(i32),
}

impl Interactive {
    /// Opens the terminal, if a person talks to the session at one.
    pub(super) fn open(
        client: &Client,
        attachment: &Attachment,
    ) -> io::Result<Option<(Self, Renderer<Output, Output>)>> {
        if attachment.goal != Goal::Talk || attachment.json || !tty::is_interactive() {
            return Ok(None);
        }
        let (terminate, hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
        let sink = Sink::default();
        let live = Live::open(sink.clone(), attachment.agent.clone(), attachment.directory.clone())?;
        let renderer = Renderer::interactive(sink, live.columns(), attachment.verbose);
        let earlier = (attachment.after > 0).then(|| {
            let (sender, receiver) = oneshot::channel();
            let (client, id, until) = (client.clone(), attachment.id.clone(), attachment.after);
            tokio::spawn(async move {
                let _ = sender.send(earlier::facts(client, id, until).await); // the attachment may be over
            });
            receiver
        });
        Ok(Some((Self { live, earlier, terminate, hang_up }, renderer)))
    }

    /// Waits for a key, the earlier facts, or a signal that ends the process. Cancel-safe.
    pub(super) async fn happened(&mut self) -> Happened {
        loop {
            tokio::select! {
                key = self.live.event() => return Happened::Key(key),
                facts = arrival(&mut self.earlier) => {
                    self.earlier = None;
                    if let Some(facts) = facts {
                        return Happened::Earlier(Box::new(facts));
                    }
                }
                _ = self.terminate.recv() => return Happened::Signal(nix::libc::SIGTERM),
                _ = self.hang_up.recv() => return Happened::Signal(nix::libc::SIGHUP),
            }
        }
    }
}

async fn arrival(earlier: &mut Option<oneshot::Receiver<Facts>>) -> Option<Facts> {
    match earlier {
        Some(receiver) => receiver.await.ok(),
        None => std::future::pending().await,
    }
}

/// Waits for what happens at the terminal, if there is one.
pub(super) async fn happened(interactive: &mut Option<Interactive>) -> Happened {
    match interactive {
        Some(interactive) => interactive.happened().await,
        None => std::future::pending().await,
    }
}

impl Attached<'_> {
    fn state(&self) -> State {
        State {
            ready: self.conversation.is_ready(),
            busy: self.conversation.running().is_some(),
            queued: self.conversation.queued(),
        }
    }

    /// Returns the time of the next drawing.
    pub(super) fn draw_at(&self) -> Option<Instant> {
        self.interactive.as_ref()?.live.draw_at(self.state())
    }

    /// Draws, if it is time.
    pub(super) fn draw(&mut self) -> Result<(), Error> {
        let due = self.draw_at().is_some_and(|at| Instant::now() >= at);
        let state = self.state();
        let Some(interactive) = self.interactive.as_mut().filter(|_| due) else { return Ok(()) };
        self.renderer.write_ready()?;
        interactive.live.draw(&self.renderer.preview(), state).map_err(Error::Output)
    }

    /// Takes over the facts of an event, and prints a question that the event answers.
    pub(super) fn observe(&mut self, event: &Event) -> Result<(), Error> {
        let Some(interactive) = &mut self.interactive else { return Ok(()) };
        interactive.live.facts.apply(event);
        interactive.live.remember_prompts();
        interactive.live.touch();
        if let Body::PermissionResolved(resolved) = &event.body
            && self.asked.as_ref() == Some(&resolved.permission)
        {
            self.end_question()?;
        }
        Ok(())
    }

    /// Prints the question that is over, above.
    fn end_question(&mut self) -> Result<(), Error> {
        let question = self.interactive.as_mut().and_then(|interactive| interactive.live.end_question());
        question.map_or(Ok(()), |request| self.renderer.print_question(&request))
    }

    /// Sends the prompts that were typed, once the session accepts prompts.
    pub(super) async fn send_typed(&mut self) -> Result<(), Error> {
        while self.live && self.conversation.is_ready() {
            let Some(interactive) = &mut self.interactive else { break };
            let Some(line) = interactive.live.typed.pop_front() else { break };
            if !line.trim().is_empty() {
                let sent = self.send_prompt(&line).await;
                self.survive(sent)?;
            }
        }
        Ok(())
    }

    pub(super) async fn react(&mut self, happened: Happened) -> Result<Option<End>, Error> {
        let Some(interactive) = &mut self.interactive else { return Ok(None) };
        let key = match happened {
            Happened::Earlier(facts) => {
                interactive.live.precede(*facts);
                return Ok(None);
            }
            Happened::Signal(number) => return Ok(Some(End::Signalled(number))),
            Happened::Key(None) => return Ok(Some(End::InputEnded(0))),
            Happened::Key(Some(key)) => key.map_err(Error::Input)?,
        };
        let action = interactive.live.key(key).map_err(Error::Output)?;
        self.renderer.set_columns(interactive.live.columns());
        match action {
            None => Ok(None),
            Some(Action::End) => Ok(Some(End::InputEnded(0))),
            Some(Action::Answer(answer)) => self.answer_at_terminal(answer).await.map(|()| None),
            Some(Action::Interrupt) => {
                let works = self.outstanding.is_some() || self.conversation.running().is_some();
                if !works && interactive.live.clear_draft() {
                    return Ok(None);
                }
                self.interrupted().await
            }
        }
    }

    async fn answer_at_terminal(&mut self, answer: PermissionAnswer) -> Result<(), Error> {
        let Some(request) = self.question().map(|request| request.id.clone()) else { return Ok(()) };
        if self.asked.as_ref() != Some(&request) {
            return Ok(()); // another question, which the user has not seen
        }
        let done = self.send_answer(&request, &answer).await;
        if done.is_ok() {
            self.end_question()?;
        }
        self.survive(done)
    }
}
