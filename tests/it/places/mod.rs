//! Places: real engines on which a session runs. Each test boots its own ([`crate::harness::slurm`],
//! [`crate::harness::sshd::Far`], [`crate::harness::container`]).

mod fixtures;
mod kills;
mod life;
mod resident;
mod sent;
mod sessions;
mod storm;
