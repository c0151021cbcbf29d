//! Recognises tools that change a shell's environment by directory, through a hook in the prompt or in `cd`.
//!
//! A hook is recognised by the text that the tool's documentation gives for start-up files. A user's own hook is
//! not recognised and needs `snapshot_scope = "directory"`.

use std::path::{Path, PathBuf};

/// A tool with a directory hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tool {
    pub name: &'static str,
    /// Texts in a start-up file that install the hook.
    marks: &'static [&'static str],
    /// Plugin of oh-my-zsh that installs the hook.
    plugin: Option<&'static str>,
    /// File below the home directory that installs the hook, and the line that does so.
    setting: Option<(&'static str, &'static str)>,
    /// Names of the files that the hook searches for in a directory and above.
    files: &'static [&'static str],
    /// Paths below the home directory where the tool records trusted directories.
    trust: &'static [&'static str],
}

const fn tool(name: &'static str, marks: &'static [&'static str], files: &'static [&'static str]) -> Tool {
    Tool { name, marks, plugin: None, setting: None, files, trust: &[] }
}

const MISE: &[&str] = &[
    "mise.toml",
    ".mise.toml",
    "mise.local.toml",
    ".mise.local.toml",
    "mise/config.toml",
    ".mise/config.toml",
    ".config/mise.toml",
    ".config/mise/config.toml",
    ".tool-versions",
];

pub(crate) const TOOLS: &[Tool] = &[
    // direnv.net/docs/hook.html; oh-my-zsh, plugins/direnv
    Tool {
        plugin: Some("direnv"),
        trust: &[".local/share/direnv/allow", ".local/share/direnv/deny"],
        ..tool("direnv", &["direnv hook", "_direnv_hook", "direnv export"], &[".envrc"])
    },
    // mise.jdx.dev/configuration.html and /getting-started.html
    Tool {
        plugin: Some("mise"),
        trust: &[".local/state/mise/trusted-configs"],
        ..tool("mise", &["mise activate", "_mise_hook", "mise hook-env"], MISE)
    },
    // github.com/nvm-sh/nvm, README "Calling nvm use automatically"
    tool("nvm", &["load-nvmrc", "nvm_find_nvmrc", "cdnvm", "nvm_auto_use"], &[".nvmrc"]),
    // github.com/Schniz/fnm, docs/configuration.md
    tool("fnm", &["--use-on-cd"], &[".node-version", ".nvmrc"]),
    // github.com/pyenv/pyenv-virtualenv, README "Activate virtualenv"
    tool("pyenv-virtualenv", &["pyenv virtualenv-init", "_pyenv_virtualenv_hook"], &[".python-version"]),
    // shopify.github.io/shadowenv/getting-started
    tool("shadowenv", &["shadowenv init", "__shadowenv_hook"], &[".shadowenv.d"]),
    // github.com/hyperupcall/autoenv, README
    tool("autoenv", &["autoenv/activate.sh", "autoenv/init.sh"], &[".autoenv", ".env"]),
    // github.com/Tarrasch/zsh-autoenv, README
    tool("zsh-autoenv", &["zsh-autoenv"], &[".autoenv.zsh"]),
    // github.com/postmodern/chruby, README "Auto-Switching"
    tool("chruby", &["chruby/auto.sh", "chruby_auto"], &[".ruby-version"]),
    // rvm.io/workflow/projects
    tool("rvm", &[".rvm/scripts/rvm", "rvm/scripts/rvm"], &[".rvmrc", ".ruby-version", ".versions.conf"]),
    // sdkman.io/usage, "Env Command"
    Tool { setting: Some((".sdkman/etc/config", "sdkman_auto_env=true")), ..tool("sdkman", &[], &[".sdkmanrc"]) },
    // github.com/ohmyzsh/ohmyzsh, plugins/dotenv
    Tool { plugin: Some("dotenv"), ..tool("dotenv", &["dotenv.plugin.zsh"], &[".env"]) },
    // github.com/MichaelAquilina/zsh-autoswitch-virtualenv, README
    Tool {
        plugin: Some("autoswitch_virtualenv"),
        ..tool("autoswitch-virtualenv", &["autoswitch_virtualenv"], &[".venv", "Pipfile", "poetry.lock"])
    },
    // github.com/chdoig/conda-auto-env, README
    tool("conda-auto-env", &["conda_auto_env", "conda-auto-env"], &["environment.yml", "environment.yaml"]),
];

impl Tool {
    /// Reports whether the text of a start-up file installs the hook. Comments are ignored.
    fn is_installed_by(&self, text: &str) -> bool {
        let is_marked = |mark: &&str| has(text, mark) && lines(text).any(|line| line.contains(*mark));
        self.marks.iter().any(is_marked)
            || self.plugin.is_some_and(|plugin| has(text, PLUGINS) && plugins(text).any(|word| word == plugin))
    }

    /// Reports whether the tool's own settings below the home directory install the hook.
    fn is_set(&self, home: &Path) -> bool {
        self.setting.is_some_and(|(file, line)| {
            std::fs::read_to_string(home.join(file)).is_ok_and(|text| lines(&text).any(|found| found == line))
        })
    }

    /// Returns the paths that the hook searches in `directory` and above, nearest first. Missing files are
    /// included.
    pub(crate) fn files_of<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        directory.ancestors().flat_map(|above| self.files.iter().map(move |file| above.join(file)))
    }

    /// Returns the paths where the tool records trusted directories.
    pub(crate) fn trust_of<'a>(&'a self, home: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        self.trust.iter().map(|below| home.join(below))
    }
}

