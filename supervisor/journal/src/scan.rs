//! Finds lines in a file by byte offset: the last line by reading backwards, any other line by bisection.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::line;

const BLOCK: usize = 64 << 10;
/// Distance in bytes from the end of the file at which the bisection first looks for a record.
const NEAR: u64 = 16 << 10;

/// Reads with one pread(2). Every byte that a reader takes from a file passes through this function.
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
    /// Number of bytes that this thread has read.
    pub(crate) static READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Reads until the buffer is full or the file ends, and returns the number of bytes read.
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

/// Returns the offset after the last newline before `end`, or 0 without a newline. This is the start of the line that
/// contains `end`.
///
/// The file may be shorter than `end`, because a writer removes records that it could not write completely.
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

/// Returns the start of the line after the first newline in `from..to`, or `None` if there is no newline.
fn next_line(file: &File, from: u64, to: u64) -> io::Result<Option<u64>> {
    // Most lines are short, so a small first read keeps a bisection cheap.
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

/// Returns the `seq` of the line that begins at `start`.
pub(crate) fn seq_at(file: &File, start: u64) -> io::Result<Option<u64>> {
    let mut head = [0; line::HEAD];
    let filled = read_full(file, &mut head, start)?;
    Ok(line::seq(&head[..filled]))
}

/// Result of a bisection.
pub(crate) enum Found {
    /// Offset of the first line with a `seq` greater than the requested one, or the end if there is no such line.
    At(u64),
    /// Offset of a line that has no `seq`.
    Corrupt(u64),
}

/// Finds the first line whose `seq` is greater than `after` among the complete lines in `0..end`.
///
/// For a byte offset `p`, let `f(p)` be the first line start at or after `p`. The condition "`f(p)` has a `seq`
/// greater than `after`" is monotone in `p`, so bisection finds the least such `p`. A scan for `f(p)` never goes
/// beyond the least offset known to satisfy the condition. Each line is therefore read at most once, however long it
/// is.
///
/// Before the bisection, the search steps back from the end in growing distances. A record near the end costs few
/// reads, however long the file is.
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
    fn line_start_accepts_a_file_that_was_truncated_meanwhile() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a\nbc").unwrap();
        for end in [4, 5, 10, 3 * BLOCK as u64] {
            assert_eq!(line_start(&file, end).unwrap(), 2, "{end}");
        }
        file.set_len(0).unwrap();
        assert_eq!(line_start(&file, 4).unwrap(), 0);
    }
}
