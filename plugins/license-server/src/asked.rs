//! Reads each licence file and connects to each licence server once.

use std::time::Duration;

use agentd_plugin_checks::address::Endpoint;
use agentd_plugin_checks::explain::is_of_the_name;
use agentd_plugin_checks::time::{Budget, shown};
use agentd_plugin_sdk::network::{self, Problem};
use agentd_plugin_sdk::pattern::matches;
use agentd_plugin_sdk::{Failure, file};

use crate::entry::{Entry, Manager, Server};
use crate::file::{Licence, read};

/// Maximum number of servers that one check connects to.
const SERVERS: usize = 32;
/// Maximum number of files that are read in one directory.
const FILES: usize = 32;

/// One of several alternatives of a list. One usable alternative is sufficient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Alternative {
    /// One server, or three of which two must answer. If they come from a file, with the vendor daemons that
    /// have their own port.
    Servers { file: Option<String>, servers: Vec<Server>, vendors: Vec<(String, u16)> },
    /// A file that names no server, so no connection is needed.
    Local(String),
    /// An alternative that cannot be used, with the reason.
    Unusable(String),
    /// An alternative that could not be examined, with the reason.
    Unknown(String),
}

/// Returns the alternatives of a list's entries. Reads licence files.
pub(crate) fn alternatives(entries: Vec<Entry>, manager: Manager) -> Vec<Alternative> {
    let plain = |servers: Vec<Server>| vec![Alternative::Servers { file: None, servers, vendors: Vec::new() }];
    let found = entries.into_iter().map(|entry| match entry {
        Entry::Server(server) => plain(vec![server]),
        Entry::Triad(servers) => plain(servers),
        Entry::Path(path) => at_path(&path, manager).unwrap_or_else(|failure| vec![unreadable(&failure)]),
        Entry::Unread(before) => {
            let what = "is neither port@host, nor three of them with commas, nor the path of a licence file";
            vec![Alternative::Unusable(format!("entry {} {what}", before + 1))]
        }
    });
    found.flatten().collect()
}

fn unreadable(failure: &Failure) -> Alternative {
    match failure {
        Failure::NotFound(text) => Alternative::Unusable(text.clone()),
        other => Alternative::Unknown(other.message().to_owned()),
    }
}

/// Reads a licence file, or the licence files of a directory.
fn at_path(path: &str, manager: Manager) -> Result<Vec<Alternative>, Failure> {
    // A relative path is relative to the working directory of the session's programs.
    let path = if path.starts_with('/') { path.to_owned() } else { format!("{{cwd}}/{path}") };
    if file::inspect(&path)?.kind != file::Kind::Directory {
        return Ok(of_file(&path, manager));
    }
    let names = file::entries(&path)?;
    let licences = names.iter().filter(|name| matches("*.lic", name)).take(FILES);
    let found: Vec<Alternative> = licences.flat_map(|name| of_file(&format!("{path}/{name}"), manager)).collect();
    let nothing = || vec![Alternative::Unusable(format!("there is no *.lic in {path}"))];
    Ok(if found.is_empty() { nothing() } else { found })
}

fn of_file(path: &str, manager: Manager) -> Vec<Alternative> {
    let content = match file::read(path) {
        Ok(content) => content,
        Err(failure) => return vec![unreadable(&failure)],
    };
    let Licence { servers, vendors, is_one } = read(&String::from_utf8_lossy(&content), manager);
    let of = |servers, vendors| Alternative::Servers { file: Some(path.to_owned()), servers, vendors };
    match servers.len() {
        _ if !is_one => vec![Alternative::Unusable(format!("{path} is not a licence file"))],
        0 => vec![Alternative::Local(path.to_owned())],
        1 | 3 => vec![of(servers, vendors)],
        // Files were concatenated, so each server is an alternative.
        _ => servers.into_iter().map(|server| of(vec![server], Vec::new())).collect(),
    }
}

/// Result of connecting to a server.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Answers { at: String },
    Silent { why: String, problem: Problem, to: Endpoint },
    Unknown(String),
}

