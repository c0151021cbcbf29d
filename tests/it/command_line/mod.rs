//! Output and exit status of agentctl as a user sees them.

mod input;
#[cfg(target_os = "linux")]
mod interactive;
mod launches;
mod output;
mod slips;
mod stop;
#[cfg(target_os = "linux")]
mod terminal;
