//! Defines the form of a stored document: a version, and the content in clear or sealed.
//!
//! Other modules define the meaning of versions and the keys.

use serde::{Deserialize, Serialize};

use super::seal::Sealed;

#[derive(Serialize, Deserialize)]
pub(crate) struct Document<T> {
    pub version: u32,
    #[serde(flatten)]
    pub content: Content<T>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Content<T> {
    Clear(T),
    Sealed(Sealed),
}

/// The part that every version of a document shares.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default = "first")]
    version: u64,
}

/// Version of a document without a version field.
const fn first() -> u64 {
    1
}

/// Returns the version of a document of any version.
pub(crate) fn version(bytes: &[u8]) -> serde_json::Result<u64> {
    Ok(serde_json::from_slice::<Versioned>(bytes)?.version)
}
