//! Makes stubs for the functions that a login shell's tools would define (`module`, `nvm`, `conda` …), for scripts
//! of every shell.
//!
//! `module` is a shell function. A login bash may export it, but zsh, fish and tcsh export no functions. They do
//! export the location of the tool: `MODULESHOME`, `NVM_DIR`, `CONDA_EXE`. From these variables and the usual
//! installation paths, a script receives a stub for each function.
//!
//! A stub reads the tool's own init file at its first call, so a script without a call pays nothing. A bash script
//! uses the login shell's exported function instead of a stub, if that function exists.
//!
//! The variables come from the user's login, never from a later step. No file below the session's directory is
//! used, so a repository cannot choose what runs as `module`. World-writable files are not used either.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use crate::login::capture::Variables;
use crate::login::shell::Shell;

/// Facts that are known before a script runs.
#[derive(Debug)]
pub(crate) struct StubContext<'a> {
    /// Variables of the login shell.
    pub(crate) login: &'a Variables,
    /// Variables that the script receives.
    pub(crate) given: &'a Variables,
    pub(crate) home: Option<&'a Path>,
    /// Directories whose files the user does not control: the session's directory and the script's working
    /// directory.
    pub(crate) foreign: [&'a Path; 2],
}

/// One tool: its functions and their definition.
struct Stub {
    names: &'static [&'static str],
    init: Init,
}

