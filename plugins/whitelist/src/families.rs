//! The families of variables that toolchains need: the data of `families/*.toml`, one file a family, kept or dropped as a whole.

#[cfg(test)]
mod generate;
#[rustfmt::skip]
mod table;

use agentd_plugin_sdk::Failure;
use agentd_plugin_sdk::pattern::matches;

pub(crate) use table::FAMILIES;

/// A family: the variables of one kind of tools.
pub(crate) struct Family {
    /// The name of its file.
    pub(crate) id: &'static str,
    /// Exact names, in order.
    pub(crate) names: &'static [&'static str],
    pub(crate) patterns: &'static [&'static str],
    /// Names of which the value may be a URL with a password in it.
    pub(crate) passwords: &'static [&'static str],
    /// Patterns of what says that something is loaded. It is kept only together with what was loaded.
    pub(crate) state: &'static [&'static str],
    /// Names of what loading sets. One of them that is dropped takes the state with it.
    pub(crate) state_with: &'static [&'static str],
}

impl Family {
    /// Whether a variable of this name is one of the family's, by name or by pattern.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.binary_search(&name).is_ok()
            || self.patterns.iter().chain(self.state).any(|pattern| matches(pattern, name))
    }
}

/// The families that are kept: all, or those that `only` names, without those that `without` names.
pub(crate) fn chosen(only: Option<&[String]>, without: &[String]) -> Result<Vec<&'static Family>, Failure> {
    known("families", only.unwrap_or_default())?;
    known("without", without)?;
    let is_chosen = |family: &&Family| {
        only.is_none_or(|only| only.iter().any(|id| id == family.id)) && !without.iter().any(|id| id == family.id)
    };
    Ok(FAMILIES.iter().filter(is_chosen).collect())
}

/// Refuses a name that no family has, with those that there are.
fn known(setting: &str, ids: &[String]) -> Result<(), Failure> {
    let Some(unknown) = ids.iter().find(|id| FAMILIES.iter().all(|family| family.id != id.as_str())) else {
        return Ok(());
    };
    let known: Vec<&str> = FAMILIES.iter().map(|family| family.id).collect();
    let message = format!("there is no family {unknown:?}; the families are {}", known.join(", "));
    Err(Failure::configuration(setting, message))
}

/// Whether a variable is named after one of the modules that `LOADEDMODULES` lists: `ACME_HOME` after `acme/1.2`. Its module set it.
pub(crate) fn is_of_loaded_module(loaded: &[u8], name: &str) -> bool {
    let modules = std::str::from_utf8(loaded).unwrap_or_default().split(':');
    let parts = modules.flat_map(|module| module.split('/'));
    parts.filter(|part| part.len() > 1 && part.starts_with(|c: char| c.is_ascii_alphabetic())).any(|part| {
        let Some((beginning, rest)) = name.as_bytes().split_at_checked(part.len()) else { return false };
        let is_it = |(letter, of_part): (&u8, u8)| {
            letter.eq_ignore_ascii_case(&if of_part.is_ascii_alphanumeric() { of_part } else { b'_' })
        };
        beginning.iter().zip(part.bytes()).all(is_it) && matches!(rest, b"" | b"HOME" | b"ROOT" | b"DIR" | [b'_', ..])
    })
}

