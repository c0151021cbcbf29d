//! Reads the facts of a git repository by `git` itself, in a process that is killed at a deadline.
//!
//! A repository is not trusted. Its configuration can name programs: a file monitor, hooks, filters and helpers of
//! transports. Each call of git turns these off, and no git command is used that contacts a remote. git's own check of
//! the owner (`safe.directory`) stays in force.
//!
//! Texts of the repository never become part of a message. URLs lose user names, passwords and tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_api::ByteString;
use agentd_api::facts::{Repository, RepositoryFacts, RepositoryUnread};
use agentd_keeper::protocol::{RunOutcome, RunRequest, RunResult, Variable};
use agentd_keeper::tokens;
use async_recursion::async_recursion as boxed;

use crate::capability::{Machine, PROGRAM_DIRECTORIES, PathState};
use crate::runner;

/// Maximum size of git's output about the configuration, in bytes.
const MAX_OUTPUT: u64 = 1 << 18;
/// Maximum numbers of remotes and of URLs of one remote that are kept.
const MAX_REMOTES: usize = 20;
const MAX_URLS: usize = 4;
/// Maximum number of characters of a name or a URL that is kept.
const MAX_TEXT: usize = 500;

/// Options of every call. They turn off the programs that a repository's configuration can name.
const OPTIONS: [&str; 9] = [
    "--no-pager",
    "-c",
    "core.fsmonitor=",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.untrackedCache=false",
    "-c",
    "safe.bareRepository=explicit",
];

/// Returns the options of a call for this directory. git enters the directory, since a keeper that enters one that does
/// not answer could not report anything.
fn options(directory: &Path) -> impl Iterator<Item = ByteString> {
    ["-C".into(), directory.as_os_str().into()].into_iter().chain(OPTIONS.map(ByteString::from))
}

/// Prints the top directory, the branch, the head, and the needed keys of the configuration, separated by NUL. One
/// shell runs the four commands, since each start of a keeper takes longer than git.
const SCRIPT: &str = r#"
"$@" rev-parse --show-toplevel || exit
printf '\0'
"$@" symbolic-ref -q HEAD
printf '\0'
"$@" rev-parse -q --verify HEAD
printf '\0'
"$@" config -z --get-regexp '^(remote\..*\.url|filter\..*\.(clean|smudge|process|required))$'
exit 0
"#;

/// Reader of repositories.
#[derive(Debug, Clone, Copy)]
pub struct RepositoryReader<'a> {
    pub machine: &'a Machine,
    /// Path of the program `agentd-keeper`.
    pub keeper: &'a Path,
    /// Home directory, in which git finds the user's settings.
    pub home: Option<&'a Path>,
}

