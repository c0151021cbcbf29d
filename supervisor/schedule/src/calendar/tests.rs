use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::*;

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).expect("the machine has the time zone")
}

/// Returns the next `count` times in UTC.
fn times(text: &str, after: &str, zone: &TimeZone, count: usize) -> Vec<String> {
    let calendar: Calendar = text.parse().unwrap_or_else(|error| panic!("{error}"));
    let mut at: Timestamp = after.parse().unwrap();
    let mut found = Vec::new();
    while found.len() < count
        && let Some(next) = calendar.next(at, zone)
    {
        found.push(next.to_string());
        at = next;
    }
    found
}

#[test]
fn an_expression_has_weekdays_a_date_a_time_and_a_zone() {
    let utc = TimeZone::UTC;
    for (text, wanted) in [
        ("Mon..Fri 09:00", &["2026-01-01T09:00:00Z", "2026-01-02T09:00:00Z", "2026-01-05T09:00:00Z"][..]),
        ("monday, 12:00", &["2026-01-05T12:00:00Z", "2026-01-12T12:00:00Z"]),
        ("*:0/20", &["2026-01-01T00:20:00Z", "2026-01-01T00:40:00Z", "2026-01-01T01:00:00Z"]),
        ("*-02~01..03", &["2026-02-26T00:00:00Z", "2026-02-27T00:00:00Z", "2026-02-28T00:00:00Z"]),
        ("Mon *-05~07/1", &["2026-05-25T00:00:00Z", "2027-05-31T00:00:00Z"]),
        ("*~1", &["2026-01-31T00:00:00Z", "2026-02-28T00:00:00Z"]),
        ("*-02-29", &["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
        ("27-02-03", &["2027-02-03T00:00:00Z"]),
        ("*:*:0/7.5", &["2026-01-01T00:00:07.5Z", "2026-01-01T00:00:15Z", "2026-01-01T00:00:22.5Z"]),
        ("@1800000000", &["2027-01-15T08:00:00Z"]),
        ("weekly", &["2026-01-05T00:00:00Z"]),
        ("bi-annually", &["2026-07-01T00:00:00Z", "2027-01-01T00:00:00Z"]),
        ("2025-01-01", &[]),
        ("*-02-30", &[]),
    ] {
        let found = times(text, "2026-01-01T00:00:00Z", &utc, wanted.len().max(1));
        assert_eq!(found, wanted, "{text}");
    }
    let named: Calendar = "Mon *-*-* 12:00 Europe/Berlin".parse().unwrap();
    assert_eq!(named.zone(), Some("Europe/Berlin"));
    assert_eq!("hourly".parse::<Calendar>().unwrap().zone(), None);
    assert_eq!("daily UTC".parse::<Calendar>().unwrap().zone(), Some("UTC"));
}

#[test]
fn another_syntax_is_refused_with_the_part_and_what_to_write() {
    for (text, words) in [
        ("", "is empty"),
        (" 12:00", "spaces around"),
        ("12", "\"12\" is not a date"),
        ("24:00", "the hour 24 in the calendar expression \"24:00\" is not from 0 to 23"),
        ("12:60", "the minute 60"),
        ("*:*:60", "the second 60"),
        ("*-*-32", "the day 32"),
        ("*-13-01", "the month 13"),
        ("2200-01-01", "the year 2200"),
        ("*-*-* */5:00", "\"*/5\" is not a hour"),
        ("*:0/0", "\"0/0\" is not a minute"),
        ("*-*~03..01", "\"03..01\" is not a day"),
        ("Fri..Mon", "\"Fri..Mon\" is not a weekday"),
        ("Mon *-*-* 12:00 13:00", "\"13:00\""),
        ("1:2:3:4", "is not a time"),
        ("12:30.5", "is not a minute"),
        ("@-1", "since 1970"),
        ("Mon..Foo", "weekday"),
    ] {
        let error = text.parse::<Calendar>().expect_err(text);
        assert!(error.to_string().contains(words), "{text}: {error}");
        assert!(error.hint().contains("systemd.time(7)"));
    }
}

#[test]
fn a_time_that_does_not_exist_is_skipped() {
    // On 28 March 2027 the clocks of Berlin go from 02:00 to 03:00.
    let berlin = zone("Europe/Berlin");
    let daily = times("*-*-* 02:30", "2027-03-26T12:00:00Z", &berlin, 2);
    assert_eq!(daily, ["2027-03-27T01:30:00Z", "2027-03-29T00:30:00Z"]);
    let half_hours = times("*:00/30", "2027-03-28T00:20:00Z", &berlin, 3);
    assert_eq!(half_hours, ["2027-03-28T00:30:00Z", "2027-03-28T01:00:00Z", "2027-03-28T01:30:00Z"]);
}

#[test]
fn a_time_that_exists_twice_is_used_once() {
    // On 25 October 2026 the clocks of Berlin go from 03:00 to 02:00.
    let berlin = zone("Europe/Berlin");
    let daily = times("*-*-* 02:30", "2026-10-24T12:00:00Z", &berlin, 2);
    assert_eq!(daily, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    let hourly = times("hourly", "2026-10-24T23:59:00Z", &berlin, 3);
    assert_eq!(hourly, ["2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"]);
    // A search that begins in the second half of the repeated hour finds times there.
    let second = times("*:00/15", "2026-10-25T01:10:00Z", &berlin, 2);
    assert_eq!(second, ["2026-10-25T01:15:00Z", "2026-10-25T01:30:00Z"]);
}
