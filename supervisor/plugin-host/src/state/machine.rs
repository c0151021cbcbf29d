//! The capabilities `mount`, `process` and `secret`.

use std::time::Instant;

use super::permit::refused;
use super::{Answer, CallState};
use crate::bindings::provider::agentd::plugin::{mount, process, secret};
use crate::call::Failure;
use crate::grant::{Outside, ResolvedFronts};
use crate::services::{CONTENT, Liveness, MountEntry};
use crate::text::shown;

/// Maximum length of the name of a process or secret in bytes.
const NAME: usize = 255;

/// Checks that a name is not empty, not too long and has no NUL byte.
fn name(what: &str, name: &str) -> Result<(), Failure> {
    if name.is_empty() || name.len() > NAME || name.contains('\0') {
        return Err(Failure::Failed(format!("{what} has no name of 1 to {NAME} bytes")));
    }
    Ok(())
}

impl CallState {
    async fn mounted(&self) -> Result<Vec<MountEntry>, Failure> {
        let what = "the mount table";
        if self.bounds.rules.wanted.is_none() {
            return Err(refused(what, Outside::NotDescribed));
        }
        let mut mounts = self.bounded(what, self.services.machine().mounts(self.host_deadline)).await?;
        let led = ResolvedFronts::default();
        mounts.retain(|mount| {
            self.bounds.rules.judge(&self.places, &led, |patterns| patterns.mount(&mount.path)).is_ok()
        });
        Ok(mounts)
    }

    async fn probed(&self, path: &str, time: u64) -> Result<Liveness, Failure> {
        let what = format!("the path {}", shown(path));
        let (asked, absolute) = self.asked_absolute(&what, path)?;
        self.judge(&what, |patterns| patterns.mount(&absolute))?;
        let deadline = self.until(time);
        let time = deadline.saturating_duration_since(Instant::now());
        let work = self.services.machine().probe_mount(&asked.written, time, self.host_deadline);
        // A path that does not respond in time hangs. This is a result and not a failure.
        match self.bounded_by(deadline, &what, work).await {
            Err(Failure::TimedOut(_)) => Ok(Liveness::Hangs),
            other => other,
        }
    }

    async fn counted(&self, program: &str) -> Result<u32, Failure> {
        let what = format!("the process {}", shown(program));
        name(&what, program)?;
        self.judge(&what, |patterns| patterns.process(program))?;
        self.bounded(&what, self.services.machine().processes(program, self.host_deadline)).await
    }

    async fn revealed(&self, secret: &str) -> Result<Vec<u8>, Failure> {
        let what = format!("the secret {}", shown(secret));
        name(&what, secret)?;
        self.judge(&what, |patterns| patterns.secret(secret))?;
        let value = self.bounded(&what, self.services.read_secret(secret, self.host_deadline)).await?;
        if value.len() > CONTENT {
            return Err(Failure::TooLarge(format!("{what} is more than {CONTENT} bytes")));
        }
        Ok(value)
    }
}

impl mount::Host for CallState {
    async fn mounts(&mut self) -> Answer<Vec<mount::Mounted>> {
        let mounted = |found: MountEntry| mount::Mounted {
            path: found.path,
            source: found.source,
            kind: found.kind,
            options: found.options,
            device: found.device,
        };
        let found = self.mounted().await;
        Ok(found.map(|found| found.into_iter().map(mounted).collect()).map_err(Into::into))
    }

    async fn probe(&mut self, path: String, time: u64) -> Answer<mount::Liveness> {
        let liveness = self.probed(&path, time).await.map(|liveness| match liveness {
            Liveness::Answers(device) => mount::Liveness::Answers(device),
            Liveness::Hangs => mount::Liveness::Hangs,
            Liveness::Error(error) => mount::Liveness::Error(error),
        });
        Ok(liveness.map_err(Into::into))
    }
}

impl process::Host for CallState {
    async fn running(&mut self, name: String) -> Answer<u32> {
        Ok(self.counted(&name).await.map_err(Into::into))
    }
}

impl secret::Host for CallState {
    async fn read(&mut self, name: String) -> Answer<Vec<u8>> {
        Ok(self.revealed(&name).await.map_err(Into::into))
    }
}
