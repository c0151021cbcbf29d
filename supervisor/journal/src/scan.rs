//! Finding lines in the file by byte offset: backwards for the last one, by bisection for any other.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::line;

const BLOCK: usize = 64 << 10;
/// How far before the end the first look for a record is.
const NEAR: u64 = 16 << 10;

/// One pread(2): every byte that a reader takes from a file comes through here.
pub(crate) fn read(file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match file.read_at(to, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => {
                #[cfg(test)]
                READ.with(|count| count.set(count.get() + *read.as_ref().unwrap_or(&0) as u64));
                return read;
            }
        }
    }
}

#[cfg(test)]
thread_local! {
    /// How many bytes this thread has read.
    pub(crate) static READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// As much as there is.
fn read_full(file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < to.len() {
        match read(file, &mut to[filled..], at + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

fn read_exact(file: &File, to: &mut [u8], at: u64) -> io::Result<()> {
    let filled = read_full(file, to, at)?;
    if filled == to.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// One past the last newline before `end`, so where the line begins that `end` is in; 0 where there is none.
///
/// A file may have become shorter since its length was read: a writer takes back what it could not write whole.
pub(crate) fn line_start(file: &File, end: u64) -> io::Result<u64> {
    let mut block = vec![0; BLOCK.min(usize::try_from(end).unwrap_or(BLOCK))];
    let mut end = end;
    while end > 0 {
        let from = end.saturating_sub(BLOCK as u64);
        let piece = &mut block[..usize::try_from(end - from).expect("a block's length is a usize")];
        let filled = read_full(file, piece, from)?;
        if filled < piece.len() {
            end = from + filled as u64;
            continue;
        }
        if let Some(at) = memchr::memrchr(b'\n', piece) {
            return Ok(from + at as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}

/// Where the line begins that follows the first newline in `from..to`; `None` where there is no newline.
fn next_line(file: &File, from: u64, to: u64) -> io::Result<Option<u64>> {
    // Most lines are short: begin with little, so that a bisection reads little.
    let mut length = 4 << 10;
    let mut block = Vec::new();
    let mut from = from;
    while from < to {
        block.resize(usize::try_from(to - from).unwrap_or(BLOCK).min(length), 0);
        read_exact(file, &mut block, from)?;
        if let Some(at) = memchr::memchr(b'\n', &block) {
            return Ok(Some(from + at as u64 + 1));
        }
        from += block.len() as u64;
        length = BLOCK;
    }
    Ok(None)
}

/// The seq of the line that begins at `start`.
pub(crate) fn seq_at(file: &File, start: u64) -> io::Result<Option<u64>> {
    let mut head = [0; line::HEAD];
    let filled = read_full(file, &mut head, start)?;
    Ok(line::seq(&head[..filled]))
}

/// Where a bisection ended.
pub(crate) enum Found {
    /// The first line with a seq greater than asked begins here; the end where there is none.
    At(u64),
    /// The line that begins here has no seq.
    Corrupt(u64),
}

/// The first line whose seq is greater than `after`, among the complete lines in `0..end`.
///
/// For a byte offset `p` let `f(p)` be the first beginning of a line at or after it. That `f(p)` has a greater seq is
/// monotone in `p`, so the least such `p` is found by halving. A scan for `f(p)` never goes beyond the least offset known to
/// satisfy it, so a line is read at most once however long it is. Before the halving, the distance from the end grows until it
/// is enough: the nearer to the end, the less is read, however long the file is.
pub(crate) fn first_after(file: &File, after: u64, end: u64) -> io::Result<Found> {
    let (mut low, mut high, mut answer) = (0, end, end);
    let mut back = NEAR;
    while low < high {
        let middle = match end.saturating_sub(back) {
            middle if low == 0 && middle > 0 => middle.min(high - 1),
            _ => low + (high - low) / 2,
        };
        back = back.saturating_mul(4);
        let start =
            if middle == 0 { Some(0) } else { next_line(file, middle - 1, high)?.filter(|start| *start < high) };
        let Some(start) = start else {
            high = middle;
            continue;
        };
        match seq_at(file, start)? {
            None => return Ok(Found::Corrupt(start)),
            Some(seq) if seq > after => (high, answer) = (middle, start),
            Some(_) => low = start + 1,
        }
    }
    Ok(Found::At(answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn what_was_taken_back_since_the_length_was_read_is_not_there() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a\nbc").unwrap();
        for end in [4, 5, 10, 3 * BLOCK as u64] {
            assert_eq!(line_start(&file, end).unwrap(), 2, "{end}");
        }
        file.set_len(0).unwrap();
        assert_eq!(line_start(&file, 4).unwrap(), 0);
    }
}
