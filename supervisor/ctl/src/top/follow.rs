//! Follows the conversation of the selected session: its last page, then each new record, and earlier pages on request.
//!
//! The rules of display are those of `agentctl attach`: [`Conversation`] has the state, and the renderer writes into a
//! [`Sink`], from which the transcript takes its lines. Records are numbered, so none is lost or shown twice.

use std::collections::HashSet;
use std::future::pending;
use std::time::Duration;

use agentd_api::session::{PermissionRequest, SessionView};
use agentd_api::{Body, Call, Event, PermissionId, SessionId};
use agentd_client::{Absence as _, Client, Document, Error as ClientError, EventStream, Next, StreamStart};
use agentd_screen::terminal::Screen;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::one_line;
use super::transcript::Transcript;
use crate::conversation::{Conversation, Item};
use crate::error::Error;
use crate::output::Sink;
use crate::render::Renderer;
use crate::start::Starter;

/// Number of records of the first page, and of an earlier page.
const PAGE: u64 = 200;
const EARLIER: u64 = 500;
/// Time for which a session is selected before its conversation is read. A person may only pass it.
const DWELL: Duration = Duration::from_millis(80);
/// Pause before a further attempt, where the stream has given up.
const AGAIN: Duration = Duration::from_secs(1);

type Task<T> = JoinHandle<Result<T, ClientError>>;

/// Source of further records.
enum Source {
    /// The session is looked up.
    Opening(Task<Box<Document<SessionView>>>),
    Stream(EventStream),
    /// The stream begins again at this time.
    Pause(Instant),
    Over,
}

/// Event of the conversation.
pub(super) enum News {
    Opened(Result<Box<Document<SessionView>>, ClientError>),
    Next(Option<Next>),
    Again,
    Earlier(Result<Vec<Event>, ClientError>),
}

/// Connection of the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    Opening,
    Live,
    /// The daemon is away, or the stream is about to begin again.
    Away,
    /// Nothing more can come, for this reason.
    Over(String),
}

/// Writes items as painted lines, and remembers the kind of text at both ends.
struct Writer {
    renderer: Renderer<Sink, Sink>,
    sink: Sink,
    transcript: Transcript,
    first: Option<Flow>,
    last: Option<Flow>,
}

/// Kind of text that may continue over records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Answer,
    Thought,
    Other,
}

impl Writer {
    fn new(screen: Screen) -> Self {
        let sink = Sink::default();
        let renderer = Renderer::with(sink.clone(), sink.clone(), screen, screen, false);
        Self { renderer, sink, transcript: Transcript::default(), first: None, last: None }
    }

    /// Adds the text of one record. A sink takes every write.
    fn write(&mut self, event: &Event, items: &[Item]) {
        for item in items {
            let flow = match item {
                Item::Answer(_) => Flow::Answer,
                Item::Thought(_) => Flow::Thought,
                Item::Detail(_) => continue,
                _ => Flow::Other,
            };
            self.first.get_or_insert(flow);
            self.last = Some(flow);
            let _ = self.renderer.item(item, false);
        }
        if let Body::DaemonRecovered(recovered) = &event.body {
            self.last = Some(Flow::Other);
            let _ = self.renderer.note(&format!("recovered: agentd {} took over the session", recovered.version));
        }
        self.transcript.push(event.seq, &self.sink.take());
    }
}

/// The conversation of one session.
pub(super) struct Followed {
    client: Client,
    starter: Option<Starter>,
    screen: Screen,
    pub(super) id: SessionId,
    pub(super) link: Link,
    source: Source,
    conversation: Conversation,
    writer: Writer,
    view: Option<SessionView>,
    /// Whether the state of `view` was taken over.
    is_adopted: bool,
    /// Whether the daemon has answered since a stream gave up. Only then may a stream start a crashed daemon: a daemon
    /// that was stopped in order must stay down.
    is_up: bool,
    /// Sequence number of the last record.
    seen: u64,
    /// Sequence number of the first record in memory; 1 if there is no earlier record.
    oldest: u64,
    earlier: Option<Task<Vec<Event>>>,
    /// Questions that were answered here. The records of the answers may still come.
    answered: HashSet<PermissionId>,
}

