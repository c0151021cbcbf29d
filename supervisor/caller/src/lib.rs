//! Identity of the process at the other end of a local connection: the owner, a guest, or a stranger. A guest is any
//! process inside a session.
//!
//! ```text
//!   another user                                           ──► stranger
//!   below a keeper: the outermost keeper names the session ──► guest, or stranger if that keeper is unknown
//!   in the unit of a session                               ──► guest
//!   below this process (a script, a start-up file)         ──► stranger
//!   outside this process's pid namespace                   ──► owner: no process there is below a keeper in here
//!   gone, or its ancestors change too fast to follow       ──► stranger
//!   any other process                                      ──► owner
//! ```
//!
//! The kernel names the peer of a unix socket. For TCP the holder of the socket is searched among this machine's
//! processes ([`TcpPeer`]), and processes below this one are the owner's.
//!
//! A keeper is a subreaper: it is an ancestor of every descendant, also of those that change their process group,
//! session or environment. Ancestry takes precedence over the cgroup, because a process may move to another cgroup of
//! its user. Keepers and units around this process itself are ignored: they belong to an outer agentd.
//!
//! This crate does not decide what each caller may do.

mod os;

pub use os::program;

use std::net::SocketAddr;
use std::os::fd::AsFd;

use agentd_api::SessionId;

use crate::os::{Holders, Peer, Relative};

/// Process name of a keeper, and of the helper that agentd runs for plugins and scripts.
const KEEPER: &[u8] = b"agentd-keeper";
/// Prefix of a session unit's name, `agentd-session-ID.service`.
pub const UNIT_PREFIX: &str = "agentd-session-";
/// Number of attempts to follow a caller's ancestors while they start and exit.
const TRIES: u32 = 8;
/// Maximum number of searches for the other end of a TCP connection.
const SEARCHES: u32 = 3;
/// Maximum number of ancestors to follow. No legitimate process has more.
const LONGEST: usize = 256;

/// Process at the other end of a connection, at the time of the examination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Class of the caller.
    pub who: CallerClass,
    /// User id of the caller.
    pub uid: u32,
    /// Process id in this process's pid namespace.
    pub pid: Option<u32>,
    /// Path of its program, or its process name if the path is not readable.
    pub program: Option<String>,
}

/// Class of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerClass {
    /// A process of this process's user or of root, outside every session.
    Owner,
    /// An agent, or a process that an agent started.
    Guest(SessionId),
    Stranger(StrangerReason),
}

/// Reason why a caller is a stranger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrangerReason {
    /// The caller belongs to another user.
    OtherUser,
    /// The caller exited before it was examined.
    Gone,
    /// The caller is inside an unknown session, or its ancestors cannot be followed.
    Unplaced,
    /// This process started the caller: a start-up file, a script, or a command of a plugin.
    OfAgentd,
    /// No file descriptor was free to examine the caller.
    Unseen,
}

impl Caller {
    /// Makes the owner from proof other than the kernel's, such as a token.
    pub fn owner() -> Self {
        Self { who: CallerClass::Owner, uid: nix::unistd::geteuid().as_raw(), pid: None, program: None }
    }

    /// Examines the peer of a connection. `keepers` maps the process id and start time of a keeper to its session.
    pub fn look(socket: impl AsFd, keepers: impl Fn(u32, u64) -> Option<SessionId>) -> Self {
        Self::look_at(socket, false, keepers)
    }

    /// Examines the peer of a socket that other users may use too. A process of any user inside a session is a guest.
    ///
    /// A process of another user outside of every session has the class of the owner and its own user id. The socket
    /// limits the calls of such a caller.
    pub fn look_at_any_user(socket: impl AsFd, keepers: impl Fn(u32, u64) -> Option<SessionId>) -> Self {
        Self::look_at(socket, true, keepers)
    }

