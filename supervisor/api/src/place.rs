//! Places: machines, jobs and containers on which agents run.

/// Name of the place that is this machine.
pub const HERE: &str = "here";
