//! Limits the connections of each caller, so that no caller can shut the owner out. Rules and counts; no I/O.
//!
//! A connection is a *call* until its request is one that goes on (events, `?wait=`): then it is a *stream* until that
//! ends. Each is counted by the process at its other end, and by the session of agentd that the process is in, else by its
//! process session. Three things are bounded: the calls and the streams of one process or group, all streams, and
//! everything. The last eighth of all connections, and of all streams, is a reserve for the owner's processes that hold
//! few. Over TCP the kernel names no process, so there a connection that has not shown the token gives way to a new one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentd_api::{Code, Problem, SessionId};
use agentd_keeper::caller::{Caller, Who};
use tokio_util::sync::CancellationToken;

use crate::config::Limits;

/// Who holds few connections enough to be given one of the reserve.
const FEW: usize = 4;
/// Which part of all is the reserve.
const RESERVE: usize = 8;

/// The holder of a connection. Over TCP, where the kernel names no process, it is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Party {
    process: Option<u32>,
    group: Option<Group>,
}

/// The callers that count together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Group {
    /// The processes of one process session.
    Processes(u32),
    /// The processes inside one session of agentd, whatever process sessions they have made.
    Session(SessionId),
    Strangers,
}

impl Party {
    pub(super) fn of(caller: &Caller) -> Self {
        let group = match &caller.who {
            Who::Guest(session) => Some(Group::Session(session.clone())),
            Who::Stranger(_) => Some(Group::Strangers),
            Who::Owner => caller.pid.and_then(process_session).map(Group::Processes),
        };
        Self { process: caller.pid, group }
    }

    fn is_nobody(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the reserve is for this party, if it holds few.
    fn is_owner(&self) -> bool {
        !self.is_nobody() && !matches!(self.group, Some(Group::Session(_) | Group::Strangers))
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        self.process.map(Key::Process).into_iter().chain(self.group.clone().map(Key::Group))
    }
}

/// The process session that a process is in (credentials(7)); none where it has ended.
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

/// The numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Connections of all, streams among them.
    connections: usize,
    calls_of_one: usize,
    streams_of_one: usize,
}

impl Bounds {
    pub(super) fn of(limits: &Limits) -> Self {
        let (connections, calls) = (limits.connections, limits.connections_per_caller);
        Self { connections, calls_of_one: calls, streams_of_one: limits.streams_per_caller }
    }

    /// Half of all: the others are for short calls.
    fn streams(self) -> usize {
        (self.connections / 2).max(1)
    }
}

/// The connections of one way in.
#[derive(Debug)]
pub(super) struct Room {
    bounds: Bounds,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    streams: usize,
    by: HashMap<Key, Share>,
    /// Those that have not shown the token, the oldest first.
    unproven: VecDeque<(u64, CancellationToken)>,
    next: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    calls: usize,
    streams: usize,
}

/// Why there is no room for a connection or a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    #[error("the process or its session holds {0} connections, which is as many as one caller may")]
    Calls(usize),
    #[error("the process or its session holds {0} streams, which is as many as one caller may")]
    Streams(usize),
    #[error("all connections are in use but those that are kept for callers with few")]
    All,
    #[error("all streams are in use but those that are kept for callers with few")]
    AllStreams,
}

impl Full {
    pub(super) fn problem(self) -> Problem {
        let (code, hint) = match self {
            Self::Calls(_) => (Code::TooManyConnections, "limits.connections_per_caller sets the limit"),
            Self::All => (Code::TooManyConnections, "limits.connections sets the limit"),
            Self::Streams(_) => (Code::TooManyStreams, "limits.streams_per_caller sets the limit"),
            Self::AllStreams => (Code::TooManyStreams, "half of limits.connections can be streams"),
        };
        Problem::new(code, self.to_string()).hint(format!("ask again when others have ended; {hint}"))
    }
}

