//! SHA-256 of files.

use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

/// Returns the number of bytes and their SHA-256 in hexadecimal digits. `goes_on` gets the size of each block after it
/// was read. The digest is `None` if `goes_on` ends the reading.
pub(crate) fn sha256(mut file: impl Read, mut goes_on: impl FnMut(u64) -> bool) -> io::Result<(u64, Option<String>)> {
    let (mut digest, mut block, mut bytes) = (Sha256::new(), vec![0; 64 << 10], 0);
    loop {
        let n = match file.read(&mut block) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if n == 0 {
            return Ok((bytes, Some(agentd_api::hex(&digest.finalize()))));
        }
        digest.update(&block[..n]);
        bytes += n as u64;
        if !goes_on(n as u64) {
            return Ok((bytes, None));
        }
    }
}
