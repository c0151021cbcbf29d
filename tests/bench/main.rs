//! Measures agentd beside bare loops that do the same work:
//! `cargo bench -p agentd [-- PART...]`. [`PARTS`] has their names.
//!
//! The speed of a machine varies, so a single figure means little. Each figure is beside the figure of a few lines of
//! code that do the same work in the same run. README.md explains how to read the tables.
//!
//! This program is also its own agent and its own bare loops ([`role`]). It starts itself, so that both sides of a
//! comparison run the same code on the other end of their pipes.
#![allow(clippy::print_stdout, reason = "a table on stdout is what this program is for")]

mod adopt;
mod agent;
mod agentctl;
mod bare;
mod bare_http;
mod capture;
mod client;
mod daemon;
mod environment;
mod feed;
mod first;
mod fleet;
#[cfg(target_os = "linux")]
#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "of the tests")]
mod harness;
mod launch;
mod list;
mod memory;
mod native;
mod output;
#[cfg(target_os = "linux")]
mod places;
mod plugins;
mod process;
mod rivals;
mod spawn;
mod table;
mod tail;
mod warm;

// The sources of the built-in providers use the SDK by this crate name; see `native`.
extern crate self as agentd_plugin_sdk;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use sdk::{
    Capability, Change, Description, Effect, Failure, OrNone, Provider, Request, Variable, fake, log, pattern, script,
    secret_names, shell,
};
use table::Table;

/// Replaces the SDK's macro that exports a provider: here it makes a function that calls the provider.
macro_rules! export_provider {
    ($provider:ty) => {
        pub(crate) fn provide(
            request: &agentd_plugin_sdk::Request,
        ) -> Result<Vec<agentd_plugin_sdk::Change>, agentd_plugin_sdk::Failure> {
            <$provider as agentd_plugin_sdk::Provider>::provide(request)
        }
    };
}
use export_provider;

/// A part of the bench, with the name that selects it.
type Part = (&'static str, fn() -> Result<Table>);

/// Variable that names the directory of other programs to measure, by an absolute path.
const PROGRAMS: &str = "AGENTD_BENCH_PROGRAMS";

const PARTS: &[Part] = &[
    ("adopt", adopt::measure),
    ("launch", launch::measure),
    ("spawn", spawn::measure),
    ("memory", memory::measure),
    ("output", output::measure),
    #[cfg(target_os = "linux")]
    ("places", places::measure),
    ("tail", tail::measure),
    ("list", list::measure),
    ("feed", feed::measure),
    ("fleet", fleet::measure),
    ("environment", environment::measure),
    ("plugins", plugins::measure),
    ("agentctl", agentctl::measure),
];

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let result = role(&args).unwrap_or_else(|| {
        // cargo passes this argument to every bench.
        args.retain(|arg| arg != "--bench");
        run(&args)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this program's role if it was started by itself.
fn role(args: &[String]) -> Option<Result<()>> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // `process::kill_all_of` finds the agent by the directory in its arguments.
        ["agent", _] => Some(agent::serve()),
        ["slow-agent", _, time] => Some(agent::serve_slowly(time)),
        ["agent", _, socket] => Some(agent::tell(Path::new(socket))),
        ["provide", name] => Some(native::serve(name)),
        ["bare-adopt", directory] => Some(bare::adopt(Path::new(directory))),
        ["bare-copy", file] => Some(bare::copy(Path::new(file))),
        ["bare-http", socket] => Some(bare_http::serve(Path::new(socket))),
        ["bare-hold", directory, number] => Some(bare::hold(Path::new(directory), number)),
        _ => None,
    }
}

fn run(names: &[String]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| PARTS.iter().all(|(part, _)| part != name)) {
        bail!(
            "there is no part {unknown:?}; there are {}",
            PARTS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        );
    }
    build()?;
    let mut failed = Vec::new();
    for (name, measure) in PARTS.iter().filter(|(part, _)| names.is_empty() || names.iter().any(|name| name == part)) {
        match measure() {
            Ok(table) => println!("{table}"),
            Err(error) => {
                eprintln!("bench: {name} could not be measured: {error:#}\n");
                failed.push(*name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("not measured: {}", failed.join(", ")) }
}

/// Returns the program `agentd` to measure: that in the directory [`PROGRAMS`], or that of this build.
fn agentd() -> PathBuf {
    let chosen = std::env::var_os(PROGRAMS).map(|directory| Path::new(&directory).join("agentd"));
    chosen.unwrap_or_else(|| env!("CARGO_BIN_EXE_agentd").into())
}

/// Builds the programs again with the features of a release, because cargo built them for this bench with those of the
/// tests' dependencies. Without cargo, the bench uses the programs in its own directory.
fn build() -> Result<()> {
    let Some(cargo) = std::env::var_os("CARGO").filter(|_| std::env::var_os(PROGRAMS).is_none()) else {
        return Ok(());
    };
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.toml"))
        .status()
        .context("cargo cannot be run")?;
    if status.success() { Ok(()) } else { bail!("the release build failed: {status}") }
}