    fn look_at(socket: impl AsFd, any_user: bool, keepers: impl Fn(u32, u64) -> Option<SessionId>) -> Self {
        let stranger = |uid, why| Self { who: CallerClass::Stranger(why), uid, pid: None, program: None };
        let peer = match Peer::of(socket) {
            Ok(peer) => peer,
            Err(error) => return stranger(u32::MAX, scarce(&error).unwrap_or(StrangerReason::Gone)),
        };
        if !any_user && peer.uid != 0 && peer.uid != nix::unistd::geteuid().as_raw() {
            return stranger(peer.uid, StrangerReason::OtherUser);
        }
        if peer.is_outside {
            return Self { who: CallerClass::Owner, uid: peer.uid, pid: None, program: None };
        }
        let Some(pid) = peer.pid else { return stranger(peer.uid, StrangerReason::Gone) };
        let seen = see(pid, keepers);
        let (who, line) = match seen {
            Ok((who, line)) if line.first().is_some_and(|caller| peer.is_still(caller)) => (who, line),
            Ok(_) => return stranger(peer.uid, StrangerReason::Gone),
            Err(why) => return stranger(peer.uid, why),
        };
        let name = || line.first().map(|caller| String::from_utf8_lossy(&caller.name).into_owned());
        Self { who, uid: peer.uid, pid: u32::try_from(pid).ok(), program: program(pid).or_else(name) }
    }

    /// Reports whether the peer of a connection is the owner: a process of this user or root, outside every session.
    pub fn is_owner(socket: impl AsFd) -> bool {
        Self::look(socket, |_, _| None).who == CallerClass::Owner
    }

    /// Reports whether the peer of a connection is a process of this user or root outside of all sessions. No keeper is
    /// above it, and no unit of a session has it. The peer itself may be a keeper: a client enters a place by that
    /// program.
    pub fn is_client(socket: impl AsFd) -> bool {
        let Ok(peer) = Peer::of(socket) else { return false };
        if peer.uid != 0 && peer.uid != nix::unistd::geteuid().as_raw() {
            return false;
        }
        if peer.is_outside {
            return true;
        }
        let Some(pid) = peer.pid else { return false };
        let (Ok(line), Ok(units)) = (line(pid), units(pid)) else { return false };
        let is_still = line.first().is_some_and(|caller| peer.is_still(caller));
        is_still && units.is_empty() && !line.iter().skip(1).any(|one| one.name == KEEPER)
    }
}

/// Class of the process at the other end of a TCP connection of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpPeer {
    /// A process of this user or of root, outside every session. It may be below this process.
    Owner,
    /// A process inside a session of any agentd.
    InSession,
    /// A process of another user.
    OtherUser,
    /// The process is gone, or its place cannot be determined.
    Unknown,
}

impl TcpPeer {
    /// Searches the process and classifies it. `local` is the address of this process's end, and `peer` that of the
    /// other.
    ///
    /// A socket can have several holders, and each must be the owner's. The descriptors of some processes are not
    /// readable: a browser may forbid it, or ssh. A socket without a holder belongs to such a process of its user. Then
    /// all of these must be outside of the sessions.
    ///
    /// The search reads the descriptors of all processes, which can take some tens of milliseconds. It is repeated
    /// without a result: for a moment, a new child of a browser holds the browser's sockets.
    pub fn find(local: SocketAddr, peer: SocketAddr) -> Self {
        let look = || os::holders(local, peer).ok().flatten().map_or(Self::Unknown, |holders| Self::of(&holders));
        (0..SEARCHES).map(|_| look()).find(|class| *class != Self::Unknown).unwrap_or(Self::Unknown)
    }

    fn of(holders: &Holders) -> Self {
        if holders.uid != 0 && holders.uid != nix::unistd::geteuid().as_raw() {
            return Self::OtherUser;
        }
        if holders.pids.is_empty() {
            let are_outside = holders.hidden.iter().all(|pid| Self::of_process(*pid) == Self::Owner);
            return if are_outside && !holders.hidden.is_empty() { Self::Owner } else { Self::Unknown };
        }
        let mut classes = holders.pids.iter().map(|pid| match Self::of_process(*pid) {
            Self::Owner if !os::still_holds(*pid, holders) => Self::Unknown,
            class => class,
        });
        classes.find(|class| *class != Self::Owner).unwrap_or(Self::Owner)
    }

    /// Classifies a process, which may be below this one: a browser that this process started.
    fn of_process(pid: i32) -> Self {
        let (Ok((who, line)), Ok(own)) = (see(pid, |_, _| None), i32::try_from(std::process::id())) else {
            return Self::Unknown;
        };
        let has_keeper = || line.iter().take_while(|one| one.pid != own).any(|one| one.name == KEEPER);
        match who {
            CallerClass::Owner => Self::Owner,
            CallerClass::Stranger(StrangerReason::OfAgentd) if !has_keeper() => Self::Owner,
            // No keeper is known here, so a process below one is a stranger.
            CallerClass::Guest(_) | CallerClass::Stranger(StrangerReason::OfAgentd | StrangerReason::Unplaced) => {
                Self::InSession
            }
            CallerClass::Stranger(_) => Self::Unknown,
        }
    }
}

