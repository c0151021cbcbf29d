//! Formats sessions as tables, of one machine or of several.

use agentd_api::list::attention_of;
use agentd_api::session::SessionView;
use jiff::Timestamp;
use serde_json::Value;

use crate::args::list::{CustomColumn, Sort, SortKey};
use crate::commands::label;
use crate::prerequisite::Missing;
use crate::session::{agent, lacking, progress, question, stale};
use agentd_screen::table::{Cut, Table, age};
use agentd_screen::terminal::Screen;

/// Column with the machine of a session. It exists in lists of several machines.
const HOST: (&str, Cut) = ("HOST", Cut::End);

/// A listed session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    /// Name of the machine, in a list of several machines.
    pub(super) host: Option<&'a str>,
    pub(super) view: &'a SessionView,
    /// The session as the daemon sent it.
    pub(super) document: &'a Value,
}

/// Orders sessions. Without a key, sessions that need a person come first, and the present order decides among equals.
pub(super) fn sort(rows: &mut [Row<'_>], by: Option<Sort>) {
    let Some(Sort { key, is_reversed }) = by else {
        rows.sort_by_key(|row| attention_of(row.view).is_none());
        return;
    };
    rows.sort_by(|Row { view: a, .. }, Row { view: b, .. }| {
        let ordering = match key {
            SortKey::Created => a.created.cmp(&b.created),
            SortKey::Updated => a.status.updated.cmp(&b.status.updated),
            // Sessions without a name come last.
            SortKey::Name => {
                let name = |view: &SessionView| (view.spec.name.is_none(), label(view));
                name(a).cmp(&name(b))
            }
            SortKey::Agent => agent(a).cmp(&agent(b)),
            SortKey::Phase => a.status.phase.as_str().cmp(b.status.phase.as_str()),
            SortKey::Directory => a.spec.directory.cmp(&b.spec.directory),
        };
        if is_reversed { ordering.reverse() } else { ordering }
    });
}

/// Returns the cell of the machine. Rows of one machine have no such cell.
fn host_cell(row: &Row<'_>, screen: Screen) -> Option<String> {
    row.host.map(|host| screen.line(host))
}

/// Builds the table of columns that the command line defines. A path without a value has `<none>`, as with kubectl.
pub(super) fn custom(columns: &[CustomColumn], rows: &[Row<'_>], is_fleet: bool, screen: Screen) -> Table {
    let host = is_fleet.then(|| (HOST.0.to_owned(), HOST.1));
    let titles = columns.iter().map(|column| (column.title.clone(), Cut::End));
    let mut table = Table::titled(host.into_iter().chain(titles));
    for row in rows {
        let cell = |column: &CustomColumn| {
            let text = |value: &&Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let values: Vec<String> = column.path.query(row.document).iter().map(text).collect();
            if values.is_empty() { "<none>".to_owned() } else { screen.line(&values.join(",")) }
        };
        table.row(host_cell(row, screen).into_iter().chain(columns.iter().map(cell)).collect::<Vec<_>>());
    }
    table
}

/// Builds the table of stale sessions, with a line for each finding.
pub(super) fn stale_table(rows: &[Row<'_>], is_fleet: bool, screen: Screen) -> Table {
    let columns = [
        ("ID", Cut::Never),
        ("NAME", Cut::End),
        ("PHASE", Cut::Never),
        ("DIRECTORY", Cut::Start),
        ("KIND", Cut::Never),
        ("POLICY", Cut::Never),
        ("FINDING", Cut::End),
    ];
    let mut table = Table::new(&is_fleet.then_some(HOST).into_iter().chain(columns).collect::<Vec<_>>());
    for row in rows {
        let view = row.view;
        for finding in &view.status.staleness {
            let cells = [
                view.id.to_string(),
                view.spec.name.as_ref().map(ToString::to_string).unwrap_or_default(),
                view.status.phase.as_str().to_owned(),
                screen.line(&view.spec.directory.to_string_lossy()),
                finding.kind.as_str().to_owned(),
                finding.policy.as_str().to_owned(),
                screen.line(&finding.message),
            ];
            table.row(host_cell(row, screen).into_iter().chain(cells).collect::<Vec<_>>());
        }
    }
    table
}

/// Builds the table of sessions. The columns MODE, MODEL and PLACE exist if a session has one. NEEDS, MISSING and STALE
/// exist if a session needs a person, misses something or is stale. HOST is first in a list of several machines.
pub(super) fn table(rows: &[Row<'_>], is_fleet: bool, is_wide: bool, screen: Screen, now: Timestamp) -> Table {
    let has = |what: fn(&SessionView) -> bool| rows.iter().any(|row| what(row.view));
    let mut columns: Vec<(&'static str, Cut)> = is_fleet.then_some(HOST).into_iter().collect();
    columns.extend([
        ("ID", Cut::Never),
        ("NAME", Cut::End),
        ("AGENT", Cut::End),
        ("PHASE", Cut::Never),
        ("DIRECTORY", Cut::Start),
        ("AGE", Cut::Never),
    ]);
    let is_needed = has(|view| attention_of(view).is_some());
    columns.extend(is_needed.then_some(("NEEDS", Cut::Never)));
    let has_mode = has(|view| view.status.mode.is_some());
    columns.extend(has_mode.then_some(("MODE", Cut::End)));
    let has_model = has(|view| view.status.model.is_some());
    columns.extend(has_model.then_some(("MODEL", Cut::End)));
    let has_place = has(|view| view.status.place.is_some());
    columns.extend(has_place.then_some(("PLACE", Cut::End)));
    columns.push(("TURN", Cut::End));
    let is_missing = has(|view| lacking(view).is_some());
    columns.extend(is_missing.then_some(("MISSING", Cut::End)));
    let is_stale = has(|view| stale(view).is_some());
    columns.extend(is_stale.then_some(("STALE", Cut::End)));
    columns.extend([("TITLE", Cut::End), ("UPDATED", Cut::Never), ("LABELS", Cut::End)].iter().filter(|_| is_wide));
    let mut table = Table::new(&columns);
    for listed in rows {
        let view = listed.view;
        let mut row: Vec<String> = host_cell(listed, screen).into_iter().collect();
        row.extend([
            view.id.to_string(),
            view.spec.name.as_ref().map(ToString::to_string).unwrap_or_default(),
            screen.line(&agent(view)),
            view.status.phase.as_str().to_owned(),
            screen.line(&view.spec.directory.to_string_lossy()),
            age(view.created, now),
        ]);
        row.extend(is_needed.then(|| attention_of(view).map(|need| need.reason.clone()).unwrap_or_default()));
        let shown = |text: &Option<String>| screen.line(text.as_deref().unwrap_or_default());
        row.extend(has_mode.then(|| shown(&view.status.mode)));
        row.extend(has_model.then(|| shown(&view.status.model)));
        row.extend(has_place.then(|| shown(&view.status.place.as_ref().map(|place| place.name.clone()))));
        row.push(screen.line(&turn(view)));
        row.extend(is_missing.then(|| {
            let message = lacking(view).unwrap_or_default();
            screen.line(&Missing::of(&message).named_first(&message))
        }));
        row.extend(is_stale.then(|| stale(view).unwrap_or_default()));
        if is_wide {
            let labels: Vec<String> = view.spec.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            row.extend([shown(&view.status.title), age(view.status.updated, now), labels.join(",")]);
        }
        table.row(row);
    }
    table
}

/// Returns the running turn, or the progress of the launch.
fn turn(view: &SessionView) -> String {
    if let Some(request) = question(view) {
        return format!("? {}", request.title);
    }
    let Some(turn) = &view.status.turn else { return progress(view).map(str::to_owned).unwrap_or_default() };
    if view.status.permissions.is_empty() { turn.prompt.clone() } else { format!("? {}", turn.prompt) }
}

#[cfg(test)]
mod tests {
    use agentd_api::session::{ConditionStatus, ConditionType};
    use serde_json::json;

    use super::*;
    use crate::args::list::ListOutput;

    const TIME: &str = "2026-01-01T00:00:00Z";

    /// Returns a session with one condition, `PrerequisitesMet`.
    fn session(id: &str, phase: &str, status: &str, message: &str) -> SessionView {
        serde_json::from_value(json!({
            "id": id, "generation": 1, "created": TIME, "spec": { "directory": "/home/kim/project" },
            "status": {
                "phase": phase, "observed_generation": 1, "launches": 1, "last_seq": 9, "updated": TIME,
                "conditions": [{
                    "type": "PrerequisitesMet", "status": status, "reason": "R", "message": message,
                    "last_transition_time": TIME, "observed_generation": 1,
                }],
            },
        }))
        .unwrap()
    }

    fn row(view: &SessionView) -> Row<'_> {
        Row { host: None, view, document: &Value::Null }
    }

    fn table(views: &[&SessionView], is_wide: bool, screen: Screen, now: Timestamp) -> Table {
        super::table(&views.iter().map(|view| row(view)).collect::<Vec<_>>(), false, is_wide, screen, now)
    }

    #[test]
    fn ls_says_what_a_session_waits_for_and_what_one_that_runs_has_lost() {
        let (screen, now) = (Screen { terminal: true, colour: false }, TIME.parse().unwrap());
        let over = "the wait is over, and still missing is board (fail): silent; vpn (fail): no route";
        let failed = table(&[&session("eeeeeeeeeeee", "failed", "False", over)], false, screen, now).render(Some(100));
        assert!(failed.contains(" board, vpn: the wait is"), "{failed}");
        let waits = session("aaaaaaaaaaaa", "waiting", "False", "vpn (fail): no route to 10.0.0.0/8; connect the VPN");
        let lost = session("bbbbbbbbbbbb", "idle", "False", "lab (unknown): silent");
        let well = session("cccccccccccc", "idle", "True", "all prerequisites passed: vpn");
        let over = session("dddddddddddd", "stopped", "False", "Stopped");
        let text = table(&[&waits, &lost, &well, &over], false, screen, now).render(Some(100));
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows.iter().all(|row| row.chars().count() <= 100), "{text}");
        assert!(
            rows[0].ends_with("MISSING") && rows[1].contains("waiting") && rows[1].contains("vpn (fail): no "),
            "{text}"
        );
        assert!(rows[2].ends_with("lab (unknown): silent"), "{text}");
        assert!(rows[3].ends_with("0s") && rows[4].ends_with("0s"), "{text}");
        assert!(!table(&[&well, &over], false, screen, now).render(None).contains("MISSING"));
        let mut full = well.clone();
        full.status.conditions[0].kind = ConditionType::JournalWritable;
        full.status.conditions[0].status = ConditionStatus::False;
        full.status.conditions[0].message =
            "No space left on device (os error 28): /s/journal.jsonl cannot be written".to_owned();
        assert!(table(&[&full], false, screen, now).render(None).contains("No space left on device"));
        let mut compiles = session("eeeeeeeeeeee", "preparing", "False", "compiling corp");
        compiles.status.conditions[0].kind = ConditionType::EnvironmentReady;
        compiles.status.conditions[0].reason = agentd_api::reason::COMPILING_PLUGIN.to_owned();
        let text = table(&[&compiles], false, screen, now).render(Some(100));
        assert!(text.trim_end().ends_with("compiling corp") && !text.contains("MISSING"), "{text}");
    }

    #[test]
    fn a_session_on_a_place_has_its_name_and_the_words_of_a_queue() {
        let mut queued = session("abc", "waiting", "False", "the place \"farm\" has queued the launch: Resources");
        queued.status.conditions[0].kind = ConditionType::Placed;
        queued.status.conditions[0].reason = agentd_api::reason::QUEUED.to_owned();
        queued.status.place = serde_json::from_value(json!({ "name": "farm", "state": "queued" })).unwrap();
        let (here, screen) = (session("def", "idle", "True", ""), Screen { terminal: true, colour: false });
        let text = table(&[&queued, &here], false, screen, TIME.parse().unwrap()).render(None);
        let rows: Vec<&str> = text.lines().collect();
        assert!(
            rows[0].contains("AGE  PLACE  TURN") && rows[1].ends_with("has queued the launch: Resources"),
            "{text}"
        );
        assert!(rows[1].contains(" farm ") && !rows[2].contains("farm"), "{text}");
        assert!(!table(&[&here], false, screen, TIME.parse().unwrap()).render(None).contains("PLACE"));
    }

    #[test]
    fn a_degraded_session_names_its_missing_parts() {
        let mut degraded = session("abc", "idle", "True", "m");
        degraded.status.degraded =
            serde_json::from_value(json!([{ "kind": "script", "name": "/s.sh", "message": "it failed" }])).unwrap();
        let row = table(&[&degraded], false, Screen { terminal: true, colour: false }, TIME.parse().unwrap());
        let row = row.render(None);
        assert!(row.contains("MISSING") && row.contains("without script /s.sh\n"), "{row}");
    }

    #[test]
    fn sessions_that_need_a_person_come_first_unless_the_order_is_given() {
        let (mut needs, idle) = (session("b", "failed", "True", ""), session("a", "idle", "True", ""));
        needs.status.conditions[0].kind = ConditionType::NeedsAttention;
        needs.status.conditions[0].reason = "Failed".to_owned();
        std::sync::Arc::make_mut(&mut needs.spec).directory = "/z".into();
        let screen = Screen { terminal: true, colour: false };
        let text = table(&[&idle, &needs], true, screen, TIME.parse().unwrap()).render(None);
        assert!(text.contains("NEEDS") && text.contains("Failed") && text.contains("LABELS"), "{text}");
        let order = |by: Option<&str>| {
            let mut listed = [row(&idle), row(&needs)];
            sort(&mut listed, by.map(|by| by.parse().unwrap()));
            listed.map(|row| row.view.id.to_string()).concat()
        };
        let orders = [None, Some("directory"), Some("-directory"), Some("phase"), Some("name"), Some("created")];
        assert_eq!(orders.map(order), ["ba", "ab", "ba", "ba", "ab", "ab"]);
    }

    #[test]
    fn a_custom_column_has_the_values_of_its_path() {
        let Ok(ListOutput::Columns(columns)) = "custom-columns=ID:.id,TEAM:.spec.labels.team".parse() else { panic!() };
        let documents = [json!({ "id": "a", "spec": { "labels": { "team": "web" } } }), json!({ "id": "b" })];
        let screen = Screen { terminal: true, colour: false };
        let view = session("a", "idle", "True", "");
        let rows: Vec<Row<'_>> =
            documents.iter().map(|document| Row { host: Some("lab"), view: &view, document }).collect();
        assert_eq!(
            custom(&columns, &rows, true, screen).render(None),
            "HOST  ID  TEAM\nlab   a   web\nlab   b   <none>\n"
        );
        let rows: Vec<Row<'_>> = rows.into_iter().map(|row| Row { host: None, ..row }).collect();
        let table = custom(&columns, &rows, false, screen);
        assert_eq!(table.render(None), "ID  TEAM\na   web\nb   <none>\n");
        assert_eq!(table.without_head().render(None), "a  web\nb  <none>\n");
    }

    #[test]
    fn the_machine_is_the_first_column_and_attention_counts_over_all_machines() {
        let (mut needs, idle) = (session("b", "failed", "True", ""), session("a", "idle", "True", ""));
        needs.status.conditions[0].kind = ConditionType::NeedsAttention;
        let mut rows = [Row { host: Some("this"), ..row(&idle) }, Row { host: Some("zoo"), ..row(&needs) }];
        sort(&mut rows, None);
        let screen = Screen { terminal: true, colour: false };
        let text = super::table(&rows, true, false, screen, TIME.parse().unwrap()).render(None);
        let firsts: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(firsts, ["HOST", "zoo", "this"], "{text}");
    }
}
