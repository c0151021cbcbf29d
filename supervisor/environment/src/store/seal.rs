//! Encrypts one document with one key: XChaCha20-Poly1305 with a random nonce. The random bytes are the only I/O.
//!
//! The document's file name, owner (such as a session) and key are authenticated with it. A sealed file that is
//! moved to another place therefore cannot be opened.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use agentd_api::hex;

/// The only supported algorithm. Each file names it, so that another can be added.
const ALGORITHM: &str = "xchacha20-poly1305";
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;

/// A key with an id that reveals nothing about the key.
pub(crate) struct Key {
    id: String,
    /// The key bytes, which are overwritten on drop.
    cipher: XChaCha20Poly1305,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

/// A sealed document as stored in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    pub algorithm: String,
    /// Id of the key.
    pub key: String,
    /// Base64, like `data`.
    nonce: String,
    data: String,
}

#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error("cannot get random bytes from the system: {0}")]
    Random(getrandom::Error),
    #[error("unknown seal algorithm {0:?}")]
    Algorithm(String),
    #[error("its key does not open it: it was changed, or belongs to another session")]
    Open,
    #[error("cannot seal the document")]
    Seal,
}

impl Key {
    /// Parses a key of 32 bytes: raw, in base64, or in hexadecimal digits.
    pub(crate) fn parse(content: &[u8]) -> Option<Self> {
        if let Ok(bytes) = <[u8; KEY_BYTES]>::try_from(content) {
            return Some(Self::new(&bytes));
        }
        let text = std::str::from_utf8(content).ok()?.trim();
        let bytes = if text.len() == 2 * KEY_BYTES {
            let digit = |n: usize| text.get(2 * n..2 * n + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
            (0..KEY_BYTES).map(digit).collect::<Option<Vec<u8>>>()?
        } else {
            STANDARD.decode(text).ok()?
        };
        Some(Self::new(&bytes.try_into().ok()?))
    }

    /// Generates a key. Returns the key and its text form.
    pub(crate) fn generate() -> Result<(Self, String), SealError> {
        let mut bytes = [0_u8; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(SealError::Random)?;
        Ok((Self::new(&bytes), STANDARD.encode(bytes)))
    }

    fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let digest = Sha256::new().chain_update(b"agentd environment key id\0").chain_update(bytes).finalize();
        Self { id: hex(&digest[..8]), cipher: XChaCha20Poly1305::new(bytes.into()) }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn seal(&self, name: &str, owner: &str, document: &[u8]) -> Result<Sealed, SealError> {
        let mut nonce = [0_u8; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(SealError::Random)?;
        let aad = belongs_to(name, owner, &self.id);
        let payload = Payload { msg: document, aad: &aad };
        let data = self.cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| SealError::Seal)?;
        Ok(Sealed {
            algorithm: ALGORITHM.to_owned(),
            key: self.id.clone(),
            nonce: STANDARD.encode(nonce),
            data: STANDARD.encode(data),
        })
    }

    pub(crate) fn open(&self, name: &str, owner: &str, sealed: &Sealed) -> Result<Vec<u8>, SealError> {
        if sealed.algorithm != ALGORITHM {
            return Err(SealError::Algorithm(sealed.algorithm.clone()));
        }
        let nonce = STANDARD.decode(&sealed.nonce).ok().and_then(|nonce| <[u8; NONCE_BYTES]>::try_from(nonce).ok());
        let (nonce, data) = nonce.zip(STANDARD.decode(&sealed.data).ok()).ok_or(SealError::Open)?;
        let aad = belongs_to(name, owner, &sealed.key);
        self.cipher.decrypt(&XNonce::from(nonce), Payload { msg: &data, aad: &aad }).map_err(|_| SealError::Open)
    }
}

/// Returns the bytes that are authenticated with the document. No part can contain the separator.
fn belongs_to(name: &str, owner: &str, key: &str) -> Vec<u8> {
    ["agentd", name, owner, key].join("\0").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_opens_with_its_key_in_its_place_and_nowhere_else() {
        let (key, text) = Key::generate().unwrap();
        let sealed = key.seal("a.json", "a1", b"document").unwrap();
        let same = Key::parse(text.as_bytes()).unwrap();
        assert_eq!(same.open("a.json", "a1", &sealed).unwrap(), b"document");
        let (other, _) = Key::generate().unwrap();
        let elsewhere = [
            other.open("a.json", "a1", &sealed),
            key.open("b.json", "a1", &sealed),
            key.open("a.json", "b2", &sealed),
            key.open("a.json", "a1", &Sealed { key: other.id.clone(), ..sealed.clone() }),
        ];
        for result in elsewhere {
            assert!(matches!(result, Err(SealError::Open)), "{result:?}");
        }
        let newer = Sealed { algorithm: "rot13".to_owned(), ..sealed };
        assert!(matches!(key.open("a.json", "a1", &newer), Err(SealError::Algorithm(_))));
    }

    #[test]
    fn any_changed_byte_is_detected_and_no_nonce_repeats() {
        let (key, _) = Key::generate().unwrap();
        let sealed = key.seal("a", "a1", b"document").unwrap();
        let again = key.seal("a", "a1", b"document").unwrap();
        assert_ne!((&sealed.nonce, &sealed.data), (&again.nonce, &again.data));
        let data = STANDARD.decode(&sealed.data).unwrap();
        for n in 0..data.len() {
            let mut bad = data.clone();
            bad[n] ^= 1;
            let bad = Sealed { data: STANDARD.encode(bad), ..sealed.clone() };
            assert!(matches!(key.open("a", "a1", &bad), Err(SealError::Open)), "byte {n}");
        }
    }

    #[test]
    fn a_key_is_parsed_in_each_form_and_other_content_is_refused() {
        let bytes: Vec<u8> = (0..32).collect();
        let raw = Key::parse(&bytes).unwrap();
        let hexadecimal = format!("{}\n", hex(&bytes));
        assert_eq!(Key::parse(hexadecimal.as_bytes()).unwrap().id(), raw.id());
        assert_eq!(Key::parse(STANDARD.encode(&bytes).as_bytes()).unwrap().id(), raw.id());
        for bad in ["", "secret", &"zz".repeat(32), &"é".repeat(32), &STANDARD.encode([1_u8; 16])] {
            assert!(Key::parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
