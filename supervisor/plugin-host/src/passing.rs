//! Operating system errors that do not depend on the file: a resource was scarce, or a disk or server did not
//! respond.

use std::io;

use nix::errno::Errno;

/// Reports whether the same operation on the same file may succeed later.
pub(crate) fn is_temporary(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw);
    let scarce = [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EAGAIN, Errno::ENOBUFS];
    let interrupted = [Errno::EINTR, Errno::EBUSY, Errno::EIO];
    let far = [Errno::ESTALE, Errno::ETIMEDOUT, Errno::ENOTCONN, Errno::EHOSTDOWN, Errno::EHOSTUNREACH];
    error.kind() == io::ErrorKind::OutOfMemory
        || number.is_some_and(|number| [&scarce[..], &interrupted, &far].iter().any(|some| some.contains(&number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_scarce_passes_and_what_is_wrong_with_the_file_does_not() {
        let passes = |number: Errno| is_temporary(&io::Error::from(number));
        for number in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EIO, Errno::ESTALE, Errno::ETIMEDOUT] {
            assert!(passes(number), "{number}");
        }
        for number in [Errno::ENOENT, Errno::EACCES, Errno::EISDIR, Errno::ELOOP, Errno::ENAMETOOLONG] {
            assert!(!passes(number), "{number}");
        }
        assert!(!is_temporary(&io::Error::other("it is not ours")));
    }
}
