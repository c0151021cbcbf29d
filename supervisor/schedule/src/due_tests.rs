use jiff::ToSpan as _;
use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn calendar(text: &str, zone: &str) -> Times {
    Times::Calendar(text.parse().unwrap(), TimeZone::get(zone).unwrap())
}

/// A clock that a test sets, and a schedule that is looked at as the daemon does.
struct Watched {
    times: Times,
    policy: MissedPolicy,
    cursor: Timestamp,
    runs: Vec<String>,
    missed: u64,
}

impl Watched {
    fn new(text: &str, zone: &str, policy: MissedPolicy, now: &str) -> Self {
        Self { times: calendar(text, zone), policy, cursor: at(now), runs: Vec::new(), missed: 0 }
    }

    fn look(&mut self, now: &str) -> &mut Self {
        self.look_at(at(now))
    }

    fn look_at(&mut self, now: Timestamp) -> &mut Self {
        let decision = decide(&self.times, self.cursor, now, self.policy);
        self.cursor = decision.cursor;
        self.runs.extend(decision.run.map(|run| run.to_string()));
        self.missed += decision.missed.map_or(0, |missed| missed.count);
        self
    }
}

#[test]
fn each_time_starts_one_run() {
    let mut watched = Watched::new("*:00/10", "UTC", MissedPolicy::Skip, "2026-01-01T00:00:00Z");
    watched.look("2026-01-01T00:09:59Z").look("2026-01-01T00:10:00Z").look("2026-01-01T00:10:00Z");
    watched.look("2026-01-01T00:10:30Z").look("2026-01-01T00:20:59Z");
    assert_eq!(watched.runs, ["2026-01-01T00:10:00Z", "2026-01-01T00:20:00Z"]);
    assert_eq!(watched.missed, 0);
}

#[test]
fn a_machine_that_slept_starts_one_run_on_wake_or_none() {
    for (policy, runs, missed) in
        [(MissedPolicy::Once, vec!["2026-01-04T09:00:00Z"], 2), (MissedPolicy::Skip, vec![], 3)]
    {
        let mut watched = Watched::new("09:00:00", "UTC", policy, "2026-01-01T12:00:00Z");
        watched.look("2026-01-04T15:00:00Z").look("2026-01-04T15:00:01Z");
        assert_eq!((watched.runs, watched.missed), (runs.into_iter().map(str::to_owned).collect(), missed));
    }
}

#[test]
fn a_clock_that_goes_back_starts_nothing_twice() {
    let mut watched = Watched::new("hourly", "UTC", MissedPolicy::Once, "2026-01-01T00:00:00Z");
    watched.look("2026-01-01T03:00:05Z").look("2026-01-01T01:30:00Z").look("2026-01-01T02:00:00Z");
    watched.look("2026-01-01T03:00:00Z").look("2026-01-01T04:00:00Z");
    assert_eq!(watched.runs, ["2026-01-01T03:00:00Z", "2026-01-01T04:00:00Z"]);
}

#[test]
fn a_clock_that_was_wrong_by_years_does_not_end_the_schedule() {
    let mut watched = Watched::new("hourly", "UTC", MissedPolicy::Once, "2026-01-01T00:00:00Z");
    watched.look("2031-01-01T00:00:10Z").look("2026-01-01T05:30:00Z").look("2026-01-01T06:00:00Z");
    assert_eq!(watched.runs, ["2031-01-01T00:00:00Z", "2026-01-01T06:00:00Z"]);
}

#[test]
fn a_clock_that_goes_forward_counts_the_skipped_times_as_missed() {
    let mut watched = Watched::new("*:*", "UTC", MissedPolicy::Skip, "2026-01-01T00:00:00Z");
    watched.look("2026-01-01T02:00:30Z");
    // The time of half a minute ago is not late.
    assert_eq!((watched.runs, watched.missed), (vec!["2026-01-01T02:00:00Z".to_owned()], 119));
}

