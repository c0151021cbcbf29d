//! Components written as text: a core module with the names of the WIT interface, made a component in the test itself, so
//! that no toolchain for WebAssembly is needed.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// The interface as it stands in the repository.
pub(crate) const WIT: &str = include_str!("../../plugin-sdk/wit/1.0.0/agentd-plugin.wit");

/// A component of the world of this WIT text, from a core module in text.
pub(crate) fn component_of(wit: &str, world: &str, module: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", wit).unwrap();
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut module = wat::parse_str(module).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    ComponentEncoder::default().module(&module).unwrap().encode().unwrap()
}

/// A provider in parts: each is text of a core module, and empty by default.
#[derive(Default)]
pub(crate) struct Guest<'a> {
    /// Imports.
    pub(crate) imports: &'a str,
    /// Globals, tables, functions, a start.
    pub(crate) fields: &'a str,
    /// What `describe` does before it answers.
    pub(crate) describe: &'a str,
    /// What `provide` does before it answers.
    pub(crate) provide: &'a str,
    /// Pages of memory at the start; 0 is 2.
    pub(crate) pages: u32,
}

/// `login` writes its result to the address it is given.
pub(crate) const LOGIN: &str = r#"(import "agentd:plugin/shell-environment@1.0.0" "login" (func $login (param i32)))"#;
pub(crate) const LOG: &str = r#"(import "agentd:plugin/log@1.0.0" "write" (func $log (param i32 i32 i32)))"#;
pub(crate) const SCRIPT: &str =
    r#"(import "agentd:plugin/script@1.0.0" "source" (func $source (param i32 i32 i32 i32 i32)))"#;

/// A want of each capability, as it lies in memory: `* **` of commands and `*` of the others, both from 65016 on.
fn wants() -> String {
    let (any, command) = (65000, 65008);
    let want = |capability: u32| [capability, if capability == 2 { command } else { any }, 1, 128, 7];
    let bytes = (0..8).flat_map(want).flat_map(u32::to_le_bytes);
    bytes.map(|byte| format!("\\{byte:02x}")).collect::<Vec<_>>().concat()
}

/// What every guest has: memory, an allocator that only goes forward, a description at 16, a variable's name at 144.
/// Addresses from 256 to 64512 are free to use; from there on stands that it wants everything, and the rest is the allocator's.
fn frame(guest: &Guest<'_>, exports: &str) -> String {
    let Guest { imports, fields, pages, .. } = guest;
    format!(
        r#"(module {imports}
  (memory (export "memory") {pages})
  (global $next (mut i32) (i32.const 65536))
  (func (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
    (global.set $next (i32.add (local.get $at) (local.get $size)))
    (local.get $at))
  (data (i32.const 16) "\80\00\00\00\07\00\00\00\88\00\00\00\05\00\00\00\8e\00\00\00\01\00\00\00")
  (data (i32.const 48) "\00\fc\00\00\08\00\00\00")
  (data (i32.const 64512) "{wants}")
  (data (i32.const 65000) "\f8\fd\00\00\01\00\00\00\f8\fd\00\00\04\00\00\00")
  (data (i32.const 65016) "* **")
  (data (i32.const 128) "hostile\000.1.0\00s\00")
  (data (i32.const 144) "NAME")
  {fields}
  {exports})"#,
        pages = if *pages == 0 { 2 } else { *pages },
        wants = wants(),
    )
}

/// A request, flattened by the canonical ABI; that of a check begins with whether there is a session.
const REQUEST: &str = "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32 i32 i32 i32)";
const CHECK: &str = "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32 i32 i32 i32)";

impl Guest<'_> {
    /// Answers with no changes, unless `provide` writes others to 64.
    pub(crate) fn module(&self) -> String {
        let Guest { describe, provide, .. } = self;
        frame(
            self,
            &format!(
                r#"(func (export "agentd:plugin/environment-provider@1.0.0#describe") (result i32) {describe} (i32.const 16))
  (func (export "agentd:plugin/environment-provider@1.0.0#provide") {REQUEST} (result i32) {provide} (i32.const 64))"#
            ),
        )
    }

    pub(crate) fn provider(&self) -> Vec<u8> {
        component_of(WIT, "provider", &self.module())
    }

    /// A prerequisite that passes and says `hostile`, unless `provide` writes another answer to 64.
    pub(crate) fn prerequisite(&self) -> Vec<u8> {
        let Guest { describe, provide, .. } = self;
        let module = frame(
            self,
            &format!(
                r#"(data (i32.const 76) "\80\00\00\00\07\00\00\00")
  (func (export "agentd:plugin/prerequisite-check@1.0.0#describe") (result i32) {describe} (i32.const 16))
  (func (export "agentd:plugin/prerequisite-check@1.0.0#check") {CHECK} (result i32) {provide} (i32.const 64))"#
            ),
        );
        component_of(WIT, "prerequisite", &module)
    }
}
