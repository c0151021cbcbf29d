//! Components that are refused before any of their code runs.

use std::time::{Duration, Instant};

use agentd_plugin_host::{Call, Grant, Limits, LoadError, Source, builtin};

use crate::bench::{Bench, Fake, call, everything};
use crate::guest::{Guest, LOG, SCRIPT, WIT, component_of};
use crate::random::{Random, flipped, truncated};

async fn refusal(bytes: &[u8], grant: &Grant) -> LoadError {
    let bench = Bench::new();
    let error = bench.load_bytes("foreign", bytes, grant).await.unwrap_err();
    assert!(error.to_string().contains("\"foreign\""), "{error}");
    bench.still_works().await;
    error
}

#[tokio::test]
async fn an_import_that_is_not_granted_is_named_with_the_line_that_would_grant_it() {
    let provide = "(call $source (i32.const 144) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 512))";
    // The code of this component never ends, but the component is refused before the code runs.
    let guest = Guest { imports: SCRIPT, provide, describe: "(loop $again (br $again))", ..Guest::default() };
    let error = refusal(&guest.provider(), &Grant { login_shell: true, ..Grant::default() }).await;
    assert_eq!(error.to_string(), "plugin \"foreign\" imports \"agentd:plugin/script@1.0.0\", which it is not granted");
    assert!(error.hint().unwrap().contains("script = "));
    assert_eq!(error.code(), "plugin-not-granted");
}

