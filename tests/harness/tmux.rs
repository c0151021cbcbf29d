//! Runs a program in tmux, which has a whole screen: its rows can be read, and it can be resized.

use std::process::Command;

use nix::unistd::Pid;
use tempfile::TempDir;

use super::quote::quoted;
use super::until;

/// A tmux of its own, with one window.
pub(crate) struct Tmux {
    directory: TempDir,
}

impl Tmux {
    /// Runs the command with a screen of this size. A shell is below it, as with a person.
    pub(crate) fn run(command: &Command, columns: u16, rows: u16) -> Self {
        let directory = tempfile::Builder::new().prefix("tmux-").tempdir().expect("a temporary directory");
        let tmux = Self { directory };
        let mut line = "exec env -i TERM=tmux-256color LANG=C.UTF-8 PATH=/usr/bin:/bin PS1='shell$ '".to_owned();
        line.push_str(" bash --norc --noprofile -i");
        let size = [columns.to_string(), rows.to_string()];
        tmux.call(&["-f", "/dev/null", "new-session", "-d", "-x", &size[0], "-y", &size[1], &line]);
        tmux.call(&["set-option", "-g", "status", "off"]);
        tmux.call(&["set-option", "-g", "history-limit", "2000"]);
        tmux.call(&["resize-window", "-x", &size[0], "-y", &size[1]]);
        let variables =
            command.get_envs().filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, quoted(value?))));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words = words.map(quoted);
        let typed: Vec<String> = variables.chain(words).collect();
        tmux.keys(&["-l", &typed.join(" ")]);
        tmux.keys(&["Enter"]);
        tmux
    }

    /// Calls tmux, and returns what it prints.
    fn call(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(self.directory.path().join("socket"))
            .args(arguments)
            .env_clear()
            .envs([("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("HOME", "/nonexistent")])
            .output()
            .expect("tmux runs");
        assert!(output.status.success(), "tmux {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("tmux prints UTF-8")
    }

    /// Sends keys by tmux's names, or with `-l` literally.
    pub(crate) fn keys(&self, keys: &[&str]) {
        self.call(&[&["send-keys"], keys].concat());
    }

    /// Changes the size of the screen.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.call(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// Returns the rows of the screen.
    pub(crate) fn screen(&self) -> String {
        self.call(&["capture-pane", "-p"])
    }

    /// Returns the rows of the screen with their styles, as control sequences.
    pub(crate) fn painted(&self) -> String {
        self.call(&["capture-pane", "-p", "-e"])
    }

    /// Returns a format of tmux, such as `#{alternate_on}`.
    pub(crate) fn format(&self, format: &str) -> String {
        self.call(&["display-message", "-p", format]).trim().to_owned()
    }

    /// Returns the process that the shell runs.
    pub(crate) fn program(&self) -> Pid {
        let shell = self.format("#{pane_pid}");
        let children = Command::new("pgrep").args(["-P", &shell]).output().expect("procps has pgrep").stdout;
        let children = String::from_utf8(children).expect("numbers");
        Pid::from_raw(children.trim().parse().expect("the shell runs one program"))
    }

    /// Waits until the screen satisfies `good`, and returns it.
    pub(crate) async fn sees(&self, what: &str, good: impl Fn(&str) -> bool) -> String {
        let mut seen = String::new();
        until(what, || {
            seen = self.screen();
            good(&seen)
        })
        .await;
        seen
    }

    /// Waits until the screen contains the text, and returns the screen.
    pub(crate) async fn shows(&self, text: &str) -> String {
        self.sees(&format!("the screen shows {text:?}"), |screen| screen.contains(text)).await
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the screen\n{}\n---", self.screen());
        }
        // A server without a session ends by itself.
        let _ = Command::new("tmux").arg("-S").arg(self.directory.path().join("socket")).arg("kill-server").output();
    }
}
