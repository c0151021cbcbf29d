//! Limits the connections of each caller, so that no caller can lock the owner out. Rules and counts; no I/O.
//!
//! A connection counts as a *call* until its request is a long one (events, `?wait=`). Then it counts as a
//! *stream* until that request ends. Over HTTP/2 a connection can be several streams. Each connection counts for the
//! process at its other end, and for a group. The group is the agentd session that contains the process, or else its
//! process session. Three numbers are limited: calls and streams of one process or group, all streams, and all
//! connections. The last eighth of all connections and of all streams is a reserve for processes of the owner that
//! hold few. Over TCP the kernel names no process. There a connection that has not sent the token yet is closed for a
//! new one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentd_api::{Code, Problem, SessionId};
use agentd_caller::{Caller, CallerClass};
use tokio_util::sync::CancellationToken;

use agentd_config::StartSettings;
use agentd_metrics::Held;

/// Number of connections below which a caller may use the reserve.
const FEW: usize = 4;
/// The reserve is this fraction (one eighth) of all.
const RESERVE: usize = 8;

/// Holder of a connection. It is empty over TCP, where the kernel names no process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Party {
    process: Option<u32>,
    group: Option<Group>,
}

/// Callers that count together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Group {
    /// Processes of one process session.
    Processes(u32),
    /// Processes inside one session of agentd, in whatever process sessions.
    Session(SessionId),
    /// Processes of another user, by the read-only socket.
    User(u32),
    Strangers,
}

impl Party {
    pub(super) fn of(caller: &Caller) -> Self {
        let group = match &caller.who {
            CallerClass::Guest(session) => Some(Group::Session(session.clone())),
            CallerClass::Stranger(_) => Some(Group::Strangers),
            CallerClass::Owner if caller.uid != 0 && caller.uid != nix::unistd::geteuid().as_raw() => {
                Some(Group::User(caller.uid))
            }
            CallerClass::Owner => caller.pid.and_then(process_session).map(Group::Processes),
        };
        Self { process: caller.pid, group }
    }

    fn is_nobody(&self) -> bool {
        *self == Self::default()
    }

    /// Reports whether the reserve is open to this party while it holds few connections.
    fn is_owner(&self) -> bool {
        !self.is_nobody() && !matches!(self.group, Some(Group::Session(_) | Group::User(_) | Group::Strangers))
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        self.process.map(Key::Process).into_iter().chain(self.group.clone().map(Key::Group))
    }
}

/// Returns the process session of a process (credentials(7)), or `None` if the process has ended.
fn process_session(pid: u32) -> Option<u32> {
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let session = nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(pid))).ok()?;
    u32::try_from(session.as_raw()).ok()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Process(u32),
    Group(Group),
}

/// The limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Maximum number of all connections, including streams.
    connections: usize,
    calls_of_one: usize,
    streams_of_one: usize,
}

impl Bounds {
    pub(super) fn of(settings: StartSettings) -> Self {
        let StartSettings { connections, connections_per_caller, streams_per_caller, .. } = settings;
        Self { connections, calls_of_one: connections_per_caller, streams_of_one: streams_per_caller }
    }

    /// Returns the limits of the read-only socket: a quarter of all connections, of which one user holds at most half.
    /// So its clients cannot use up the file descriptors that the owner's connections need.
    pub(super) fn read_only(self) -> Self {
        let connections = (self.connections / 4).max(1);
        let of_one = (connections / 2).max(1);
        let (calls, streams) = (self.calls_of_one.min(of_one), self.streams_of_one.min(of_one));
        Self { connections, calls_of_one: calls, streams_of_one: streams }
    }

    /// Maximum number of all streams: half of the connections. The others are for short calls.
    fn streams(self) -> usize {
        (self.connections / 2).max(1)
    }
}

/// The connections of one listener.
#[derive(Debug)]
pub(super) struct Room {
    bounds: Bounds,
    held: Mutex<RoomState>,
}

#[derive(Debug, Default)]
struct RoomState {
    all: usize,
    streams: usize,
    by: HashMap<Key, Usage>,
    /// Connections that have not sent the token, the oldest first.
    unproven: VecDeque<(u64, CancellationToken)>,
    next: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    calls: usize,
    streams: usize,
}

