use super::*;

/// `set` holds `NAME=VALUE` pairs, and bare names for variables that were dropped. A path in it is an existing
/// file.
fn of(file: &str, content: &str, path: &str, set: &[&str], program: Option<&str>) -> Option<String> {
    let rule = RULES.iter().find(|rule| rule.name == file).unwrap();
    let value = |name: &str| set.iter().find_map(|one| one.split_once('=').filter(|(known, _)| *known == name));
    let seen = EnvironmentFacts {
        path: path.split(':').collect(),
        is_set: &|name| set.contains(&name) || value(name).is_some(),
        value: &|name| value(name).map(|(_, value)| value.to_owned()),
        is_there: &|path| set.iter().any(|one| Path::new(one) == path),
        program: &|name| {
            program.filter(|_| name != UV || set.contains(&"uv")).map(|program| (program.into(), program.into()))
        },
    };
    look(rule, &Path::new("/w/it").join(file), content, &seen).map(|one| one.message)
}

#[test]
fn a_version_file_is_honoured_by_a_program_of_that_version_or_one_that_chooses() {
    let node = |content: &str, program: &str| of(".nvmrc", content, "/usr/bin", &[], Some(program)).is_none();
    let managed = "/home/kim/.nvm/versions/node/v20.11.0/bin/node";
    for content in ["20", "v20", "20.11", "v20.11.0\n", "# ours\n20.11.0", "lts/*"] {
        assert!(node(content, managed), "{content}");
    }
    for (content, program) in
        [("18", managed), ("2", managed), ("20.1", managed), ("lts/*", "/usr/bin/node"), ("20", "/usr/bin/node")]
    {
        assert!(!node(content, program), "{content} {program}");
    }
    for program in ["/home/kim/.local/share/mise/shims/node", "/home/kim/.volta/bin/node", "/home/kim/.asdf/shims/node"]
    {
        assert!(node("18", program), "{program}");
    }
    assert!(node("system", "/usr/bin/node"));
    let python = |content: &str, program: &str| of(".python-version", content, "", &[], Some(program)).is_none();
    assert!(python("3.12", "/usr/bin/python3.12") && python("3.12.4", "/usr/bin/python3.12"));
    assert!(!python("3.12", "/usr/bin/python3") && !python("3.1", "/usr/bin/python3.12"));
    let message = of(".nvmrc", "20\n", "/usr/bin", &[], Some("/usr/bin/node")).unwrap();
    for part in [
        "/w/it/.nvmrc asks for 20",
        "the agent's node is /usr/bin/node",
        "nvm use",
        "/w/it/.agentd-env.sh",
        "agentctl env allow /w/it",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(of(".nvmrc", "20", "", &[], None).unwrap().contains("the agent has no node"));
}

#[test]
fn each_other_file_is_honoured_by_the_traces_of_its_tool() {
    let is_honoured =
        |file: &str, content: &str, path: &str, set: &[&str]| of(file, content, path, set, None).is_none();
    let mise = "/home/kim/.local/share/mise/installs/node/20/bin";
    for (file, content, path, set) in [
        (".tool-versions", "nodejs 20", mise, &[][..]),
        (".tool-versions", "nodejs 20", "/home/kim/.asdf/shims", &[]),
        ("mise.toml", "[tools]\nnode = \"20\"", mise, &[]),
        (".envrc", "use nix", "", &["DIRENV_DIR"]),
        (".envrc", "export A=1\nexport PATH=x", "", &["A"]),
        ("environment.yml", "name: ml", "", &["CONDA_PREFIX"]),
        (".python-version", "3.12", "", &["VIRTUAL_ENV"]),
        (".sdkmanrc", "java=21", "/home/kim/.sdkman/candidates/java/current/bin", &[]),
        ("flake.nix", "", "/nix/store/x/bin", &["IN_NIX_SHELL"]),
        ("flake.nix", "", "/usr/bin", &[]),
    ] {
        assert!(is_honoured(file, content, path, set), "{file}");
        if file != "flake.nix" {
            assert!(!is_honoured(file, content, "/usr/bin", &[]), "{file}");
        }
    }
    assert!(!is_honoured("flake.nix", "", "/nix/var/nix/profiles/default/bin", &[]));
    assert!(of("environment.yml", "name: ml\n", "", &[], None).unwrap().contains("conda activate ml"));
    assert!(of(".envrc", "", "", &[], None).unwrap().contains(".envrc is there, and no step honours it"));
}

#[test]
fn the_search_includes_directories_above_and_excludes_the_home() {
    let of = |directory: &str| -> Vec<PathBuf> {
        let places = places(Path::new(directory), Some(Path::new("/home/kim")));
        places.into_iter().filter(|(rule, _)| rule.name == ".nvmrc").map(|(_, path)| path).collect()
    };
    assert_eq!(of("/home/kim/a/b"), [PathBuf::from("/home/kim/a/b/.nvmrc"), "/home/kim/a/.nvmrc".into()]);
    assert_eq!(of("/home/kim"), [PathBuf::from("/home/kim/.nvmrc")]);
    assert_eq!(of("/"), [PathBuf::from("/.nvmrc")]);
    assert_eq!(of("/srv/x"), [PathBuf::from("/srv/x/.nvmrc"), "/srv/.nvmrc".into()]);
}

#[test]
fn a_record_of_direnv_counts_for_the_directory_that_it_names() {
    let envrc = |content: &str, path: &str, set: &[&str]| of(".envrc", content, path, set, None).is_none();
    assert!(envrc("use nix", "", &["DIRENV_DIR=-/w/it"]) && envrc("use nix", "", &["DIRENV_FILE=/w/it/.envrc"]));
    assert!(!envrc("use nix", "", &["DIRENV_DIR=-/w"]), "of another directory");
    let of_home = ["DIRENV_DIR", "HOME=/home/kim", "/home/kim/.envrc"];
    assert!(!envrc("use nix", "", &of_home), "the login shell read the home's");
    assert!(envrc("use nix", "", &of_home[..2]));
    // An `.envrc` that a script sourced.
    assert!(envrc("export A=1 # ours\nexport B=\"$PWD/x\"", "", &["A=1", "B=/w/it/x"]));
    assert!(!envrc("export A=1", "", &["A=2"]), "another's A");
    assert!(envrc("PATH_add bin", "/usr/bin:/w/it/bin", &[]) && !envrc("PATH_add bin", "/usr/bin", &[]));
    assert!(envrc("layout python", "", &["VIRTUAL_ENV=/w/it/.direnv/python-3.12"]));
    assert!(envrc("use flake", "", &["IN_NIX_SHELL=impure"]) && !envrc("use flake", "", &[]));
}

#[test]
fn condas_base_environment_belongs_to_no_project() {
    let conda = |content: &str, set: &[&str]| of("environment.yml", content, "", set, None).is_none();
    assert!(!conda("name: ml", &["CONDA_PREFIX=/opt/conda", "CONDA_DEFAULT_ENV=base"]));
    assert!(
        conda("name: ml", &["CONDA_PREFIX=/opt/conda/envs/ml"]) && conda("name: base", &["CONDA_PREFIX=/opt/conda"])
    );
    assert!(conda("name: ml", &["CONDA_PREFIX=/w/it/env"]) && conda("dependencies: []", &["CONDA_PREFIX=/opt/conda"]));
    assert!(conda("name: \"ml\"  # ours", &["CONDA_PREFIX=/opt/conda/envs/ml"]));
    let python =
        |content: &str, set: &[&str], program: &str| of(".python-version", content, "", set, Some(program)).is_none();
    assert!(!python("3.9", &["CONDA_PREFIX=/opt/conda"], "/opt/conda/bin/python3.12"));
    assert!(python("3.9", &["VIRTUAL_ENV=/w/it/.venv"], "/w/it/.venv/bin/python3"));
    assert!(python("3.9", &["/w/it/uv.lock", "uv"], "/usr/bin/python3.12"), "uv reads it");
    assert!(!python("3.9", &["/w/it/uv.lock"], "/usr/bin/python3.12"));
}

#[test]
fn the_versions_in_path_are_those_that_the_file_names() {
    let installs = |tool: &str| format!("/home/kim/.local/share/mise/installs/{tool}/bin");
    let is_honoured = |file: &str, content: &str, path: &str| of(file, content, path, &[], None).is_none();
    let (node, both) = (installs("node/20.11.0"), [installs("node/20.11.0"), installs("python/3.12.1")].join(":"));
    for content in
        ["nodejs 20", "nodejs 20.11.0 18\npython 3.12", "node lts", "nodejs 20.11.0 # ours", "nodejs system", ""]
    {
        assert!(is_honoured(".tool-versions", content, &both), "{content}");
    }
    assert!(!is_honoured(".tool-versions", "nodejs 18", &node), "of the home's configuration");
    assert!(!is_honoured(".tool-versions", "java 21", &node) && !is_honoured(".tool-versions", "nodejs 2", &node));
    assert!(is_honoured(".tool-versions", "nodejs 18", &format!("/home/kim/.local/share/mise/shims:{node}")));
    for content in [
        "[tools]\nnode = \"20\"",
        "[tools]\nnode = [\"20\", \"18\"]\n\"npm:prettier\" = \"3\"",
        "[tools]\nnode = { version = \"20\" }",
        "[tasks.build]\nrun = \"make\"",
    ] {
        assert!(is_honoured("mise.toml", content, &node), "{content}");
    }
    for content in ["[tools]\nnode = \"18\"", "[tools]\njava = \"21\"", "[env]\nA = \"1\"", "no toml ["] {
        assert!(!is_honoured("mise.toml", content, &node), "{content}");
    }
    assert!(of("mise.toml", "[env]\nA = \"1\"", "", &["A=1"], None).is_none());
    assert!(is_honoured("mise.toml", "[env]\n_.path = [\"./bin\"]", "/w/it/bin"));
}