/// Returns the tools whose hook the start-up files install. Reads the files, and the files of directories among
/// them. Blocks for as long as the file system does.
pub(crate) fn installed<'a>(home: &Path, start_up_files: impl IntoIterator<Item = &'a Path>) -> Vec<&'static Tool> {
    let texts: Vec<String> = start_up_files.into_iter().flat_map(texts).collect();
    let is_installed = |tool: &&Tool| texts.iter().any(|text| tool.is_installed_by(text)) || tool.is_set(home);
    TOOLS.iter().filter(is_installed).collect()
}

/// Maximum number of bytes of a start-up file that are searched.
const LONGEST: u64 = 1 << 20;

/// Returns the text of a file, or of each file in a directory.
fn texts(path: &Path) -> Vec<String> {
    use std::io::Read as _;
    let read = |path: &Path| {
        let file = std::fs::File::open(path).ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file()))?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    if path.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| read(&entry.path())).collect()
    } else {
        read(path).into_iter().collect()
    }
}

/// Reports whether the text has the word anywhere. Start-up files have thousands of lines and few of the words, so this
/// quick search comes before the search line by line.
fn has(text: &str, word: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), word.as_bytes()).is_some()
}

/// Returns the lines that are not comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.starts_with('#'))
}

/// Begin of the list of plugins in a start-up file of oh-my-zsh.
const PLUGINS: &str = "plugins=(";

/// Returns the words of `plugins=(...)`, as oh-my-zsh reads it.
fn plugins(text: &str) -> impl Iterator<Item = &str> {
    let list = text.split(PLUGINS).nth(1).and_then(|behind| behind.split(')').next()).unwrap_or_default();
    lines(list).flat_map(str::split_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&'static str> {
        TOOLS.iter().filter(|tool| tool.is_installed_by(text)).map(|tool| tool.name).collect()
    }

    #[test]
    fn a_hook_is_recognised_by_the_line_from_its_documentation() {
        for (text, expected) in [
            ("eval \"$(direnv hook bash)\"", &["direnv"][..]),
            ("direnv hook fish | source", &["direnv"]),
            ("  # eval \"$(direnv hook bash)\"\n", &[]),
            ("eval \"$(~/.local/bin/mise activate zsh)\"", &["mise"]),
            ("eval \"$(fnm env --use-on-cd --shell zsh)\"", &["fnm"]),
            ("add-zsh-hook chpwd load-nvmrc\nload-nvmrc\n", &["nvm"]),
            (". \"$NVM_DIR/nvm.sh\"", &[]),
            ("plugins=(git direnv\n  # mise\n  dotenv)\nsource $ZSH/oh-my-zsh.sh\n", &["direnv", "dotenv"]),
            ("source /usr/share/chruby/auto.sh", &["chruby"]),
            ("$env.config.hooks.pre_prompt = [{ || direnv export json | from json | load-env }]", &["direnv"]),
            ("export DIRENV_LOG_FORMAT=", &[]),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn files_are_looked_for_from_the_directory_upward() {
        let direnv = &TOOLS[0];
        let files: Vec<PathBuf> = direnv.files_of(Path::new("/home/kim/project")).collect();
        let expected = ["/home/kim/project/.envrc", "/home/kim/.envrc", "/home/.envrc", "/.envrc"];
        assert_eq!(files, expected.map(PathBuf::from));
    }

    #[test]
    fn start_up_files_and_directories_and_a_tools_own_settings_are_read() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        std::fs::create_dir_all(at("conf.d")).unwrap();
        std::fs::create_dir_all(at(".sdkman/etc")).unwrap();
        std::fs::write(at("conf.d/hook.fish"), "direnv hook fish | source\n").unwrap();
        std::fs::write(at(".sdkman/etc/config"), "sdkman_auto_answer=false\nsdkman_auto_env=true\n").unwrap();
        let files = [at(".bashrc"), at("conf.d")];
        let tools: Vec<_> = installed(home.path(), files.iter().map(PathBuf::as_path)).iter().map(|t| t.name).collect();
        assert_eq!(tools, ["direnv", "sdkman"]);
    }
}