impl Followed {
    /// Begins to follow a session.
    pub(super) fn open(client: Client, starter: Option<Starter>, screen: Screen, id: SessionId) -> Self {
        let (asked, session) = (client.clone(), id.clone());
        let opening = tokio::spawn(async move {
            sleep(DWELL).await;
            asked.session(session.as_str()).await.map(Box::new)
        });
        Self {
            client,
            starter,
            screen,
            id,
            link: Link::Opening,
            source: Source::Opening(opening),
            conversation: Conversation::default(),
            writer: Writer::new(screen),
            view: None,
            is_adopted: false,
            is_up: false,
            seen: 0,
            oldest: 1,
            earlier: None,
            answered: HashSet::new(),
        }
    }

    /// Begins again at the end of the conversation.
    pub(super) fn reopen(&mut self) {
        let (client, starter) = (self.client.clone(), self.starter.clone());
        *self = Self::open(client, starter, self.screen, self.id.clone());
    }

    /// Connects again after the last record, once the daemon has answered elsewhere. The connection may be dead without
    /// a sign.
    pub(super) fn reconnect(&mut self) {
        if matches!(self.source, Source::Stream(_) | Source::Pause(_)) {
            self.is_up = true;
            self.link = Link::Away;
            self.source = Source::Pause(Instant::now());
        }
    }

    /// Waits for news. Cancel-safe.
    pub(super) async fn news(&mut self) -> News {
        let Self { source, earlier, .. } = self;
        let source = async {
            match source {
                Source::Opening(task) => News::Opened(joined(task).await),
                Source::Stream(stream) => News::Next(stream.next().await),
                Source::Pause(until) => {
                    sleep_until(*until).await;
                    News::Again
                }
                Source::Over => pending().await,
            }
        };
        tokio::select! {
            news = source => news,
            events = arrival(earlier) => News::Earlier(events),
        }
    }

    /// Takes news over.
    pub(super) fn take(&mut self, news: News) {
        match news {
            News::Opened(Ok(document)) => {
                self.seen = document.value.status.last_seq.saturating_sub(PAGE);
                self.oldest = self.seen + 1;
                self.view = Some(document.value);
                self.is_up = true;
                self.adopt();
                self.stream();
            }
            News::Again if self.view.is_some() => self.stream(),
            News::Again => self.reopen(),
            News::Opened(Err(error)) | News::Next(Some(Next::Failed(error))) => self.failed(error),
            News::Next(Some(Next::Record { seq, line })) => self.record(seq, &line),
            News::Next(Some(Next::Away)) => self.link = Link::Away,
            News::Next(Some(Next::Deleted) | None) => self.end("the session was removed".to_owned()),
            News::Earlier(events) => self.take_earlier(events),
        }
    }

    fn stream(&mut self) {
        let reviver = self.starter.clone().filter(|_| self.is_up).map(Starter::reviver);
        let from = StreamStart::After(self.seen);
        self.link = Link::Live;
        self.source = Source::Stream(EventStream::follow(self.client.clone(), self.id.to_string(), from, reviver));
    }

    fn failed(&mut self, error: ClientError) {
        if error.is_absence() || matches!(error, ClientError::Away { .. }) {
            (self.link, self.is_up) = (Link::Away, false);
            self.source = Source::Pause(Instant::now() + AGAIN);
        } else {
            self.end(one_line(&error.into()));
        }
    }

    fn end(&mut self, reason: String) {
        (self.link, self.source) = (Link::Over(reason), Source::Over);
    }

    fn record(&mut self, seq: u64, line: &[u8]) {
        self.link = Link::Live;
        self.seen = seq;
        match Event::parse(line) {
            Ok(event) => {
                let items = self.conversation.apply(&event);
                self.writer.write(&event, &items);
            }
            Err(error) => return self.end(one_line(&Error::from(error))),
        }
        self.adopt();
    }

    /// Takes the daemon's state over, once every record up to the view was read.
    fn adopt(&mut self) {
        if !self.is_adopted
            && let Some(view) = self.view.as_ref().filter(|view| self.seen >= view.status.last_seq)
        {
            self.conversation.adopt(&view.status);
            self.is_adopted = true;
        }
    }

