//! A function for each call that the command line makes, with the time limit of its work.
//!
//! [`Client::ask`] makes every other call of the table of routes.

mod agents;
mod daemon;
mod environment;
mod hooks;
mod repositories;
mod schedules;
mod sessions;
