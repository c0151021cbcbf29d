//! Compares calendar expressions with `systemd-analyze calendar`. Without systemd the test does nothing, unless
//! `AGENTD_TEST_REQUIRE` lists `systemd`.

use std::process::Command;

use agentd_schedule::Calendar;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Number of times that are compared for each expression.
const ITERATIONS: usize = 5;

#[allow(clippy::disallowed_methods, reason = "the test itself asks what it must run")]
fn is_installed() -> bool {
    let found = Command::new("systemd-analyze").arg("--version").output().is_ok_and(|output| output.status.success());
    let required = std::env::var("AGENTD_TEST_REQUIRE").unwrap_or_default();
    assert!(found || !required.split(',').any(|name| name == "systemd"), "systemd-analyze is required and missing");
    found
}

/// Returns the times that systemd finds, in seconds since 1970; `None` if it refuses the expression. `Err` if it gives
/// up: systemd 252 does so for some valid expressions, with the message "Infinite loop in calendar calculation".
fn of_systemd(text: &str, after: i64, zone: &str) -> Result<Option<Vec<i64>>, ()> {
    let output = Command::new("systemd-analyze")
        .args(["calendar", &format!("--iterations={ITERATIONS}"), &format!("--base-time=@{after}"), "--", text])
        .env("TZ", zone)
        .env("LC_ALL", "C")
        .output()
        .expect("systemd-analyze runs");
    if String::from_utf8_lossy(&output.stderr).contains("Infinite loop") {
        return Err(());
    }
    if !output.status.success() {
        return Ok(None);
    }
    let printed = String::from_utf8(output.stdout).expect("it is UTF-8");
    // In a zone other than UTC each time has a second line with the time in UTC.
    let is_utc = |line: &&str| line.trim_end().ends_with(" UTC");
    let lines = printed.lines().filter(|line| !line.contains(" form: ")).filter(is_utc);
    let times = lines.filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().rev().take(3).collect();
        let text = format!("{}T{}Z", words.get(2)?, words.get(1)?);
        text.parse::<Timestamp>().ok().map(Timestamp::as_second)
    });
    Ok(Some(times.collect()))
}

fn of_agentd(text: &str, after: i64, zone: &str) -> Option<Vec<i64>> {
    let calendar: Calendar = text.parse().ok()?;
    let zone = TimeZone::get(calendar.zone().unwrap_or(zone)).ok()?;
    let (mut at, mut found) = (Timestamp::from_second(after).expect("it is a time"), Vec::new());
    while found.len() < ITERATIONS
        && let Some(next) = calendar.next(at, &zone)
    {
        found.push(next.as_second());
        at = next;
    }
    Some(found)
}

const ZONES: [&str; 4] = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];

#[test]
fn written_expressions_have_the_times_of_systemd() {
    if !is_installed() {
        return;
    }
    let texts = [
        "minutely",
        "hourly",
        "daily",
        "weekly",
        "monthly",
        "quarterly",
        "semiannually",
        "yearly",
        "bi-annually",
        "Mon..Fri 09:00",
        "Mon-Fri",
        "Sat,Sun *:30",
        "monday, 12:00",
        "Mon,Tue,Wed,Thu,Fri,Sat,Sun",
        "*:0/20",
        "*-*-* 02:30",
        "*-*-* 02:30 UTC",
        "Mon *-*-* 12:00 Europe/Berlin",
        "*-02~01..03",
        "*-02~05/2",
        "Mon *-05~07/1",
        "*~1",
        "1~1",
        "*~31",
        "*~1/1",
        "*~3/2",
        "*~3/3",
        "*-02~29..31",
        "*~30/3",
        "*~1,5..7",
        "2027~*",
        "*-*-31",
        "*-02-29",
        "27-02-03",
        "69-01-01",
        "70-01-01",
        "2030-*-01",
        "10-12..14",
        "*-1,3/4-5",
        "1..5/2:00",
        "0..23/5:7/13:11",
        "*-*-1/10",
        "*-01..3/2-*",
        "*:*:*",
        "*:00:00/1",
        "@1800000000",
        "*-*-* *:*:0/30",
        "Fri *-*-13",
        "*-12-24..26 18:00",
        "daily Europe/Berlin",
        "weekly UTC",
        // Refused by both.
        "",
        " 12:00",
        "12:00 ",
        "12",
        "12:",
        "24:00",
        "*:60",
        "*-*-32",
        "*-*-0",
        "*-13-01",
        "*-*-* */5:00",
        "5..1:00",
        "*-02~03..01",
        "Fri..Mon",
        "12:00:60",
        "*:0/0",
        "*-*-*T12:00",
        "@",
        "x",
        "Mon..",
        "*-*-* 12:00 Nowhere/Atall",
    ];
    for zone in ZONES {
        for text in texts {
            for after in [1_767_225_600, 1_792_886_400, 1_805_600_000] {
                assert_eq!(Ok(of_agentd(text, after, zone)), of_systemd(text, after, zone), "{text:?} {zone} @{after}");
            }
        }
    }
}

/// Writes a range. systemd 252 refuses a range of one second.
fn range(a: u32, b: u32) -> String {
    if a == b { a.to_string() } else { format!("{}..{}", a.min(b), a.max(b)) }
}

/// Parts of a date or time within bounds.
fn part(least: u32, most: u32) -> impl Strategy<Value = String> {
    let value = move || least..=most;
    prop_oneof![
        3 => Just("*".to_owned()),
        3 => value().prop_map(|one| one.to_string()),
        1 => (value(), value()).prop_map(|(a, b)| format!("{},{}", a.min(b), a.max(b))),
        1 => (value(), value()).prop_map(|(a, b)| range(a, b)),
        1 => (value(), 1..9_u32).prop_map(|(a, step)| format!("{a}/{step}")),
        1 => (value(), value(), 1..9_u32).prop_map(|(a, b, step)| {
            if a == b { a.to_string() } else { format!("{}/{step}", range(a, b)) }
        }),
    ]
}

fn expression() -> impl Strategy<Value = String> {
    let days = prop::sample::select(vec!["", "", "", "Mon ", "Mon..Fri ", "Sat,Sun ", "Tue,Thu..Sun "]);
    let separator = prop::sample::select(vec!["-", "-", "-", "~"]);
    // systemd 252 refuses a day above 25 in a list of days from the end, and accepts it alone.
    let date = (part(1, 12), separator, part(1, 22)).prop_map(|(month, by, day)| format!("*-{month}{by}{day} "));
    let time = (part(0, 23), part(0, 59), part(0, 59)).prop_map(|(h, m, s)| format!("{h}:{m}:{s}"));
    (days, prop_oneof![Just(String::new()), date], time).prop_map(|(days, date, time)| format!("{days}{date}{time}"))
}

#[test]
fn random_expressions_have_the_times_of_systemd() {
    if !is_installed() {
        return;
    }
    // The begins are around the clock changes of 2026 and 2027.
    let begins = prop_oneof![1_792_800_000..1_793_000_000_i64, 1_805_900_000..1_806_300_000_i64, 0..4_000_000_000_i64];
    let zones = prop::sample::select(ZONES.to_vec());
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let compared = runner.run(&(expression(), begins, zones), |(text, after, zone)| {
        let Ok(of_systemd) = of_systemd(&text, after, zone) else { return Ok(()) };
        prop_assert_eq!(of_agentd(&text, after, zone), of_systemd, "{} {} @{}", text, zone, after);
        Ok(())
    });
    compared.unwrap_or_else(|error| panic!("{error}"));
}
