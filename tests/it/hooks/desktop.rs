//! Notifications on the desktop, by the service of the session bus.

use std::process::{Child, Command, Stdio};

use super::*;

#[tokio::test]
async fn a_desktop_without_a_notification_service_is_a_visible_failure() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + "\n[[hooks]]\non = [\"turn.ended\"]\ndesktop = true\n");
    let bus = format!("unix:path={}", daemon.root().join("no-bus").display());
    daemon.set_environment([("PATH", "/usr/bin:/bin".to_owned()), ("DBUS_SESSION_BUS_ADDRESS", bus)]);
    daemon.run().await;
    list(&daemon).await;
    let tested: HookTestView = daemon.client.call("POST", "/v1/hooks/desktop/test", "").await.expect(200);
    assert_eq!(tested.attempt.code, Some(HookFault::HookDesktopFailed), "{tested:?}");
    assert!(tested.attempt.remedy.unwrap().contains("DBUS_SESSION_BUS_ADDRESS"));
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say x").await;
    see(&daemon, "desktop", "it fails", |view| view.state == HookState::Failing).await;
}

/// A process that ends with this value.
struct Running(Child);

impl Running {
    fn start(program: &str, arguments: &[&str], output: Stdio) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_notification_is_sent_to_the_service_of_the_session_bus() {
    let Some(()) = require::bus() else { return };
    let mut daemon = Daemon::prepare();
    // The address of a bus cannot have the spaces that the directory of the tests may have.
    let place = tempfile::tempdir_in("/tmp").unwrap();
    let (socket, seen) = (place.path().join("bus"), daemon.root().join("seen"));
    let address = format!("unix:path={}", socket.display());
    let _bus = Running::start("dbus-daemon", &["--session", "--nofork", "--address", &address], Stdio::null());
    until("the bus answers", || socket.exists()).await;
    let output = fs::File::create(&seen).unwrap();
    let _monitor = Running::start("dbus-monitor", &["--address", &address, "member='Notify'"], output.into());
    until("the monitor has begun", || fs::read(&seen).is_ok_and(|text| !text.is_empty())).await;
    daemon.configure(|config| config + "\n[[hooks]]\non = [\"turn.ended\"]\ndesktop = true\n");
    daemon.set_environment([("PATH", "/usr/bin:/bin".to_owned()), ("DBUS_SESSION_BUS_ADDRESS", address)]);
    daemon.run().await;
    list(&daemon).await;
    let tested: HookTestView = daemon.client.call("POST", "/v1/hooks/desktop/test", "").await.expect(200);
    let text = || fs::read_to_string(&seen).unwrap_or_default();
    until("the notification is on the bus", || text().contains("This is a test of the hook")).await;
    assert!(text().contains("path=/org/freedesktop/Notifications") && text().contains("member=Notify"), "{}", text());
    // No service has the name on this bus, and the failure names it.
    assert_eq!(tested.attempt.code, Some(HookFault::HookDesktopFailed));
    assert!(tested.attempt.detail.unwrap().contains("org.freedesktop.Notifications"));
}
