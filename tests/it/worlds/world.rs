//! A machine at home with a VPN to an inside network. A world has three networks with their name servers, and a daemon
//! can run on the machine.
//!
//! ```text
//!   inside 10.99.0.0/16 ──── vpn0 [ the machine ] wan0 ──── outside 192.0.2.0/24, 203.0.113.7
//!   names at 10.99.0.53                                     names at 192.0.2.53; drops what is for the inside
//! ```

use std::cell::Cell;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{Shutdown, shutdown};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::names::NameServer;
use super::place::Place;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, LIMIT, require, until};

pub(crate) const HOST: &str = "git.corp.test";
pub(crate) const INSIDE_HOST: &str = "10.99.1.1";
pub(crate) const OUTSIDE_HOST: &str = "203.0.113.7";
pub(crate) const INSIDE_NAMES: &str = "10.99.0.53";
pub(crate) const OUTSIDE_NAMES: &str = "192.0.2.53";
pub(crate) const LICENCES: [&str; 3] = ["lic1.corp.test", "lic2.corp.test", "lic3.corp.test"];
const LICENCE_HOSTS: [&str; 3] = ["10.99.1.11", "10.99.1.12", "10.99.1.13"];

pub(crate) struct World {
    pub(crate) here: Place,
    pub(crate) inside: Place,
    pub(crate) outside: Place,
    pub(crate) inside_names: NameServer,
    pub(crate) outside_names: NameServer,
    /// Directory of the files that replace files in /etc, and of the test's other files.
    files: TempDir,
    written: Cell<u32>,
}

