use super::*;
use agentd_plugin_sdk::command::Invocation;
use agentd_plugin_sdk::fake::{Call, Host, completed};

/// Makes a host for a session with a PATH and a directory of modulefiles.
fn host(modules: &[&str]) -> Host {
    Host::new()
        .variable("PATH", "/usr/bin:/bin")
        .variable("MODULEPATH", "/apps/modules")
        .setting("modules", modules.iter().copied())
}

/// Adds modulecmd's output and its standard error. Its exit status is 0.
fn says(host: Host, arguments: &str, output: &'static str, errors: &'static str) -> Host {
    host.command(&format!("{PROGRAM} r {arguments}"), move |_| Ok(completed(0, output, errors)))
}

const GCC: &str = "Sys.setenv('PATH'='/apps/gcc/bin:/usr/bin:/bin')\nSys.setenv('CC'='gcc')\n\
    Sys.setenv('LOADEDMODULES'='gcc/12')\n\
    Sys.setenv('_LMFILES_'='/apps/modules/gcc/12')\nmlstatus <- TRUE\n";
const MPI: &str = "Sys.setenv('PATH'='/apps/mpi/bin:/apps/gcc/bin:/usr/bin:/bin')\nSys.setenv('CC'='mpicc')\n\
    Sys.setenv('LOADEDMODULES'='gcc/12:mpi')\n\
    Sys.setenv('_LMFILES_'='/apps/modules/gcc/12:/apps/modules/mpi')\nmlstatus <- TRUE\n";

#[test]
fn each_change_has_the_modulefile_that_made_it_and_a_variable_that_is_set_twice_is_set_once() {
    let host = says(host(&["gcc/12", "mpi"]), "load gcc/12", GCC, "");
    let (gcc, mpi) = ("/apps/modules/gcc/12", "/apps/modules/mpi");
    assert_eq!(
        says(host, "load mpi", MPI, "").provide::<EnvironmentModules>(),
        Ok(vec![
            Change::prepend("PATH", "/apps/gcc/bin").from_file(gcc),
            Change::prepend("PATH", "/apps/mpi/bin").from_file(mpi),
            Change::set("CC", "mpicc").from_file(mpi),
            Change::set("LOADEDMODULES", "gcc/12:mpi").from_file(mpi),
            Change::set("_LMFILES_", "/apps/modules/gcc/12:/apps/modules/mpi").from_file(mpi),
        ])
    );
}

#[test]
fn a_module_sees_what_the_ones_before_it_changed_and_modulecmd_prints_plain_utf8() {
    let host = says(host(&["gcc/12", "mpi"]).variable("LC_ALL", "C"), "load gcc/12", GCC, "");
    let host = says(host, "load mpi", MPI, "");
    let changes = host.provide::<EnvironmentModules>().unwrap();
    let [Call::Run(_), Call::Run(second)] = &host.calls()[..] else { panic!("{:?}", host.calls()) };
    let given = |name: &str| {
        let variable = second.environment.iter().find(|variable| variable.name == name);
        variable.map(|variable| String::from_utf8_lossy(&variable.value).into_owned())
    };
    assert_eq!(given("PATH").as_deref(), Some("/apps/gcc/bin:/usr/bin:/bin"));
    assert_eq!(given("LC_ALL").as_deref(), Some("C.UTF-8"));
    assert_eq!(second.directory, None);
    assert!(changes.iter().all(|change| !FOR_MODULECMD.iter().any(|(name, _)| change.name() == *name)));
}

#[test]
fn with_several_modulefiles_at_once_nobody_is_named() {
    let output = "Sys.setenv('A'='1')\nSys.setenv('_LMFILES_'='/apps/modules/dep:/apps/modules/x')\nmlstatus <- TRUE\n";
    let changes = says(host(&["x"]), "load x", output, "").provide::<EnvironmentModules>().unwrap();
    assert!(changes.iter().all(|change| change.origin.is_none()), "{changes:?}");
}