#[test]
fn a_long_sleep_with_a_time_each_second_is_counted_up_to_the_bound() {
    let mut watched = Watched::new("*:*:*", "UTC", MissedPolicy::Once, "2026-01-01T00:00:00Z");
    watched.look("2026-07-01T00:00:00.5Z");
    assert_eq!((watched.runs, watched.missed), (vec!["2026-07-01T00:00:00Z".to_owned()], MOST));
}

#[test]
fn daylight_changes_start_one_run_a_day() {
    // 02:30 does not exist on 28 March 2027 in Berlin, and exists twice on 25 October 2026.
    let mut watched = Watched::new("02:30:00", "Europe/Berlin", MissedPolicy::Skip, "2026-10-24T12:00:00Z");
    for minute in 0..(3 * 24 * 60) {
        watched.look_at(at("2026-10-24T12:00:00Z") + minute.minutes());
    }
    assert_eq!(watched.runs, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z", "2026-10-27T01:30:00Z"]);
    let mut watched = Watched::new("02:30:00", "Europe/Berlin", MissedPolicy::Skip, "2027-03-27T12:00:00Z");
    for minute in 0..(2 * 24 * 60) {
        watched.look_at(at("2027-03-27T12:00:00Z") + minute.minutes());
    }
    assert_eq!((watched.runs, watched.missed), (vec!["2027-03-29T00:30:00Z".to_owned()], 0));
}

#[test]
fn one_time_runs_once_also_when_the_daemon_was_down() {
    let times = Times::At(at("2026-01-01T09:00:00Z"));
    let down = decide(&times, at("2026-01-01T00:00:00Z"), at("2026-01-02T00:00:00Z"), MissedPolicy::Once);
    assert_eq!(down.run, Some(at("2026-01-01T09:00:00Z")));
    assert_eq!(decide(&times, down.cursor, at("2026-01-03T00:00:00Z"), MissedPolicy::Once).run, None);
    let skipped = decide(&times, at("2026-01-01T00:00:00Z"), at("2026-01-02T00:00:00Z"), MissedPolicy::Skip);
    assert_eq!((skipped.run, skipped.missed.map(|missed| missed.count)), (None, Some(1)));
}

proptest! {
    /// However the clock jumps, no time starts two runs, unless the clock was wrong by more than a day.
    #[test]
    fn no_jump_of_the_clock_starts_a_time_twice(
        jumps in prop::collection::vec(-20_000_i64..20_000, 1..60),
        every in prop::sample::select(vec!["*:*", "*:00/7", "hourly", "*-*-* 02:30", "*:*:0/20"]),
        once in any::<bool>(),
    ) {
        let policy = if once { MissedPolicy::Once } else { MissedPolicy::Skip };
        let mut watched = Watched::new(every, "Europe/Berlin", policy, "2026-10-24T23:00:00Z");
        let begin = at("2026-10-24T23:00:00Z");
        let mut now = begin;
        for jump in jumps {
            now = (now + jump.seconds()).clamp(begin - 10.hours(), begin + 10.hours());
            watched.look_at(now);
            prop_assert!(watched.cursor <= begin.max(watched.cursor));
        }
        let mut runs = watched.runs.clone();
        runs.sort();
        runs.dedup();
        prop_assert_eq!(runs.len(), watched.runs.len());
    }

    /// On a steady clock each time starts a run, whatever the pauses between two looks.
    #[test]
    fn on_a_steady_clock_no_time_is_lost(pauses in prop::collection::vec(1_i64..50, 1..80)) {
        let mut watched = Watched::new("*:*:00", "UTC", MissedPolicy::Skip, "2026-01-01T00:00:00Z");
        let mut now = at("2026-01-01T00:00:00Z");
        for pause in pauses {
            now += pause.seconds();
            watched.look_at(now);
        }
        let minutes = now.duration_since(at("2026-01-01T00:00:00Z")).as_mins();
        prop_assert_eq!(i64::try_from(watched.runs.len()).unwrap(), minutes);
        prop_assert_eq!(watched.missed, 0);
    }
}