impl World {
    /// Sets up the three networks, with the inside name server in use. Prints the reason and returns `None` if the
    /// machine does not allow namespaces.
    pub(crate) async fn new() -> Option<Self> {
        require::namespaces()?;
        let (here, inside, outside) = (Place::machine().unwrap(), Place::network().unwrap(), Place::network().unwrap());
        for (own, far, place) in [("vpn0", "vpn", &inside), ("wan0", "wan", &outside)] {
            here.run(&format!("ip link add {own} type veth peer name {far} netns {}", quoted(place.net())));
        }
        for line in ["addr add 10.99.0.2/16 dev vpn0", "addr add 192.0.2.2/24 dev wan0", "link set vpn0 up"] {
            here.run(&format!("ip {line}"));
        }
        inside.run("ip addr add 10.99.0.1/16 dev vpn");
        for host in LICENCE_HOSTS.iter().chain([&INSIDE_HOST, &INSIDE_NAMES]) {
            inside.run(&format!("ip addr add {host}/32 dev lo"));
        }
        inside.run("ip link set vpn up");
        for line in ["addr add 192.0.2.1/24 dev wan", "addr add 192.0.2.53/32 dev lo", "link set wan up"] {
            outside.run(&format!("ip {line}"));
        }
        outside.run(&format!("ip addr add {OUTSIDE_HOST}/32 dev lo"));
        here.run("ip link set wan0 up");
        let world = Self {
            inside_names: NameServer::new(&inside, INSIDE_NAMES),
            outside_names: NameServer::new(&outside, OUTSIDE_NAMES),
            files: tempfile::Builder::new().prefix("agentd-world-").tempdir().unwrap(),
            written: Cell::default(),
            here,
            inside,
            outside,
        };
        world.home(true);
        world.inside_names.know(HOST, INSIDE_HOST);
        for (name, address) in LICENCES.iter().zip(LICENCE_HOSTS) {
            world.inside_names.know(name, address);
        }
        world.etc("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
        world.etc("hosts", "127.0.0.1 localhost\n");
        world.names_at(INSIDE_NAMES);
        world.carried().await;
        Some(world)
    }

    /// Starts a daemon on the machine with this addition to its configuration.
    pub(crate) async fn daemon(&self, config: &str) -> Daemon {
        let mut daemon = Daemon::prepare();
        daemon.configure(|own| format!("{own}\n{config}"));
        daemon.enter(self.here.entrance());
        daemon.run().await;
        daemon
    }

    pub(crate) fn ip(&self, line: &str) {
        self.here.run(&format!("ip {line}"));
    }

    /// Disconnects the VPN.
    pub(crate) fn disconnect(&self) {
        self.ip("link set vpn0 down");
    }

    /// Connects the VPN, and waits until it transports packets.
    pub(crate) async fn connect(&self) {
        self.ip("link set vpn0 up");
        self.carried().await;
    }

    /// Waits until the kernel uses all links. It does so only some time after their setup, and drops earlier packets.
    async fn carried(&self) {
        let ends = [(&self.here, "vpn0"), (&self.here, "wan0"), (&self.inside, "vpn"), (&self.outside, "wan")];
        let is_up = |place: &Place, link| place.try_run(&format!("ip -o link show dev {link}")).1.contains("state UP");
        until("the links are in use", || ends.iter().all(|(place, link)| is_up(place, link))).await;
    }

    /// Adds or removes the default route, which leads through the outside network.
    pub(crate) fn home(&self, there: bool) {
        self.ip(&format!("route {} default via 192.0.2.1", if there { "add" } else { "del" }));
    }

    /// Makes `server` the machine's only name server.
    pub(crate) fn names_at(&self, server: &str) {
        self.etc("resolv.conf", &format!("nameserver {server}\n"));
    }

    /// Replaces a file in the machine's /etc with a mount. A write would leave the file empty for a moment.
    pub(crate) fn etc(&self, name: &str, content: &str) {
        let number = self.written.replace(self.written.get() + 1);
        let file = self.file(&format!("{name}.{number}"), content);
        self.here.run(&format!("mount --bind {} /etc/{name}", quoted(&file)));
    }

    /// Creates a file in the test's directory.
    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.files().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Creates a shell script in the test's directory.
    pub(crate) fn script(&self, name: &str, body: &str) -> String {
        let path = self.file(name, &format!("#!/bin/sh\n{body}\n"));
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    pub(crate) fn files(&self) -> &Path {
        self.files.path()
    }

    /// Starts the inside host, which listens on the port that the VPN's check uses.
    pub(crate) fn inside_host(&self) -> Peer {
        Peer::listen(&self.inside, INSIDE_HOST, 443, Manner::Closes)
    }

    /// Starts the first `up` of the three licence servers.
    pub(crate) fn licence_servers(&self, up: usize) -> Vec<Peer> {
        LICENCE_HOSTS[..up].iter().map(|host| Peer::listen(&self.inside, host, 27000, Manner::Closes)).collect()
    }
}

/// Listens at `at`. A process that another test is about to start may have inherited the previous listener, so the
/// function retries for a while.
fn bound(at: &str) -> std::io::Result<std::net::TcpListener> {
    let begun = Instant::now();
    loop {
        match std::net::TcpListener::bind(at) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && begun.elapsed() < LIMIT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            bound => return bound,
        }
    }
}

/// Behaviour of a peer towards a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Manner {
    Closes,
    Says(&'static str),
    /// Accepts the connection and sends nothing.
    IsSilent,
}

/// Server that listens at one address and port.
pub(crate) struct Peer {
    accepted: Arc<AtomicUsize>,
    listener: std::net::TcpListener,
    serving: JoinHandle<()>,
}

impl Peer {
    pub(crate) fn listen(place: &Place, address: &str, port: u16, manner: Manner) -> Self {
        let at = format!("{address}:{port}");
        let listener = place.within(move || bound(&at)).expect("the address is the place's");
        listener.set_nonblocking(true).unwrap();
        let serves = TcpListener::from_std(listener.try_clone().unwrap()).unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let serving = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = serves.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                match manner {
                    Manner::Closes => {}
                    Manner::Says(text) => drop(stream.write_all(text.as_bytes()).await),
                    Manner::IsSilent => held.push(stream),
                }
            }
        });
        Self { accepted, listener, serving }
    }

    /// Number of accepted connections.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Stops listening, and returns after the port is closed. A process that another test is about to start may have
    /// inherited the listener, so it is shut down, which closes the port for each holder.
    pub(crate) async fn close(mut self) {
        shutdown(self.listener.as_raw_fd(), Shutdown::Both).unwrap();
        self.serving.abort();
        (&mut self.serving).await.ok();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