#[test]
fn a_module_that_cannot_be_loaded_fails_the_whole_in_its_own_words_though_the_status_is_0() {
    let load = |output, errors| says(host(&["x"]), "load x", output, errors).provide::<EnvironmentModules>();
    let failed = |words: &str| Err(Failure::failed(format!("loading the module \"x\": {words}")));
    assert_eq!(
        load("mlstatus <- FALSE\n", "ERROR: Unable to locate a modulefile for 'x'\n"),
        Err(Failure::not_found("loading the module \"x\": Unable to locate a modulefile for 'x'"))
    );
    assert_eq!(
        load("mlstatus <- FALSE\n", "Loading x\n  ERROR: Conflicting y is loaded\n"),
        failed("Conflicting y is loaded")
    );
    // Release 3 prints no status.
    assert_eq!(
        load("", "ModuleCmd_Load.c(213):ERROR:150: Module 'x' conflicts with y\n"),
        failed("Module 'x' conflicts with y")
    );
    assert_eq!(load("mlstatus <- FALSE\n", "a note\n"), failed(&format!("{PROGRAM} failed without an error message")));
    assert!(matches!(load("Sys.setenv('A'='1\n", ""), Err(Failure::Failed(words)) if words.contains("the value of A \
            has no end")));
}

#[test]
fn what_keeps_modulecmd_from_running_is_told_with_the_module() {
    let gone = Failure::not_found("there is no /usr/lib/x86_64-linux-gnu/modulecmd.tcl");
    let host = host(&["x"]).command(&format!("{PROGRAM} **"), move |_| Err(gone.clone()));
    let failure = host.provide::<EnvironmentModules>().unwrap_err();
    assert!(matches!(failure, Failure::NotFound(words) if words.starts_with("loading the module \"x\": there is no ")));
    let host = self::host(&["x"]).grant(Capability::Command, [format!("{PROGRAM} r load gcc/*")]);
    assert!(matches!(host.provide::<EnvironmentModules>(), Err(Failure::NotGranted(_))));
}

#[test]
fn what_was_loaded_is_unloaded_first_if_that_is_asked_for() {
    let loaded = |host: Host| host.variable("LOADEDMODULES", "old").variable("OLD", "1").variable("PATH", "/old:/bin");
    let purged = "Sys.unsetenv('OLD')\nSys.unsetenv('LOADEDMODULES')\nSys.setenv('PATH'='/bin')\nmlstatus <- TRUE\n";
    let host = says(loaded(host(&[])).setting("purge", ["true"]), "purge", purged, "");
    assert_eq!(
        host.provide::<EnvironmentModules>(),
        Ok(vec![
            Change::unset("OLD", "unloaded with its module"),
            Change::unset("LOADEDMODULES", "unloaded with its module"),
            Change::set("PATH", "/bin"),
        ])
    );
    assert_eq!(loaded(self::host(&[])).provide::<EnvironmentModules>(), Ok(vec![]));
}

#[test]
fn the_directories_of_modulefiles_are_the_settings_or_the_environments() {
    let host = says(host(&["x"]).setting("modulepath", ["/a", "/b"]), "load x", "mlstatus <- TRUE\n", "");
    assert_eq!(host.provide::<EnvironmentModules>(), Ok(vec![Change::set("MODULEPATH", "/a:/b")]));
    let failure = Host::new().setting("modules", ["x"]).provide::<EnvironmentModules>().unwrap_err();
    assert!(matches!(failure, Failure::Configuration(error) if error.key == "modulepath"));
}

#[test]
fn a_setting_that_cannot_be_is_refused_by_its_name() {
    let key = |host: Host| match host.provide::<EnvironmentModules>() {
        Err(Failure::Configuration(error)) => error.key,
        other => panic!("{other:?}"),
    };
    for name in ["", "--help", "gcc 12", "a\tb"] {
        assert_eq!(key(host(&[name])), "modules", "{name:?}");
    }
    assert_eq!(key(host(&["x"]).setting("modulepath", ["a"])), "modulepath");
    assert_eq!(key(host(&["x"]).setting("modulepath", ["/a:/b"])), "modulepath");
    assert_eq!(key(host(&["x"]).setting("program", ["modulecmd"])), "program");
    assert_eq!(key(host(&["x"]).setting("purge", ["yes"])), "purge");
    assert_eq!(key(Host::new()), "modules");
}

#[test]
fn a_value_that_modulecmd_would_spoil_is_a_failure_and_not_another_value() {
    let host = says(host(&["gcc/12"]).variable("PATH", &b"/bin:/\xff"[..]), "load gcc/12", GCC, "");
    assert!(matches!(host.provide::<EnvironmentModules>(), Err(Failure::Failed(words)) if words.contains("PATH")));
}