/// Reason for the refusal of a connection or a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRoom {
    #[error("the process or its session holds {0} connections, which is the limit for one caller")]
    Calls(usize),
    #[error("the process or its session holds {0} streams, which is the limit for one caller")]
    Streams(usize),
    #[error("all connections are in use, except those reserved for callers with few connections")]
    All,
    #[error("all streams are in use, except those reserved for callers with few streams")]
    AllStreams,
}

impl NoRoom {
    pub(super) fn problem(self) -> Problem {
        let (code, hint) = match self {
            Self::Calls(_) => (Code::TooManyConnections, "limits.connections_per_caller sets the limit"),
            Self::All => (Code::TooManyConnections, "limits.connections sets the limit"),
            Self::Streams(_) => (Code::TooManyStreams, "limits.streams_per_caller sets the limit"),
            Self::AllStreams => (Code::TooManyStreams, "half of limits.connections can be streams"),
        };
        Problem::new(code, self.to_string()).hint(format!("retry when other connections have ended; {hint}"))
    }
}

impl Room {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, held: Mutex::default() })
    }

    fn held(&self) -> MutexGuard<'_, RoomState> {
        // No code under this lock can leave the value inconsistent.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits an accepted connection, or refuses it.
    pub(super) fn enter(self: &Arc<Self>, party: Party) -> Result<ConnectionPermit, NoRoom> {
        let (mut held, bounds) = (self.held(), self.bounds);
        let share = held.share(&party);
        if share.calls >= bounds.calls_of_one {
            return Err(NoRoom::Calls(share.calls));
        }
        let few = party.is_owner() && share.calls + share.streams < FEW;
        if held.all >= reserved(bounds.connections, few) && !held.make_room() {
            return Err(NoRoom::All);
        }
        held.all += 1;
        held.add(&party, |share| share.calls += 1);
        let (evicted, streams) = (CancellationToken::new(), AtomicUsize::new(0));
        Ok(ConnectionPermit { room: Arc::clone(self), party, unproven: None, evicted, streams })
    }
}

/// Returns the number in use at which a further connection or stream is refused.
fn reserved(all: usize, holds_few: bool) -> usize {
    if holds_few { all } else { all - all / RESERVE }
}

impl RoomState {
    /// Returns what the party holds, taking the larger number of its process and its group.
    fn share(&self, party: &Party) -> Usage {
        party.keys().filter_map(|key| self.by.get(&key)).fold(Usage::default(), |most, share| Usage {
            calls: most.calls.max(share.calls),
            streams: most.streams.max(share.streams),
        })
    }

    fn add(&mut self, party: &Party, change: impl Fn(&mut Usage)) {
        party.keys().for_each(|key| change(self.by.entry(key).or_default()));
    }

    fn remove(&mut self, party: &Party, change: impl Fn(&mut Usage)) {
        for key in party.keys() {
            if let Some(share) = self.by.get_mut(&key) {
                change(share);
                if *share == Usage::default() {
                    self.by.remove(&key);
                }
            }
        }
    }

    /// Closes the oldest connection that has not sent the token. Until that connection has ended, the total
    /// exceeds the limit by one.
    fn make_room(&mut self) -> bool {
        let oldest = self.unproven.pop_front();
        oldest.inspect(|(_, evicted)| evicted.cancel()).is_some()
    }
}

/// The permit of a connection. Dropping the value frees the permit.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    room: Arc<Room>,
    party: Party,
    unproven: Option<u64>,
    evicted: CancellationToken,
    /// Number of its streams. HTTP/2 has several on one connection.
    streams: AtomicUsize,
}

impl ConnectionPermit {
    /// Marks the connection as replaceable by a new one until [`ConnectionPermit::prove`].
    pub(super) fn unproven(mut self) -> Self {
        let mut held = self.room.held();
        let number = held.next;
        held.next += 1;
        held.unproven.push_back((number, self.evicted.clone()));
        drop(held);
        self.unproven = Some(number);
        self
    }

