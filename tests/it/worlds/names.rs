//! Name server (RFC 1035) that answers with the configured addresses. For every other name it answers that the name
//! does not exist. A test can make the server silent.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use super::place::Place;

const TYPE_A: [u8; 2] = [0, 1];
const NO_SUCH_NAME: u8 = 3;

pub(crate) struct NameServer {
    zone: Arc<Mutex<Zone>>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Zone {
    names: BTreeMap<String, Ipv4Addr>,
    silent: bool,
}

impl NameServer {
    /// Starts the server at port 53 of an address of `place`.
    pub(crate) fn new(place: &Place, address: &str) -> Self {
        let at = format!("{address}:53");
        let socket = place.within(move || std::net::UdpSocket::bind(at)).expect("the address is the place's");
        socket.set_nonblocking(true).unwrap();
        let socket = UdpSocket::from_std(socket).unwrap();
        let zone = Arc::new(Mutex::new(Zone::default()));
        let asked = Arc::clone(&zone);
        let serving = tokio::spawn(async move {
            let mut query = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut query).await {
                let answer = answer(&query[..length], &asked.lock().unwrap());
                if let Some(answer) = answer {
                    socket.send_to(&answer, from).await.ok();
                }
            }
        });
        Self { zone, serving }
    }

    fn zone(&self) -> MutexGuard<'_, Zone> {
        self.zone.lock().unwrap()
    }

    pub(crate) fn know(&self, name: &str, address: &str) {
        self.zone().names.insert(name.to_owned(), address.parse().unwrap());
    }

    pub(crate) fn be_silent(&self, silent: bool) {
        self.zone().silent = silent;
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn answer(query: &[u8], zone: &Zone) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        name.push(String::from_utf8_lossy(query.get(at..at + length)?).to_lowercase());
        at += length;
    }
    let kind = query.get(at..at + 2)?;
    let question = query.get(12..at + 4)?;
    if zone.silent {
        return None;
    }
    let known = zone.names.get(&name.join("."));
    let address = known.filter(|_| kind == TYPE_A);
    let code = if known.is_some() { 0 } else { NO_SUCH_NAME };
    // The query's id; a response with recursion available; one question, and one answer if the name has an address.
    let mut answer = vec![query[0], query[1], 0x81, 0x80 | code, 0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0];
    answer.extend(question);
    if let Some(address) = address {
        // The question's name, type A, class IN, a time to live of zero, and the address.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