/// Source of a tool's function definitions.
enum Init {
    /// Files to source, with an argument for the last file if it takes an argument.
    Files(Vec<PathBuf>, &'static str),
    /// A program that prints the text to evaluate.
    Output(PathBuf, Vec<&'static str>),
}

/// Returns the definitions as text to put before the script. The text is empty without tools.
pub(crate) fn text(shell: Shell, program: &Path, known: &StubContext<'_>) -> String {
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let mut text = String::new();
    for stub in stubs(shell, name, known) {
        let exported = |name: &str| known.given.iter().any(|(given, _)| *given == format!("BASH_FUNC_{name}%%"));
        if shell == Shell::Bash && stub.names.iter().any(|name| exported(name)) {
            continue;
        }
        text.push_str(&stub.text(shell).unwrap_or_default());
    }
    if let (Shell::Fish, Some(functions)) = (shell, known.fish_functions()) {
        // The user's own functions, which fish reads at their first call.
        text.push_str(&["set -ga fish_function_path ", &shell.quote(&functions), "; "].concat());
    }
    text
}

/// Returns the stubs of the tools that exist for this shell.
fn stubs(shell: Shell, program: &str, known: &StubContext<'_>) -> Vec<Stub> {
    let all = [
        (&["module", "ml"][..], modules(shell, program, known)),
        (&["nvm"], nvm(shell, known)),
        (&["conda"], conda(shell, known)),
        (&["mamba"], mamba("mamba", shell, known)),
        (&["micromamba"], mamba("micromamba", shell, known)),
        (&["spack"], spack(shell, known)),
        (&["sdk"], known.posix_file(shell, "SDKMAN_DIR", ".sdkman", "bin/sdkman-init.sh", &[Shell::Bash, Shell::Zsh])),
        (&["rvm"], known.posix_file(shell, "rvm_path", ".rvm", "scripts/rvm", &[Shell::Bash, Shell::Zsh])),
        (&["asdf"], known.posix_file(shell, "ASDF_DIR", ".asdf", "asdf.sh", &[Shell::Bash, Shell::Zsh, Shell::Ksh])),
        (&["pyenv"], shims("PYENV_ROOT", ".pyenv", "bin/pyenv", shell, known)),
        (&["rbenv"], shims("RBENV_ROOT", ".rbenv", "bin/rbenv", shell, known)),
        (&["workon", "mkvirtualenv"], virtualenvwrapper(shell, known)),
    ];
    all.into_iter().filter_map(|(names, init)| Some(Stub { names, init: init? })).collect()
}

/// Finds the init file of Lmod or Environment Modules. They keep one file for each shell in one directory.
fn modules(shell: Shell, program: &str, known: &StubContext<'_>) -> Option<Init> {
    /// Usual installation directories of packages and vendors.
    const PLACES: [&str; 6] = [
        "/usr/share/lmod/lmod",
        "/usr/share/modules",
        "/usr/share/Modules",
        "/opt/modules/default",
        "/usr/local/Modules",
        "/usr/local/lmod/lmod",
    ];
    /// Files that a system's login bash reads.
    const PROFILES: [&str; 4] = ["lmod.sh", "z00_lmod.sh", "modules.sh", "z00-modules.sh"];
    let file = match shell {
        Shell::Bash => "bash",
        Shell::Zsh => "zsh",
        Shell::Ksh => "ksh",
        Shell::Posix => "sh",
        Shell::Fish => "fish",
        Shell::Csh if program.contains("tcsh") => "tcsh",
        Shell::Csh => "csh",
        Shell::Nu => return None,
    };
    let above = |path: PathBuf, levels: usize| path.ancestors().nth(levels).map(Path::to_owned);
    let named = [
        known.path("LMOD_PKG"),
        known.path("LMOD_DIR").and_then(|path| above(path, 1)),
        known.path("LMOD_CMD").and_then(|path| above(path, 2)),
        known.path("MODULESHOME"),
    ];
    let places = named.into_iter().flatten().chain(PLACES.map(PathBuf::from));
    let found = known.first(places.map(|place| place.join("init").join(file)));
    let profiles = || known.first(PROFILES.iter().map(|name| Path::new("/etc/profile.d").join(name)));
    let found = if is_posix(shell) { found.or_else(profiles) } else { found };
    found.map(|file| Init::Files(vec![file], ""))
}

fn nvm(shell: Shell, known: &StubContext<'_>) -> Option<Init> {
    if shell == Shell::Fish {
        // nvm.fish has a function file and a start-up file that sets its variables.
        let function = known.first([known.fish_functions()?.join("nvm.fish")])?;
        let start = known.first([known.config()?.join("fish/conf.d/nvm.fish")]);
        return Some(Init::Files(start.into_iter().chain([function]).collect(), ""));
    }
    let config = known.config().map(|config| config.join("nvm"));
    let places = [known.path("NVM_DIR"), known.at_home(".nvm"), config, Some("/usr/local/share/nvm".into())];
    let file = known.first(places.into_iter().flatten().map(|place| place.join("nvm.sh")))?;
    // Without the argument, nvm would select the default version and override the script's choice.
    is_posix(shell).then(|| Init::Files(vec![file], " --no-use"))
}

fn conda(shell: Shell, known: &StubContext<'_>) -> Option<Init> {
    const AT_HOME: [&str; 5] = ["miniconda3", "miniforge3", "mambaforge", "anaconda3", ".conda-root"];
    let program = known.path("CONDA_EXE");
    let root = program.as_deref().and_then(|program| program.ancestors().nth(2)).map(Path::to_owned);
    let usual = AT_HOME.iter().filter_map(|name| known.at_home(name)).chain([PathBuf::from("/opt/conda")]);
    let file = match shell {
        Shell::Fish => "etc/fish/conf.d/conda.fish",
        Shell::Csh => "etc/profile.d/conda.csh",
        Shell::Nu => return None,
        _ => "etc/profile.d/conda.sh",
    };
    let found = known.first(root.into_iter().chain(usual).map(|root| root.join(file)));
    let hook = || {
        let word = match shell {
            Shell::Bash => "shell.bash",
            Shell::Zsh => "shell.zsh",
            Shell::Fish => "shell.fish",
            Shell::Ksh | Shell::Posix => "shell.posix",
            Shell::Csh | Shell::Nu => return None,
        };
        Some(Init::Output(known.first(program)?, vec![word, "hook"]))
    };
    found.map(|file| Init::Files(vec![file], "")).or_else(hook)
}

/// Finds mamba or micromamba, if `MAMBA_EXE` or the login's `PATH` names the program.
fn mamba(name: &str, shell: Shell, known: &StubContext<'_>) -> Option<Init> {
    let word = match shell {
        Shell::Bash => "bash",
        Shell::Zsh => "zsh",
        Shell::Fish => "fish",
        Shell::Ksh | Shell::Posix => "posix",
        Shell::Csh | Shell::Nu => return None,
    };
    let named = known.path("MAMBA_EXE").filter(|program| program.file_name() == Some(OsStr::new(name)));
    let program = known.first(named).or_else(|| known.first(known.in_path(name)))?;
    Some(Init::Output(program, vec!["shell", "hook", "--shell", word]))
}

fn spack(shell: Shell, known: &StubContext<'_>) -> Option<Init> {
    let file = match shell {
        Shell::Bash | Shell::Zsh | Shell::Posix => "setup-env.sh",
        Shell::Fish => "setup-env.fish",
        Shell::Csh => "setup-env.csh",
        Shell::Ksh | Shell::Nu => return None,
    };
    let places = [known.path("SPACK_ROOT"), known.at_home("spack")];
    let found = known.first(places.into_iter().flatten().map(|root| root.join("share/spack").join(file)))?;
    Some(Init::Files(vec![found], ""))
}

/// Finds pyenv or rbenv, which define a function that selects the version for one shell.
fn shims(variable: &str, usual: &str, program: &str, shell: Shell, known: &StubContext<'_>) -> Option<Init> {
    let word = match shell {
        Shell::Bash => "bash",
        Shell::Zsh => "zsh",
        Shell::Fish => "fish",
        Shell::Ksh => "ksh",
        Shell::Posix | Shell::Csh | Shell::Nu => return None,
    };
    let places = [known.path(variable), known.at_home(usual)];
    let program = known.first(places.into_iter().flatten().map(|root| root.join(program)))?;
    // A rehash may wait for a lock that a killed shell left.
    Some(Init::Output(program, vec!["init", "-", "--no-rehash", word]))
}

fn virtualenvwrapper(shell: Shell, known: &StubContext<'_>) -> Option<Init> {
    if !matches!(shell, Shell::Bash | Shell::Zsh | Shell::Ksh) {
        return None;
    }
    let usual = ["/usr/share/virtualenvwrapper", "/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    let usual = usual.into_iter().chain(known.at_home(".local/bin")).map(|place| place.join("virtualenvwrapper.sh"));
    let file = known.first(known.path("VIRTUALENVWRAPPER_SCRIPT").into_iter().chain(usual))?;
    Some(Init::Files(vec![file], ""))
}

fn is_posix(shell: Shell) -> bool {
    matches!(shell, Shell::Bash | Shell::Zsh | Shell::Ksh | Shell::Posix)
}

impl StubContext<'_> {
    /// Returns a variable of the login that is an absolute path without `..`.
    fn path(&self, name: &str) -> Option<PathBuf> {
        let (_, value) = self.login.iter().find(|(known, _)| known == name)?;
        let path = Path::new(OsStr::from_bytes(value));
        let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
        is_plain.then(|| path.to_owned())
    }

    fn at_home(&self, name: &str) -> Option<PathBuf> {
        Some(self.home?.join(name))
    }

    fn config(&self) -> Option<PathBuf> {
        self.path("XDG_CONFIG_HOME").or_else(|| self.at_home(".config"))
    }

    fn fish_functions(&self) -> Option<PathBuf> {
        let functions = self.config()?.join("fish/functions");
        (functions.is_dir() && !self.is_foreign(&functions)).then_some(functions)
    }

    /// Returns the candidate paths of a program in the login's `PATH`.
    fn in_path(&self, program: &str) -> Vec<PathBuf> {
        let path = self.login.iter().find(|(name, _)| name == "PATH").map(|(_, value)| OsStr::from_bytes(value));
        let entries = path.into_iter().flat_map(std::env::split_paths).filter(|entry| entry.is_absolute());
        entries.map(|entry| entry.join(program)).collect()
    }

    /// Finds a tool with one init file for these shells, in the directory that a variable names or in the usual
    /// directory.
    fn posix_file(&self, shell: Shell, variable: &str, usual: &str, file: &str, shells: &[Shell]) -> Option<Init> {
        if !shells.contains(&shell) {
            return None;
        }
        let places = [self.path(variable), self.at_home(usual)];
        let found = self.first(places.into_iter().flatten().map(|root| root.join(file)))?;
        Some(Init::Files(vec![found], ""))
    }

    /// Returns the first regular file that is neither world-writable nor foreign.
    fn first(&self, files: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
        files.into_iter().find(|file| {
            let metadata = file.metadata().ok();
            metadata.is_some_and(|metadata| metadata.is_file() && metadata.mode() & 0o002 == 0)
                && !self.is_foreign(file)
        })
    }

    /// Reports whether the resolved file is in one of the session's directories. A directory that contains the home
    /// directory is the user's own.
    fn is_foreign(&self, file: &Path) -> bool {
        let Ok(file) = file.canonicalize() else { return true };
        let home = self.home.and_then(|home| home.canonicalize().ok());
        self.foreign.iter().any(|directory| {
            let Ok(directory) = directory.canonicalize() else { return true };
            file.starts_with(&directory) && !home.as_ref().is_some_and(|home| home.starts_with(&directory))
        })
    }
}

impl Stub {
    /// Returns the definition, or `None` if the shell does not support it.
    pub(crate) fn text(&self, shell: Shell) -> Option<String> {
        let names = self.names;
        let of_each = |one: &dyn Fn(&str) -> String| names.iter().map(|name| one(name)).collect::<String>();
        let quoted = |words: &[&str]| words.iter().flat_map(|word| [" ", word]).collect::<String>();
        let init = match (&self.init, shell) {
            (_, Shell::Nu) | (Init::Output(..), Shell::Csh) => return None,
            (Init::Files(files, argument), Shell::Bash | Shell::Zsh | Shell::Ksh | Shell::Posix) => {
                let all: Vec<String> = files.iter().map(|file| format!(". {}{argument}", shell.quote(file))).collect();
                all.join("; ")
            }
            (Init::Files(files, _), Shell::Fish | Shell::Csh) => {
                let all: Vec<String> = files.iter().map(|file| format!("source {}", shell.quote(file))).collect();
                all.join("; ")
            }
            (Init::Output(program, words), Shell::Fish) => {
                format!("{}{} | source", shell.quote(program), quoted(words))
            }
            (Init::Output(program, words), _) => format!("eval \"$({}{})\"", shell.quote(program), quoted(words)),
        };
        Some(match shell {
            Shell::Fish => {
                let all = names.join(" ");
                of_each(&|name| format!("function {name}; functions -e {all}; {init}; {name} $argv; end; "))
            }
            Shell::Csh => {
                // Nested quotes in a csh alias are unreliable.
                let Init::Files(files, _) = &self.init else { return None };
                if !files.iter().all(|file| is_plain(file)) {
                    return None;
                }
                let plain: String = files
                    .iter()
                    .flat_map(|file| ["source ".to_owned(), file.display().to_string(), "; ".to_owned()])
                    .collect();
                let forget = of_each(&|name| format!("unalias {name}; "));
                of_each(&|name| format!("alias {name} '{forget}{plain}eval {name} \\!*:q'\n"))
            }
            // When a running ksh function returns, ksh removes the new function of the same name. If the init file
            // defines no such function, the stub calls itself and reports the missing function.
            Shell::Ksh => of_each(&|name| {
                let missing = format!("echo '{name}: not found' >&2; return 127");
                format!(
                    "{name}() {{ case ${{__agentd_{name}-}} in 1) {missing};; esac; __agentd_{name}=1; {init}; \
                     {name} \"$@\"; set -- $?; unset __agentd_{name}; return $1; }}\n"
                )
            }),
            _ => {
                let forget = of_each(&|name| format!("unset -f {name} 2>/dev/null || :; "));
                of_each(&|name| format!("{name}() {{ {forget}{init}; {name} \"$@\"; }}\n"))
            }
        })
    }
}

fn is_plain(path: &Path) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._+-@=".contains(byte);
    path.as_os_str().as_bytes().iter().all(fits)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A home, a project and a directory with tools.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            let place = Self(tempfile::tempdir().unwrap());
            for name in ["home", "work"] {
                fs::create_dir(place.at(name)).unwrap();
            }
            place
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(name)
        }

