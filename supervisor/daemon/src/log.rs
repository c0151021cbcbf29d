//! Where the daemon's log goes: to journald, with its fields, under systemd; to the terminal or the log file otherwise.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Sets it up, once. `AGENTD_LOG` chooses what is logged (tracing-subscriber's `EnvFilter`); by default `info`.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("AGENTD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    if under_journald()
        && let Ok(journald) = tracing_journald::layer()
    {
        // Fields are named by what they are, without a prefix: `journalctl AGENTD_SESSION=...`.
        let layer = journald.with_field_prefix(None).with_syslog_identifier("agentd".to_owned());
        registry.with(layer).init();
        return;
    }
    let ansi = std::io::stderr().is_terminal();
    registry.with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(ansi)).init();
}

/// systemd.exec(5): `JOURNAL_STREAM` holds device and inode of the journal's socket that stderr is connected to.
fn under_journald() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stat) = nix::sys::stat::fstat(std::io::stderr()) else { return false };
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}
