//! The page of metrics, from the families that `agentd_metrics` declares.

use std::fmt::Write as _;

use agentd_api::readiness::NotReady;
use agentd_metrics::{Described, Kind, Label, Metrics};

const BEGINNING: &str = "# Metrics

`GET /metrics` answers these families in OpenMetrics, or in the text format of Prometheus. [Metrics and
alerts](../operations/metrics.md) shows how to collect them.

The series of a counter end in `_total`. A histogram has the series `_bucket`, `_count` and `_sum`. Labels without
listed values have names of the configuration, routes or sessions as values, and their number is bounded.

| name | type | labels | meaning |
|---|---|---|---|
";

const END: &str = "| `agentd_build_info` | info | `version` | Version of the running daemon. The value is always 1. |

A reader ignores metrics, labels and label values that it does not know: later versions add some.

## Reasons of `/readyz`

`GET /readyz` answers 503 with these reasons, and `agentd_not_ready` has one series for each.

| reason | meaning | remedy |
|---|---|---|
";

pub(super) fn page() -> String {
    let mut page = String::from(BEGINNING);
    for family in Metrics::ALL {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let name = match family.kind {
            Kind::Counter => family.series().remove(0),
            Kind::Gauge | Kind::Histogram => family.name(),
        };
        let labels: Vec<String> = family.labels.iter().map(label).collect();
        let bounds = buckets(family);
        let (labels, meaning) = (labels.join("; "), family.named.meaning());
        writeln!(page, "| `{name}` | {kind} | {labels} | {meaning}{bounds} |").unwrap();
    }
    page += END;
    for (reason, named) in NotReady::ALL.iter().zip(NotReady::NAMES) {
        writeln!(page, "| `{}` | {} | {} |", reason.code(), named.meaning(), reason.hint()).unwrap();
    }
    page
}

fn label(label: &Label) -> String {
    let Some(values) = label.values else { return format!("`{}`", label.name) };
    let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
    format!("`{}`: {}", label.name, values.join(", "))
}

fn buckets(family: &Described) -> String {
    let (Some(first), Some(last)) = (family.buckets.first(), family.buckets.last()) else { return String::new() };
    format!(" Buckets from {first} s to {last} s.")
}
