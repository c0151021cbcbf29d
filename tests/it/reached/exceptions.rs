//! Codes of routes that no test gets, each with its reason: `exceptions.toml` beside this file.

use std::fs;

use agentd_api::Route;
use serde::Deserialize;

use crate::harness::paths;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exceptions {
    /// Codes that tests need not get.
    pub(super) exception: Vec<Exception>,
    /// Codes that other tests get than those in this directory.
    pub(super) elsewhere: Vec<Elsewhere>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exception {
    pub(super) codes: Vec<String>,
    pub(super) routes: Extent,
    pub(super) reason: String,
}

/// The routes of an exception.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Extent {
    Word(Word),
    /// These routes, as `METHOD PATH`.
    Routes(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Word {
    /// All routes.
    All,
    /// All routes, if a test got the code from at least one.
    AllButOne,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Elsewhere {
    pub(super) codes: Vec<String>,
    pub(super) routes: Vec<String>,
    /// Beginning of the names of the tests.
    pub(super) tests: String,
}

impl Exceptions {
    pub(super) fn read() -> Self {
        let file = paths::checkout().join("tests/it/reached/exceptions.toml");
        toml::from_str(&fs::read_to_string(file).unwrap()).unwrap()
    }

    /// Reports whether a test in this directory must get the code from the route.
    pub(super) fn demand(&self, route: Route, code: &str) -> bool {
        let (route, code) = (route.to_string(), code.to_owned());
        let of_exception = self.exception.iter().any(|exception| {
            matches!(&exception.routes, Extent::Routes(routes) if routes.contains(&route))
                && exception.codes.contains(&code)
        });
        let is_elsewhere = |other: &Elsewhere| other.codes.contains(&code) && other.routes.contains(&route);
        !of_exception && !self.elsewhere.iter().any(is_elsewhere)
    }
}