        fn file(&self, name: &str) -> PathBuf {
            let file = self.at(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            file
        }

        /// Returns the stubs for a script in `work`, with these variables of the login and of the step before.
        fn text(&self, shell: Shell, login: &[(&str, PathBuf)], given: &[(&str, PathBuf)]) -> String {
            let variables = |list: &[(&str, PathBuf)]| -> Variables {
                list.iter().map(|(name, value)| ((*name).to_owned(), value.as_os_str().as_bytes().to_vec())).collect()
            };
            let (home, work) = (self.at("home"), self.at("work"));
            let (login, given) = (variables(login), variables(given));
            let known = StubContext { login: &login, given: &given, home: Some(&home), foreign: [&work, &work] };
            text(shell, Path::new("/bin/tcsh"), &known)
        }
    }

    #[test]
    fn a_stub_reads_the_init_file_of_its_shell_from_where_the_login_says() {
        let place = Place::new();
        for file in ["bash", "zsh", "ksh", "sh", "fish", "tcsh"] {
            place.file(&format!("lmod/init/{file}"));
        }
        let init = |file: &str| place.at("lmod/init").join(file).display().to_string();
        for variables in [
            [("LMOD_PKG", place.at("lmod"))],
            [("MODULESHOME", place.at("lmod"))],
            [("LMOD_DIR", place.at("lmod/libexec"))],
            [("LMOD_CMD", place.at("lmod/libexec/lmod"))],
        ] {
            for (shell, file) in [
                (Shell::Bash, "bash"),
                (Shell::Zsh, "zsh"),
                (Shell::Ksh, "ksh"),
                (Shell::Posix, "sh"),
                (Shell::Fish, "fish"),
                (Shell::Csh, "tcsh"),
            ] {
                let text = place.text(shell, &variables, &[]);
                // csh has no stub for a path that needs quotes, and a temporary directory may have a blank in its name.
                let expected = if shell == Shell::Csh && !is_plain(&place.at("lmod")) { 0 } else { 2 };
                assert_eq!(text.matches(&init(file)).count(), expected, "module and ml: {shell:?} {text}");
            }
            assert_eq!(place.text(Shell::Nu, &variables, &[]), "");
        }
    }

