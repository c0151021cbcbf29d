//! The form of a kept document: its version, and the document itself in clear or sealed.
//!
//! Not responsible for what a version means, nor for keys.

use serde::{Deserialize, Serialize};

use super::seal::Sealed;

#[derive(Serialize, Deserialize)]
pub(crate) struct Document<T> {
    pub(crate) version: u32,
    #[serde(flatten)]
    pub(crate) content: Content<T>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Content<T> {
    Clear(T),
    Sealed(Sealed),
}

/// What every version of a document can be asked.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default = "first")]
    version: u64,
}

/// The version of a document that names none.
const fn first() -> u64 {
    1
}

/// The version of a document, whichever it is.
pub(crate) fn version(bytes: &[u8]) -> serde_json::Result<u64> {
    Ok(serde_json::from_slice::<Versioned>(bytes)?.version)
}