/// Reports whether this process is inside a session of any agentd. `None` if this cannot be determined.
pub fn is_inside_session() -> Option<bool> {
    let own = i32::try_from(std::process::id()).ok()?;
    let is_below = line(own).ok()?.iter().skip(1).any(|one| one.name == KEEPER);
    Some(is_below || !units(own).ok()?.is_empty())
}

/// Returns the process ids of the keepers above this process.
pub fn keepers_around() -> Vec<u32> {
    let own = i32::try_from(std::process::id()).ok().and_then(|own| line(own).ok()).unwrap_or_default();
    let keepers = own.into_iter().skip(1).filter(|one| one.name == KEEPER);
    keepers.filter_map(|keeper| u32::try_from(keeper.pid).ok()).collect()
}

/// Classifies a process of this user, and returns its ancestors.
fn see(
    pid: i32,
    keepers: impl Fn(u32, u64) -> Option<SessionId>,
) -> Result<(CallerClass, Vec<Relative>), StrangerReason> {
    let own = i32::try_from(std::process::id()).map_err(|_| StrangerReason::Unplaced)?;
    let line = line(pid)?;
    let units = units(pid)?;
    // Most callers are below no keeper and in no unit. Only this process's id matters for them.
    let is_plain = units.is_empty() && !line.iter().any(|one| is_keeper(one, &keepers) || one.pid == own);
    let (around, own_units) = if is_plain { (Vec::new(), Vec::new()) } else { (self::line(own)?, self::units(own)?) };
    let units = units.into_iter().filter(|unit| !own_units.contains(unit)).collect();
    Ok((place(&line, &around, units, keepers), line))
}

fn is_keeper(one: &Relative, keepers: impl Fn(u32, u64) -> Option<SessionId>) -> bool {
    one.name == KEEPER || known(one, keepers).is_some()
}

fn known(one: &Relative, keepers: impl Fn(u32, u64) -> Option<SessionId>) -> Option<SessionId> {
    keepers(u32::try_from(one.pid).ok()?, one.start_time)
}

/// Classifies a caller by its ancestors and this process's own. Each list begins with the process itself.
fn place(
    line: &[Relative],
    own: &[Relative],
    units: Vec<SessionId>,
    keepers: impl Fn(u32, u64) -> Option<SessionId>,
) -> CallerClass {
    let (this, around) = own.split_first().map_or((None, own), |(this, around)| (Some(this), around));
    let is_this = |one: &&Relative| Some(one.pid) == this.map(|this| this.pid);
    let mut apart = line.iter().filter(|one| !around.iter().any(|shared| shared.pid == one.pid));
    // The outermost keeper counts, because an agent may start a keeper with any session name.
    match apart.rfind(|one| is_keeper(one, &keepers)) {
        Some(keeper) => match known(keeper, &keepers) {
            Some(session) => CallerClass::Guest(session),
            None if line.iter().any(|one| is_this(&one)) => CallerClass::Stranger(StrangerReason::OfAgentd),
            None => CallerClass::Stranger(StrangerReason::Unplaced),
        },
        None => match units.into_iter().next() {
            Some(session) => CallerClass::Guest(session),
            None if line.iter().skip(1).any(|one| is_this(&one)) => CallerClass::Stranger(StrangerReason::OfAgentd),
            None => CallerClass::Owner,
        },
    }
}

/// Returns the sessions in whose units the process is.
fn units(pid: i32) -> Result<Vec<SessionId>, StrangerReason> {
    let cgroups = os::cgroups(pid).map_err(|error| scarce(&error).unwrap_or(StrangerReason::Gone))?;
    let session = |name: &String| name.strip_prefix(UNIT_PREFIX)?.strip_suffix(".service")?.parse().ok();
    Ok(cgroups.iter().filter_map(session).collect())
}

/// Returns the process and its ancestors, from the inside out.
fn line(pid: i32) -> Result<Vec<Relative>, StrangerReason> {
    let mut why = StrangerReason::Unplaced;
    for _ in 0..TRIES {
        match one_line(pid) {
            Ok(line) => return Ok(line),
            Err(found) => why = found,
        }
        if matches!(why, StrangerReason::Gone | StrangerReason::Unseen) {
            break;
        }
    }
    Err(why)
}