    #[test]
    fn later_steps_projects_and_world_writable_files_choose_no_init_file() {
        let place = Place::new();
        let (own, project) = (place.file("nvm/nvm.sh"), place.file("work/nvm/nvm.sh"));
        let bash = |login: &str, given: &str| {
            place.text(Shell::Bash, &[("NVM_DIR", place.at(login))], &[("NVM_DIR", place.at(given))])
        };
        assert!(bash("nvm", "work/nvm").contains(&format!("'{}' --no-use", own.display())));
        assert!(!bash("work/nvm", "nvm").contains(&project.display().to_string()));
        std::os::unix::fs::symlink(place.at("work/nvm"), place.at("linked")).unwrap();
        assert!(!bash("linked", "nvm").contains("nvm()"), "a link into the project");
        fs::set_permissions(&own, Permissions::from_mode(0o666)).unwrap();
        assert!(!bash("nvm", "nvm").contains("nvm()"));
        assert!(!bash("nvm/../nvm", "nvm").contains("nvm()"));
        place.file("home/.nvm/nvm.sh");
        assert!(bash("nvm", "nvm").contains("nvm()"), "the usual place in the home");
    }

    #[test]
    fn an_exported_bash_function_takes_precedence_over_a_stub() {
        let place = Place::new();
        place.file("m/init/bash");
        place.file("m/init/zsh");
        let (login, given) = ([("MODULESHOME", place.at("m"))], [("BASH_FUNC_module%%", PathBuf::from("() { :; }"))]);
        assert!(!place.text(Shell::Bash, &login, &given).contains("module()"));
        assert!(place.text(Shell::Zsh, &login, &given).contains("module()"));
    }

