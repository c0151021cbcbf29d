//! The plugins that are part of agentd: components that `plugins/rebuild` builds and the repository contains,
//! with their default grants.

use crate::grant::Grant;
use crate::plugin::World;

/// A component that is embedded in the binary.
#[derive(Debug, Clone, Copy)]
pub struct BuiltIn {
    /// Name of the plugin in the configuration.
    pub name: &'static str,
    /// Kind of the plugin.
    pub world: World,
    /// The component's bytes.
    pub bytes: &'static [u8],
    login_shell: bool,
    script: &'static [&'static str],
    file: &'static [&'static str],
    network: &'static [&'static str],
    mount: &'static [&'static str],
}

/// Base value for providers. Grants nothing.
const PROVIDER: BuiltIn = BuiltIn {
    name: "",
    world: World::Provider,
    bytes: &[],
    login_shell: false,
    script: &[],
    file: &[],
    network: &[],
    mount: &[],
};

/// Base value for prerequisites. Grants nothing.
const PREREQUISITE: BuiltIn = BuiltIn { world: World::Prerequisite, ..PROVIDER };

/// Network grant for any host and port. The settings or the session's environment determine the server to
/// connect to.
const ANYWHERE: &[&str] = &["*:*"];

impl BuiltIn {
    /// Returns the default grant, which applies unless the administrator configures another one.
    pub fn grant(&self) -> Grant {
        let owned = |patterns: &[&str]| patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        Grant {
            login_shell: self.login_shell,
            script: owned(self.script),
            file: owned(self.file),
            network: owned(self.network),
            mount: owned(self.mount),
            ..Grant::default()
        }
    }
}

/// Returns all built-in plugins: the providers in pipeline order, then the prerequisites.
pub fn builtin() -> &'static [BuiltIn] {
    &[
        BuiltIn {
            name: "snapshot",
            bytes: include_bytes!("../../../plugins/dist/snapshot.wasm"),
            login_shell: true,
            ..PROVIDER
        },
        BuiltIn { name: "whitelist", bytes: include_bytes!("../../../plugins/dist/whitelist.wasm"), ..PROVIDER },
        BuiltIn {
            name: "env-script",
            bytes: include_bytes!("../../../plugins/dist/env-script.wasm"),
            script: &["{config}/**", "{cwd}/**", "{session}/**"],
            ..PROVIDER
        },
        BuiltIn {
            name: "vpn",
            bytes: include_bytes!("../../../plugins/dist/vpn.wasm"),
            network: ANYWHERE,
            ..PREREQUISITE
        },
        BuiltIn {
            name: "license-server",
            bytes: include_bytes!("../../../plugins/dist/license-server.wasm"),
            network: ANYWHERE,
            // The session's environment determines the paths of licence files.
            file: &["/**", "{home}/**", "{cwd}/**"],
            ..PREREQUISITE
        },
        BuiltIn {
            name: "mount",
            bytes: include_bytes!("../../../plugins/dist/mount.wasm"),
            mount: &["/**"],
            network: ANYWHERE,
            ..PREREQUISITE
        },
        BuiltIn {
            name: "tcp",
            bytes: include_bytes!("../../../plugins/dist/tcp.wasm"),
            network: ANYWHERE,
            ..PREREQUISITE
        },
        // The administrator must name the programs to run. The plugin is not loaded before that.
        BuiltIn { name: "command", bytes: include_bytes!("../../../plugins/dist/command.wasm"), ..PREREQUISITE },
    ]
}