impl Room {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, held: Mutex::default() })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing that is done under this lock can leave it half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection that was accepted.
    pub(super) fn enter(self: &Arc<Self>, party: Party) -> Result<Place, Full> {
        let (mut held, bounds) = (self.held(), self.bounds);
        let share = held.share(&party);
        if share.calls >= bounds.calls_of_one {
            return Err(Full::Calls(share.calls));
        }
        let few = party.is_owner() && share.calls + share.streams < FEW;
        if held.all >= reserved(bounds.connections, few) && !held.make_room() {
            return Err(Full::All);
        }
        held.all += 1;
        held.add(&party, |share| share.calls += 1);
        Ok(Place { room: Arc::clone(self), party, unproven: None, evicted: CancellationToken::new() })
    }
}

/// How many of so many may be in use for one more to be given.
fn reserved(all: usize, holds_few: bool) -> usize {
    if holds_few { all } else { all - all / RESERVE }
}

impl Held {
    /// What the party holds, by whichever of its keys holds more.
    fn share(&self, party: &Party) -> Share {
        party.keys().filter_map(|key| self.by.get(&key)).fold(Share::default(), |most, share| Share {
            calls: most.calls.max(share.calls),
            streams: most.streams.max(share.streams),
        })
    }

    fn add(&mut self, party: &Party, change: impl Fn(&mut Share)) {
        party.keys().for_each(|key| change(self.by.entry(key).or_default()));
    }

    fn remove(&mut self, party: &Party, change: impl Fn(&mut Share)) {
        for key in party.keys() {
            if let Some(share) = self.by.get_mut(&key) {
                change(share);
                if *share == Share::default() {
                    self.by.remove(&key);
                }
            }
        }
    }

    /// Ends the oldest connection that has not shown the token. Its place is free when it has ended; until then there
    /// is one too many.
    fn make_room(&mut self) -> bool {
        let oldest = self.unproven.pop_front();
        oldest.inspect(|(_, evicted)| evicted.cancel()).is_some()
    }
}

/// A connection's place; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    party: Party,
    unproven: Option<u64>,
    evicted: CancellationToken,
}

impl Place {
    /// From here on the connection gives way to a new one until [`Place::prove`].
    pub(super) fn unproven(mut self) -> Self {
        let mut held = self.room.held();
        let number = held.next;
        held.next += 1;
        held.unproven.push_back((number, self.evicted.clone()));
        drop(held);
        self.unproven = Some(number);
        self
    }

