//! Checks that the README shows the source that is compiled and tested here.

#[test]
fn the_readme_shows_this_plugin() {
    let (readme, source) = (include_str!("../../../README.md"), include_str!("../src/lib.rs"));
    assert!(
        readme.contains(&format!("```rust\n{source}```\n")),
        "plugin-sdk/README.md does not show plugin-sdk/examples/acme-toolchain/src/lib.rs as it is"
    );
}
