//! Parses the block that `sysctl` returns for `KERN_PROCARGS2`.
//!
//! The block has the number of arguments, the program's path, NULs up to a word boundary, and the arguments. After them
//! come the environment, and strings of the system for the program's loader. Each string ends with a NUL.
//!
//! While System Integrity Protection is on, the kernel silently leaves out the environment of restricted
//! programs. These are programs that come with the system (`/bin/sh`, `/bin/sleep`). See `sysctl_procargsx` in
//! xnu's `kern_sysctl.c`. An empty environment therefore tells nothing.

/// Returns the entries of the environment as `NAME=value`. Empty if the block is truncated.
pub fn environment(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    strings(block).into_iter().flatten().filter(|entry| !entry.is_empty())
}

/// Returns the value of an environment variable.
pub fn variable<'a>(block: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environment(block).find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Returns all strings after the arguments.
fn strings(block: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let (count, rest) = block.split_first_chunk::<4>()?;
    let arguments = usize::try_from(i32::from_ne_bytes(*count)).ok()?;
    let path = rest.iter().position(|&byte| byte == 0)?;
    let padding = rest[path..].iter().position(|&byte| byte != 0)?;
    Some(rest[path + padding..].split(|&byte| byte == 0).skip(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a block in the kernel's layout.
    fn block(arguments: &[&str], environment: &[&str]) -> Vec<u8> {
        let mut block = i32::try_from(arguments.len()).unwrap().to_ne_bytes().to_vec();
        block.extend(b"/opt/homebrew/bin/node\0\0\0\0\0\0");
        for string in arguments.iter().chain(environment) {
            block.extend(string.as_bytes());
            block.push(0);
        }
        block.extend(b"\0ptr_munge=\0main_stack=\0");
        block
    }

    #[test]
    fn the_environment_is_what_stands_behind_the_arguments() {
        let block =
            block(&["node", "", "AGENTD_SESSION=of-an-argument"], &["HOME=/Users/a", "AGENTD_SESSION=s1", "EMPTY="]);
        assert_eq!(variable(&block, "AGENTD_SESSION"), Some(&b"s1"[..]));
        assert_eq!(variable(&block, "HOME"), Some(&b"/Users/a"[..]));
        assert_eq!(variable(&block, "EMPTY"), Some(&b""[..]));
        assert_eq!(variable(&block, "AGENTD"), None, "a name is not the beginning of one");
    }

    #[test]
    fn a_restricted_program_has_no_environment_to_see() {
        let mut block = 2_i32.to_ne_bytes().to_vec();
        block.extend(b"/bin/sleep\0\0\0sleep\x00600\0");
        assert_eq!(environment(&block).count(), 0);
    }

    #[test]
    fn a_block_that_is_cut_anywhere_is_no_reason_to_fall() {
        let whole = block(&["node", "x"], &["AGENTD_SESSION=s1"]);
        for length in 0..whole.len() {
            for entry in environment(&whole[..length]) {
                assert!(!entry.is_empty());
            }
        }
        let mut wild = whole;
        wild[..4].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(environment(&wild).count(), 0);
    }
}
