//! The plugins that are part of agentd: components built by `plugins/rebuild` and committed, and what each is granted.

use crate::grant::Grant;
use crate::plugin::World;

/// A component inside the binary.
#[derive(Debug, Clone, Copy)]
pub struct BuiltIn {
    pub name: &'static str,
    pub world: World,
    pub bytes: &'static [u8],
    login_shell: bool,
    script: &'static [&'static str],
    file: &'static [&'static str],
    network: &'static [&'static str],
    mount: &'static [&'static str],
}

/// A provider, which is granted nothing.
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

/// A prerequisite, which is granted nothing.
const PREREQUISITE: BuiltIn = BuiltIn { world: World::Prerequisite, ..PROVIDER };

/// What is connected to is told by settings, or by a session's environment.
const ANYWHERE: &[&str] = &["*:*"];

impl BuiltIn {
    /// What it is granted where the administrator says nothing else.
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

/// All of them: the providers in the order in which an environment is built, then the prerequisites.
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
            // Licence files are where a session's environment says.
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
        // Which program it may run is for the administrator to say: until then it is not loaded.
        BuiltIn { name: "command", bytes: include_bytes!("../../../plugins/dist/command.wasm"), ..PREREQUISITE },
    ]
}
