//! Compares two texts line by line.

use agentd_api::keep::KeepLine;

/// Maximum number of lines for an exact comparison. In longer texts, all lines between the common start and the
/// common end count as changed.
const MAX_LINES: usize = 2000;

/// Returns the removed and added lines between two texts.
pub(super) fn changed(before: &str, after: &str) -> Vec<KeepLine> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let head = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(old, new)| old == new).count();
    let (old_part, new_part) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let line = |at: usize, added, text: &str| KeepLine {
        line: u32::try_from(head + at + 1).unwrap_or(u32::MAX),
        added,
        text: text.to_owned(),
    };
    let mut lines = Vec::new();
    let (mut i, mut j) = (0, 0);
    let common = common_lengths(old_part, new_part);
    while i < old_part.len() || j < new_part.len() {
        let left = |i: usize, j: usize| common.as_ref().map_or(0, |common| common[i][j]);
        if i < old_part.len() && j < new_part.len() && common.is_some() && old_part[i] == new_part[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < old_part.len() && (j == new_part.len() || left(i + 1, j) >= left(i, j + 1)) {
            lines.push(line(i, false, old_part[i]));
            i += 1;
        } else {
            lines.push(line(j, true, new_part[j]));
            j += 1;
        }
    }
    lines
}

/// Returns, for each pair of positions, the length of the longest common subsequence of the remaining lines. Returns
/// `None` for long texts.
fn common_lengths(old: &[&str], new: &[&str]) -> Option<Vec<Vec<u32>>> {
    if old.len().max(new.len()) > MAX_LINES {
        return None;
    }
    let mut lengths = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            lengths[i][j] =
                if old[i] == new[j] { lengths[i + 1][j + 1] + 1 } else { lengths[i + 1][j].max(lengths[i][j + 1]) };
        }
    }
    Some(lengths)
}
