//! Decides when a schedule is due. Pure: no clock, no file, no task. The caller passes the time and the time zone.
//!
//! [`calendar`] parses calendar expressions of systemd and finds their next time. [`due`] decides which times between
//! two looks at the clock start a run. [`concurrency`] decides about a run while an earlier run is active.

pub mod calendar;
pub mod concurrency;
pub mod due;

pub use calendar::{Calendar, CalendarError};
pub use concurrency::{Admission, admit};
pub use due::{Decision, Missed, Times, decide};
