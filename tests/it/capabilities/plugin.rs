//! Host calls of a plugin in a session. The test keeps a component of version 1.0 that makes every host call.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use agentd_api::session::{PermissionPolicy, SessionSpec};
use serde_json::Value;

use crate::harness::Daemon;
use crate::harness::digest::sha256;

const GRANT: &str = "login-shell = true, script = [\"{config}/fixture.sh\", \"/nowhere/**\"], \
    command = [{ run = \"/usr/bin/fixture one *\", variables = [\"FIXTURE\"] }], variables = [\"FIXTURE_*\"], \
    file = [\"{cwd}\", \"{cwd}/fixture.txt\"], network = [\"fixture.example:27000\"], mount = [\"/fixture\"], \
    process = [\"fixture\"], \
    secret = [\"fixture\"]";

#[tokio::test]
async fn a_plugin_of_a_session_reaches_what_it_is_granted_of_the_machine() {
    let component = include_bytes!("../../fixtures/plugins/1.0.0/provider.wasm");
    let mut daemon = Daemon::prepare();
    let (file, secret) = (daemon.root().join("config/fixture.wasm"), daemon.root().join("secret"));
    std::fs::write(&file, component).unwrap();
    std::fs::write(&secret, "correct horse").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let pin = sha256(component);
    daemon.configure(|mut text| {
        for plugin in ["snapshot", "whitelist", "fixture"] {
            writeln!(text, "[[environment.providers]]\nplugin = \"{plugin}\"").unwrap();
        }
        write!(
            text,
            "[plugins.fixture]\nfile = {file:?}\nsha256 = \"{pin}\"\n\
             grant = {{ {GRANT} }}\nsettings = {{ text = \"t\" }}\n\
             [secrets.fixture]\nfile = {secret:?}\nvariable = \"FIXTURE_NAMED\"\n"
        )
        .unwrap();
        text
    });
    daemon.run().await;
    let directory = daemon.work();
    std::fs::write(directory.join("fixture.txt"), "of the machine").unwrap();
    let spec = SessionSpec { permissions: PermissionPolicy::Allow, ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    let environment: Value = serde_json::from_str(&session.turn("env").await.text).unwrap();
    let line = |name: &str| {
        environment[format!("FIXTURE_{name}")].as_str().unwrap_or_else(|| panic!("{name}: {environment:#}"))
    };
    let real = directory.canonicalize().unwrap().join("fixture.txt");
    assert_eq!(line("READ"), "of the machine");
    assert!(line("INSPECT").starts_with(&format!("{} file 14 ", real.display())), "{}", line("INSPECT"));
    assert!(line("ENTRIES").split(',').any(|name| name == "fixture.txt"), "{}", line("ENTRIES"));
    assert!(line("RUN").starts_with("failure not-found: "), "{}", line("RUN"));
    let resolve = line("RESOLVE");
    assert!(
        resolve.starts_with("problem no-such-host: ") || resolve.starts_with("problem not-resolved: "),
        "{resolve}"
    );
    assert!(line("INTERFACES").split("; ").any(|interface| interface.starts_with("lo ")), "{}", line("INTERFACES"));
    assert!(!line("WAY").starts_with("failure"), "{}", line("WAY"));
    assert!(!line("NAMES").starts_with("failure"), "{}", line("NAMES"));
    assert!(!line("ROUTES").starts_with("failure"), "{}", line("ROUTES"));
    assert_eq!(line("MOUNTS"), "", "of the mount table only what is granted");
    assert!(line("PROBE").starts_with("error "), "{}", line("PROBE"));
    assert_eq!(line("RUNNING"), "0");
    // The secret has a name, so the agent's output masks its value. The test therefore reads the value's length from a
    // file.
    session.turn("tool printf %s \"$FIXTURE_SECRET\" > seen").await;
    assert_eq!(std::fs::read_to_string(directory.join("seen")).unwrap(), "13 bytes");
}