    /// Returns a token that is cancelled when the connection must close for a new one.
    pub(super) fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }

    /// Records that the connection has sent the token.
    pub(super) fn prove(&self) {
        if let Some(number) = self.unproven {
            self.room.held().unproven.retain(|(other, _)| *other != number);
        }
    }

    /// Counts the connection as a stream while the returned value lives.
    pub(super) fn stream(self: &Arc<Self>) -> Result<StreamPermit, NoRoom> {
        let (mut held, bounds) = (self.room.held(), self.room.bounds);
        let share = held.share(&self.party);
        if share.streams >= bounds.streams_of_one {
            return Err(NoRoom::Streams(share.streams));
        }
        let few = self.party.is_owner() && share.streams < FEW;
        if held.streams >= reserved(bounds.streams(), few) {
            return Err(NoRoom::AllStreams);
        }
        held.streams += 1;
        let is_first = self.streams.fetch_add(1, Ordering::Relaxed) == 0;
        held.add(&self.party, |share| {
            share.calls = share.calls.saturating_sub(usize::from(is_first));
            share.streams += 1;
        });
        Ok(StreamPermit(Arc::clone(self), None))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.prove();
        let mut held = self.room.held();
        held.all = held.all.saturating_sub(1);
        held.remove(&self.party, |share| share.calls = share.calls.saturating_sub(1));
    }
}

/// The permit of a stream. Dropping the last of a connection makes the connection a call again.
#[derive(Debug)]
pub(super) struct StreamPermit(Arc<ConnectionPermit>, Option<Held>);