    /// Returns the rows of the conversation, and asks for an earlier page if the reader is near its first row.
    pub(super) fn rows(&mut self, columns: usize, height: usize) -> Vec<String> {
        let rows = self.writer.transcript.view(columns, height);
        if self.is_adopted && height > 0 && self.writer.transcript.is_at_top() {
            self.request_earlier();
        }
        rows
    }

    fn request_earlier(&mut self) {
        if self.earlier.is_some() {
            return;
        }
        self.oldest = self.writer.transcript.trimmed_to().unwrap_or(self.oldest);
        if self.oldest <= 1 {
            return;
        }
        let before = self.oldest;
        let (client, session) = (self.client.clone(), self.id.to_string());
        self.earlier = Some(tokio::spawn(async move {
            let (before, limit) = (Some(before), Some(EARLIER));
            let call = Call::Events { session, after: None, last: None, follow: None, before, limit };
            let (mut body, mut events) = (client.stream(&call).await?, Vec::new());
            while let Some(line) = body.next().await? {
                events.push(Event::parse(&line)?);
            }
            Ok(events)
        }));
    }

    fn take_earlier(&mut self, events: Result<Vec<Event>, ClientError>) {
        self.earlier = None;
        let Ok(events) = events else { return }; // the next drawing asks again
        let Some(first) = events.first() else {
            self.oldest = 1; // earlier records are no longer kept
            return;
        };
        self.oldest = first.seq;
        let (mut conversation, mut writer) = (Conversation::default(), Writer::new(self.screen));
        for event in &events {
            let items = conversation.apply(event);
            writer.write(event, &items);
        }
        let joins = writer.last == self.writer.first && matches!(writer.last, Some(Flow::Answer | Flow::Thought));
        if !joins {
            let _ = writer.renderer.leave(); // a sink takes every write
            writer.transcript.push(first.seq, &writer.sink.take());
        }
        self.writer.first = writer.first.or(self.writer.first);
        self.writer.transcript.prepend(writer.transcript, joins);
    }

    /// Returns the title of the session when it was selected.
    pub(super) fn title(&self) -> Option<&str> {
        self.view.as_ref()?.status.title.as_deref()
    }

    /// Returns the number of prompts that wait for the running turn.
    pub(super) fn queued(&self) -> usize {
        self.conversation.queued()
    }

    /// Returns the oldest open question.
    pub(super) fn question(&self) -> Option<&PermissionRequest> {
        let mut open = self.conversation.permissions().iter();
        open.find(|request| self.is_adopted && !self.answered.contains(&request.id))
    }

    /// Returns the painted lines of a question.
    pub(super) fn question_lines(&self, request: &PermissionRequest) -> Vec<String> {
        self.writer.renderer.question_lines(request)
    }

    /// Hides a question whose answer is on its way.
    pub(super) fn hide_question(&mut self, id: PermissionId) {
        self.answered.insert(id);
    }

    /// Shows a question again whose answer was refused.
    pub(super) fn show_question(&mut self, id: &PermissionId) {
        self.answered.remove(id);
    }

    pub(super) fn transcript(&mut self) -> &mut Transcript {
        &mut self.writer.transcript
    }

    /// Moves the reader to the end, which may have to be read again.
    pub(super) fn go_to_end(&mut self) {
        if self.writer.transcript.is_cut() {
            self.reopen();
        }
        self.writer.transcript.go_to_end();
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if let Source::Opening(task) = &self.source {
            task.abort();
        }
        if let Some(task) = &self.earlier {
            task.abort();
        }
    }
}

