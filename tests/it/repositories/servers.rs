//! Servers that require a login: HTTP with a credential helper or a named secret, and SSH.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agentd_api::repository::{RepositorySpec, RepositoryState};
use agentd_api::session::{Phase, SessionView};
use base64::Engine as _;

use super::{Remote, condition, git, spec, state};
use crate::harness::planted::Planted;
use crate::harness::sshd::Sshd;
use crate::harness::{Daemon, Session};

/// Serves the directory `remotes` over HTTP by `git http-backend`, to the user `kim` with a password.
fn serve(root: PathBuf, password: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let login = |user: &str| {
        let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        format!("Basic {text}")
    };
    let logins = [login("kim"), login("git")];
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (root, logins) = (root.clone(), logins.clone());
            std::thread::spawn(move || answer(&stream, &root, &logins));
        }
    });
    port
}

fn answer(stream: &TcpStream, root: &Path, logins: &[String]) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end() {
            "" => break,
            text => lines.push(text.to_owned()),
        }
    }
    let header = |name: &str| {
        let found = lines.iter().skip(1).filter_map(|line| line.split_once(": "));
        found.clone().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let mut out = stream;
    if !header("authorization").is_some_and(|given| logins.contains(&given)) {
        let refusal = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"git\"\r\nContent-Length: 0\r\n\
            Connection: close\r\n\r\n";
        return out.write_all(refusal.as_bytes()).ok();
    }
    let mut words = lines.first()?.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let length = header("content-length").unwrap_or_else(|| "0".to_owned());
    let mut body = vec![0; length.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    let mut backend = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("REQUEST_METHOD", method)
        .env("CONTENT_TYPE", header("content-type").unwrap_or_default())
        .env("CONTENT_LENGTH", length)
        .env("HTTP_CONTENT_ENCODING", header("content-encoding").unwrap_or_default())
        .env("GIT_PROTOCOL", header("git-protocol").unwrap_or_default())
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    backend.stdin.take()?.write_all(&body).ok()?;
    let mut answer = Vec::new();
    backend.stdout.take()?.read_to_end(&mut answer).ok()?;
    backend.wait().ok()?;
    // The first line of the answer may be a CGI status (RFC 3875 section 6.3.3).
    let first = match answer.strip_prefix(b"Status: ") {
        Some(rest) => [b"HTTP/1.1 ", rest].concat(),
        None => [b"HTTP/1.1 200 OK\r\n", &answer[..]].concat(),
    };
    let end = first.windows(2).position(|pair| pair == b"\r\n")? + 2;
    out.write_all(&first[..end]).and_then(|()| out.write_all(b"Connection: close\r\n")).ok()?;
    out.write_all(&first[end..]).ok()
}

/// Fails if a file of the state, the log or the clone contains the secret.
fn is_nowhere(daemon: &Daemon, secret: &str, clone: &Path) {
    assert_eq!(daemon.holders(secret), Vec::<PathBuf>::new());
    assert!(!daemon.words().contains(secret));
    let config = clone.join(".git/config");
    assert!(!config.exists() || !fs::read_to_string(config).unwrap().contains(secret));
}

async fn failed(session: &Session) -> SessionView {
    session.wait_for_phase(Phase::Failed).await
}

#[tokio::test]
async fn a_private_repository_is_cloned_with_a_credential_helper_of_the_user() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let secret = Planted::new("password", "pw-{}");
    let port = serve(daemon.root().join("remotes"), &secret.value);
    let url = format!("http://127.0.0.1:{port}/web.git");
    let session = daemon.create(&spec(&daemon, vec![RepositorySpec::clone_of(&url)])).await;
    let found = condition(&failed(&session).await).cloned().unwrap();
    assert_eq!(found.reason, "RepositoryLogin", "without a helper, and without a prompt: {found:?}");
    assert!(found.message.contains("credential helper"), "{found:?}");
    let helper = format!("!f() {{ echo username=kim; echo password={}; }}; f", secret.value);
    fs::write(daemon.home().join(".gitconfig"), format!("[credential]\n\thelper = \"{helper}\"\n")).unwrap();
    let view = session.resume().await;
    assert_eq!(state(&view, "web"), Some(RepositoryState::Ready));
    let place = daemon.work().join("web");
    assert_eq!(git(&place, &["rev-parse", "HEAD"]), remote.head("main"));
    assert_eq!(git(&place, &["remote", "get-url", "origin"]), url);
    is_nowhere(&daemon, &secret.value, &place);
}

