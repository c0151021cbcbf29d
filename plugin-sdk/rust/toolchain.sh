# How a component is built from Rust: sourced by plugins/rebuild, and by the `build` of every plugin that `agentctl plugin new` begins.
# Who sources it says what it is called in $program, and where Debian's compiler is kept in $debian.
#
# The compiler is rustup's if it has the target wasm32-unknown-unknown, and else Debian's (rustc-web, whose sources of the standard
# library come as a package): downloaded and unpacked under $debian, about 900 MB, nothing installed, no root needed.
# The linker is rustup's wasm-component-ld in both cases; it makes the component, so there is no WASI in it.

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
    # Lists and archives of its own: the machine's are not touched, and what is already installed is not fetched.
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
    echo "${version:?rustc-web was not among the packages}" >"$debian/version" # last: now it is whole
}

# Finds a compiler; with "fetch", gets one. Sets rustc, version, std, linker and tools.
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

# cargo build, with the compiler that was chosen and these arguments, in the present directory.
component() {
    local std_flags=()
    if [ "$std" != rustup ]; then
        std_flags=(-Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size)
    fi
    (
        # Paths are trimmed so that the bytes are the same in every directory. Flags of the caller would change them.
        unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET RUSTC_WRAPPER
        RUSTC=$(command -v "$rustc") RUSTC_BOOTSTRAP=1 PATH=$tools/gcc-ld:$PATH \
            CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$tools/wasm-component-ld CARGO_PROFILE_RELEASE_TRIM_PATHS=all \
            cargo build --quiet --release -Ztrim-paths "${std_flags[@]}" --target "$triple" "$@"
    )
}
