//! Paths of the checkout and of the build, found at run time: `.ci/portable` copies both to other directories.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static CHECKOUT: LazyLock<PathBuf> = LazyLock::new(|| {
    // cargo-test(1): cargo runs a test program in the directory of its package, which is `supervisor`.
    Path::new("..").canonicalize().expect("the tests run in the directory `supervisor`")
});

/// `target/PROFILE`: cargo puts test programs into `target/PROFILE/deps`.
static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().expect("this program has a path");
    test.ancestors().nth(2).expect("cargo puts test programs into a directory of the build").to_owned()
});

static AGENTD: LazyLock<String> = LazyLock::new(|| program("agentd"));
static AGENTCTL: LazyLock<String> = LazyLock::new(|| program("agentctl"));
static KEEPER: LazyLock<String> = LazyLock::new(|| program("agentd-keeper"));
static KEPT: LazyLock<PathBuf> = LazyLock::new(|| PROGRAMS.with_file_name("tmp"));

/// Returns the path of a program of this build. Cargo builds the programs of a package before its tests.
fn program(name: &str) -> String {
    let path = PROGRAMS.join(name);
    assert!(path.exists(), "{} is missing: `cargo test -p agentd` builds it", path.display());
    path.into_os_string().into_string().expect("the build's directory has a name in UTF-8")
}

/// Returns the top directory of the checkout.
pub(crate) fn checkout() -> &'static Path {
    &CHECKOUT
}

/// Returns the directory of the built programs.
pub(crate) fn programs() -> &'static Path {
    &PROGRAMS
}

/// Returns the path of `agentd`.
pub(crate) fn agentd() -> &'static str {
    &AGENTD
}

/// Returns the path of `agentctl`.
pub(crate) fn agentctl() -> &'static str {
    &AGENTCTL
}

/// Returns the path of `agentd-keeper`.
pub(crate) fn keeper() -> &'static str {
    &KEEPER
}

/// Returns the directory whose files are kept from run to run: cargo's `CARGO_TARGET_TMPDIR`.
pub(crate) fn kept() -> &'static Path {
    &KEPT
}
