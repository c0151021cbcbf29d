//! Components that tests write as WebAssembly text. The test turns a core module with the names of the WIT interface
//! into a component, so no WebAssembly toolchain is necessary.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// Text of the WIT interface in the repository.
pub(crate) const WIT: &str = include_str!("../../plugin-sdk/wit/1.0.0/agentd-plugin.wit");

/// Returns a component of this world of the WIT text, from the text of a core module.
pub(crate) fn component_of(wit: &str, world: &str, module: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", wit).unwrap();
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut module = wat::parse_str(module).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    ComponentEncoder::default().module(&module).unwrap().encode().unwrap()
}

/// Parts of a provider. Each part is text of a core module, and is empty by default.
#[derive(Default)]
pub(crate) struct Guest<'a> {
    /// Imports of the module.
    pub(crate) imports: &'a str,
    /// Globals, tables, functions and a start function.
    pub(crate) fields: &'a str,
    /// Instructions that `describe` runs before it answers.
    pub(crate) describe: &'a str,
    /// Instructions that `provide` runs before it answers.
    pub(crate) provide: &'a str,
    /// Initial memory size in pages. 0 means 2 pages.
    pub(crate) pages: u32,
}

/// Import of `login`, which writes its result to the address in its argument.
pub(crate) const LOGIN: &str = r#"(import "agentd:plugin/shell-environment@1.0.0" "login" (func $login (param i32)))"#;
pub(crate) const LOG: &str = r#"(import "agentd:plugin/log@1.0.0" "write" (func $log (param i32 i32 i32)))"#;
pub(crate) const SCRIPT: &str =
    r#"(import "agentd:plugin/script@1.0.0" "source" (func $source (param i32 i32 i32 i32 i32)))"#;

/// Returns the bytes of a list that wants every capability. The pattern is `* **` for commands and `*` for the others;
/// both are at address 65016.
fn wants() -> String {
    let (any, command) = (65000, 65008);
    let want = |capability: u32| [capability, if capability == 2 { command } else { any }, 1, 128, 7];
    let bytes = (0..8).flat_map(want).flat_map(u32::to_le_bytes);
    bytes.map(|byte| format!("\\{byte:02x}")).collect::<Vec<_>>().concat()
}

/// Returns a module with the parts that every guest has: memory, an allocator that never frees, and a description.
/// The description is at address 16 and a variable's name at 144. Tests can use addresses 256 to 64511. From 64512 on,
/// the memory holds the list of wants, and then the allocator's area.
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

/// Parameters of a provider's request, flattened by the canonical ABI. A check's request begins with one more value,
/// which tells whether a session exists.
const REQUEST: &str = "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32 i32 i32 i32)";
const CHECK: &str = "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32 i32 i32 i32)";

impl Guest<'_> {
    /// Returns the text of a provider that answers with no changes, unless `provide` writes a list of changes at 64.
    pub(crate) fn module(&self) -> String {
        let Guest { describe, provide, .. } = self;
        frame(
            self,
            &format!(
                r#"(func (export "agentd:plugin/environment-provider@1.0.0#describe") (result i32)
    {describe} (i32.const 16))
  (func (export "agentd:plugin/environment-provider@1.0.0#provide") {REQUEST} (result i32) {provide} (i32.const 64))"#
            ),
        )
    }

    pub(crate) fn provider(&self) -> Vec<u8> {
        component_of(WIT, "provider", &self.module())
    }

    /// Returns a prerequisite that passes with the summary `hostile`, unless `provide` writes another answer at 64.
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