impl StreamPermit {
    /// Counts the stream in the metrics while the permit lives.
    pub(super) fn counted(mut self, held: Held) -> Self {
        self.1 = Some(held);
        self
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut held = self.0.room.held();
        held.streams = held.streams.saturating_sub(1);
        let is_last = self.0.streams.fetch_sub(1, Ordering::Relaxed) == 1;
        held.remove(&self.0.party, |share| {
            share.calls += usize::from(is_last);
            share.streams = share.streams.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(connections: usize, calls_of_one: usize, streams_of_one: usize) -> Arc<Room> {
        Room::new(Bounds { connections, calls_of_one, streams_of_one })
    }

    fn party(process: u32, group: u32) -> Party {
        Party { process: Some(process), group: Some(Group::Processes(group)) }
    }

    #[test]
    fn a_connection_with_several_streams_is_one_call_again_after_the_last() {
        let room = room(512, 64, 2);
        let connection = Arc::new(room.enter(party(1, 1)).unwrap());
        let (first, second) = (connection.stream().unwrap(), connection.stream().unwrap());
        assert_eq!(room.held().share(&party(1, 1)), Usage { calls: 0, streams: 2 });
        assert_eq!(connection.stream().err(), Some(NoRoom::Streams(2)));
        drop(first);
        assert_eq!(room.held().share(&party(1, 1)), Usage { calls: 0, streams: 1 });
        drop(second);
        assert_eq!(room.held().share(&party(1, 1)), Usage { calls: 1, streams: 0 });
        drop(connection);
        assert_eq!(room.held().by.len(), 0);
    }

    #[test]
    fn the_processes_of_another_user_count_together_and_leave_room_for_a_second_user() {
        let bounds = Bounds { connections: 64, calls_of_one: 64, streams_of_one: 64 }.read_only();
        let room = Room::new(bounds);
        let other = |process: u32, user: u32| {
            let uid = nix::unistd::geteuid().as_raw() + user;
            Party::of(&Caller { who: CallerClass::Owner, uid, pid: Some(process), program: None })
        };
        let held: Vec<_> = (1..=8).map(|process| room.enter(other(process, 1)).unwrap()).collect();
        assert_eq!(room.enter(other(9, 1)).unwrap_err(), NoRoom::Calls(8));
        let second: Vec<_> = (1..=6).map(|process| room.enter(other(process, 2)).unwrap()).collect();
        assert_eq!(room.enter(other(7, 2)).unwrap_err(), NoRoom::All, "the reserve is the owner's");
        drop((held, second));
    }

    #[test]
    fn one_process_or_its_group_holds_up_to_the_limit_and_others_are_admitted() {
        let room = room(512, 64, 32);
        let mut held: Vec<_> = (0..64).map(|_| room.enter(party(1, 1)).unwrap()).collect();
        assert_eq!(room.enter(party(1, 1)).unwrap_err(), NoRoom::Calls(64));
        assert_eq!(room.enter(party(2, 1)).unwrap_err(), NoRoom::Calls(64), "another process of the group");
        assert!(room.enter(party(3, 3)).is_ok());
        held.pop();
        assert!(room.enter(party(2, 1)).is_ok(), "a permit that was freed can be used again");
    }

    #[test]
    fn streams_are_counted_apart_from_calls_and_are_calls_again_afterwards() {
        let room = room(512, 4, 2);
        let permits: Vec<_> = (0..2).map(|_| Arc::new(room.enter(party(1, 1)).unwrap())).collect();
        let streams: Vec<_> = permits.iter().map(|permit| permit.stream().unwrap()).collect();
        let calls: Vec<_> = (0..4).map(|_| Arc::new(room.enter(party(1, 1)).unwrap())).collect();
        assert_eq!(calls[0].stream().unwrap_err(), NoRoom::Streams(2));
        assert_eq!(room.enter(party(1, 1)).unwrap_err(), NoRoom::Calls(4));
        drop((streams, calls));
        assert_eq!(room.held().by.len(), 2, "the two connections are calls now");
        drop(permits);
        let held = room.held();
        assert!(held.by.is_empty() && (held.all, held.streams) == (0, 0), "{held:?}");
    }

    #[test]
    fn the_last_places_are_reserved_for_callers_that_hold_few() {
        let room = room(16, 8, 8);
        let mut held: Vec<_> = (0..8).map(|_| Arc::new(room.enter(party(1, 1)).unwrap())).collect();
        held.extend((0..6).map(|_| Arc::new(room.enter(party(2, 2)).unwrap())));
        assert_eq!(
            room.enter(party(2, 2)).unwrap_err(),
            NoRoom::All,
            "the reserve is closed to a caller that holds six"
        );
        held.push(Arc::new(room.enter(party(3, 3)).unwrap()));
        held.push(Arc::new(room.enter(party(3, 3)).unwrap()));
        assert_eq!(room.enter(party(4, 4)).unwrap_err(), NoRoom::All);
        // The last of eight streams is reserved for a caller with few.
        let streams: Vec<_> = held[..7].iter().map(|permit| permit.stream().unwrap()).collect();
        assert_eq!(held[7].stream().unwrap_err(), NoRoom::AllStreams);
        let last = held[14].stream().unwrap();
        assert_eq!(held[15].stream().unwrap_err(), NoRoom::AllStreams);
        drop((streams, last));
    }

    #[test]
    fn the_processes_inside_one_session_count_together_and_cannot_use_the_reserve() {
        let room = room(16, 8, 8);
        let guest = |process: u32, id: &str| {
            let who = CallerClass::Guest(id.parse().unwrap());
            Party::of(&Caller { who, uid: 1, pid: Some(process), program: None })
        };
        let held: Vec<_> = (0..8).map(|process| room.enter(guest(process, "abcdefghjkmn")).unwrap()).collect();
        assert_eq!(room.enter(guest(8, "abcdefghjkmn")).unwrap_err(), NoRoom::Calls(8));
        let others: Vec<_> = (20..26).map(|process| room.enter(guest(process, "bcdefghjkmnp")).unwrap()).collect();
        assert_eq!(room.enter(guest(30, "cdefghjkmnpq")).unwrap_err(), NoRoom::All);
        assert!(room.enter(party(40, 40)).is_ok(), "the reserve is the owner's");
        drop((held, others));
    }

    #[test]
    fn over_tcp_a_connection_without_the_token_closes_for_a_new_one() {
        let room = room(8, 2, 2);
        let enter = || room.enter(Party::default()).map(ConnectionPermit::unproven);
        let held: Vec<_> = (0..7).map(|_| enter().unwrap()).collect();
        held[0].prove();
        let next = enter().unwrap();
        assert!(held[1].evicted.is_cancelled() && !held[0].evicted.is_cancelled() && !next.evicted.is_cancelled());
        for permit in &held {
            permit.prove();
        }
        next.prove();
        assert_eq!(enter().unwrap_err(), NoRoom::All, "a connection that sent the token stays open");
    }
}
