//! The families of variables that toolchains need, from `families/*.toml`. Each file is one family, which is
//! kept or dropped as a whole.

#[cfg(test)]
mod generate;
#[rustfmt::skip]
mod table;

use agentd_plugin_sdk::Failure;
use agentd_plugin_sdk::pattern::matches;

pub(crate) use table::FAMILIES;

/// A family: the variables of one kind of tools.
pub(crate) struct Family {
    /// Name of the family's file without its extension.
    pub(crate) id: &'static str,
    /// Exact names, sorted.
    pub(crate) names: &'static [&'static str],
    /// Patterns of names.
    pub(crate) patterns: &'static [&'static str],
    /// Names whose value may be a URL with a password.
    pub(crate) passwords: &'static [&'static str],
    /// Patterns of variables that say that a module is loaded. They are kept only together with the variables
    /// that the module set.
    pub(crate) state: &'static [&'static str],
    /// Names of variables that loading a module sets. If one of them is dropped, the variables of `state` are
    /// dropped too.
    pub(crate) state_with: &'static [&'static str],
}

impl Family {
    /// Reports whether the family contains the variable, by name or by pattern.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.binary_search(&name).is_ok()
            || self.patterns.iter().chain(self.state).any(|pattern| matches(pattern, name))
    }
}

/// Returns the families to keep: all or those in `only`, except those in `without`.
pub(crate) fn chosen(only: Option<&[String]>, without: &[String]) -> Result<Vec<&'static Family>, Failure> {
    known("families", only.unwrap_or_default())?;
    known("without", without)?;
    let is_chosen = |family: &&Family| {
        only.is_none_or(|only| only.iter().any(|id| id == family.id)) && !without.iter().any(|id| id == family.id)
    };
    Ok(FAMILIES.iter().filter(is_chosen).collect())
}

/// Checks that every id is a family. The failure lists the families.
fn known(setting: &str, ids: &[String]) -> Result<(), Failure> {
    let Some(unknown) = ids.iter().find(|id| FAMILIES.iter().all(|family| family.id != id.as_str())) else {
        return Ok(());
    };
    let known: Vec<&str> = FAMILIES.iter().map(|family| family.id).collect();
    let message = format!("unknown family {unknown:?}; known families: {}", known.join(", "));
    Err(Failure::configuration(setting, message))
}

/// Reports whether a variable is named after a module in `LOADEDMODULES` (`ACME_HOME` after `acme/1.2`), so
/// that the module probably set it.
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

