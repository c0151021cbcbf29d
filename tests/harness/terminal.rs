//! Runs a program at its own terminal: reads its output, and sends keys.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

use super::until;

/// A program and its terminal.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    /// Runs the command at a terminal with this number of columns. It is the controlling terminal, so Ctrl-C arrives
    /// as a signal.
    pub(crate) fn run(command: &Command, columns: u16) -> Self {
        let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("the machine has terminals");
        let screen = File::from(pty.slave);
        let copy = || screen.try_clone().expect("a descriptor can be copied");
        let mut own = Command::new("setsid");
        own.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args()).env_clear();
        own.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm");
        if let Some(directory) = command.get_current_dir() {
            own.current_dir(directory);
        }
        let child = own.stdin(copy()).stdout(copy()).stderr(copy()).spawn().expect("util-linux has setsid");
        let keyboard = File::from(pty.master);
        let mut master = keyboard.try_clone().expect("a descriptor can be copied");
        let shown = Arc::new(Mutex::new(String::new()));
        let screen = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // After the last program at a terminal has ended, its reader gets an error (EIO).
            while let Ok(length @ 1..) = master.read(&mut buffer) {
                screen.lock().expect("no panic").push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        Self { child, keyboard, shown }
    }

    /// Returns all output so far.
    pub(crate) fn shown(&self) -> String {
        self.shown.lock().expect("no panic").clone()
    }

    /// Waits until the output contains this text.
    pub(crate) async fn shows(&self, text: &str) {
        let shown = Arc::clone(&self.shown);
        let what = format!("the terminal shows {text:?}");
        until(&what, || shown.lock().expect("no panic").contains(text)).await;
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal is there");
    }

    /// Reports whether the terminal passes each key on, without an echo and without signals.
    pub(crate) fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.keyboard).expect("it is a terminal").local_flags;
        !modes.intersects(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG)
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) {
        // setsid(1) starts no process of its own here: it leads no process group, so it becomes the program.
        let program = Pid::from_raw(self.child.id().cast_signed());
        kill(program, signal).expect("the program runs");
    }

    /// Waits for the program's end.
    pub(crate) async fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        let child = &mut self.child;
        until("the program at the terminal ends", || {
            status = child.try_wait().expect("it can be waited for");
            status.is_some()
        })
        .await;
        status.expect("it has ended")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the terminal\n{}\n---", self.shown());
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
