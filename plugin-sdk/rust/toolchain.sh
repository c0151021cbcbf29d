# Builds a component from Rust. plugins/rebuild sources this file, and so does the `build` script of every
# plugin that `agentctl plugin new` creates.
#
# The sourcing script sets $program to its name, and $debian to the directory for Debian's compiler.
#
# The compiler is that of rustup if it has the target wasm32-unknown-unknown. Otherwise it is Debian's
# rustc-web, which has a package with the sources of the standard library. It is downloaded and unpacked under
# $debian (about 900 MB), without installation and without root.
#
# The linker is always rustup's wasm-component-ld. It writes a component directly, so the component does not use
# WASI.

triple=wasm32-unknown-unknown

fail() {
    echo "$program: $1" >&2
    exit "${2:-1}"
}

fetch_debian() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
        fail "no $triple in rustup and no Debian here: run rustup target add $triple"
    echo "$program: no $triple in rustup; fetching Debian's compiler into $debian" >&2
    rm -rf "$debian"
    mkdir -p "$debian/apt/lists/partial" "$debian/apt/archives/partial" "$debian/root"
    # Uses separate package lists and archives. Neither the machine's lists nor its installed packages are
    # touched.
    local options=(-qq -o Dir::State::lists="$debian/apt/lists" -o Dir::Cache="$debian/apt" -o Debug::NoLocking=1
        -o APT::Sandbox::User= -o Dpkg::Use-Pty=0)
    apt-get "${options[@]}" update >&2
    apt-get "${options[@]}" --yes --no-install-recommends --reinstall --download-only install rustc-web rust-web-src >&2
    local version archive
    for archive in "$debian"/apt/archives/*.deb; do
        dpkg -x "$archive" "$debian/root"
        if [ "$(dpkg-deb -f "$archive" Package)" = rustc-web ]; then version=$(dpkg-deb -f "$archive" Version); fi
    done
    rm -rf "$debian/apt"
    cat >"$debian/rustc" <<WRAPPER
#!/bin/sh
export LD_LIBRARY_PATH=$(echo "$debian"/root/usr/lib/*-linux-gnu)
exec $debian/root/usr/bin/rustc "\$@"
WRAPPER
    chmod +x "$debian/rustc"
    # Written last, to mark a complete download.
    echo "${version:?rustc-web was not among the packages}" >"$debian/version"
}

# Selects a compiler, and downloads it with the argument "fetch". Sets rustc, version, std, linker and tools.
choose() {
    command -v rustc >/dev/null || fail "there is no rustc; install Rust with rustup"
    local sysroot host
    sysroot=$(rustc --print sysroot)
    host=$(rustc -vV | sed -n 's/^host: //p')
    tools=$sysroot/lib/rustlib/$host/bin
    [ -x "$tools/wasm-component-ld" ] || fail "$tools/wasm-component-ld is not there; use a toolchain of rustup"
    linker="$("$tools/wasm-component-ld" --version | head -1), $("$tools/gcc-ld/wasm-ld" --version | head -1)"
    if [ -d "$sysroot/lib/rustlib/$triple/lib" ]; then
        rustc=rustc
        std=rustup
    else
        if [ ! -e "$debian/version" ]; then
            [ "${1:-}" = fetch ] || return 1
            fetch_debian
        fi
        rustc=$debian/rustc
        std="rust-web-src $(cat "$debian/version")"
    fi
    version=$("$rustc" --version)
}

# Runs cargo build with the selected compiler and these arguments in the current directory.
component() {
    local std_flags=()
    if [ "$std" != rustup ]; then
        std_flags=(-Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size)
    fi
    (
        # Paths are trimmed so that the result does not depend on the directory. The caller's flags would change
        # the result.
        unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET RUSTC_WRAPPER
        RUSTC=$(command -v "$rustc") RUSTC_BOOTSTRAP=1 PATH=$tools/gcc-ld:$PATH \
            CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$tools/wasm-component-ld CARGO_PROFILE_RELEASE_TRIM_PATHS=all \
            cargo build --quiet --release -Ztrim-paths "${std_flags[@]}" --target "$triple" "$@"
    )
}
