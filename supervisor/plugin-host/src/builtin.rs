//! The plugins that are part of agentd: components built by `plugins/rebuild` and committed, and what each is granted.

use crate::grant::Grant;

/// A component inside the binary.
#[derive(Debug, Clone, Copy)]
pub struct BuiltIn {
    pub name: &'static str,
    pub bytes: &'static [u8],
    login_shell: bool,
    script: &'static [&'static str],
}

impl BuiltIn {
    /// What it is granted where the administrator says nothing else.
    pub fn grant(&self) -> Grant {
        Grant {
            login_shell: self.login_shell,
            script: self.script.iter().map(|&pattern| pattern.to_owned()).collect(),
            ..Grant::default()
        }
    }
}

/// All of them, in the order in which an environment is built.
pub fn builtin() -> &'static [BuiltIn] {
    &[
        BuiltIn {
            name: "snapshot",
            bytes: include_bytes!("../../../plugins/dist/snapshot.wasm"),
            login_shell: true,
            script: &[],
        },
        BuiltIn {
            name: "whitelist",
            bytes: include_bytes!("../../../plugins/dist/whitelist.wasm"),
            login_shell: false,
            script: &[],
        },
        BuiltIn {
            name: "env-script",
            bytes: include_bytes!("../../../plugins/dist/env-script.wasm"),
            login_shell: false,
            script: &["{config}/**", "{cwd}/**", "{session}/**"],
        },
    ]
}
