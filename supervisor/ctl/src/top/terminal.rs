//! The terminal of the view: raw mode, the alternate screen, and the ways out.
//!
//! Dropping a [`Terminal`] gives the terminal back, and a panic gives it back before its message.

use std::io::{self, IsTerminal as _, Stdout, Write as _};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::event::Event;
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use nix::sys::signal::{Signal, raise};
use ratatui::Frame;
use ratatui::backend::CrosstermBackend;

use crate::error::Error;
use crate::keys::Keys;

/// The empty alternate screen, without a cursor, and bracketed paste: a pasted text is no key.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[0m\x1b[2J\x1b[?25l\x1b[?2004h";
const LEAVE: &[u8] = b"\x1b[?2004l\x1b[?25h\x1b[?1049l";

/// Whether the terminal is in raw mode, with the alternate screen.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Refuses where no view can be drawn: the input or an output is no terminal, or `TERM` is `dumb`.
pub(crate) fn check() -> Result<(), Error> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let what = if !io::stdout().is_terminal() {
        "standard output is no terminal"
    } else if !io::stdin().is_terminal() {
        "standard input is no terminal"
    } else if !io::stderr().is_terminal() {
        "standard error is no terminal"
    } else if dumb {
        "TERM names no terminal that can draw"
    } else {
        return Ok(());
    };
    Err(Error::Usage {
        detail: format!("agentctl top needs a terminal: {what}"),
        hint: "agentctl ls --watch prints the sessions to a file or a pipe".to_owned(),
    })
}

/// The terminal with the view.
pub(super) struct Terminal {
    screen: ratatui::Terminal<CrosstermBackend<Stdout>>,
    keys: Keys,
}

impl Terminal {
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
        let opened = Keys::open().and_then(|keys| Ok(Self { screen: empty()?, keys }));
        opened.inspect_err(|_| leave())
    }

    /// Draws what has changed since the last drawing, as one synchronized update (mode 2026).
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        io::stdout().write_all(b"\x1b[?2026h")?;
        self.screen.draw(draw)?;
        io::stdout().write_all(b"\x1b[?2026l")?;
        io::stdout().flush()
    }

    /// Clears the screen, so that the next drawing draws everything.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        io::stdout().write_all(b"\x1b[0m\x1b[2J")?;
        self.screen = empty()?;
        Ok(())
    }

    /// Returns the next key, or `None` if the terminal is gone. Cancel-safe.
    pub(super) async fn event(&mut self) -> Option<io::Result<Event>> {
        self.keys.event().await
    }

    /// Stops this process, as Ctrl-Z does in a shell, until it is continued.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        leave();
        raise(Signal::SIGTSTP)?;
        enter()?;
        self.clear()
    }
}

/// Returns the state of an empty screen. `ratatui::Terminal::clear` would ask the terminal for the cursor's place, and
/// the thread of the keys would get the answer.
fn empty() -> io::Result<ratatui::Terminal<CrosstermBackend<Stdout>>> {
    ratatui::Terminal::new(CrosstermBackend::new(io::stdout()))
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    ENTERED.store(true, Ordering::SeqCst);
    let mut out = io::stdout();
    out.write_all(ENTER).and_then(|()| out.flush())
}

/// Gives the terminal back, once. A terminal that is gone needs nothing.
fn leave() {
    if ENTERED.swap(false, Ordering::SeqCst) {
        let mut out = io::stdout();
        let _ = out.write_all(LEAVE).and_then(|()| out.flush());
        let _ = disable_raw_mode();
    }
}
