//! Links `agentctl` and `agentd-keeper` at fixed addresses.
//!
//! A program at any address has tens of thousands of addresses to correct at each start. That takes a fifth of
//! `agentctl ls`, and each keeper has its own copy of the 72 KiB with these addresses. The stack, the heap and the
//! libraries keep their random addresses. So does all of the daemon. `docs/build.md` has the measurements.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| std::env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    // A static program starts differently: with this option it would end with SIGSEGV at once.
    let is_static = target("FEATURE").split(',').any(|feature| feature == "crt-static");
    // Other linkers have other names for it.
    if target("OS") == "linux" && target("ENV") == "gnu" && !is_static {
        println!("cargo::rustc-link-arg-bin=agentctl=-no-pie");
        println!("cargo::rustc-link-arg-bin=agentd-keeper=-no-pie");
    }
}
