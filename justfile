# Shortcuts for the commands of the project: `just` lists them. Each is one line that works without just, too.

# Lists the recipes.
default:
    @just --list

# Builds the programs, as at the top of the README.
build:
    cargo build --release --locked

# Builds the programs with link-time optimisation, as they are released.
dist:
    cargo build --profile dist --locked

# Runs the tests; arguments are cargo's, such as `just test --test it turns::`.
test *arguments:
    cargo test --locked {{ arguments }}

# Checks format, lint and unit tests of the crates that changed since the branch left main, or since BASE.
quick *base:
    .ci/quick {{ base }}

# Checks everything, as root on Debian; takes about an hour.
ci:
    bash .ci/run

# Runs the fuzz targets, each for 30 seconds; arguments are the seconds and the targets.
fuzz *arguments:
    .ci/fuzz {{ arguments }}

# Formats all workspaces.
format:
    cargo fmt --all
    cargo fmt --all --manifest-path plugins/Cargo.toml
    cargo fmt --manifest-path tests/fuzz/Cargo.toml

# Checks licences, duplicates and sources of the crates.
deny *checks:
    .ci/deny {{ checks }}

# Type-checks everything for macOS, on Linux.
macos:
    .ci/check-macos

# Runs the tests as another machine would: another user, locale, time zone and order.
portable *names:
    .ci/portable {{ names }}

# Rebuilds the components in plugins/dist/ from their sources; `just rebuild-plugins --check` compares only.
rebuild-plugins *arguments:
    plugins/rebuild {{ arguments }}

# Measures agentd beside bare loops; parts are adopt spawn memory output places environment tail plugins.
bench *parts:
    cargo bench -p agentd -- {{ parts }}

# Measures what a cold build costs and which crates are the dearest.
build-cost *arguments:
    .ci/build-cost {{ arguments }}

# Builds the documentation of the crates.
document:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