/// Names that make every program of a kind run something. No family has one, and being named after a module makes none a module's.
pub(crate) const RUNS_CODE: &[&str] = &[
    "BASH_ENV",
    "ENV",
    "GIT_ASKPASS",
    "GIT_EXTERNAL_DIFF",
    "GIT_PROXY_COMMAND",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "LD_AUDIT",
    "LD_PRELOAD",
    "LESSOPEN",
    "NODE_OPTIONS",
    "PERL5OPT",
    "PROMPT_COMMAND",
    "PYTHONSTARTUP",
    "RUBYOPT",
    "SHELLOPTS",
];

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_plugin_sdk::pattern::is_pattern;
    use agentd_plugin_sdk::secret_names::is_secret_name;

    #[test]
    fn a_name_is_a_name_and_a_pattern_begins_or_ends_with_text_enough() {
        for family in FAMILIES {
            assert!(!family.names.is_empty(), "{}", family.id);
            for name in family.names.iter().chain(family.state_with) {
                assert!(!is_pattern(name) && !name.contains(['=', ' ']), "{}: {name}", family.id);
            }
            for pattern in family.patterns {
                assert!(is_pattern(pattern), "{}: {pattern} is a name", family.id);
                assert!(pattern.replace('*', "").len() >= 3, "{}: {pattern} says too little", family.id);
            }
            for name in family.passwords {
                assert!(family.names.contains(name), "{}: {name} is no name of it", family.id);
            }
        }
    }

    #[test]
    fn nothing_in_a_family_looks_like_a_secret_or_puts_code_into_every_program() {
        for family in FAMILIES {
            for name in family.names {
                assert!(!is_secret_name(name), "{}: {name}", family.id);
            }
            for name in RUNS_CODE {
                assert!(!family.has(name), "{}: {name}", family.id);
            }
        }
    }

    #[test]
    fn there_are_many_names_and_each_that_people_missed_is_among_them() {
        let count: usize = FAMILIES.iter().map(|family| family.names.len() + family.patterns.len()).sum();
        assert!(count >= 250, "{count}");
        let missed = "JAVA_HOME LD_LIBRARY_PATH CUDA_HOME KUBECONFIG CC PKG_CONFIG_PATH CONDA_PREFIX NIX_PATH ROS_DISTRO \
            ANDROID_HOME LM_LICENSE_FILE XILINXD_LICENSE_FILE SNPSLMD_LICENSE_FILE ACME_LICENSE_FILE CDS_INST_DIR \
            SLURM_CONF AMENT_PREFIX_PATH DOCKER_HOST AWS_PROFILE AWS_REGION AWS_CA_BUNDLE PIP_CERT CARGO_HTTP_CAINFO \
            DENO_CERT DO_NOT_TRACK DOTNET_CLI_TELEMETRY_OPTOUT DISABLE_AUTOUPDATER LOADEDMODULES _LMFILES_ MODULEPATH \
            CPATH PIP_INDEX_URL npm_config_registry GOPROXY";
        for name in missed.split_ascii_whitespace() {
            assert!(FAMILIES.iter().any(|family| family.has(name)), "{name}");
        }
    }

    #[test]
    fn a_family_is_left_out_by_its_name_and_a_name_that_is_none_is_refused_with_those_that_are() {
        let own = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<Vec<_>>();
        let ids = |only: Option<&[&str]>, without: &[&str]| -> Result<Vec<&str>, Failure> {
            let (only, without) = (only.map(own), own(without));
            Ok(chosen(only.as_deref(), &without)?.iter().map(|family| family.id).collect())
        };
        assert_eq!(ids(None, &["cloud"]).unwrap().len(), FAMILIES.len() - 1);
        assert_eq!(ids(Some(&["gpu", "cloud"]), &["cloud"]).unwrap(), ["gpu"]);
        assert_eq!(ids(Some(&[]), &[]).unwrap(), [""; 0]);
        for (only, without, setting) in [(None, "clowd", "without"), (Some(&["clowd"][..]), "cloud", "families")] {
            let Err(Failure::Configuration(error)) = ids(only, &[without]) else { panic!("{setting}") };
            assert_eq!(error.key, setting);
            assert!(error.message.contains("\"clowd\"") && error.message.contains("cloud, "), "{}", error.message);
        }
    }

    #[test]
    fn a_variable_that_is_named_after_a_loaded_module_is_its_modules() {
        let is_of = |name: &str| is_of_loaded_module(b"compilers/gcc/13.2:acme-tool/1.2:x/1", name);
        for name in ["GCC_HOME", "GCC", "ACME_TOOL_HOME", "acme_tool_dir", "GCCROOT", "COMPILERS_ROOT"] {
            assert!(is_of(name), "{name}");
        }
        for name in ["GCCX", "ACME_HOME", "X_HOME", "PATH", "13_HOME", "_HOME"] {
            assert!(!is_of(name), "{name}");
        }
        assert!(!is_of_loaded_module(b"", "_HOME"));
    }
}
