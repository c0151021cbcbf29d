//! Hooks whose address is `https`: the certificates that the machine trusts, and no others.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use agentd_api::hook::{HookAttempt, HookFault, HookOutcome, HookTestView};

use super::{QUICK, list};
use crate::harness::{Daemon, require, until};

/// A receiver that writes its port and the bodies of requests to files.
const RECEIVER: &str = r#"
import http.server, os, ssl, sys

certificate, key, directory = sys.argv[1:]


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with open(os.path.join(directory, "body"), "wb") as file:
            file.write(body)
        self.send_response(200)
        self.send_header("content-length", "8")
        self.end_headers()
        self.wfile.write(b"received")

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
with open(os.path.join(directory, "port.new"), "w") as file:
    file.write(str(server.server_port))
os.rename(os.path.join(directory, "port.new"), os.path.join(directory, "port"))
server.serve_forever()
"#;

/// A receiver with a certificate of its own for the name `localhost`.
struct Receiver {
    directory: PathBuf,
    process: Child,
    port: u16,
}

impl Receiver {
    async fn start(directory: PathBuf) -> Self {
        std::fs::create_dir(&directory).unwrap();
        let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut python = Command::new("python3");
        python.args(["-c", RECEIVER]).arg(certificate).arg(key).arg(&directory).stdin(Stdio::null());
        let mut receiver = Self { directory, process: python.spawn().unwrap(), port: 0 };
        let port = receiver.directory.join("port");
        until("the receiver listens", || port.exists()).await;
        receiver.port = std::fs::read_to_string(port).unwrap().parse().unwrap();
        receiver
    }

    fn certificate(&self) -> PathBuf {
        self.directory.join("certificate.pem")
    }

    fn hook(&self, name: &str, host: &str) -> String {
        let port = self.port;
        format!("\n[[hooks]]\nname = \"{name}\"\non = [\"turn.ended\"]\nurl = \"https://{host}:{port}/in\"\n{QUICK}")
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn attempt(daemon: &Daemon, name: &str) -> (HookAttempt, String) {
    let tested: HookTestView = daemon.client.call("POST", &format!("/v1/hooks/{name}/test"), "").await.expect(200);
    (tested.attempt, tested.answer)
}

fn trusting(daemon: &mut Daemon, certificates: &Path) {
    daemon.set_environment([
        ("PATH", "/usr/local/bin:/usr/bin:/bin".into()),
        ("SSL_CERT_FILE", certificates.as_os_str().to_owned()),
    ]);
}

#[tokio::test]
async fn an_encrypted_receiver_needs_a_trusted_certificate_for_its_name() {
    let Some(()) = require::openssl() else { return };
    let mut daemon = Daemon::prepare();
    let known = Receiver::start(daemon.root().join("known")).await;
    let unknown = Receiver::start(daemon.root().join("unknown")).await;
    let hooks =
        [known.hook("good", "localhost"), known.hook("misnamed", "127.0.0.1"), unknown.hook("untrusted", "localhost")];
    daemon.configure(|config| config + &hooks.concat());
    trusting(&mut daemon, &known.certificate());
    daemon.run().await;
    list(&daemon).await; // waits until all hooks are started

    let (delivered, answer) = attempt(&daemon, "good").await;
    assert_eq!((delivered.outcome, delivered.status, answer.as_str()), (HookOutcome::Delivered, Some(200), "received"));
    let body = std::fs::read_to_string(known.directory.join("body")).unwrap();
    assert!(body.contains("\"type\":\"hook.test\""), "{body}");

    for (name, cause) in [("misnamed", "not valid for name"), ("untrusted", "invalid peer certificate")] {
        let (failed, _) = attempt(&daemon, name).await;
        assert_eq!((failed.outcome, failed.code), (HookOutcome::Failed, Some(HookFault::HookUnreachable)), "{name}");
        assert!(failed.detail.as_deref().is_some_and(|detail| detail.contains(cause)), "{name}: {failed:?}");
    }
    assert!(!unknown.directory.join("body").exists(), "nothing is sent to a receiver without a trusted certificate");
}

#[tokio::test]
async fn without_a_certificate_of_the_machine_nothing_is_sent() {
    let Some(()) = require::openssl() else { return };
    let mut daemon = Daemon::prepare();
    let receiver = Receiver::start(daemon.root().join("receiver")).await;
    daemon.configure(|config| config + &receiver.hook("alone", "localhost"));
    let empty = daemon.root().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    trusting(&mut daemon, &empty);
    daemon.run().await;
    list(&daemon).await; // waits until all hooks are started
    let (failed, _) = attempt(&daemon, "alone").await;
    assert_eq!(failed.code, Some(HookFault::HookUnreachable));
    let detail = failed.detail.unwrap_or_default();
    assert!(detail.contains("this machine has no certificates to check the receiver"), "{detail}");
}
