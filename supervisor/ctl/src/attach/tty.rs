//! The terminal of an interactive attachment: its mode, its keys and its size.
//!
//! In raw mode a terminal neither echoes nor turns Ctrl-C into a signal. [`Tty`] leaves raw mode when it is dropped,
//! and a panic leaves it before its message. The attachment ends by itself on SIGTERM and SIGHUP, which drops it.

use std::io::{self, IsTerminal as _, Write as _};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::event::Event;
use crossterm::terminal;
use nix::sys::signal::{Signal, raise};

use crate::keys::Keys;
use agentd_screen::terminal::Screen;

/// Bracketed paste: a pasted text is one event, and its newlines end no prompt.
const ENTER: &[u8] = b"\x1b[?2004h";
const LEAVE: &[u8] = b"\x1b[?2004l\x1b[?25h";

/// Whether the terminal is in raw mode.
static RAW: AtomicBool = AtomicBool::new(false);

/// Reports whether a person sits at a terminal that can draw: input and both outputs are terminals, and `TERM` is not
/// `dumb`.
pub(super) fn is_interactive() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdin().is_terminal() && Screen::stdout().terminal && Screen::stderr().terminal && !dumb
}

/// The terminal in raw mode.
#[derive(Debug)]
pub(super) struct Tty {
    keys: Keys,
}

impl Tty {
    pub(super) fn open() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                leave();
                before(info);
            }));
        });
        enter()?;
        let keys = Keys::open().inspect_err(|_| leave())?;
        Ok(Self { keys })
    }

    /// Returns the next event, or `None` if the terminal is gone. Cancel-safe.
    pub(super) async fn event(&mut self) -> Option<io::Result<Event>> {
        self.keys.event().await
    }

    /// Stops this process, as Ctrl-Z does in a shell, until it is continued.
    pub(super) fn suspend() -> io::Result<()> {
        leave();
        raise(Signal::SIGTSTP)?;
        enter()
    }

    /// Returns the columns and rows of the terminal.
    pub(super) fn size() -> (usize, usize) {
        match terminal::size() {
            Ok((columns, rows)) if columns > 0 && rows > 0 => (usize::from(columns), usize::from(rows)),
            _ => (80, 24),
        }
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    RAW.store(true, Ordering::SeqCst);
    let mut err = io::stderr();
    err.write_all(ENTER).and_then(|()| err.flush())
}

/// Leaves raw mode, once. A terminal that is gone needs nothing.
fn leave() {
    if RAW.swap(false, Ordering::SeqCst) {
        let mut err = io::stderr();
        let _ = err.write_all(LEAVE).and_then(|()| err.flush());
        let _ = terminal::disable_raw_mode();
    }
}