async fn joined<T>(task: &mut Task<T>) -> Result<T, ClientError> {
    match task.await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

async fn arrival(task: &mut Option<Task<Vec<Event>>>) -> Result<Vec<Event>, ClientError> {
    match task {
        Some(task) => joined(task).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const PLAIN: Screen = Screen { terminal: true, colour: false };

    fn record(seq: u64, kind: &str, data: &Value) -> Vec<u8> {
        json!({ "seq": seq, "time": "2026-01-01T00:00:00Z", "kind": kind, "data": data }).to_string().into_bytes()
    }

    fn said(seq: u64, text: &str) -> Vec<u8> {
        let update = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
        record(
            seq,
            "agent.out",
            &json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } }),
        )
    }

    /// A session whose last record has this number, and that no daemon has.
    fn opened(last_seq: u64) -> Followed {
        let mut followed = Followed::open(Client::new("/nowhere"), None, PLAIN, "k".parse().unwrap());
        let time = "2026-01-01T00:00:00Z";
        let value: SessionView = serde_json::from_value(json!({
            "id": "k", "generation": 1, "created": time, "spec": { "directory": "/" },
            "status": { "phase": "busy", "observed_generation": 1, "conditions": [], "launches": 1,
                "last_seq": last_seq, "updated": time },
        }))
        .unwrap();
        followed.take(News::Opened(Ok(Box::new(Document { value, raw: bytes::Bytes::new() }))));
        followed
    }

    fn next(followed: &mut Followed, seq: u64, line: Vec<u8>) {
        followed.take(News::Next(Some(Next::Record { seq, line })));
    }

    #[tokio::test]
    async fn a_question_is_open_until_its_answer_comes_or_is_on_its_way() {
        let mut followed = opened(0);
        let option = json!({ "id": "y", "name": "Yes", "kind": "allow_once" });
        let details = json!({ "command": "rm -rf build" });
        let request = json!({ "id": "p1", "title": "tidy", "details": details, "options": [option] });
        next(&mut followed, 1, record(1, "permission.requested", &json!({ "rpc": 1, "request": request })));
        let asked = followed.question().unwrap().clone();
        let lines = followed.question_lines(&asked);
        assert!(lines.iter().any(|line| line.contains("$ rm -rf build")), "{lines:?}");
        followed.hide_question(asked.id.clone());
        assert!(followed.question().is_none());
        followed.show_question(&asked.id);
        assert!(followed.question().is_some());
        let outcome = json!({ "permission": "p1", "outcome": { "selected": "y" }, "by": "client" });
        next(&mut followed, 2, record(2, "permission.resolved", &outcome));
        assert!(followed.question().is_none());
        assert!(followed.rows(80, 9)[0].contains("Yes: tidy"));
    }

    #[tokio::test]
    async fn an_earlier_page_comes_before_the_last_page_and_continues_its_answer() {
        let mut followed = opened(202);
        assert_eq!((followed.seen, followed.oldest), (2, 3));
        next(&mut followed, 3, said(3, "day\n"));
        let earlier = [said(1, "good\n"), said(2, "to")].map(|line| Event::parse(&line).unwrap());
        followed.take(News::Earlier(Ok(earlier.into())));
        assert_eq!(followed.rows(80, 9), ["good", "today"]);
        assert_eq!(followed.oldest, 1);
        next(&mut followed, 4, record(4, "daemon.recovered", &json!({ "version": "9.9.9", "agent_alive": true })));
        assert_eq!(followed.rows(80, 9)[2], "recovered: agentd 9.9.9 took over the session");
    }

    #[tokio::test]
    async fn the_link_says_what_the_stream_does() {
        let mut followed = opened(0);
        assert_eq!(followed.link, Link::Live);
        followed.take(News::Next(Some(Next::Away)));
        assert_eq!(followed.link, Link::Away);
        next(&mut followed, 1, said(1, "x"));
        assert_eq!(followed.link, Link::Live);
        followed.reconnect();
        assert!(matches!(followed.source, Source::Pause(_)) && followed.is_up);
        // The stream that follows a failure starts no daemon.
        followed.take(News::Next(Some(Next::Failed(ClientError::Away { seconds: 30, source: None }))));
        assert!(matches!(followed.source, Source::Pause(_)) && !followed.is_up);
        followed.take(News::Again);
        assert!(matches!(followed.source, Source::Stream(_)) && !followed.is_up);
        followed.take(News::Next(Some(Next::Deleted)));
        assert_eq!(followed.link, Link::Over("the session was removed".to_owned()));
    }
}