/// Returns a component that imports a function of a foreign package and has the exports of a provider.
fn importing(package: &str, interface: &str) -> Vec<u8> {
    let wit = format!(
        "{WIT}\nworld foreign {{ import {package}/{interface}@0.2.0; export environment-provider; }}\n
         package {package}@0.2.0 {{ interface {interface} {{ get: func() -> u32; }} }}"
    );
    let imports = format!(r#"(import "{package}/{interface}@0.2.0" "get" (func $get (result i32)))"#);
    let module = Guest { imports: &imports, provide: "(drop (call $get))", ..Guest::default() }.module();
    component_of(&wit, "foreign", &module)
}

#[tokio::test]
async fn wasi_is_refused_by_name_and_so_is_what_nobody_knows() {
    let error = refusal(&importing("wasi:cli", "environment"), &everything()).await;
    assert_eq!(
        error.to_string(),
        "plugin \"foreign\" imports \"wasi:cli/environment@0.2.0\", but agentd does not provide WASI"
    );
    assert!(error.hint().unwrap().contains("wasm32-unknown-unknown"));
    let error = refusal(&importing("other:library", "thing"), &everything()).await;
    assert_eq!(
        error.to_string(),
        "plugin \"foreign\" imports \"other:library/thing@0.2.0\", which agentd does not provide"
    );
}

#[tokio::test]
async fn any_other_version_of_the_interface_is_refused_by_its_name_before_it_runs() {
    // The code of this component never ends.
    let guest = Guest { imports: LOG, describe: "(loop $again (br $again))", ..Guest::default() };
    for (version, found) in
        [("@0.1.0", "0.1.0"), ("@1.0.1", "1.0.1"), ("@1.1.0", "1.1.0"), ("@2.0.0", "2.0.0"), ("", "none")]
    {
        let other = |text: &str| text.replace("@1.0.0", version);
        let error = refusal(&component_of(&other(WIT), "provider", &other(&guest.module())), &everything()).await;
        let made = format!("is built for version {found} of agentd:plugin/environment-provider");
        assert_eq!(error.to_string(), format!("plugin \"foreign\" {made}, but this agentd supports 1.0.0"));
        assert_eq!(error.code(), "plugin-version");
        assert_eq!(error.hint().as_deref(), Some("build it against agentd:plugin@1.0.0"));
    }
}

#[tokio::test]
async fn a_component_of_another_world_is_refused_with_what_it_exports() {
    let wit = "package a:b; world other { export run: func(); }";
    let error = refusal(&component_of(wit, "other", r#"(module (func (export "run")))"#), &everything()).await;
    assert_eq!(error.to_string(), "plugin \"foreign\" is neither a provider nor a prerequisite: it exports run");
}

#[tokio::test]
async fn an_interface_of_our_name_with_other_functions_does_not_fit() {
    let wit = "package agentd:plugin@1.0.0; interface environment-provider { provide: func(); } \
        world other { export environment-provider; }";
    let module = r#"(module (func (export "agentd:plugin/environment-provider@1.0.0#provide")))"#;
    let error = refusal(&component_of(wit, "other", module), &everything()).await;
    assert!(matches!(error, LoadError::Link { .. }), "{error:?}");
}

#[tokio::test]
async fn what_is_no_component_is_called_what_it_is() {
    let module = wat::parse_str("(module)").unwrap();
    for (bytes, is) in [
        (&module[..], "a core module"),
        (b"#!/bin/sh\necho", "a file of another format"),
        (b"", "a file of another format"),
        (b"\0asm\x02\0\0\0", "WebAssembly of an unknown kind"),
    ] {
        let error = refusal(bytes, &everything()).await;
        assert_eq!(error.to_string(), format!("plugin \"foreign\" is {is}, not a WebAssembly component"));
    }
}

#[tokio::test]
async fn a_truncated_component_is_refused() {
    let mut random = Random::from_environment("AGENTD_DAMAGE_SEED");
    let whole = builtin()[0].bytes;
    // A file that is cut at the end of a section is a valid component, but it lacks exports.
    for _ in 0..20 {
        refusal(&truncated(whole, &mut random), &everything()).await;
    }
    for part in [9, 100, whole.len() - 1] {
        let error = refusal(&whole[..part], &everything()).await;
        assert!(matches!(error, LoadError::Compile { .. }), "{part}: {error:?}");
    }
}

#[tokio::test]
async fn a_component_with_a_flipped_bit_is_refused_or_is_another_plugin_but_never_harms_the_host() {
    let mut random = Random::from_environment("AGENTD_DAMAGE_SEED");
    let bench = Bench::new();
    let limits = Limits { time: Duration::from_secs(2), memory: 32 << 20, output: 1 << 20, log: 10 };
    let mut refused = 0;
    for built_in in builtin() {
        for _ in 0..24 {
            let bytes = flipped(built_in.bytes, &mut random);
            match bench.load_bytes("flipped", &bytes, &everything()).await {
                Err(error) => {
                    assert!(error.to_string().contains("\"flipped\""), "{error}");
                    refused += 1;
                }
                // The changed component may do anything, but only within its limits.
                Ok(plugin) => {
                    let begun = Instant::now();
                    let answer = plugin.provide(Call { limits, ..call(Fake::default().login(&[("A", b"1")])) }).await;
                    let named = answer.as_ref().err().is_none_or(|error| error.to_string().contains("\"flipped\""));
                    assert!(named && begun.elapsed() < Duration::from_secs(10), "{answer:?}");
                }
            }
        }
    }
    assert!(refused > 0, "no flip was noticed at all");
    bench.still_works().await;
}

#[tokio::test]
async fn a_file_that_is_not_the_pinned_one_is_refused_with_both_hashes() {
    use sha2::Digest as _;
    let bench = Bench::new();
    let path = bench.directory.path().join("pinned.wasm");
    std::fs::write(&path, Guest::default().provider()).unwrap();
    let right: [u8; 32] = sha2::Sha256::digest(Guest::default().provider()).into();
    let source = |sha256| Source::File { path: path.clone(), sha256: Some(sha256) };
    assert!(bench.load(source(right), &everything()).await.is_ok());
    let error = bench.load(source([0xab; 32]), &everything()).await.unwrap_err();
    assert!(error.to_string().contains(&"ab".repeat(32)), "{error}");
    assert_eq!(error.code(), "plugin-not-pinned");
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named() {
    let bench = Bench::new();
    let path = bench.directory.path().join("absent.wasm");
    let error = bench.load(Source::File { path: path.clone(), sha256: None }, &everything()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("could not read plugin \"absent\" from {}", path.display()));
}
