//! Links `agentctl` at a fixed address.
//!
//! A program at any address has 90,000 addresses to correct at each start, which takes a fifth of `agentctl ls`. The
//! daemon and the keeper run for long and keep their random addresses. `docs/build.md` has the measurement.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| std::env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    // Other linkers have other names for it, and a static program of musl starts differently.
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bin=agentctl=-no-pie");
    }
}
