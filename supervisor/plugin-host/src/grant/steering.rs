//! Names of variables that make a program load or run something. Setting such a variable runs code in the
//! program that reads it.
//!
//! A grant covers such a variable only by its exact name and never by a pattern. Values that a plugin wrote to
//! such variables never reach programs that the daemon itself runs. New names may be added freely. Before you
//! remove one, check the source that its group names.
//!
//! `PATH` and `HOME` are included, because they determine which programs and start-up files are found.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Names separated by spaces, and their effect. A `*` at the beginning or end of a name matches any text.
struct Group {
    does: &'static str,
    names: &'static str,
}

impl Group {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split_ascii_whitespace()
    }
}

const GROUPS: &[Group] = &[
    // ld.so(8); dyld(1); glibc's list of what set-user-id programs ignore (sysdeps/generic/unsecvars.h).
    Group {
        does: "the dynamic loader and the C library load files from it",
        names: "LD_* DYLD_* _RLD* GCONV_PATH GETCONF_DIR GLIBC_TUNABLES HOSTALIASES LOCALDOMAIN LOCPATH \
            MALLOC_* NIS_PATH NLSPATH RESOLV_HOST_CONF RES_OPTIONS TZDIR",
    },
    // openssl-env(7), krb5.conf(5), GTK "Running GTK applications", Qt "Deploying plugins", GIO overview, p11-kit(8).
    Group {
        does: "libraries load modules from it",
        names: "OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES KRB5_CONFIG GSS_MECH_CONFIG SASL_PATH \
            GTK_MODULES GTK3_MODULES GTK_PATH GIO_MODULE_DIR GIO_EXTRA_MODULES QT_PLUGIN_PATH \
            QT_QPA_PLATFORM_PLUGIN_PATH LIBGL_DRIVERS_PATH VK_ADD_LAYER_PATH VK_LAYER_PATH \
            OCL_ICD_VENDORS",
    },
    // execvp(3); XDG Base Directory Specification; environ(7).
    Group {
        does: "it determines which programs and start-up files are found",
        names: "PATH HOME SHELL XDG_CONFIG_* XDG_DATA_* MANPATH",
    },
    // bash(1) "Shell Variables" and "Invocation", zshparam(1), ksh(1), dash(1), readline(3), fish(1).
    Group {
        does: "shells run or read it",
        names: "BASH_* BASHOPTS SHELLOPTS ENV IFS PS0 PS1 PS2 PS3 PS4 PROMPT PROMPT_COMMAND RPROMPT \
            ZDOTDIR FPATH MODULE_PATH CDPATH INPUTRC EXECIGNORE GLOBIGNORE HISTFILE FCEDIT MAILPATH \
            ZSH_* fish_* __fish_*",
    },
    // python(1), perlrun(1), ruby(1), bundle-config(1), node(1), npm config.
    Group {
        does: "an interpreter loads code from it",
        names: "PYTHON* PERL5* PERLLIB RUBYOPT RUBYLIB RUBYSHELL GEM_HOME GEM_PATH BUNDLE_* NODE_* \
            NPM_CONFIG_* npm_config_* PHPRC PHP_INI_SCAN_DIR LUA_INIT* LUA_PATH* LUA_CPATH* \
            R_PROFILE* R_ENVIRON* R_LIBS* TCLLIBPATH TCL_LIBRARY TCLRC* JULIA_LOAD_PATH \
            JULIA_DEPOT_PATH CAML_LD_LIBRARY_PATH ERL_* ELIXIR_ERL_OPTIONS GUILE_* AWKPATH \
            AWKLIBPATH",
    },
    // JDK tool specifications "java", mvn and gradle documentation, .NET runtime configuration and profiling.
    Group {
        does: "a virtual machine loads code from it",
        names: "JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS JAVA_OPTS CLASSPATH MAVEN_OPTS \
            MAVEN_ARGS GRADLE_OPTS ANT_OPTS ANT_ARGS SBT_OPTS KOTLIN_* SCALA_* DOTNET_* CORECLR_* \
            COR_*",
    },
    // make(1), gcc(1), cargo "Environment Variables", go help environment.
    Group {
        does: "a build tool runs programs from it",
        names: "MAKEFLAGS GNUMAKEFLAGS MAKEFILES GCC_EXEC_PREFIX COMPILER_PATH RUSTC RUSTC_* RUSTDOC \
            RUSTFLAGS RUSTDOCFLAGS CARGO CARGO_* GOFLAGS GOENV GOTOOLCHAIN CMAKE_*",
    },
    // git(1) and git-config(1), ssh(1), sudo(8), svn, hg(1), rsync(1), curl(1), wget(1).
    Group {
        does: "git and other network tools run programs from it",
        names: "GIT_* SSH_ASKPASS* SUDO_ASKPASS SVN_SSH CVS_RSH RSYNC_* HGRCPATH HG* CURL_HOME WGETRC \
            SYSTEM_WGETRC",
    },
    // kubectl "client-go credential plugins", AWS CLI "credential_process", docker "credential helpers".
    Group {
        does: "its file names programs that are run",
        names: "KUBECONFIG AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE DOCKER_CONFIG",
    },
    // POSIX "Environment Variables", less(1), man(1), vim starting.txt, emacs, sensible-browser(1),
    // modulecmd's MODULES_PAGER.
    Group {
        does: "it names an editor, a pager or a browser to run",
        names: "*EDITOR VISUAL *PAGER *BROWSER LESS* MORE MANOPT MANROFFOPT GROFF_* VIM* MYVIMRC EXINIT \
            GVIMINIT NVIM_* EMACSLOADPATH",
    },
    Group { does: "agentd's own programs read the socket and directories from it", names: "AGENTD_*" },
];

