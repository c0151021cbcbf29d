//! Selects the destination of the daemon's log: journald with structured fields under systemd, otherwise the terminal
//! or the log file.
//!
//! The log file is limited to [`LONGEST`] bytes. A full file is renamed to `agentd.log.1`, which replaces the
//! previous file of that name. The two files together never exceed twice the limit.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Mutex;

use tracing_subscriber::filter::{FilterExt as _, FilterFn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use agentd_control::AUDIT_TARGET;
use agentd_host::files::open_private_log;
use agentd_traces::Traces;

/// Initialises logging, once per process. `AGENTD_LOG` selects messages in the syntax of tracing-subscriber's
/// `EnvFilter`; the default is `info`. `file` is the log file of a daemon in the background, whose stderr refers to
/// that file.
/// Returns the traces, which are turned off.
pub(crate) fn start(file: Option<PathBuf>) -> Traces {
    let filter = EnvFilter::try_from_env("AGENTD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let filter = filter.and(agentd_traces::without_traces());
    let traces = Traces::new("agentd", env!("CARGO_PKG_VERSION"));
    let registry = tracing_subscriber::registry().with(traces.layer());
    if under_journald()
        && let Ok(journald) = tracing_journald::layer()
    {
        // Fields keep their plain names, without a prefix: `journalctl AGENTD_SESSION=...`.
        let layer = journald.with_field_prefix(None).with_syslog_identifier("agentd".to_owned());
        registry.with(layer.with_filter(filter)).init();
        return traces;
    }
    if let Some(path) = file {
        let file = LogFile { path, longest: LONGEST, is_stderr: true, file: None };
        let layer = tracing_subscriber::fmt::layer().with_writer(Mutex::new(file)).with_ansi(false);
        registry.with(layer.with_filter(filter.and(without_audit()))).init();
        return traces;
    }
    let ansi = std::io::stderr().is_terminal();
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(ansi);
    registry.with(layer.with_filter(filter.and(without_audit()))).init();
    traces
}

/// Excludes the audit log's messages, which have their own file.
fn without_audit() -> FilterFn {
    FilterFn::new(|metadata| metadata.target() != AUDIT_TARGET)
}

/// Reports whether stderr is connected to the journal. `JOURNAL_STREAM` holds device and inode of the journal's
/// socket (systemd.exec(5)).
fn under_journald() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stat) = nix::sys::stat::fstat(std::io::stderr()) else { return false };
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}

/// Maximum size of the log file, in bytes.
const LONGEST: u64 = 8 << 20;

/// A log file that is rotated when it is full.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    longest: u64,
    /// Whether stdout and stderr refer to this file too, so that panic messages end up in the log.
    is_stderr: bool,
    /// Opened by the first write.
    file: Option<File>,
}

impl LogFile {
    fn current(&mut self, more: u64) -> io::Result<&mut File> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => open_private_log(&self.path)?,
        };
        if file.metadata()?.len() + more > self.longest {
            let put_aside = std::fs::rename(&self.path, self.path.with_extension("log.1"));
            if put_aside.is_err() {
                // Without the rename, truncate the file to keep the limit.
                file.set_len(0)?;
            } else {
                file = open_private_log(&self.path)?;
                if self.is_stderr {
                    nix::unistd::dup2_stdout(file.as_fd())?;
                    nix::unistd::dup2_stderr(file.as_fd())?;
                }
            }
        }
        Ok(self.file.insert(file))
    }
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let more = u64::try_from(line.len()).unwrap_or(u64::MAX);
        self.current(more)?.write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_log_file_is_bounded_and_the_one_before_is_kept_over_any_number_of_starts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agentd.log");
        let before = directory.path().join("agentd.log.1");
        let mut lines = 0;
        for _start in 0..5 {
            let mut file = LogFile { path: path.clone(), longest: 1000, is_stderr: false, file: None };
            for _ in 0..40 {
                lines += 1;
                file.write_all(format!("line {lines}\n").as_bytes()).unwrap();
                let length = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
                assert!(length(&path) <= 1000 && length(&before) <= 1000);
            }
        }
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let kept = read(&before) + &read(&path);
        let kept: Vec<&str> = kept.lines().collect();
        assert_eq!(kept.last(), Some(&"line 200"));
        let first: u32 = kept[0].strip_prefix("line ").unwrap().parse().unwrap();
        assert_eq!(kept.len(), usize::try_from(200 - first + 1).unwrap(), "nothing is missing in between");
        assert!(kept.len() > 100, "the one before is kept");
    }
}
