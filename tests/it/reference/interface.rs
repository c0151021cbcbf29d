//! The pages of names that `agentd_api` declares: problem codes, event kinds, conditions.

use std::fmt::Write as _;

use agentd_api::doc::Named;
use agentd_api::feed::{MARKERS, Notice};
use agentd_api::session::ConditionType;
use agentd_api::{Body, Code, contract, reason};

/// Makes a table of two columns: name and meaning.
fn table(title: &str, names: &[Named]) -> String {
    let mut table = format!("| {title} | meaning |\n|---|---|\n");
    for named in names {
        writeln!(table, "| `{}` | {} |", named.name, named.meaning().replace('|', "\\|")).unwrap();
    }
    table
}

pub(super) fn problems() -> String {
    let retried: Vec<String> = Code::ALL
        .iter()
        .filter_map(|code| code.retry_after().map(|seconds| format!("`{}` ({seconds} s)", code.as_str())))
        .collect();
    let mut page = format!(
        "# Problem codes

An error of the [control endpoint](../operations/control.md) is a problem document (RFC 9457). `code` is for
programs, and a released code never changes its meaning. `detail` is for people, and `hint` names the remedy.

These codes have the header `Retry-After`, and the request had no effect:
{}.

| code | status | meaning |
|---|---|---|
",
        retried.join(", ")
    );
    for code in Code::ALL {
        let meaning = code.meaning().replace('|', "\\|");
        writeln!(page, "| `{}` | {} | {meaning} |", code.as_str(), code.status()).unwrap();
    }
    page + "\nA client treats a code that it does not know by its status.\n"
}

pub(super) fn events() -> String {
    format!(
        "# Event kinds

The events of a session are the records of its journal, in the same order. Each is one line of JSON:

```json
{{\"seq\":7,\"time\":\"2026-01-01T00:00:00.000001Z\",\"kind\":\"turn.ended\",\"data\":{{\"turn\":\"t1\",\"stop_reason\":\"end_turn\"}}}}
```

`seq` counts from 1 without gaps in a session. `data` depends on `kind`. `agentctl events SESSION` prints these lines.

{}
## Kinds of the feed

[The stream of all events](../operations/control.md#all-events-in-one-stream) has the events of all sessions, and
these:

{}
A stream adds these at its own time. They pass every filter of kinds.

{}
A client ignores kinds and fields that it does not know: later versions add some.
",
        table("kind", Body::KINDS),
        table("kind", Notice::KINDS),
        table("kind", MARKERS)
    )
}

pub(super) fn conditions() -> String {
    format!(
        "# Conditions

A session's `status.conditions` report the steps of its launch, and faults. `agentctl show SESSION` prints them.
Each has these fields:

| field | value |
|---|---|
| `type` | The condition's name, from the table below. |
| `status` | `True`, `False`, or `Unknown` while agentd does not know yet. |
| `reason` | One CamelCase word for programs. |
| `message` | Description for people. |
| `observed_generation` | Generation of the spec that the condition was evaluated for. |
| `last_transition_time` | Time at which `status` last changed. |

## Types

{}
## Reasons

A condition and the event `launch.failed` have one of these values as `reason`. The table follows the order of the
types. Later releases can add reasons; a client then shows the message.

{}",
        table("type", ConditionType::NAMES),
        table("reason", reason::ALL)
    )
}

pub(super) fn variables() -> String {
    format!(
        "# Variables of a session

An agent and its tools learn about their session from these variables. agentd sets them at each launch, after all
providers and secrets, so no script changes them. `agentctl env` shows them with the provider `agentd`. A comparison of
two environments leaves them out, because their values can differ from launch to launch.

{}
## Names of another runner

Programs that were written for the Kubernetes runner of the Ambient Code platform look for other names. These are set
too with `compatibility = \"ambient\"` in `[environment]` of agentd.toml, or in `environment` of a session's
specification:

{}
## Options of the agent

The runner configures its model by variables. With `compatibility = \"ambient\"`, agentd reads them from the session's
environment. It sets the options that the agent offers (ACP `configOptions`, or `models`) before the first turn of each
launch. The condition `OptionsApplied` names an option that the agent does not offer. agentd does not change these
variables.

{}
",
        table("variable", contract::VARIABLES),
        table("variable", contract::AMBIENT),
        table("variable", contract::OPTIONS)
    )
    .trim_end()
    .to_owned()
        + "\n"
}