/// The patterns of [`GROUPS`] in a form that is searched quickly: a build asks about each of its variables. Each
/// pattern comes with the number of its group.
struct Table {
    exact: HashMap<&'static str, usize>,
    /// Patterns that end with a star, by the first byte of their text, without the star.
    prefixes: HashMap<u8, Vec<(&'static str, usize)>>,
    /// Patterns that begin with a star, without the star.
    suffixes: Vec<(&'static str, usize)>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table { exact: HashMap::new(), prefixes: HashMap::new(), suffixes: Vec::new() };
    let all = GROUPS.iter().enumerate().flat_map(|(number, group)| group.names().map(move |name| (name, number)));
    for (pattern, number) in all {
        match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(suffix), _) => table.suffixes.push((suffix, number)),
            (None, Some(prefix)) => {
                let first = prefix.as_bytes().first().copied().unwrap_or_default();
                table.prefixes.entry(first).or_default().push((prefix, number));
            }
            (None, None) => {
                table.exact.entry(pattern).or_insert(number);
            }
        }
    }
    table
});

/// Returns what programs do with a variable of this name, if it makes them load or run something. If several groups
/// have the name, the first one counts.
pub fn steers(name: &str) -> Option<&'static str> {
    let Table { exact, prefixes, suffixes } = &*TABLE;
    let exact = exact.get(name).copied();
    let begins = name.as_bytes().first().and_then(|first| prefixes.get(first)).into_iter().flatten();
    let begins = begins.filter(|(prefix, _)| name.starts_with(prefix));
    let ends = suffixes.iter().filter(|(suffix, _)| name.ends_with(suffix));
    let number = exact.into_iter().chain(begins.chain(ends).map(|(_, number)| *number)).min();
    number.map(|number| GROUPS[number].does)
}

/// Reports whether a plugin's value of this variable is withheld from programs that the daemon itself runs.
///
/// `PATH` is not withheld, because the user's scripts must find the programs that a plugin was granted to add.
pub fn is_withheld(name: &str) -> bool {
    name != "PATH" && steers(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_load_or_run_by_is_known_and_ordinary_names_are_not() {
        let steering = "LD_PRELOAD GCONV_PATH BASH_ENV ENV BASH_FUNC_ls%% SHELLOPTS PS4 PROMPT_COMMAND ZDOTDIR IFS \
            PYTHONSTARTUP PYTHONPATH PERL5OPT PERL5LIB RUBYOPT NODE_OPTIONS JAVA_TOOL_OPTIONS \
            _JAVA_OPTIONS JDK_JAVA_OPTIONS GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_SSH_COMMAND \
            GIT_EXTERNAL_DIFF GIT_TRACE EDITOR GIT_EDITOR VISUAL PAGER MANPAGER MODULES_PAGER LESSOPEN \
            PATH HOME XDG_CONFIG_HOME";
        for name in steering.split_ascii_whitespace() {
            assert!(steers(name).is_some(), "{name}");
        }
        for name in ["LM_LICENSE_FILE", "LANG", "LC_ALL", "TMPDIR", "CC", "ACME_CONFIG", "TERM", "XPATH", "PATHS", ""] {
            assert_eq!(steers(name), None, "{name}");
        }
    }

    #[test]
    fn the_table_gives_the_first_group_with_a_matching_pattern() {
        let by_patterns = |name: &str| {
            let has = |group: &&Group| group.names().any(|pattern| agentd_glob::matches(pattern, name));
            GROUPS.iter().find(has).map(|group| group.does)
        };
        let ends = ["", "X", "_EDITOR"];
        let names = GROUPS.iter().flat_map(Group::names).map(|pattern| pattern.replace('*', ""));
        for name in names.flat_map(|name| ends.map(|end| format!("{name}{end}"))) {
            for name in [name.clone(), format!("A{name}")] {
                assert_eq!(steers(&name), by_patterns(&name), "{name}");
            }
        }
    }

    #[test]
    fn a_pattern_of_the_table_is_a_name_with_a_star_at_one_end_at_most() {
        for pattern in GROUPS.iter().flat_map(Group::names) {
            let stars = pattern.matches('*').count();
            assert!(stars <= 1 && pattern.len() > stars + 1, "{pattern}");
            assert!(stars == 0 || pattern.starts_with('*') || pattern.ends_with('*'), "{pattern}");
        }
    }
}
