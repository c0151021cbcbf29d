//! The metrics of one daemon: the list of families, their values, and the page that `GET /metrics` answers.
//!
//! [`Metrics`] is a handle that is passed to the parts that count. There is no global registry. Counting takes a short
//! lock and never waits for a session or a disk. [`Follower`] is the only place that turns journal records into values.
//!
//! The number of series is bounded. Most labels have a fixed list of values, and [`Metrics`] bounds the names of
//! agents, plugins and places. Only [`SESSIONS`] sessions and [`HOSTS`] machines of places have series of their own.
//!
//! This crate measures nothing: the parts that count decide when, and `agentd-session` reads the processes.

mod declare;
mod families;
mod family;
mod follow;
mod label;
mod names;

pub use declare::{Described, Kind, Label};
pub use families::{Format, HOSTS, Metrics, SESSIONS};
pub use family::{Counter, Gauge, Held, Histogram};
pub use follow::Follower;
pub use label::{NO_ROUTE, OTHER};