/// Results of connecting to the servers.
#[derive(Debug, Default)]
pub(crate) struct Answers(Vec<(Server, Answer)>);

impl Answers {
    /// Connects to all servers, and then to the vendor daemons on their machines.
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a Alternative> + Clone, budget: &Budget) -> Self {
        let mut asked: Vec<Server> = Vec::new();
        let mut want = |server: Server| {
            if !asked.contains(&server) {
                asked.push(server);
            }
        };
        for alternative in all.clone() {
            if let Alternative::Servers { servers, .. } = alternative {
                servers.iter().cloned().for_each(&mut want);
            }
        }
        for alternative in all {
            if let Alternative::Servers { servers, vendors, .. } = alternative {
                let daemons = vendors.iter().flat_map(|(_, port)| servers.iter().map(|server| daemon(server, *port)));
                daemons.for_each(&mut want);
            }
        }
        let count = asked.len().min(SERVERS);
        let mut answers = Self::default();
        for (at, server) in asked.into_iter().enumerate() {
            let answer = if at < count {
                answers.same_name(&server).unwrap_or_else(|| connect(&server, budget.share(count - at)))
            } else {
                Answer::Unknown(format!("was not checked: there are more than {SERVERS} servers"))
            };
            answers.0.push((server, answer));
        }
        answers
    }

    pub(crate) fn get(&self, server: &Server) -> Option<&Answer> {
        self.0.iter().find(|(asked, _)| asked == server).map(|(_, answer)| answer)
    }

    /// Returns the first server that does not answer.
    pub(crate) fn silent(&self) -> Option<(&Problem, &Endpoint)> {
        self.0.iter().find_map(|(_, answer)| match answer {
            Answer::Silent { problem, to, .. } => Some((problem, to)),
            _ => None,
        })
    }

    /// Returns the result of a server with the same name if that name has no address, so that each name is
    /// resolved once.
    fn same_name(&self, server: &Server) -> Option<Answer> {
        let of_the_name = |answer: &&(Server, Answer)| {
            answer.0.host == server.host
                && matches!(&answer.1, Answer::Silent { problem, .. } if is_of_the_name(problem))
        };
        self.0.iter().find(of_the_name).map(|(_, answer)| answer.clone())
    }
}

/// Returns the address of a vendor daemon on the server's machine.
pub(crate) fn daemon(server: &Server, port: u16) -> Server {
    Server { host: server.host.clone(), ports: port..=port }
}

/// Connects to one port after the other until one answers or none is left.
fn connect(server: &Server, time: Duration) -> Answer {
    let budget = Budget::new(time);
    let mut missed = None;
    for port in server.ports.clone() {
        let left = usize::from(server.ports.end() - port) + 1;
        let to = Endpoint { host: server.host.clone(), port };
        let share = budget.share(left);
        match network::connect(&to.host, port, share) {
            Ok(exchanged) => return Answer::Answers { at: format!("{} port {port}", exchanged.address) },
            Err(Problem::Other(failure)) => {
                return Answer::Unknown(format!("could not be checked: {}", failure.message()));
            }
            Err(problem) => {
                let further = matches!(problem, Problem::Refused(_) | Problem::TimedOut(_));
                missed = Some(Answer::Silent { why: why(&problem, share), problem, to });
                if !further {
                    break;
                }
            }
        }
    }
    missed.unwrap_or_else(|| Answer::Unknown("has no port".to_owned()))
}

fn why(problem: &Problem, time: Duration) -> String {
    match problem {
        Problem::NoSuchHost(_) => "has a name that is unknown".to_owned(),
        Problem::NotResolved(_) => "has no address: the name service did not resolve it".to_owned(),
        Problem::Refused(_) => "refuses the connection".to_owned(),
        Problem::Unreachable(_) => "cannot be reached: there is no route".to_owned(),
        Problem::TimedOut(_) => format!("does not answer within {}", shown(time)),
        Problem::Other(failure) => failure.message().to_owned(),
    }
}