    #[test]
    fn other_tools_are_found_by_their_variables() {
        let place = Place::new();
        let conda = place.file("conda/bin/conda");
        let login = [("CONDA_EXE", conda), ("MAMBA_EXE", place.file("micromamba")), ("SPACK_ROOT", place.at("spack"))];
        place.file("spack/share/spack/setup-env.sh");
        place.file("home/.sdkman/bin/sdkman-init.sh");
        let text = place.text(Shell::Bash, &login, &[]);
        for words in
            ["conda' shell.bash hook)\"", "micromamba' shell hook --shell bash)\"", "setup-env.sh'; spack", "sdk()"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        for (shell, defined) in [(Shell::Bash, 2), (Shell::Zsh, 2), (Shell::Posix, 0), (Shell::Fish, 0)] {
            let login = [("VIRTUALENVWRAPPER_SCRIPT", place.file("virtualenvwrapper.sh"))];
            assert_eq!(place.text(shell, &login, &[]).matches("virtualenvwrapper.sh'").count(), defined, "{shell:?}");
        }
        place.file("home/.rbenv/bin/rbenv");
        assert!(place.text(Shell::Bash, &[], &[]).contains("rbenv' init - --no-rehash bash)\"; rbenv"));
        place.file("conda/etc/profile.d/conda.sh");
        assert!(place.text(Shell::Zsh, &login, &[]).contains("etc/profile.d/conda.sh'; conda"));
        let fish = place.text(Shell::Fish, &login, &[]);
        assert!(fish.contains("micromamba' shell hook --shell fish | source; micromamba $argv; end"), "{fish}");
    }
}