/// Tests with the real modulecmd and real modulefiles. Skipped with a message on a machine without modulecmd.
mod with_modulecmd {
    use super::*;
    use std::path::{Path, PathBuf};
    use std::{env, fs, process};

    const ODD: &str = "#%Module1.0\nsetenv ODD \"it's \\\\ a \\\"quote\\\"\\nline2 \u{e9} ends\\\\\"\nsetenv \
        EMPTY {}\nprepend-path PATH /odd/bin\n\
        append-path MANPATH /odd/man\nunsetenv GONE\nputs stderr {a note}\nputs stdout {echo hi}\n";

    struct Modulefiles(PathBuf);

    impl Modulefiles {
        fn new(name: &str, files: &[(&str, &str)]) -> Option<Self> {
            if !Path::new(PROGRAM).exists() {
                let required = env::var("AGENTD_TEST_REQUIRE").unwrap_or_default();
                assert!(!required.contains("shells"), "there is no {PROGRAM}: install environment-modules");
                eprintln!("skipped: there is no {PROGRAM}");
                return None;
            }
            let directory = env::temp_dir().join(format!("agentd-modules-{name}-{}", process::id()));
            fs::create_dir_all(&directory).unwrap();
            for (name, text) in files {
                fs::write(directory.join(name), text).unwrap();
            }
            Some(Self(directory))
        }

        fn load(&self, modules: &[&str]) -> Result<Vec<Change>, Failure> {
            host(modules)
                .variable("GONE", "1")
                .variable("MANPATH", "/man")
                .setting("modulepath", [self.0.to_str().unwrap()])
                .command("/** r **", run)
                .provide::<EnvironmentModules>()
        }
    }

    impl Drop for Modulefiles {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn run(invocation: &Invocation) -> Result<agentd_plugin_sdk::command::Completed, Failure> {
        use std::os::unix::ffi::OsStrExt;
        let variables = invocation.environment.iter();
        let output = process::Command::new(&invocation.program)
            .args(&invocation.arguments)
            .env_clear()
            .envs(variables.map(|variable| (&variable.name, std::ffi::OsStr::from_bytes(&variable.value))))
            .output()
            .map_err(|error| Failure::not_found(error.to_string()))?;
        let status = u8::try_from(output.status.code().unwrap_or(255)).unwrap_or(255);
        Ok(completed(status, output.stdout, output.stderr))
    }

    #[test]
    fn odd_values_come_through_to_the_byte() {
        let Some(modulefiles) = Modulefiles::new("odd", &[("odd", ODD)]) else { return };
        let file = modulefiles.0.join("odd");
        let file = file.to_str().unwrap();
        let changes = modulefiles.load(&["odd"]).unwrap();
        for expected in [
            Change::set("ODD", "it's \\ a \"quote\"\nline2 \u{e9} ends\\").from_file(file),
            Change::set("EMPTY", "").from_file(file),
            Change::prepend("PATH", "/odd/bin").from_file(file),
            Change::append("MANPATH", "/odd/man").from_file(file),
            Change::unset("GONE", "odd unsets it").from_file(file),
            Change::set("LOADEDMODULES", "odd").from_file(file),
            Change::set("MODULEPATH", modulefiles.0.to_str().unwrap()),
        ] {
            assert!(changes.contains(&expected), "{expected:?}\n{changes:?}");
        }
    }

    #[test]
    fn a_missing_module_a_conflict_and_a_broken_module_are_told_in_their_own_words() {
        let files =
            [("odd", ODD), ("against", "#%Module1.0\nconflict odd\n"), ("broken", "#%Module1.0\nno-such-command\n")];
        let Some(modulefiles) = Modulefiles::new("errors", &files) else { return };
        assert_eq!(
            modulefiles.load(&["nowhere/9"]),
            Err(Failure::not_found("loading the module \"nowhere/9\": Unable to locate a modulefile for 'nowhere/9'"))
        );
        let words = |modules: &[&str]| modulefiles.load(modules).unwrap_err().message().to_owned();
        let conflict = words(&["odd", "against"]);
        assert!(
            conflict.starts_with("loading the module \"against\": ") && conflict.contains("module unload odd"),
            "{conflict}"
        );
        assert!(words(&["broken"]).contains("invalid command name \"no-such-command\""), "{}", words(&["broken"]));
    }
}
