//! Links `agentctl` and `agentd-keeper` at fixed addresses.
//!
//! A program at any address has tens of thousands of addresses to correct at each start. That takes a fifth of
//! `agentctl ls`, and each keeper has its own copy of the 72 KiB with these addresses. The stack, the heap and the
//! libraries keep their random addresses. So does all of the daemon. `docs/build.md` has the measurements.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| std::env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    // Other linkers have other names for it, and a static program of musl starts differently.
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bin=agentctl=-no-pie");
        println!("cargo::rustc-link-arg-bin=agentd-keeper=-no-pie");
    }
}
