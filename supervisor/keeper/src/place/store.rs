//! Output of an agent that stays on its place: numbered bytes in files on the place's own disk.
//!
//! A byte's number is the count of bytes before it in its stream. The files have the number of their first byte in
//! their names. A file is removed when the journal of the session has all of its bytes.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Size in bytes at which the next file begins.
const FILE: u64 = 8 << 20;

#[derive(Debug)]
struct Segment {
    start: u64,
    path: PathBuf,
    file: File,
}

/// Stored bytes of one stream.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
    name: &'static str,
    segments: VecDeque<Segment>,
    end: u64,
    kept: u64,
}

impl Store {
    /// Makes an empty store. Files with the stream's name must not exist in the directory.
    pub(super) fn new(directory: &Path, name: &'static str) -> Self {
        Self { directory: directory.to_owned(), name, segments: VecDeque::new(), end: 0, kept: 0 }
    }

    /// Returns the number of the next byte.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of the first byte that is still stored.
    pub(super) fn start(&self) -> u64 {
        self.segments.front().map_or(self.end, |first| first.start)
    }

    /// Returns the number of bytes that the journal does not have yet.
    pub(super) fn unkept(&self) -> u64 {
        self.end - self.kept
    }

    /// Adds bytes. After an error none of them is in the store.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.segments.back().is_none_or(|last| self.end - last.start >= FILE) {
            let path = self.directory.join(format!("{}.{}", self.name, self.end));
            let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            self.segments.push_back(Segment { start: self.end, path, file });
        }
        if let Some(last) = self.segments.back() {
            last.file.write_all_at(bytes, self.end - last.start)?;
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Reads stored bytes from a number on. Returns their count, which is 0 only at the end.
    pub(super) fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if at == self.end {
            return Ok(0);
        }
        let within = self.segments.iter().rposition(|segment| segment.start <= at);
        let Some((index, segment)) = within.and_then(|index| Some((index, self.segments.get(index)?))) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("byte {at} is not stored any more")));
        };
        let end = self.segments.get(index + 1).map_or(self.end, |next| next.start);
        let most = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).min(buffer.len());
        segment.file.read_exact_at(&mut buffer[..most], at - segment.start)?;
        Ok(most)
    }

    /// Notes that the journal has all bytes before this number. Files behind the last `spare` bytes are kept, because a
    /// journal that was not written to its disk can lose its end in a power cut.
    pub(super) fn kept(&mut self, before: u64, spare: u64) {
        self.kept = self.kept.max(before.min(self.end));
        while let Some(next) = self.segments.get(1)
            && next.start.saturating_add(spare) <= self.kept
        {
            if let Some(first) = self.segments.pop_front() {
                // A file that cannot be removed is removed with the directory.
                let _ = fs::remove_file(&first.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads everything from a number on.
    fn rest(store: &Store, from: u64) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), vec![0; 100_000]);
        loop {
            match store.read(from + all.len() as u64, &mut buffer).unwrap() {
                0 => return all,
                n => all.extend_from_slice(&buffer[..n]),
            }
        }
    }

    #[test]
    fn bytes_are_read_from_any_number_and_leave_file_by_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::new(directory.path(), "out");
        let bytes: Vec<u8> = (0..3 * FILE + 5).map(|n| (n % 251) as u8).collect();
        for part in bytes.chunks(70_001) {
            store.append(part).unwrap();
        }
        assert_eq!(store.end(), bytes.len() as u64);
        for from in [0, 1, FILE - 1, FILE, 2 * FILE + 70_000, bytes.len() as u64] {
            assert!(rest(&store, from) == bytes[usize::try_from(from).unwrap()..], "from {from}");
        }
        let files = || fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(files(), 3);
        store.kept(2 * FILE, 0);
        assert!(store.start() > FILE - 1 && store.start() <= 2 * FILE);
        assert_eq!((files(), store.unkept()), (2, FILE + 5));
        assert_eq!(store.read(0, &mut [0; 1]).unwrap_err().kind(), io::ErrorKind::NotFound);
        store.kept(bytes.len() as u64, FILE * 4);
        assert_eq!((files(), store.unkept()), (2, 0));
        store.kept(u64::MAX, 0);
        assert_eq!(files(), 1);
    }

    #[test]
    fn a_store_that_cannot_be_written_keeps_its_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::new(&directory.path().join("missing"), "out");
        store.append(b"lost").unwrap_err();
        assert_eq!((store.end(), store.start()), (0, 0));
    }
}