impl RepositoryReader<'_> {
    /// Reads the repository that contains `directory`. The directory must answer: a process cannot be killed while it
    /// enters a directory that does not.
    #[boxed]
    pub async fn read(&self, directory: &Path, deadline: Instant) -> Repository {
        self.read_with(&PROGRAM_DIRECTORIES, directory, deadline).await
    }

    async fn read_with(&self, programs: &[&str], directory: &Path, deadline: Instant) -> Repository {
        let Some(git) = find_git(self.machine, programs, deadline).await else {
            return unread("git is not installed in the directories of the system");
        };
        let call = std::iter::once(git.as_os_str().into()).chain(options(directory));
        let args = ["-c", SCRIPT, "git"].map(ByteString::from).into_iter().chain(call).collect();
        let request = self.request("/bin/sh".into(), args, deadline);
        let ran = match self.run(RunRequest { max_output: MAX_OUTPUT, whole_stdout: true, ..request }, deadline).await {
            Ok(ran) => ran,
            Err(message) => return unread(message),
        };
        match ran.outcome {
            RunOutcome::Exited(0) => {}
            RunOutcome::Exited(status) => return failed(status, &ran.stderr.display()),
            RunOutcome::TimedOut | RunOutcome::Cancelled => return unread(LATE),
            RunOutcome::TooMuchOutput => return unread("the configuration of the repository is too large"),
            _ => return unread("git could not be run"),
        }
        let Some(Parsed { mut facts, filters }) = parse(ran.stdout.as_bytes()) else {
            return unread("git gave an unexpected answer");
        };
        if let Some(filters) = filters {
            facts.dirty = self.dirty(&git, &filters, directory, deadline).await;
        }
        Repository::Found(facts)
    }

    /// Reports whether tracked files have changes without a commit. A file's content is compared without the filters
    /// that the configuration names, since these are programs.
    async fn dirty(&self, git: &Path, filters: &BTreeSet<String>, directory: &Path, deadline: Instant) -> Option<bool> {
        let mut args: Vec<ByteString> = options(directory).collect();
        for name in filters {
            for (key, value) in [("clean", ""), ("smudge", ""), ("process", ""), ("required", "false")] {
                args.extend(["-c".into(), format!("filter.{name}.{key}={value}").into()]);
            }
        }
        let status = ["status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all"];
        args.extend(status.map(ByteString::from));
        let request = self.request(git.as_os_str().into(), args, deadline);
        // The first byte of the output tells that there is a change.
        let ran = self.run(RunRequest { max_output: 1, ..request }, deadline).await.ok()?;
        matches!(ran.outcome, RunOutcome::Exited(0)).then(|| !ran.stdout.as_bytes().is_empty())
    }

    fn request(&self, program: ByteString, args: Vec<ByteString>, deadline: Instant) -> RunRequest {
        let time = deadline.saturating_duration_since(Instant::now());
        let path = PROGRAM_DIRECTORIES.join(":");
        let mut environment: Vec<Variable> = [
            ("PATH", path.as_str()),
            ("LC_ALL", "C"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_TERMINAL_PROMPT", "0"),
            // A repository may lack objects and name a remote that has them. These keep git from calling it.
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_ALLOW_PROTOCOL", "none"),
            ("GIT_SSH_COMMAND", "false"),
            ("GIT_ASKPASS", "false"),
        ]
        .map(|(name, value)| Variable { name: name.into(), value: value.into() })
        .into();
        environment.extend(self.home.map(|home| Variable { name: "HOME".into(), value: home.as_os_str().into() }));
        RunRequest {
            program,
            args,
            environment,
            directory: "/".into(),
            deadline_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            first_of_stderr: Some(1024),
            ..RunRequest::default()
        }
    }

    /// Runs the request. The keeper has a little more time than git, so that it can report the deadline.
    async fn run(&self, request: RunRequest, deadline: Instant) -> Result<RunResult, String> {
        let patience = deadline + KEEPER_TIME;
        match tokio::time::timeout_at(patience.into(), runner::run(self.keeper, &request)).await {
            Ok(Ok(ran)) => Ok(ran),
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot run git");
                Err("git could not be run".to_owned())
            }
            Err(_) => Err(LATE.to_owned()),
        }
    }
}

/// Returns the path of git, searched like the programs of plugins.
pub(crate) async fn find_git(machine: &Machine, programs: &[&str], deadline: Instant) -> Option<PathBuf> {
    let is_program = |place: &PathState| matches!(place, PathState::File { usable: true, .. });
    let candidates: Vec<PathBuf> = programs.iter().map(|directory| Path::new(directory).join("git")).collect();
    let seen = machine.path_states(candidates.clone(), deadline, is_program).await;
    candidates.into_iter().zip(&seen).find(|(_, place)| is_program(place)).map(|(path, _)| path)
}

/// Time of a keeper for its report after the deadline.
const KEEPER_TIME: std::time::Duration = std::time::Duration::from_millis(200);
const LATE: &str = "git did not answer in time";

fn unread(message: impl Into<String>) -> Repository {
    Repository::Unread(RepositoryUnread { message: message.into() })
}

/// Interprets the failure of the first command. The text is compared with git's own messages and never kept.
fn failed(status: i32, stderr: &str) -> Repository {
    // A directory in a bare repository or in `.git` has no working tree.
    let none = ["not a git repository", "must be run in a work tree", "cannot use bare repository"];
    if none.iter().any(|text| stderr.contains(text)) {
        return Repository::None;
    }
    if stderr.contains("dubious ownership") || stderr.contains("unsafe repository") {
        return unread("another user owns the repository, and git refuses it; see safe.directory in git-config(1)");
    }
    unread(format!("git failed with status {status}"))
}

/// The output of [`SCRIPT`].
#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    facts: RepositoryFacts,
    /// Names of the filters that the configuration defines. Absent if a name cannot be part of an option.
    filters: Option<BTreeSet<String>>,
}

