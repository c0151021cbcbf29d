//! The tests of the whole: real binaries, real sockets, real processes. One binary, so that it is linked once.

#[path = "../harness/mod.rs"]
mod harness;

mod adoption;
mod architecture;
mod aside;
mod attributes;
mod audit;
mod author;
mod book;
mod bound;
mod boundary;
mod campaign;
mod capabilities;
mod captures;
mod closing;
mod command_line;
mod compiling;
mod configuration;
#[path = "../conformance/mod.rs"]
mod conformance;
mod context;
mod corporate;
mod crowd;
mod doctor;
mod documents;
mod drain;
mod drift;
mod effects;
mod environment;
mod events;
mod faults;
mod finding;
mod freshness;
mod full_disk;
mod gemini;
#[cfg(target_os = "linux")]
mod guard;
#[path = "../plugins/guest.rs"]
#[allow(dead_code, reason = "the plugin host's own tests use the rest")]
mod guest;
mod hostile;
mod http;
mod hung;
mod init;
mod keeper;
mod launches;
mod lifecycle;
mod limits;
mod loading;
mod lost;
mod main_job;
mod manager;
mod modules;
mod opencode;
mod pages;
mod permission;
mod places;
mod plugins;
mod power_cut;
mod prerequisites;
mod prerequisites_ctl;
mod private;
mod real_agent;
mod recipes;
mod reference;
mod reload;
mod requests;
mod restarts;
mod results;
mod scopes;
mod scripts;
mod secrets;
mod service;
mod silent;
mod snapshot;
mod storage;
mod stored_values;
mod survival;
mod symptoms;
mod systemd;
mod tcp;
mod tree;
mod trust;
mod turns;
mod units;
mod validate;
mod variables;
mod whole_life;
#[cfg(target_os = "linux")]
mod worlds;
