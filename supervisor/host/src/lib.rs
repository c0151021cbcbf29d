//! Access to the machine for agentd: processes, mounts, the network, directories and files.
//!
//! Plugins use the machine through [`capability`], limited by their grants. Only [`platform`] depends on the
//! operating system. This crate does not know sessions.

pub mod capability;
pub mod directories;
pub mod disk;
pub mod exhausted;
pub mod files;
pub mod frame;
pub mod git;
pub mod guest;
mod keeper_program;
pub mod lock;
pub mod manager;
pub mod platform;
pub mod repository;
pub mod runner;
pub mod usage;
pub mod work;
pub mod workspace;

pub use keeper_program::KeeperProgram;