fn parse(output: &[u8]) -> Option<Parsed> {
    let mut parts = output.splitn(4, |&byte| byte == 0);
    let mut line =
        || parts.next().map(|part| String::from_utf8_lossy(part.strip_suffix(b"\n").unwrap_or(part)).into_owned());
    let root = line().filter(|root| root.starts_with('/'))?;
    let (branch, head) = (line()?, line()?);
    let (mut remotes, mut filters) = (BTreeMap::<String, Vec<String>>::new(), Some(BTreeSet::new()));
    let entries = parts.next()?.split(|&byte| byte == 0).filter(|entry| !entry.is_empty());
    for entry in entries {
        let entry = String::from_utf8_lossy(entry);
        // A subsection may contain line ends, but the last part of the key does not.
        let (section, key, value) = split(&entry)?;
        if key == "url" {
            let name = limited(section.strip_prefix("remote.")?);
            let is_full = remotes.len() >= MAX_REMOTES && !remotes.contains_key(&name);
            let urls = (!is_full).then(|| remotes.entry(name).or_default());
            if let Some(urls) = urls.filter(|urls| urls.len() < MAX_URLS) {
                urls.push(limited(&without_credentials(value)));
            }
        } else {
            let name = section.strip_prefix("filter.")?;
            let is_plain = !name.contains(['=', '\0', '\u{fffd}']);
            filters = filters.filter(|_| is_plain).map(|mut names| {
                names.insert(name.to_owned());
                names
            });
        }
    }
    let branch = branch.strip_prefix("refs/heads/").map(limited);
    let head = Some(head).filter(|head| !head.is_empty() && head.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let facts = RepositoryFacts { root: PathBuf::from(root), branch, head, remotes, dirty: None };
    Some(Parsed { facts, filters })
}

/// Splits an entry `SECTION.SUBSECTION.KEY\nVALUE`. A key without a value has no line end.
fn split(entry: &str) -> Option<(&str, &str, &str)> {
    const KEYS: [&str; 5] = ["url", "clean", "smudge", "process", "required"];
    let named = KEYS.iter().filter_map(|key| {
        let valued = entry.match_indices(&format!(".{key}\n")).next().map(|(at, _)| at);
        let bare = entry.strip_suffix(&format!(".{key}")).map(str::len);
        valued.or(bare).map(|at| (at, *key))
    });
    let (at, key) = named.min_by_key(|(at, _)| *at)?;
    Some((&entry[..at], key, entry.get(at + key.len() + 2..).unwrap_or_default()))
}

fn limited(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// Text in place of a part that may be a credential.
const HIDDEN: &str = "(hidden)";

/// Returns a remote's URL without the parts that can hold credentials: user and password, query, fragment, and the
/// arguments of a transport's helper.
pub fn without_credentials(url: &str) -> String {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte))
    };
    if let Some((helper, address)) = url.split_once("::").filter(|(helper, _)| is_name(helper)) {
        let is_url = helper != "ext" && address.contains("://");
        return if is_url {
            format!("{helper}::{}", without_credentials(address))
        } else {
            format!("{helper}::{HIDDEN}")
        };
    }
    let shown = match url.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
            let is_password = !authority.contains('@')
                && !authority.ends_with(']')
                && port.bytes().any(|byte| !byte.is_ascii_digit());
            let address = match rest.rsplit_once('@') {
                // A password may contain an unescaped slash.
                Some((_, behind)) if is_password => behind.to_owned(),
                _ => format!("{}{path}", authority.rsplit_once('@').map_or(authority, |(_, host)| host)),
            };
            let address = address.split(['?', '#']).next().unwrap_or_default();
            format!("{scheme}://{address}")
        }
        None => match url.rsplit_once('@') {
            Some((user, address)) if user.contains(':') => address.to_owned(),
            _ => url.to_owned(),
        },
    };
    masked(&shown)
}

/// Characters between which a part of a URL can be a token.
const SEPARATORS: [char; 5] = ['/', ':', '@', '=', '&'];

/// Returns the issuer of a token of a known form that the URL contains.
pub fn issuer_of_token(url: &str) -> Option<&'static str> {
    url.split(SEPARATORS).find_map(|part| tokens::find(part.as_bytes()).next()).map(|(_, issuer)| issuer)
}

