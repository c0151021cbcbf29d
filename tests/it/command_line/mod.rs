//! What a person sees of agentctl: what it prints, and the status with which it ends.

mod input;
mod launches;
mod output;
mod slips;
mod stop;
#[cfg(target_os = "linux")]
mod terminal;
