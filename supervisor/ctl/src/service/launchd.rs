//! Loads, reloads and removes launchd's job in a sequence that checks the result of each command.
//!
//! `launchctl bootout` returns before the job is gone, with success or with "operation in progress".
//! `bootstrap` fails with 5 (input/output error) while the old job still exists. The status of a command
//! therefore decides little: the job is checked until it has the wanted state.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ServiceError;
use super::host::{CommandOutput, Host, line};
use super::manager::Service;
use super::survey;

/// launchd kills a job that does not end within its `ExitTimeOut`, 20 s in the property list.
const GONE: Duration = Duration::from_secs(40);
/// Maximum time for which the old job may prevent the load of its successor.
const LOADED: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);
/// "Input/output error" and "operation already in progress": the old job still exists.
const NOT_YET: [i32; 2] = [5, 37];

/// Progress of the job towards the wanted state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The job must be removed.
    Unload,
    /// The job was removed at `since`, and may still exist.
    Gone { since: Duration },
    /// The job must be loaded; `asked` states whether launchd was asked to load it.
    Load { since: Duration, asked: bool },
}

/// Next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    Bootout,
    Bootstrap,
    Wait,
    Done,
    /// The job did not reach the wanted state in time.
    GiveUp,
}

/// Decides the next action from the job's existence and the failure of the last command (`None`: it succeeded,
/// or there was no command). `now` is the time since the beginning. `load` states whether a job is wanted in
/// the end.
pub(crate) fn next(stage: Stage, there: bool, failed: Option<i32>, now: Duration, load: bool) -> (Stage, Next) {
    match stage {
        Stage::Unload if there => (Stage::Gone { since: now }, Next::Bootout),
        Stage::Gone { since } if there => {
            let next = if now.saturating_sub(since) < GONE { Next::Wait } else { Next::GiveUp };
            (stage, next)
        }
        Stage::Unload | Stage::Gone { .. } if load => (Stage::Load { since: now, asked: true }, Next::Bootstrap),
        Stage::Unload | Stage::Gone { .. } => (stage, Next::Done),
        Stage::Load { .. } if there => (stage, Next::Done),
        Stage::Load { since, asked } => {
            let is_early = now.saturating_sub(since) < LOADED;
            let next = match failed {
                _ if !asked => Next::Bootstrap,
                Some(code) if !NOT_YET.contains(&code) => Next::GiveUp,
                _ if !is_early => Next::GiveUp,
                Some(_) => Next::Bootstrap,
                None => Next::Wait,
            };
            (Stage::Load { since, asked: true }, next)
        }
    }
}

/// Wanted change of a user's job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    uid: u32,
    /// The old job is removed first.
    unload: bool,
    /// Property list to load the job from.
    load: Option<PathBuf>,
}

impl Job {
    pub(crate) fn load(host: &Host, plist: &Path) -> Self {
        Self { uid: host.uid, unload: false, load: Some(plist.to_owned()) }
    }

    /// Removes the job and loads it again.
    pub(crate) fn renew(host: &Host, plist: &Path) -> Self {
        Self { unload: true, ..Self::load(host, plist) }
    }

    pub(crate) fn unload(host: &Host) -> Self {
        Self { uid: host.uid, unload: true, load: None }
    }