/// Variables that make all programs of a kind run code. No family contains them, and a module's name does not
/// make them a module's variables.
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
        let missed = "JAVA_HOME LD_LIBRARY_PATH CUDA_HOME KUBECONFIG CC PKG_CONFIG_PATH CONDA_PREFIX NIX_PATH \
            ROS_DISTRO \
            ANDROID_HOME LM_LICENSE_FILE XILINXD_LICENSE_FILE SNPSLMD_LICENSE_FILE ACME_LICENSE_FILE CDS_INST_DIR \
            SLURM_CONF AMENT_PREFIX_PATH DOCKER_HOST AWS_PROFILE AWS_REGION AWS_CA_BUNDLE PIP_CERT CARGO_HTTP_CAINFO \
            DENO_CERT DO_NOT_TRACK DOTNET_CLI_TELEMETRY_OPTOUT DISABLE_AUTOUPDATER LOADEDMODULES _LMFILES_ MODULEPATH \
            CPATH PIP_INDEX_URL npm_config_registry GOPROXY";
        for name in missed.split_ascii_whitespace() {
            assert!(FAMILIES.iter().any(|family| family.has(name)), "{name}");
        }
    }

    /// Variables that the set-up script of each toolchain exports, from its documentation or the script itself.
    const SET_UP: &[(&str, &str)] = &[
        (
            "setvars.sh of oneAPI",
            "ONEAPI_ROOT CMPLR_ROOT DPL_ROOT IPPCRYPTOROOT DALROOT VTUNE_PROFILER_DIR OCL_ICD_FILENAMES \
            INTELFPGAOCLSDKROOT DIAGUTIL_PATH NLSPATH CCL_CONFIGURATION UMF_ROOT VT_ROOT",
        ),
        (
            "settings64.sh of Vitis",
            "XILINX_VIVADO XILINX_HLS XILINX_VITIS XILINX_XRT PLATFORM_REPO_PATHS PETALINUX XCL_EMULATION_MODE",
        ),
        ("Synopsys", "VCS_HOME VERDI_HOME NOVAS_INST_DIR ICV_HOME_DIR STARRC_HOME TMAX_HOME VCS_CC"),
        ("Cadence", "CDS_INST_DIR MMSIMHOME QRCHOME PVSHOME SPECMAN_HOME CDN_VIP_ROOT DENALI CONFRMLHOME"),
        ("Siemens", "MGC_HOME CALIBRE_HOME QHOME HDS_HOME TESSENT_HOME CATAPULT_HOME USE_CALIBRE_VCO"),
        (
            "setup.bash of ROS 2",
            "ROS_DISTRO AMENT_PREFIX_PATH COLCON_PREFIX_PATH CATKIN_SHELL NDDSHOME FASTDDS_DEFAULT_PROFILES_FILE",
        ),
        (
            "export.sh of ESP-IDF",
            "IDF_PATH ESP_IDF_VERSION ESP_ROM_ELF_DIR IDF_DEACTIVATE_FILE_PATH OPENOCD_SCRIPTS ESPBAUD",
        ),
        (
            "environment-setup of Yocto",
            "SDKTARGETSYSROOT OECORE_NATIVE_SYSROOT OECORE_TUNE_CCARGS CONFIGURE_FLAGS TARGET_PREFIX \
            OE_CMAKE_TOOLCHAIN_FILE KCFLAGS CROSS_COMPILE TEMPLATECONF",
        ),
        (
            "Zephyr",
            "ZEPHYR_BASE BOARD BOARD_ROOT GNUARMEMB_TOOLCHAIN_PATH XTOOLS_TOOLCHAIN_PATH NCS_TOOLCHAIN_VERSION \
                XTENSA_CORE",
        ),
        ("lunch of Android", "ANDROID_BUILD_TOP TARGET_PRODUCT TARGET_BUILD_VARIANT OUT TOP OUT_DIR"),
        ("emsdk_env.sh", "EMSDK EMSDK_NODE EM_CONFIG EMSCRIPTEN EMCC_CFLAGS"),
        (
            "conda's packages",
            "CONDA_PREFIX GDAL_DATA PROJ_DATA XML_CATALOG_FILES GXX ADDR2LINE build_alias DEBUG_CFLAGS PIXI_EXE",
        ),
        ("nix develop", "IN_NIX_SHELL NIX_CFLAGS_COMPILE CONFIG_SHELL _PYTHON_HOST_PLATFORM GETTEXTDATADIRS"),
        (
            "spack and EasyBuild",
            "SPACK_ENV_VIEW SPACK_LOADED_HASHES SPACK_LD_LIBRARY_PATH EBROOTGCC EESSI_VERSION TACC_GCC_DIR",
        ),
        (
            "CUDA and ROCm",
            "CUDAToolkit_ROOT NVCC_CCBIN CUTENSOR_ROOT TORCH_EXTENSIONS_DIR TRITON_CACHE_DIR HIPCC_LINK_FLAGS_APPEND \
            MIOPEN_USER_DB_PATH GPU_TARGETS",
        ),
        ("MPI", "MPIFC MPIF77 HYDRA_LAUNCHER HWLOC_COMPONENTS CRAYPE_LINK_TYPE PE_PKGCONFIG_LIBS"),
        (
            "vcpkg and Bazel",
            "VCPKG_OVERLAY_PORTS VCPKG_BINARY_SOURCES X_VCPKG_ASSET_SOURCES USE_BAZEL_VERSION BAZELISK_FORMAT_URL",
        ),
        (
            "the JVM",
            "JDK_JAVA_OPTIONS M2_REPO MVND_HOME ANT_OPTS GRADLE_RO_DEP_CACHE COURSIER_CONFIG_DIR LEIN_HOME IVY_HOME",
        ),
        (
            "Rust and Go",
            "RUSTC_WRAPPER CARGO_BUILD_TARGET CARGO_TERM_COLOR CARGO_SOURCE_CORP_REPLACE_WITH GO111MODULE \
                GODEBUG GOGC GOAUTH",
        ),
        ("Haskell and OCaml", "GHC_PACKAGE_PATH STACK_YAML CABAL_CONFIG OCAMLRUNPARAM OPAMYES DUNE_CACHE"),
        ("Ruby and PHP", "GEM_ROOT RUBY_ENGINE BUNDLE_WITHOUT RAILS_ENV COMPOSER_BIN_DIR XDEBUG_MODE"),
        (
            "Elixir and Perl",
            "ASDF_ELIXIR_VERSION MIX_ENV HEX_MIRROR KERL_BASE_DIR ERL_FLAGS PERLBREW_PATH PERL_CPANM_HOME PERLLIB",
        ),
        ("R and Julia", "R_ENVIRON_USER R_MAKEVARS_USER RENV_PATHS_ROOT QUARTO_PATH JULIA_LOAD_PATH JULIAUP_CHANNEL"),
        ("TeX and MATLAB", "TEXINPUTS BIBINPUTS TEXMFHOME OSFONTDIR MATLAB_PREFDIR MCRROOT MCR_CACHE_ROOT"),
        ("Quartus and GNAT", "NIOS2EDS AOCL_BOARD_PACKAGE_ROOT GPR_PROJECT_PATH ADA_INCLUDE_PATH ALR_HOME"),
        ("open EDA tools", "VERILATOR_SOLVER COCOTB_LOG_LEVEL GHDL_PREFIX OPENROAD_EXE KICAD8_3DMODEL_DIR BLUESPECDIR"),
        (
            "the network",
            "GRPC_VERBOSITY grpc_proxy SOCKS_PROXY GLOBAL_AGENT_HTTPS_PROXY NODE_TLS_REJECT_UNAUTHORIZED CURL_HOME",
        ),
        ("git and others", "GIT_SEQUENCE_EDITOR PRE_COMMIT_HOME P4TICKETS JJ_CONFIG"),
        (
            "compilers' caches",
            "CCACHE_REMOTE_STORAGE SCCACHE_S3_KEY_PREFIX DISTCC_POTENTIAL_HOSTS ICECC_CC FASTBUILD_CACHE_PATH",
        ),
    ];

    #[test]
    fn what_the_set_up_of_each_toolchain_exports_is_kept() {
        for (set_up, names) in SET_UP {
            let names = names.split_ascii_whitespace();
            let dropped: Vec<&str> =
                names.filter(|name| is_secret_name(name) || !FAMILIES.iter().any(|family| family.has(name))).collect();
            assert!(dropped.is_empty(), "{set_up}: {dropped:?}");
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
