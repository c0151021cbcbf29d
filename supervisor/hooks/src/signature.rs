//! Signs requests as the specification Standard Webhooks 1.0 has it: HMAC-SHA256 over `ID.TIMESTAMP.BODY`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Beginning of a secret in base64.
const PREFIX: &str = "whsec_";
/// Minimum length of a key in bytes. A shorter one could be guessed.
const SHORTEST: usize = 16;

/// The keys of a hook. Several keys are in use while a secret is replaced.
pub(crate) struct Keys(Vec<Vec<u8>>);

/// A secret is not valid. The text never has the secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidSecret {
    #[error("the text behind whsec_ is not base64")]
    Base64,
    #[error("the secret has less than {SHORTEST} bytes; `openssl rand -base64 32` makes a secret")]
    Short,
}

impl Keys {
    /// Parses a secret: one key a line, as text or as `whsec_` and base64.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, InvalidSecret> {
        let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
        let keys: Vec<Vec<u8>> = lines.map(key).collect::<Result<_, _>>()?;
        if keys.is_empty() { Err(InvalidSecret::Short) } else { Ok(Self(keys)) }
    }

    /// Returns the value of the header `webhook-signature`: one signature for each key, with blanks between.
    /// `timestamp` is in seconds since 1970.
    pub(crate) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let each = self.0.iter().map(|key| {
            let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        });
        each.collect::<Vec<_>>().join(" ")
    }
}

fn key(line: &[u8]) -> Result<Vec<u8>, InvalidSecret> {
    let key = match line.strip_prefix(PREFIX.as_bytes()) {
        Some(encoded) => STANDARD.decode(encoded).map_err(|_| InvalidSecret::Base64)?,
        None => line.to_vec(),
    };
    if key.len() < SHORTEST { Err(InvalidSecret::Short) } else { Ok(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_example_has_its_signature() {
        // The example of the reference libraries of Standard Webhooks and of Svix.
        let keys = Keys::parse(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let signature = keys.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}");
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_key_is_text_or_base64_and_each_line_signs() {
        let (text, encoded) = (&b"0123456789abcdef"[..], STANDARD.encode("0123456789abcdef"));
        let one = Keys::parse(text).unwrap().sign("a", 1, b"x");
        assert_eq!(Keys::parse(format!("whsec_{encoded}").as_bytes()).unwrap().sign("a", 1, b"x"), one);
        let both = [text, b"\r\n\nfedcba9876543210"].concat();
        let both = Keys::parse(&both).unwrap().sign("a", 1, b"x");
        assert!(both.starts_with(&format!("{one} v1,")) && both.len() == 2 * one.len() + 1, "{both}");
        assert_eq!(Keys::parse(b"short").err(), Some(InvalidSecret::Short));
        assert_eq!(Keys::parse(b" \n").err(), Some(InvalidSecret::Short));
        assert_eq!(Keys::parse(b"whsec_!!").err(), Some(InvalidSecret::Base64));
        assert_eq!(Keys::parse(b"whsec_c2hvcnQ=").err(), Some(InvalidSecret::Short));
    }
}