    /// Cancelled when the connection has to give way.
    pub(super) fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }

    /// The connection has shown the token.
    pub(super) fn prove(&self) {
        if let Some(number) = self.unproven {
            self.room.held().unproven.retain(|(other, _)| *other != number);
        }
    }

    /// Counts the connection as a stream for as long as what is given lives.
    pub(super) fn stream(self: &Arc<Self>) -> Result<StreamPlace, Full> {
        let (mut held, bounds) = (self.room.held(), self.room.bounds);
        let share = held.share(&self.party);
        if share.streams >= bounds.streams_of_one {
            return Err(Full::Streams(share.streams));
        }
        let few = self.party.is_owner() && share.streams < FEW;
        if held.streams >= reserved(bounds.streams(), few) {
            return Err(Full::AllStreams);
        }
        held.streams += 1;
        held.add(&self.party, |share| {
            (share.calls, share.streams) = (share.calls.saturating_sub(1), share.streams + 1);
        });
        Ok(StreamPlace(Arc::clone(self)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.prove();
        let mut held = self.room.held();
        held.all = held.all.saturating_sub(1);
        held.remove(&self.party, |share| share.calls = share.calls.saturating_sub(1));
    }
}

/// A connection that is a stream; a call again when this is dropped.
#[derive(Debug)]
pub(super) struct StreamPlace(Arc<Place>);

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut held = self.0.room.held();
        held.streams = held.streams.saturating_sub(1);
        let back =
            |share: &mut Share| (share.calls, share.streams) = (share.calls + 1, share.streams.saturating_sub(1));
        held.remove(&self.0.party, back);
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
    fn one_process_or_its_group_holds_so_many_and_everybody_else_comes_in() {
        let room = room(512, 64, 32);
        let mut held: Vec<_> = (0..64).map(|_| room.enter(party(1, 1)).unwrap()).collect();
        assert_eq!(room.enter(party(1, 1)).unwrap_err(), Full::Calls(64));
        assert_eq!(room.enter(party(2, 1)).unwrap_err(), Full::Calls(64), "another process of the group");
        assert!(room.enter(party(3, 3)).is_ok());
        held.pop();
        assert!(room.enter(party(2, 1)).is_ok(), "a place that is given back is free");
    }

    #[test]
    fn streams_are_counted_apart_from_calls_and_are_calls_again_afterwards() {
        let room = room(512, 4, 2);
        let places: Vec<_> = (0..2).map(|_| Arc::new(room.enter(party(1, 1)).unwrap())).collect();
        let streams: Vec<_> = places.iter().map(|place| place.stream().unwrap()).collect();
        let calls: Vec<_> = (0..4).map(|_| Arc::new(room.enter(party(1, 1)).unwrap())).collect();
        assert_eq!(calls[0].stream().unwrap_err(), Full::Streams(2));
        assert_eq!(room.enter(party(1, 1)).unwrap_err(), Full::Calls(4));
        drop((streams, calls));
        assert_eq!(room.held().by.len(), 2, "the two connections are calls now");
        drop(places);
        let held = room.held();
        assert!(held.by.is_empty() && (held.all, held.streams) == (0, 0), "{held:?}");
    }

    #[test]
    fn the_last_places_are_for_those_who_hold_few() {
        let room = room(16, 8, 8);
        let mut held: Vec<_> = (0..8).map(|_| Arc::new(room.enter(party(1, 1)).unwrap())).collect();
        held.extend((0..6).map(|_| Arc::new(room.enter(party(2, 2)).unwrap())));
        assert_eq!(room.enter(party(2, 2)).unwrap_err(), Full::All, "the reserve is not for who holds six");
        held.push(Arc::new(room.enter(party(3, 3)).unwrap()));
        held.push(Arc::new(room.enter(party(3, 3)).unwrap()));
        assert_eq!(room.enter(party(4, 4)).unwrap_err(), Full::All);
        // Of eight streams the last is kept for who has few.
        let streams: Vec<_> = held[..7].iter().map(|place| place.stream().unwrap()).collect();
        assert_eq!(held[7].stream().unwrap_err(), Full::AllStreams);
        let last = held[14].stream().unwrap();
        assert_eq!(held[15].stream().unwrap_err(), Full::AllStreams);
        drop((streams, last));
    }

    #[test]
    fn the_processes_inside_one_session_count_together_and_get_nothing_of_the_reserve() {
        let room = room(16, 8, 8);
        let guest = |process: u32, id: &str| {
            let who = Who::Guest(id.parse().unwrap());
            Party::of(&Caller { who, uid: 1, pid: Some(process), program: None })
        };
        let held: Vec<_> = (0..8).map(|process| room.enter(guest(process, "abcdefghjkmn")).unwrap()).collect();
        assert_eq!(room.enter(guest(8, "abcdefghjkmn")).unwrap_err(), Full::Calls(8));
        let others: Vec<_> = (20..26).map(|process| room.enter(guest(process, "bcdefghjkmnp")).unwrap()).collect();
        assert_eq!(room.enter(guest(30, "cdefghjkmnpq")).unwrap_err(), Full::All);
        assert!(room.enter(party(40, 40)).is_ok(), "the reserve is the owner's");
        drop((held, others));
    }

    #[test]
    fn over_tcp_who_has_not_shown_the_token_gives_way() {
        let room = room(8, 2, 2);
        let enter = || room.enter(Party::default()).map(Place::unproven);
        let held: Vec<_> = (0..7).map(|_| enter().unwrap()).collect();
        held[0].prove();
        let next = enter().unwrap();
        assert!(held[1].evicted.is_cancelled() && !held[0].evicted.is_cancelled() && !next.evicted.is_cancelled());
        for place in &held {
            place.prove();
        }
        next.prove();
        assert_eq!(enter().unwrap_err(), Full::All, "who has shown it does not");
    }
}
