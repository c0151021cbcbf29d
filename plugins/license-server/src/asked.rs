//! What came of asking: each file is read, and each server connected to, once.

use std::time::Duration;

use agentd_plugin_checks::address::Endpoint;
use agentd_plugin_checks::explain::is_of_the_name;
use agentd_plugin_checks::time::{Budget, shown};
use agentd_plugin_sdk::network::{self, Problem};
use agentd_plugin_sdk::pattern::matches;
use agentd_plugin_sdk::{Failure, file};

use crate::entry::{Entry, Manager, Server};
use crate::file::{Licence, read};

/// Servers that are asked for one check: more would have no time.
const SERVERS: usize = 32;
/// Files of one directory that are read.
const FILES: usize = 32;

/// One of several that do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Alternative {
    /// One server, or three of which two must answer; of a file, with the daemons that have a port of their own.
    Servers { file: Option<String>, servers: Vec<Server>, vendors: Vec<(String, u16)> },
    /// A file that names no server: there is nothing to ask.
    Local(String),
    /// It is of no use, and why.
    Useless(String),
    /// It could not be looked at, and why.
    Untold(String),
}

/// What is read for entries.
pub(crate) fn alternatives(entries: Vec<Entry>, manager: Manager) -> Vec<Alternative> {
    let plain = |servers: Vec<Server>| vec![Alternative::Servers { file: None, servers, vendors: Vec::new() }];
    let found = entries.into_iter().map(|entry| match entry {
        Entry::Server(server) => plain(vec![server]),
        Entry::Triad(servers) => plain(servers),
        Entry::Path(path) => at_path(&path, manager).unwrap_or_else(|failure| vec![unreadable(&failure)]),
        Entry::Unread(before) => {
            let what = "is neither port@host, nor three of them with commas, nor the path of a licence file";
            vec![Alternative::Useless(format!("entry {} {what}", before + 1))]
        }
    });
    found.flatten().collect()
}

fn unreadable(failure: &Failure) -> Alternative {
    match failure {
        Failure::NotFound(text) => Alternative::Useless(text.clone()),
        other => Alternative::Untold(other.message().to_owned()),
    }
}

/// A licence file, or those of a directory.
fn at_path(path: &str, manager: Manager) -> Result<Vec<Alternative>, Failure> {
    // Relative to where the session's programs begin.
    let path = if path.starts_with('/') { path.to_owned() } else { format!("{{cwd}}/{path}") };
    if file::inspect(&path)?.kind != file::Kind::Directory {
        return Ok(of_file(&path, manager));
    }
    let names = file::entries(&path)?;
    let licences = names.iter().filter(|name| matches("*.lic", name)).take(FILES);
    let found: Vec<Alternative> = licences.flat_map(|name| of_file(&format!("{path}/{name}"), manager)).collect();
    let nothing = || vec![Alternative::Useless(format!("there is no *.lic in {path}"))];
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
        _ if !is_one => vec![Alternative::Useless(format!("{path} is no licence file"))],
        0 => vec![Alternative::Local(path.to_owned())],
        1 | 3 => vec![of(servers, vendors)],
        // Files that were put together: each server stands for itself.
        _ => servers.into_iter().map(|server| of(vec![server], Vec::new())).collect(),
    }
}

/// What came of connecting to a server.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Answers { at: String },
    Silent { why: String, problem: Problem, to: Endpoint },
    Untold(String),
}

/// The answers of servers.
#[derive(Debug, Default)]
pub(crate) struct Answers(Vec<(Server, Answer)>);

impl Answers {
    /// Connects to all of these, the daemons of the vendors behind the servers.
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
                Answer::Untold(format!("was not asked: there are more than {SERVERS}"))
            };
            answers.0.push((server, answer));
        }
        answers
    }

    pub(crate) fn get(&self, server: &Server) -> Option<&Answer> {
        self.0.iter().find(|(asked, _)| asked == server).map(|(_, answer)| answer)
    }

    /// The first server that is silent.
    pub(crate) fn silent(&self) -> Option<(&Problem, &Endpoint)> {
        self.0.iter().find_map(|(_, answer)| match answer {
            Answer::Silent { problem, to, .. } => Some((problem, to)),
            _ => None,
        })
    }

    /// A name without an address is asked for once.
    fn same_name(&self, server: &Server) -> Option<Answer> {
        let of_the_name = |answer: &&(Server, Answer)| {
            answer.0.host == server.host
                && matches!(&answer.1, Answer::Silent { problem, .. } if is_of_the_name(problem))
        };
        self.0.iter().find(of_the_name).map(|(_, answer)| answer.clone())
    }
}

/// A vendor's daemon, beside the server.
pub(crate) fn daemon(server: &Server, port: u16) -> Server {
    Server { host: server.host.clone(), ports: port..=port }
}

/// Connects to one port after the other, until one answers or none can.
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
                return Answer::Untold(format!("could not be asked: {}", failure.message()));
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
    missed.unwrap_or_else(|| Answer::Untold("has no port".to_owned()))
}

fn why(problem: &Problem, time: Duration) -> String {
    match problem {
        Problem::NoSuchHost(_) => "has a name that is unknown".to_owned(),
        Problem::NotResolved(_) => "has no address: the name service does not tell it".to_owned(),
        Problem::Refused(_) => "refuses the connection".to_owned(),
        Problem::Unreachable(_) => "cannot be reached: there is no way there".to_owned(),
        Problem::TimedOut(_) => format!("does not answer within {}", shown(time)),
        Problem::Other(failure) => failure.message().to_owned(),
    }
}