#[tokio::test]
async fn a_named_secret_is_the_password_of_its_server_alone() {
    let mut daemon = Daemon::prepare();
    let secret = Planted::new("token", "pw-{}");
    let file = daemon.root().join("token");
    fs::write(&file, format!("{}\n", secret.value)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let declared = format!("\n[secrets.host]\nfile = {:?}\nvariable = \"HOST_TOKEN\"\n", file.display().to_string());
    daemon.configure(|config| config + &declared);
    daemon.run().await;
    let remote = Remote::new(&daemon, "web");
    // Helpers of the user would store what git tells them.
    let stored = daemon.root().join("stored");
    let helper = format!("[credential]\n\thelper = \"!f() {{ cat >> '{}'; }}; f\"\n", stored.display());
    fs::write(daemon.home().join(".gitconfig"), helper).unwrap();
    let port = serve(daemon.root().join("remotes"), &secret.value);
    let url = format!("http://127.0.0.1:{port}/web.git");
    let with = |secret: &str| RepositorySpec { secret: Some(secret.to_owned()), ..RepositorySpec::clone_of(&url) };
    let session = daemon.session(&spec(&daemon, vec![with("host")])).await;
    let place = daemon.work().join("web");
    assert_eq!(git(&place, &["rev-parse", "HEAD"]), remote.head("main"));
    is_nowhere(&daemon, &secret.value, &place);
    assert!(!stored.exists() || !fs::read_to_string(&stored).unwrap().contains(&secret.value));
    session.stop().await;
    // A wrong secret is a failed login, whose message has neither secret.
    fs::write(&file, "wrong-password\n").unwrap();
    let other = RepositorySpec { name: Some("other".to_owned()), ..with("host") };
    let session = daemon.create(&spec(&daemon, vec![other])).await;
    let found = condition(&failed(&session).await).cloned().unwrap();
    assert_eq!(found.reason, "RepositoryLogin", "{found:?}");
    assert!(!found.message.contains("wrong-password"), "{found:?}");
}

#[tokio::test]
async fn a_repository_is_cloned_over_ssh_with_the_environment_of_the_users_terminal() {
    let daemon = Daemon::start().await;
    let Some(sshd) = Sshd::start(daemon.root().join("ssh"), "").await else { return };
    let remote = Remote::new(&daemon, "web");
    let url = format!("ssh://root@127.0.0.1:{}{}", sshd.port, remote.url());
    let of = |name: &str| RepositorySpec { name: Some(name.to_owned()), ..RepositorySpec::clone_of(&url) };
    let session = daemon.create(&spec(&daemon, vec![of("web")])).await;
    let found = condition(&failed(&session).await).cloned().unwrap();
    assert_eq!(found.reason, "RepositoryLogin", "the host key is unknown, and there is no prompt: {found:?}");
    // The start-up file of the login shell has the key.
    let command = format!(
        "ssh -i {} -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
        sshd.key().display()
    );
    fs::write(daemon.home().join(".profile"), format!("export GIT_SSH_COMMAND='{command}'\n")).unwrap();
    daemon.client.call("POST", "/v1/snapshots/refresh", "").await.expect::<serde_json::Value>(200);
    let view = session.resume().await;
    assert_eq!(state(&view, "web"), Some(RepositoryState::Ready));
    assert_eq!(git(&daemon.work().join("web"), &["rev-parse", "HEAD"]), remote.head("main"));
}
