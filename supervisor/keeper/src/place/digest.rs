//! Digest of this program: the near side can require the file that the configuration names.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use agentd_api::hex;
use sha2::{Digest as _, Sha256};

use super::frames::Refused;
use super::{PlaceError, setup};
use crate::os;

const BUFFER: usize = 64 << 10;

/// Returns the SHA-256 of this program in hexadecimal digits.
fn own() -> io::Result<String> {
    let (mut file, mut digest, mut buffer) = (File::open(os::own_program()?)?, Sha256::new(), vec![0; BUFFER]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&digest.finalize())),
            Ok(n) => digest.update(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Refuses to start a program if this program is not the expected one.
pub(super) fn check(expected: Option<&str>) -> Result<(), Refused> {
    let Some(expected) = expected else { return Ok(()) };
    let message = match own() {
        Ok(own) if own == expected => return Ok(()),
        Ok(own) => format!(
            "agentd-keeper there has the SHA-256 {own}, and keeper_file or keeper_sha256 requires {expected}: install \
             that agentd-keeper there, or correct the configuration of the place"
        ),
        Err(error) => format!("agentd-keeper cannot read its own program to check its SHA-256: {error}"),
    };
    Err(Refused { code: "digest".to_owned(), message })
}

/// Prints the SHA-256 of this program.
pub fn print() -> Result<u8, PlaceError> {
    let digest = own().map_err(setup("read its own program"))?;
    writeln!(io::stdout(), "{digest}").map_err(setup("print the digest"))?;
    Ok(0)
}