/// Hides tokens of known forms between the separators of a URL.
pub(crate) fn masked(url: &str) -> String {
    let parts = url.split_inclusive(SEPARATORS);
    parts
        .map(|part| {
            let text = part.trim_end_matches(SEPARATORS);
            if issuer_of_token(text).is_some() { part.replacen(text, HIDDEN, 1) } else { part.to_owned() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_kept_without_what_may_be_a_credential() {
        let token = tokens::examples().next().unwrap();
        for (url, shown) in [
            ("https://github.com/o/r.git", "https://github.com/o/r.git"),
            ("https://kim:pass@github.com/o/r", "https://github.com/o/r"),
            ("https://kim:pa/ss@host/o/r", "https://host/o/r"),
            ("https://kim:p@ss@host:8443/o/r", "https://host:8443/o/r"),
            ("https://host/@scope/r", "https://host/@scope/r"),
            ("https://[::1]:80/r", "https://[::1]:80/r"),
            ("https://host/r?access_token=x#y", "https://host/r"),
            ("https://host?private=x", "https://host"),
            ("ssh://git@host:22/r", "ssh://host:22/r"),
            ("git@github.com:o/r", "git@github.com:o/r"),
            ("kim:pass@host:o/r", "host:o/r"),
            ("/srv/git/r.git", "/srv/git/r.git"),
            ("ext::sh -c 'curl https://u:p@h'", "ext::(hidden)"),
            ("s3::bucket key", "s3::(hidden)"),
            ("codecommit::eu://kim:x@repo", "codecommit::eu://repo"),
            ("file:///r", "file:///r"),
        ] {
            assert_eq!(without_credentials(url), shown, "{url}");
        }
        let shown = without_credentials(&format!("https://host/{token}/r"));
        assert_eq!(shown, "https://host/(hidden)/r");
        let shown = without_credentials(&format!("{token}@host:r"));
        assert_eq!(shown, "(hidden)@host:r");
    }

    #[test]
    fn the_output_of_git_is_taken_apart() {
        let output = b"/w\n\0refs/heads/main\n\0abc123\n\0remote.origin.url\nhttps://u:p@h/r\0remote.a.url.url\n/x\0\
            filter.lfs.clean\ngit-lfs clean\0filter.lfs.required\0";
        let Parsed { facts, filters } = parse(output).unwrap();
        assert_eq!((facts.root.as_path(), facts.branch.as_deref()), (Path::new("/w"), Some("main")));
        assert_eq!(facts.head.as_deref(), Some("abc123"));
        assert_eq!(facts.remotes["origin"], ["https://h/r"]);
        assert_eq!(filters, Some(BTreeSet::from(["lfs".to_owned()])));
        let detached = parse(b"/w\n\0\0abc\n\0").unwrap();
        assert_eq!((detached.facts.branch, detached.facts.remotes.len()), (None, 0));
        let unborn = parse(b"/w\n\0refs/heads/main\n\0\0").unwrap();
        assert_eq!((unborn.facts.branch.as_deref(), unborn.facts.head), (Some("main"), None));
        assert_eq!(parse(b"/w\n\0x\n"), None, "the output is cut off");
        assert_eq!(parse(b"w\n\0\0\0"), None, "the root is no path");
    }

    #[test]
    fn a_filter_whose_name_cannot_be_overridden_prevents_the_comparison_of_files() {
        let output = b"/w\n\0\0\0filter.a=b.clean\nrm -r x\0filter.c.clean\nx\0";
        assert_eq!(parse(output).unwrap().filters, None);
    }

    #[test]
    fn a_name_with_a_line_end_or_a_dot_belongs_to_its_section() {
        assert_eq!(split("remote.a.b.url\nx\ny"), Some(("remote.a.b", "url", "x\ny")));
        assert_eq!(split("remote.a\nb.url\nx"), Some(("remote.a\nb", "url", "x")));
        assert_eq!(split("filter.x.required"), Some(("filter.x", "required", "")));
        assert_eq!(split("remote.a.url\nhttps://h/x.url\ny"), Some(("remote.a", "url", "https://h/x.url\ny")));
    }

    #[test]
    fn messages_about_a_failure_contain_no_text_of_git() {
        assert_eq!(
            failed(128, "fatal: not a git repository (or any of the parent directories): .git"),
            Repository::None
        );
        let Repository::Unread(unread) = failed(128, "fatal: detected dubious ownership in repository at '/x'") else {
            panic!("it was read")
        };
        assert!(unread.message.contains("safe.directory"), "{unread:?}");
        let Repository::Unread(unread) = failed(128, "fatal: bad config: needle") else { panic!("it was read") };
        assert_eq!(unread.message, "git failed with status 128");
    }

    #[tokio::test]
    async fn without_git_the_facts_say_so() {
        let keeper = Path::new("/nowhere/agentd-keeper");
        let machine = Machine::new(keeper.to_owned());
        let reader = RepositoryReader { machine: &machine, keeper, home: None };
        let deadline = Instant::now() + std::time::Duration::from_secs(10);
        let Repository::Unread(unread) = reader.read_with(&[], Path::new("/"), deadline).await else {
            panic!("it was read")
        };
        assert!(unread.message.contains("git is not installed"), "{unread:?}");
    }
}
