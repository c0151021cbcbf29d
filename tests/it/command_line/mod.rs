//! Output and exit status of agentctl as a user sees them.

mod input;
mod launches;
mod output;
mod slips;
mod stop;
#[cfg(target_os = "linux")]
mod terminal;
