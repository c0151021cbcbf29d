//! The projects that `agentctl plugin new` writes, as they lie in `plugin-sdk/templates/`: they are in this program, so that an author
//! needs nothing else of agentd.

use crate::args::plugin::{Language, World};

/// One file of a project, with its path in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) path: &'static str,
    pub(super) text: &'static str,
    pub(super) executable: bool,
}

const fn text(path: &'static str, text: &'static str) -> Part {
    Part { path, text, executable: false }
}

const fn script(path: &'static str, text: &'static str) -> Part {
    Part { path, text, executable: true }
}

/// A file of the templates.
macro_rules! template {
    ($path:literal) => {
        include_str!(concat!("../../../../../plugin-sdk/templates/", $path))
    };
}

/// The interface, which is part of every project.
const INTERFACE: Part = text(
    "wit/deps/agentd-plugin/agentd-plugin.wit",
    include_str!("../../../../../plugin-sdk/wit/1.0.0/agentd-plugin.wit"),
);

const PYTHON: &[Part] = &[
    text(".gitignore", template!("python/common/gitignore")),
    text("README.md", template!("python/common/README.md")),
    script("build", template!("python/common/build")),
    script("test", template!("python/common/test")),
];

const PYTHON_PROVIDER: &[Part] = &[
    text("plugin.py", template!("python/provider/plugin.py")),
    text("tests/test_plugin.py", template!("python/provider/tests/test_plugin.py")),
    text("wit/world.wit", template!("python/provider/wit/world.wit")),
];

const PYTHON_PREREQUISITE: &[Part] = &[
    text("plugin.py", template!("python/prerequisite/plugin.py")),
    text("tests/test_plugin.py", template!("python/prerequisite/tests/test_plugin.py")),
    text("wit/world.wit", template!("python/prerequisite/wit/world.wit")),
];

const JAVASCRIPT: &[Part] = &[
    text(".gitignore", template!("javascript/common/gitignore")),
    text("README.md", template!("javascript/common/README.md")),
    script("build", template!("javascript/common/build")),
    text("interface.js", template!("javascript/common/interface.js")),
    text("package.json", template!("javascript/common/package.json")),
    script("test", template!("javascript/common/test")),
];

const JAVASCRIPT_PROVIDER: &[Part] = &[
    text("plugin.js", template!("javascript/provider/plugin.js")),
    text("tests/toolchain.test.js", template!("javascript/provider/tests/toolchain.test.js")),
    text("toolchain.js", template!("javascript/provider/toolchain.js")),
    text("wit/world.wit", template!("javascript/provider/wit/world.wit")),
];

const JAVASCRIPT_PREREQUISITE: &[Part] = &[
    text("plugin.js", template!("javascript/prerequisite/plugin.js")),
    text("reachable.js", template!("javascript/prerequisite/reachable.js")),
    text("tests/reachable.test.js", template!("javascript/prerequisite/tests/reachable.test.js")),
    text("wit/world.wit", template!("javascript/prerequisite/wit/world.wit")),
];

/// All files of a project.
pub(super) fn parts(language: Language, world: World) -> Vec<Part> {
    let (common, own) = match (language, world) {
        (Language::Python, World::Provider) => (PYTHON, PYTHON_PROVIDER),
        (Language::Python, World::Prerequisite) => (PYTHON, PYTHON_PREREQUISITE),
        (Language::JavaScript, World::Provider) => (JAVASCRIPT, JAVASCRIPT_PROVIDER),
        (Language::JavaScript, World::Prerequisite) => (JAVASCRIPT, JAVASCRIPT_PREREQUISITE),
    };
    common.iter().chain(own).chain([&INTERFACE]).copied().collect()
}
