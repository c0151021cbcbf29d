//! Attributes besides the environment that a process passes on to its children: file mode mask, nice value, resource
//! limits.
//!
//! This module does not decide which attributes reach an agent, or what happens if one cannot be set.

use std::fmt::Write as _;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::stat::{Mode, umask};

use crate::os::LIMITS;
use crate::protocol::{Attributes, LaunchRecord, Limit, PlacedProgram, RunRequest};

/// Formats this process's attributes: `umask 22`, `nice 0`, `limit nofile 1024 4096`, with `-` for unlimited.
pub(crate) fn lines() -> String {
    let mask = umask(Mode::empty());
    umask(mask);
    let mut text = format!("umask {:o}\n", mask.bits());
    if let Some(nice) = nice() {
        let _ = writeln!(text, "nice {nice}");
    }
    for limit in limits() {
        let word = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let _ = writeln!(text, "limit {} {} {}", limit.name, word(limit.soft), word(limit.hard));
    }
    text
}

/// Parses the output of [`lines`].
pub(crate) fn parse(text: &str) -> Attributes {
    let mut attributes = Attributes { umask: 0o22, ..Attributes::default() };
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["umask", mask] => attributes.umask = u32::from_str_radix(mask, 8).unwrap_or(0o22),
            ["nice", nice] => attributes.nice = nice.parse().ok(),
            ["limit", name, soft, hard] => {
                attributes.limits.push(Limit {
                    name: name.to_owned(),
                    soft: soft.parse().ok(),
                    hard: hard.parse().ok(),
                });
            }
            _ => {}
        }
    }
    attributes
}

impl Attributes {
    /// Reads this process's attributes.
    #[must_use]
    pub fn own() -> Self {
        parse(&lines())
    }

    /// Reads this process's nice value and limits, which its children inherit. The file mode mask is not read, because
    /// a process can read it only by changing it.
    #[must_use]
    pub fn inherited() -> Self {
        Self { umask: 0, nice: nice(), limits: limits().collect() }
    }

    /// Describes the attributes that a child of this process could not get.
    #[must_use]
    pub fn withheld(&self) -> Vec<String> {
        Inherited::of(self).1
    }

    /// Removes the nice value and the limits that `before` has too.
    #[must_use]
    pub fn changed_since(mut self, before: &Self) -> Self {
        self.nice = self.nice.filter(|nice| before.nice != Some(*nice));
        self.limits.retain(|limit| !before.limits.contains(limit));
        self
    }
}

/// Attributes that a child sets on itself before its exec. The parent computes them, because a child may not allocate
/// memory then.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inherited {
    umask: Option<u32>,
    nice: Option<i32>,
    limits: [Option<(Resource, rlim_t, rlim_t)>; LIMITS.len()],
}

impl Inherited {
    /// Makes attributes with only a file mode mask.
    pub(crate) fn mask(umask: Option<u32>) -> Self {
        Self { umask, ..Self::default() }
    }

    /// Returns the attributes that a child of this process may have, and descriptions of the withheld ones. An
    /// ordinary process may lower its hard limits and raise its nice value, and not the reverse.
    pub(crate) fn of(attributes: &Attributes) -> (Self, Vec<String>) {
        let (mut inherited, mut withheld) = (Self::mask(Some(attributes.umask)), Vec::new());
        let word = |value: rlim_t| if value == RLIM_INFINITY { "unlimited".to_owned() } else { value.to_string() };
        for (slot, &(name, resource)) in inherited.limits.iter_mut().zip(LIMITS) {
            let Some(limit) = attributes.limits.iter().find(|limit| limit.name == name) else { continue };
            let Ok((_, most)) = getrlimit(resource) else { continue };
            let number = |value: Option<u64>| value.map_or(RLIM_INFINITY, |value| value as rlim_t);
            let (soft, hard) = (number(limit.soft), number(limit.hard));
            if soft > most {
                withheld.push(format!("{name} {} (the service's hard limit is {})", word(soft), word(most)));
            }
            *slot = Some((resource, soft.min(most), hard.min(most)));
        }
        inherited.nice = attributes.nice;
        if let (Some(wanted), Some(own)) = (attributes.nice, nice())
            && wanted < own
            && !nix::unistd::geteuid().is_root()
        {
            withheld.push(format!("nice {wanted} (the service has {own})"));
            inherited.nice = None;
        }
        (inherited, withheld)
    }

    /// Sets the attributes. Ignores errors, because no program is refused for an attribute.
    pub(crate) fn set(&self) {
        if let Some(mask) = self.umask {
            umask(Mode::from_bits_truncate(mask as _));
        }
        for (resource, soft, hard) in self.limits.into_iter().flatten() {
            let _ = setrlimit(resource, soft, hard);
        }
        if let Some(nice) = self.nice {
            set_nice(nice);
        }
    }
}

impl LaunchRecord {
    /// Returns the attributes that the agent sets on itself.
    pub(crate) fn inherits(&self) -> Inherited {
        self.attributes.as_ref().map(|attributes| Inherited::of(attributes).0).unwrap_or_default()
    }
}

impl PlacedProgram {
    /// Returns the attributes that the program sets on itself.
    pub(crate) fn inherits(&self) -> Inherited {
        self.attributes.as_ref().map(|attributes| Inherited::of(attributes).0).unwrap_or_default()
    }
}

impl RunRequest {
    /// Returns the attributes that the program sets on itself.
    pub(crate) fn inherits(&self) -> Inherited {
        let of = |attributes| Inherited::of(attributes).0;
        self.attributes.as_ref().map_or_else(|| Inherited::mask(self.umask), of)
    }
}

fn limits() -> impl Iterator<Item = Limit> {
    let some = |value| (value != RLIM_INFINITY).then_some(value);
    LIMITS.iter().filter_map(move |(name, resource)| {
        let (soft, hard) = getrlimit(*resource).ok()?;
        Some(Limit { name: (*name).to_owned(), soft: some(soft), hard: some(hard) })
    })
}

#[allow(unsafe_code, reason = "nix has no getpriority")]
fn nice() -> Option<i32> {
    nix::errno::Errno::clear();
    // SAFETY: the call takes no pointer; 0 is this process.
    let nice = unsafe { nix::libc::getpriority(nix::libc::PRIO_PROCESS, 0) };
    (nice != -1 || nix::errno::Errno::last_raw() == 0).then_some(nice)
}

#[allow(unsafe_code, reason = "nix has no setpriority")]
fn set_nice(nice: i32) {
    // SAFETY: the call takes no pointer; 0 is this process.
    let _ = unsafe { nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, nice) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let own = Attributes::own();
        assert_eq!(own.limits.len(), LIMITS.len());
        assert_eq!(own.clone().changed_since(&own), Attributes { umask: own.umask, ..Attributes::default() });
        let other = parse("umask 77\nnice 5\nlimit nofile 256 -\nsomething else\n");
        let limit = Limit { name: "nofile".to_owned(), soft: Some(256), hard: None };
        assert_eq!(other, Attributes { umask: 0o77, nice: Some(5), limits: vec![limit] });
        assert_eq!(other.clone().changed_since(&own), other);
    }
}
