//! What can be told of a component by looking at it: no grant, no session.

use crate::call::Description;
use crate::grant::Requested;
use crate::plugin::World;

/// A component's own words and facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// What it says of itself.
    pub description: Description,
    pub world: World,
    /// The version of the interface that it is made for.
    pub interface: &'static str,
    /// The names of its imports, as they stand in it.
    pub imports: Vec<String>,
    /// Bytes.
    pub size: usize,
    /// In hexadecimal digits, as it is pinned.
    pub sha256: String,
}

impl Inspection {
    /// What it asks for, to be compared with a grant by [`crate::admit`].
    pub fn requested(&self) -> Requested {
        Requested { imports: self.imports.clone(), wants: Some(self.description.wants.clone()) }
    }
}