fn one_line(pid: i32) -> Result<Vec<Relative>, StrangerReason> {
    let first = os::relative(pid).map_err(|error| scarce(&error).unwrap_or(StrangerReason::Gone))?;
    let moved = |error: &std::io::Error| scarce(error).unwrap_or(StrangerReason::Unplaced);
    let mut line = vec![first];
    while let Some(child) = line.last().filter(|child| child.parent > 0) {
        if line.len() >= LONGEST {
            return Err(StrangerReason::Unplaced);
        }
        let parent = os::relative(child.parent).map_err(|error| moved(&error))?;
        // A parent that exited meanwhile may have left its process id to another process. This is excluded if the
        // process is still the parent now.
        let again = os::relative(child.pid).map_err(|error| moved(&error))?;
        if (again.parent, again.start_time) != (child.parent, child.start_time) {
            return Err(StrangerReason::Unplaced);
        }
        line.push(parent);
    }
    Ok(line)
}

/// Reports whether the error means that no file descriptor was free.
fn scarce(error: &std::io::Error) -> Option<StrangerReason> {
    matches!(error.raw_os_error(), Some(nix::libc::EMFILE | nix::libc::ENFILE)).then_some(StrangerReason::Unseen)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    use super::*;

    fn one(pid: i32, parent: i32, name: &str) -> Relative {
        Relative { pid, parent, start_time: u64::try_from(pid).unwrap(), name: name.into() }
    }

    /// Makes a line of processes from ids and names, each the child of the next.
    fn line(of: &[(i32, &str)]) -> Vec<Relative> {
        let parents = of.iter().skip(1).map(|(pid, _)| *pid).chain([0]);
        of.iter().zip(parents).map(|((pid, name), parent)| one(*pid, parent, name)).collect()
    }

    fn id(text: &str) -> SessionId {
        text.parse().unwrap()
    }

    /// Classifies a caller. The daemon is 50; 60 is the keeper of the session `s`, and 70 that of `t`.
    fn placed(caller: &[(i32, &str)], own: &[(i32, &str)], units: &[&str]) -> CallerClass {
        let known = |pid, _| [(60, "s"), (70, "t")].iter().find(|(keeper, _)| *keeper == pid).map(|(_, name)| id(name));
        place(&line(caller), &line(own), units.iter().map(|unit| id(unit)).collect(), known)
    }

    #[test]
    fn a_process_below_keepers_is_a_guest_of_the_outermost() {
        let daemon = [(50, "agentd"), (9, "bash"), (1, "init")];
        let guest = |name: &str| CallerClass::Guest(id(name));
        for (caller, units, expected) in [
            (&[(99, "agentctl"), (9, "bash"), (1, "init")][..], &[][..], CallerClass::Owner),
            (&[(99, "x"), (61, "sh"), (60, "agentd-keeper"), (50, "agentd"), (1, "init")], &[], guest("s")),
            // A renamed keeper is still a keeper.
            (&[(99, "x"), (60, "other"), (1, "init")], &[], guest("s")),
            // An agent's own keeper, or a keeper with the name of another session, is inside.
            (&[(99, "x"), (65, "agentd-keeper"), (60, "agentd-keeper"), (1, "init")], &[], guest("s")),
            (&[(99, "x"), (70, "agentd-keeper"), (60, "agentd-keeper"), (1, "init")], &["t"], guest("s")),
            (&[(99, "x"), (88, "agentd-keeper"), (1, "init")], &["s"], CallerClass::Stranger(StrangerReason::Unplaced)),
            (&[(99, "x"), (1, "init")], &["s"], guest("s")),
            (
                &[(99, "x"), (88, "agentd-keeper"), (50, "agentd"), (1, "init")],
                &[],
                CallerClass::Stranger(StrangerReason::OfAgentd),
            ),
            (&[(99, "x"), (50, "agentd"), (1, "init")], &[], CallerClass::Stranger(StrangerReason::OfAgentd)),
        ] {
            assert_eq!(placed(caller, &daemon, units), expected, "{caller:?} {units:?}");
        }
    }

    #[test]
    fn an_agentd_inside_a_session_serves_that_sessions_agent_as_its_owner() {
        let around = [(9, "sh"), (8, "agentd-keeper"), (1, "init")];
        let daemon = [&[(50, "agentd")], &around[..]].concat();
        assert_eq!(placed(&[&[(99, "agentctl")], &around[..]].concat(), &daemon, &[]), CallerClass::Owner);
        let inner = [&[(99, "x"), (60, "agentd-keeper")], &around[..]].concat();
        assert_eq!(placed(&inner, &daemon, &[]), CallerClass::Guest(id("s")));
    }

    #[test]
    fn a_keeper_classifies_processes_below_itself_as_guests() {
        let own = [(60, "agentd-keeper"), (50, "agentd"), (1, "init")];
        assert_eq!(
            placed(&[(99, "x"), (60, "agentd-keeper"), (50, "agentd"), (1, "init")], &own, &[]),
            CallerClass::Guest(id("s"))
        );
        assert_eq!(placed(&[(50, "agentd"), (1, "init")], &own, &[]), CallerClass::Owner);
    }

    /// Starts a program that connects over TCP, and returns the class of the other end.
    fn over_tcp(program: &mut Command, listener: &TcpListener) -> TcpPeer {
        let mut child = program.stdin(Stdio::piped()).spawn().unwrap();
        let (stream, peer) = listener.accept().unwrap();
        let who = TcpPeer::find(stream.local_addr().unwrap(), peer);
        drop(child.stdin.take());
        child.wait().unwrap();
        who
    }

    #[test]
    fn the_holders_of_a_tcp_connection_are_classified_by_their_ancestors() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let own = TcpStream::connect(address).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(TcpPeer::find(address, peer), TcpPeer::Owner);
        drop(own);
        // A child of another test may hold the closed end until it executes its program.
        assert!((0..1000).any(|_| TcpPeer::find(address, peer) == TcpPeer::Unknown));
        drop(stream);
        // A browser that this process started.
        let connect = format!(
            "import socket,sys; s=socket.socket(); s.connect(('127.0.0.1',{})); sys.stdin.read()",
            address.port()
        );
        assert_eq!(over_tcp(Command::new("python3").args(["-c", &connect]), &listener), TcpPeer::Owner);
        // A process below a keeper, as the keeper of an agent that this process started.
        let directory = tempfile::tempdir().unwrap();
        let python = std::fs::canonicalize("/usr/bin/python3").unwrap();
        let keeper = directory.path().join("agentd-keeper");
        std::os::unix::fs::symlink(python, &keeper).unwrap();
        let below = format!("import subprocess,sys; subprocess.run(['python3','-c',{connect:?}], stdin=sys.stdin)");
        assert_eq!(over_tcp(Command::new(&keeper).args(["-c", &below]), &listener), TcpPeer::InSession);
    }

    #[test]
    fn a_tcp_connection_without_a_known_holder_is_the_owners_only_if_no_hidden_process_is_inside_a_session() {
        let uid = nix::unistd::geteuid().as_raw();
        let own = i32::try_from(std::process::id()).unwrap();
        let held =
            |uid, hidden: &[i32]| TcpPeer::of(&Holders { uid, inode: 1, pids: Vec::new(), hidden: hidden.to_vec() });
        assert_eq!(held(uid, &[own]), TcpPeer::Owner);
        assert_eq!(held(uid, &[]), TcpPeer::Unknown);
        assert_eq!(held(uid, &[own, i32::MAX]), TcpPeer::Unknown);
        assert_eq!(held(uid + 1, &[own]), TcpPeer::OtherUser);
    }

    /// Starts a program that connects, and returns the caller's class.
    fn of(program: &mut Command, listener: &UnixListener) -> (CallerClass, std::process::Child) {
        let child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        (Caller::look(&stream, |_, _| None).who, child)
    }

    #[test]
    fn real_processes_are_classified_by_their_ancestors_or_found_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let connect = format!("import socket,sys; s=socket.socket(1); s.connect({path:?}); ");
        // The process is below this process, like a script of the daemon.
        let (who, mut child) =
            of(Command::new("python3").args(["-c", &format!("{connect} sys.stdin.read()")]), &listener);
        assert_eq!(who, CallerClass::Stranger(StrangerReason::OfAgentd));
        child.kill().unwrap();
        child.wait().unwrap();
        // The process exited, and its child holds the connection.
        let fork = "import os\nif os.fork(): os._exit(0)\nos.setsid(); print(1, flush=True); sys.stdin.read()";
        let mut gone = Command::new("python3");
        gone.args(["-c", &format!("{connect}\n{fork}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = gone.spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        child.wait().unwrap();
        assert_eq!(Caller::look(&stream, |_, _| None).who, CallerClass::Stranger(StrangerReason::Gone));
        // This process itself is only below the keepers around the tests.
        let own = UnixStream::connect(&path).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let caller = Caller::look(&stream, |_, _| None);
        assert_eq!((caller.who, caller.pid), (CallerClass::Owner, Some(std::process::id())));
        drop(own);
    }
}