    /// Formats the commands as a user would type them.
    pub(crate) fn describe(&self) -> String {
        let load = self.load.as_ref().map(|plist| line(&self.bootstrap(plist)));
        let commands = [self.unload.then(|| line(&self.bootout())), load];
        commands.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn bootstrap(&self, plist: &Path) -> Vec<String> {
        ["launchctl", "bootstrap", &format!("gui/{}", self.uid), &plist.to_string_lossy()].map(str::to_owned).to_vec()
    }

    fn bootout(&self) -> Vec<String> {
        ["launchctl", "bootout", &Service::target_of(self.uid)].map(str::to_owned).to_vec()
    }

    /// Changes the job, and verifies the result.
    pub(crate) async fn run(&self, host: &Host) -> Result<(), ServiceError> {
        let none = Stage::Load { since: Duration::ZERO, asked: false };
        let mut stage = if self.unload { Stage::Unload } else { none };
        let begun = Instant::now();
        let mut last: Option<(Vec<String>, CommandOutput)> = None;
        loop {
            let there = survey::job_state(host).await?.is_known();
            let failed = last.as_ref().filter(|(_, ran)| !ran.success).map(|(_, ran)| ran.status.unwrap_or(-1));
            let (after, next) = next(stage, there, failed, begun.elapsed(), self.load.is_some());
            let repeats = stage == after;
            stage = after;
            let command = match (next, &self.load) {
                (Next::Bootout, _) => self.bootout(),
                (Next::Bootstrap, Some(plist)) => self.bootstrap(plist),
                (Next::Wait, _) => {
                    sleep(PAUSE).await;
                    continue;
                }
                (Next::Done, _) | (Next::Bootstrap, None) => return Ok(()),
                (Next::GiveUp, _) => {
                    let unchanged = || (self.describe(), "the job does not change".to_owned());
                    let (command, said) = last.map_or_else(unchanged, |(command, ran)| (line(&command), ran.complaint));
                    return Err(ServiceError::Failed { command, said });
                }
            };
            if repeats {
                sleep(PAUSE).await;
            }
            let ran = host.run(&command).await?;
            last = Some((command, ran));
        }
    }
}

/// Returns the path of the property list.
pub(crate) fn plist(host: &Host) -> PathBuf {
    host.home.join(format!("Library/LaunchAgents/{}.plist", super::manager::LABEL))
}

/// Starts the job, and loads it first unless it is loaded.
pub(crate) async fn up(host: &Host, plist: &Path, loaded: bool) -> Result<(), ServiceError> {
    if !loaded {
        return Job::load(host, plist).run(host).await;
    }
    let command = ["launchctl", "kickstart", &Service::target(host)].map(str::to_owned);
    let ran = host.run(&command).await?;
    if ran.success { Ok(()) } else { Err(ServiceError::Failed { command: line(&command), said: ran.complaint }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Imitation of launchd: its job disappears some checks after the bootout, and its bootstrap fails some
    /// times first.
    struct Fake {
        there: bool,
        lingers: u32,
        refuses: u32,
        status: i32,
    }

    /// Returns the actions without the waits, and the time they took.
    fn play(mut fake: Fake, mut stage: Stage, load: bool) -> (Vec<Next>, Duration) {
        let (mut done, mut now, mut failed) = (Vec::new(), Duration::ZERO, None);
        loop {
            let going = matches!(stage, Stage::Gone { .. }) && fake.there;
            if going {
                fake.lingers = fake.lingers.saturating_sub(1);
                fake.there = fake.lingers > 0;
            }
            let (after, next) = next(stage, fake.there, failed, now, load);
            stage = after;
            now += PAUSE;
            match next {
                Next::Wait => continue,
                // The status means that the bootout is in progress, which is not a failure.
                Next::Bootout => failed = Some(36),
                Next::Bootstrap => {
                    failed = (fake.refuses > 0).then_some(fake.status);
                    fake.refuses = fake.refuses.saturating_sub(1);
                    fake.there = failed.is_none();
                }
                Next::Done | Next::GiveUp => {
                    done.push(next);
                    return (done, now);
                }
            }
            done.push(next);
        }
    }

    #[test]
    fn a_job_is_loaded_anew_only_once_the_old_one_is_gone_and_as_often_as_it_takes() {
        use Next::{Bootout, Bootstrap, Done};
        let (done, _) = play(Fake { there: true, lingers: 12, refuses: 2, status: 5 }, Stage::Unload, true);
        assert_eq!(done, [Bootout, Bootstrap, Bootstrap, Bootstrap, Done]);
        let (done, _) = play(Fake { there: true, lingers: 3, refuses: 0, status: 5 }, Stage::Unload, false);
        assert_eq!(done, [Bootout, Done]);
        let (done, _) = play(Fake { there: false, lingers: 0, refuses: 0, status: 5 }, Stage::Unload, true);
        assert_eq!(done, [Bootstrap, Done], "there was none");
        let load = Stage::Load { since: Duration::ZERO, asked: false };
        assert_eq!(next(load, true, None, Duration::ZERO, true).1, Done, "it is loaded already");
    }

    #[test]
    fn a_job_that_stays_and_one_that_cannot_be_loaded_are_given_up() {
        let (done, took) = play(Fake { there: true, lingers: u32::MAX, refuses: 0, status: 5 }, Stage::Unload, true);
        assert_eq!(done, [Next::Bootout, Next::GiveUp]);
        assert!(took >= GONE, "{took:?}");
        let load = Stage::Load { since: Duration::ZERO, asked: false };
        let (done, took) = play(Fake { there: false, lingers: 0, refuses: u32::MAX, status: 5 }, load, true);
        assert!(done.last() == Some(&Next::GiveUp) && took >= LOADED, "{took:?}");
        let (done, _) = play(Fake { there: false, lingers: 0, refuses: u32::MAX, status: 78 }, load, true);
        assert_eq!(done, [Next::Bootstrap, Next::GiveUp], "waiting changes nothing of a list that is not valid");
    }
}
