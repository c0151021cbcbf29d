//! A file system that does not answer: its server accepts every request and answers none.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A mounted file system with a silent server. A process that waits for it cannot be killed until the server is gone.
pub(crate) struct Dead {
    pub(crate) path: PathBuf,
    /// Words before a command that runs in the mount's namespace.
    entrance: Vec<String>,
    connection: Option<File>,
    requests: Arc<AtomicUsize>,
}

impl Dead {
    /// Mounts the file system with this kind and source, in the mount table that `entrance` enters.
    pub(crate) fn mount(path: PathBuf, kind: &str, source: &str, entrance: &[String]) -> Self {
        std::fs::create_dir(&path).unwrap();
        let connection = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let mounted = command(entrance, "mount")
            .args(["-i", "-t", kind, "-o", "fd=0,rootmode=40000,user_id=0,group_id=0", source])
            .arg(&path)
            .stdin(Stdio::from(connection.try_clone().unwrap()))
            .status()
            .unwrap();
        assert!(mounted.success());
        let mut server = connection.try_clone().unwrap();
        // The first request negotiates a version (linux/fuse.h). Only this request is answered.
        let mut request = vec![0; 1 << 17];
        let length = server.read(&mut request).unwrap();
        assert!(length >= 16 && request[4] == 26, "FUSE_INIT");
        let mut answer = vec![0; 80];
        answer[0] = 80;
        answer[8..16].copy_from_slice(&request[8..16]);
        for (at, number) in [(16, 7_u32), (20, 31), (24, 1 << 16), (36, 1 << 16)] {
            answer[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        server.write_all(&answer).unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        std::thread::spawn(move || {
            while server.read(&mut request).is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { path, entrance: entrance.to_vec(), connection: Some(connection), requests }
    }

    /// Returns the number of requests received.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Ends the server. All waiting processes receive an error.
    pub(crate) fn release(&mut self) {
        if self.connection.take().is_some() {
            // Forced: it ends the connection that the thread still has open.
            for how in ["-f", "-l"] {
                let _ = command(&self.entrance, "umount").arg(how).arg(&self.path).stderr(Stdio::null()).status();
            }
        }
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        self.release();
    }
}

fn command(entrance: &[String], program: &str) -> Command {
    let words: Vec<&str> = entrance.iter().map(String::as_str).chain([program]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}
