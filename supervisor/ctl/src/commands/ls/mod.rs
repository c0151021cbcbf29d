//! Implements `agentctl ls`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use agentd_api::SessionId;
use agentd_api::list::{Fields, Phases, attention_of};
use agentd_api::session::{Phase, SessionList, SessionView};
use jiff::Timestamp;
use serde_json::Value;

use super::{Context, label, print, print_document, tell};
use crate::args::list::{CustomColumn, ListOutput, LsArgs, Sort, SortKey};
use crate::client::list::{ListQuery, Pages, fields};
use crate::error::Error;
use crate::prerequisite::Missing;
use crate::session::{agent, lacking, progress, question, stale};
use agentd_screen::table::{Cut, Table, age};
use agentd_screen::terminal::Screen;

/// Time between two looks of `--watch`.
const PAUSE: Duration = Duration::from_secs(1);
/// Moves the cursor to the top left, and clears the rest of the screen.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// Fields of the table's columns, beside those of each session.
const COLUMNS: &[&str] = &[
    "status.conditions.EnvironmentReady",
    "status.conditions.JournalWritable",
    "status.conditions.PrerequisitesMet",
    "status.conditions.RepositoriesReady",
    "status.conditions.WorkflowReady",
    "status.agent",
    "status.degraded",
    "status.mode",
    "status.model",
    "status.permissions",
    "status.staleness",
    "status.turn",
];
/// Fields of the further columns with `-o wide`.
const WIDE: &[&str] = &["spec.labels", "status.title"];

/// Form of the list.
enum Form {
    Table { is_wide: bool },
    Ids,
    Names,
    Json,
    Columns(Vec<CustomColumn>),
}

impl Form {
    fn of(args: &LsArgs, json: bool) -> Result<Self, Error> {
        if json && (args.output.is_some() || args.quiet) {
            return Err(Error::Usage {
                detail: "--json cannot be given with --output or --quiet".to_owned(),
                hint: "remove one of the two".to_owned(),
            });
        }
        Ok(match &args.output {
            None if json => Self::Json,
            None if args.quiet => Self::Ids,
            None => Self::Table { is_wide: false },
            Some(ListOutput::Wide) => Self::Table { is_wide: true },
            Some(ListOutput::Json) => Self::Json,
            Some(ListOutput::Name) => Self::Names,
            Some(ListOutput::Columns(columns)) => Self::Columns(columns.clone()),
        })
    }

    /// Returns the fields that the form needs.
    fn fields(&self) -> Fields {
        let whole = || Fields(vec!["*".to_owned()]);
        match self {
            Self::Table { is_wide: false } => fields(COLUMNS),
            Self::Table { is_wide: true } => fields(&[COLUMNS, WIDE].concat()),
            Self::Ids | Self::Names => fields(&[]),
            Self::Json => whole(),
            Self::Columns(columns) => {
                let named: Option<Vec<String>> = columns.iter().map(CustomColumn::field).collect();
                let asked = named.map(|named| fields(&named.iter().map(String::as_str).collect::<Vec<_>>()));
                asked.filter(|fields| fields.selection().is_ok()).unwrap_or_else(whole)
            }
        }
    }
}

