//! Runs environment scripts under the user's approval, and warns about probable mistakes before a launch.
//!
//! `directories` and `upward` find a script, `trust` decides whether it may run, and `run` runs it. `base` and `stubs`
//! make what it starts with. `proposed` adds the script that was proposed for a session. `results` keeps what it
//! changed, and `complaints` reads what it printed. `validate`, `project` and `inconsistencies` look for mistakes and
//! run no provider.

pub(crate) mod base;
pub(crate) mod complaints;
mod copy;
pub(crate) mod directories;
pub mod inconsistencies;
pub mod project;
pub(crate) mod proposed;
pub(crate) mod results;
pub(crate) mod run;
pub(crate) mod scripts;
pub(crate) mod stubs;
pub(crate) mod trust;
pub(crate) mod upward;
pub(crate) mod validate;
pub(crate) mod workflow;
