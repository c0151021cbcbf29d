//! Renews values of limited lifetime while the agent runs: `renew` calls their providers again, and `renewal` compares
//! the result with the running agent's environment.

mod renew;
mod renewal;

pub use renewal::{Renewal, renew_at, restore_obstacle};