/// Lists sessions, with `--watch` again and again.
pub(super) async fn ls(context: &Context, args: LsArgs) -> Result<u8, Error> {
    let form = Form::of(&args, context.json)?;
    let directory = args.dir.as_ref().map(std::path::absolute).transpose().map_err(Error::Setup)?;
    let stopped_too = args.all || args.phase.is_some() || context.json || matches!(form, Form::Json);
    let others = || Phases(Phase::ALL.iter().copied().filter(|phase| *phase != Phase::Stopped).collect());
    let query = ListQuery {
        label: args.labels.selector.clone(),
        phase: args.phase.clone().or_else(|| (!stopped_too).then(others)),
        agent: args.agent.clone(),
        directory,
        condition: args.condition.clone(),
        fields: form.fields(),
    };
    if args.stale {
        let query = ListQuery { phase: args.phase, fields: Fields(vec!["*".to_owned()]), ..query };
        return ls_stale(context, &query).await;
    }
    if matches!(form, Form::Json) && !args.watch && args.sort.is_none() {
        return print_document(&context.client.list_all(&query).await?.raw).map(|()| 0);
    }
    let stdout = Screen::stdout();
    let is_hidden = !stopped_too && matches!(form, Form::Table { .. }) && Screen::stderr().terminal;
    let mut pages = Pages::new(query.clone());
    let mut shown: Option<BTreeMap<SessionId, Value>> = None;
    loop {
        let has_changed = pages.refresh(&context.client).await?;
        if stdout.terminal && args.watch && !matches!(form, Form::Json) {
            // The ages change even if no session does.
            std::io::stdout().write_all(CLEAR_SCREEN.as_bytes()).map_err(Error::Output)?;
            show(&form, &args, &pages, None)?;
        } else if has_changed {
            show(&form, &args, &pages, shown.as_ref())?;
        }
        if shown.is_none() {
            let unreadable = if matches!(form, Form::Json) { Vec::new() } else { pages.whole().unreadable };
            for unreadable in unreadable {
                tell(&format!("cannot read session {}: {}", unreadable.id, unreadable.reason))?;
            }
            if is_hidden {
                tell_hidden(context, &query).await?;
            }
        }
        if !args.watch {
            return Ok(0);
        }
        shown = Some(by_id(&pages));
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tells how many stopped sessions the list leaves out.
async fn tell_hidden(context: &Context, query: &ListQuery) -> Result<(), Error> {
    let stopped = ListQuery { phase: Some(Phases(vec![Phase::Stopped])), fields: fields(&[]), ..query.clone() };
    let mut pages = Pages::new(stopped);
    pages.refresh(&context.client).await?;
    match pages.documents().count() {
        0 => Ok(()),
        hidden => tell(&format!("{hidden} stopped: agentctl ls --all")),
    }
}

fn by_id(pages: &Pages) -> BTreeMap<SessionId, Value> {
    let id = |document: &Value| document["id"].as_str().and_then(|id| id.parse().ok());
    pages.documents().filter_map(|document| Some((id(document)?, document.clone()))).collect()
}

/// Prints the list, or only its sessions that differ from `before`.
fn show(form: &Form, args: &LsArgs, pages: &Pages, before: Option<&BTreeMap<SessionId, Value>>) -> Result<(), Error> {
    let mut listed: Vec<(SessionView, &Value)> = pages.sessions()?.into_iter().zip(pages.documents()).collect();
    sort(&mut listed, args.sort);
    if matches!(form, Form::Json) {
        let sessions = listed.iter().map(|(_, document)| (*document).clone()).collect();
        let list = SessionList { sessions, ..pages.whole() };
        return print(&(serde_json::to_string(&list).map_err(Error::Request)? + "\n"));
    }
    listed.retain(|(view, document)| before.and_then(|before| before.get(&view.id)) != Some(*document));
    let views: Vec<&SessionView> = listed.iter().map(|(view, _)| view).collect();
    let lines = |line: fn(&SessionView) -> String| views.iter().map(|view| line(view) + "\n").collect::<String>();
    let table = match form {
        Form::Ids => return print(&lines(|view| view.id.to_string())),
        Form::Names => return print(&lines(label)),
        Form::Table { is_wide } => table(&views, *is_wide, Screen::stdout(), Timestamp::now()),
        Form::Columns(columns) => {
            let documents: Vec<&Value> = listed.iter().map(|(_, document)| *document).collect();
            custom(columns, &documents, Screen::stdout())
        }
        Form::Json => return Ok(()),
    };
    let is_headless = args.no_headers || before.is_some();
    Context::table(&if is_headless { table.without_head() } else { table })
}

/// Orders sessions. `listed` has the order of creation.
fn sort<T>(listed: &mut [(SessionView, T)], by: Option<Sort>) {
    let Some(Sort { key, is_reversed }) = by else {
        listed.sort_by_key(|(view, _)| attention_of(view).is_none());
        return;
    };
    listed.sort_by(|(a, _), (b, _)| {
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

/// Builds the table of columns that the command line defines. A path without a value has `<none>`, as with kubectl.
fn custom(columns: &[CustomColumn], documents: &[&Value], screen: Screen) -> Table {
    let mut table = Table::titled(columns.iter().map(|column| (column.title.clone(), Cut::End)));
    for document in documents {
        let cell = |column: &CustomColumn| {
            let text = |value: &&Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let values: Vec<String> = column.path.query(document).iter().map(text).collect();
            if values.is_empty() { "<none>".to_owned() } else { screen.line(&values.join(",")) }
        };
        table.row(columns.iter().map(cell).collect::<Vec<_>>());
    }
    table
}

/// Lists the stale sessions with a line for each finding.
async fn ls_stale(context: &Context, query: &ListQuery) -> Result<u8, Error> {
    let document = context.client.list_stale(query).await?;
    if context.json {
        print_document(&document.raw)?;
        return Ok(0);
    }
    let SessionList { sessions, unreadable, unchecked, .. } = document.value;
    if sessions.is_empty() {
        tell("no session is stale")?;
    } else {
        Context::table(&stale_table(&sessions, Screen::stdout()))?;
    }
    for unchecked in &unchecked {
        tell(&format!("cannot check session {}: {}", unchecked.id, unchecked.reason))?;
    }
    for unreadable in &unreadable {
        tell(&format!("cannot read session {}: {}", unreadable.id, unreadable.reason))?;
    }
    Ok(0)
}

fn stale_table(sessions: &[SessionView], screen: Screen) -> Table {
    let mut table = Table::new(&[
        ("ID", Cut::Never),
        ("NAME", Cut::End),
        ("PHASE", Cut::Never),
        ("DIRECTORY", Cut::Start),
        ("KIND", Cut::Never),
        ("POLICY", Cut::Never),
        ("FINDING", Cut::End),
    ]);
    for view in sessions {
        for finding in &view.status.staleness {
            table.row([
                view.id.to_string(),
                view.spec.name.as_ref().map(ToString::to_string).unwrap_or_default(),
                view.status.phase.as_str().to_owned(),
                screen.line(&view.spec.directory.to_string_lossy()),
                finding.kind.as_str().to_owned(),
                finding.policy.as_str().to_owned(),
                screen.line(&finding.message),
            ]);
        }
    }
    table
}

/// Builds the table of sessions. The columns MODE and MODEL exist if an agent has one. NEEDS, MISSING and STALE
/// exist if a session needs a person, misses something or is stale.
fn table(sessions: &[&SessionView], is_wide: bool, screen: Screen, now: Timestamp) -> Table {
    let mut columns = vec![
        ("ID", Cut::Never),
        ("NAME", Cut::End),
        ("AGENT", Cut::End),
        ("PHASE", Cut::Never),
        ("DIRECTORY", Cut::Start),
        ("AGE", Cut::Never),
    ];
    let is_needed = sessions.iter().any(|view| attention_of(view).is_some());
    columns.extend(is_needed.then_some(("NEEDS", Cut::Never)));
    let has_mode = sessions.iter().any(|view| view.status.mode.is_some());
    columns.extend(has_mode.then_some(("MODE", Cut::End)));
    let has_model = sessions.iter().any(|view| view.status.model.is_some());
    columns.extend(has_model.then_some(("MODEL", Cut::End)));
    columns.push(("TURN", Cut::End));
    let is_missing = sessions.iter().any(|view| lacking(view).is_some());
    columns.extend(is_missing.then_some(("MISSING", Cut::End)));
    let is_stale = sessions.iter().any(|view| stale(view).is_some());
    columns.extend(is_stale.then_some(("STALE", Cut::End)));
    columns.extend([("TITLE", Cut::End), ("UPDATED", Cut::Never), ("LABELS", Cut::End)].iter().filter(|_| is_wide));
    let mut table = Table::new(&columns);
    for view in sessions {
        let mut row = vec![
            view.id.to_string(),
            view.spec.name.as_ref().map(ToString::to_string).unwrap_or_default(),
            screen.line(&agent(view)),
            view.status.phase.as_str().to_owned(),
            screen.line(&view.spec.directory.to_string_lossy()),
            age(view.created, now),
        ];
        row.extend(is_needed.then(|| attention_of(view).map(|need| need.reason.clone()).unwrap_or_default()));
        let shown = |text: &Option<String>| screen.line(text.as_deref().unwrap_or_default());
        row.extend(has_mode.then(|| shown(&view.status.mode)));
        row.extend(has_model.then(|| shown(&view.status.model)));
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
            let mut listed = [(idle.clone(), ()), (needs.clone(), ())];
            sort(&mut listed, by.map(|by| by.parse().unwrap()));
            listed.map(|(view, ())| view.id.to_string()).concat()
        };
        let orders = [None, Some("directory"), Some("-directory"), Some("phase"), Some("name"), Some("created")];
        assert_eq!(orders.map(order), ["ba", "ab", "ba", "ba", "ab", "ab"]);
    }

    #[test]
    fn a_custom_column_has_the_values_of_its_path() {
        let Ok(ListOutput::Columns(columns)) = "custom-columns=ID:.id,TEAM:.spec.labels.team".parse() else { panic!() };
        let documents = [json!({ "id": "a", "spec": { "labels": { "team": "web" } } }), json!({ "id": "b" })];
        let screen = Screen { terminal: true, colour: false };
        let table = custom(&columns, &documents.iter().collect::<Vec<_>>(), screen);
        assert_eq!(table.render(None), "ID  TEAM\na   web\nb   <none>\n");
        assert_eq!(table.without_head().render(None), "a  web\nb  <none>\n");
        let wanted = Form::Columns(columns).fields();
        assert!(wanted.0.iter().any(|name| name == "spec.labels") && wanted.0.iter().all(|name| name != "*"));
        let Ok(ListOutput::Columns(columns)) = "custom-columns=A:.moon".parse() else { panic!() };
        assert_eq!(Form::Columns(columns).fields(), Fields(vec!["*".to_owned()]), "an unknown field is no error");
    }
}
