//! Inspection of a component without a grant and without a session.

use crate::call::Description;
use crate::grant::ComponentRequests;
use crate::plugin::World;

/// Properties of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The component's description of itself.
    pub description: Description,
    /// Kind of the plugin.
    pub world: World,
    /// Version of the plugin interface that the component uses.
    pub interface: &'static str,
    /// Names of the component's imports.
    pub imports: Vec<String>,
    /// Size in bytes.
    pub size: usize,
    /// SHA-256 in hexadecimal, in the form that a pin has.
    pub sha256: String,
}

impl Inspection {
    /// Returns the imports and wants, for a comparison with a grant by [`crate::admit`].
    pub fn requested(&self) -> ComponentRequests {
        ComponentRequests { imports: self.imports.clone(), wants: Some(self.description.wants.clone()) }
    }
}
