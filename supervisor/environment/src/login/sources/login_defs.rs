//! Reads the PATH of a login from `/etc/login.defs` (login.defs(5)).

/// Returns the PATH for this user, or `None` if the file does not set it.
pub(super) fn path(content: &[u8], uid: u32) -> Option<Vec<u8>> {
    let wanted: &[u8] = if uid == 0 { b"ENV_SUPATH" } else { b"ENV_PATH" };
    let lines = content.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut values = lines.filter_map(|line| {
        let end = line.iter().position(u8::is_ascii_whitespace)?;
        (line[..end] == *wanted).then(|| line[end..].trim_ascii())
    });
    // The last entry counts. The value may start with the name of the variable.
    let value = values.next_back()?;
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    let value = value.strip_prefix(b"PATH=").unwrap_or(value);
    (!value.is_empty()).then(|| value.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_other_users_have_separate_paths() {
        let text = b"# ENV_PATH PATH=/no\nENV_SUPATH\tPATH=/sbin:/bin\n  ENV_PATH   PATH=/bin:/games  \nENV_PATHS x\n";
        assert_eq!(path(text, 0).as_deref(), Some(&b"/sbin:/bin"[..]));
        assert_eq!(path(text, 1000).as_deref(), Some(&b"/bin:/games"[..]));
        assert_eq!(path(b"ENV_PATH /bin\n", 1000).as_deref(), Some(&b"/bin"[..]));
        assert_eq!(path(b"ENV_PATH\nENV_PATH PATH=\n", 1000), None);
    }
}
