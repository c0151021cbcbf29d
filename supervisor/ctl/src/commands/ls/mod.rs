//! Implements `agentctl ls`: of one machine, of several machines, and again at each change.

mod fleet;
mod table;
mod watch;

use agentd_api::list::{Fields, Phases};
use agentd_api::session::{Phase, SessionList, SessionView, UnreadableSession};
use agentd_api::staleness::UncheckedSession;
use jiff::Timestamp;
use serde_json::Value;

use self::table::{Row, custom, sort, stale_table, table};
use super::{Context, label, print, tell};
use crate::args::list::{CustomColumn, ListOutput, LsArgs};
use crate::document::DocumentForm;
use crate::error::Error;
use crate::reach::{first, reach};
use agentd_client::{Client, ListQuery, Pages, fields};
use agentd_screen::terminal::Screen;

/// Fields of the table's columns, beside those of each session.
const COLUMNS: &[&str] = &[
    "status.conditions.EnvironmentReady",
    "status.conditions.JournalWritable",
    "status.conditions.Placed",
    "status.conditions.PrerequisitesMet",
    "status.conditions.RepositoriesReady",
    "status.conditions.WorkflowReady",
    "status.agent",
    "status.degraded",
    "status.mode",
    "status.model",
    "status.permissions",
    "status.place",
    "status.staleness",
    "status.turn",
];
/// Fields of the further columns with `-o wide`.
const WIDE: &[&str] = &["spec.labels", "status.title"];

/// Form of the list.
#[derive(Debug)]
enum Form {
    Table { is_wide: bool },
    Ids,
    Names,
    Documents(DocumentForm),
    Columns(Vec<CustomColumn>),
}

impl Form {
    fn of(args: &LsArgs, context: &Context) -> Result<Self, Error> {
        if context.json && (args.output.is_some() || args.quiet) {
            return Err(Error::Usage {
                detail: "--json and --yaml cannot be given with --output or --quiet".to_owned(),
                hint: "remove one of the two".to_owned(),
            });
        }
        Ok(match &args.output {
            None if context.json => Self::Documents(context.form),
            None if args.quiet => Self::Ids,
            None => Self::Table { is_wide: false },
            Some(ListOutput::Wide) => Self::Table { is_wide: true },
            Some(ListOutput::Json) => Self::Documents(DocumentForm::Json),
            Some(ListOutput::Yaml) => Self::Documents(DocumentForm::Yaml),
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
            Self::Documents(_) => whole(),
            Self::Columns(columns) => {
                let named: Option<Vec<String>> = columns.iter().map(CustomColumn::field).collect();
                let asked = named.map(|named| fields(&named.iter().map(String::as_str).collect::<Vec<_>>()));
                asked.filter(|fields| fields.selection().is_ok()).unwrap_or_else(whole)
            }
        }
    }

    fn documents(&self) -> Option<DocumentForm> {
        if let Self::Documents(form) = self { Some(*form) } else { None }
    }
}

/// The wish of the command line.
#[derive(Debug)]
struct Wish {
    args: LsArgs,
    form: Form,
    query: ListQuery,
    /// Whether stopped sessions are listed too.
    stopped_too: bool,
}

impl Wish {
    fn of(context: &Context, args: LsArgs) -> Result<Self, Error> {
        let form = Form::of(&args, context)?;
        let directory = args.dir.as_ref().map(std::path::absolute).transpose().map_err(Error::Setup)?;
        let stopped_too = args.all || args.phase.is_some() || form.documents().is_some();
        let others = || Phases(Phase::ALL.iter().copied().filter(|phase| *phase != Phase::Stopped).collect());
        let (phase, fields) = if args.stale {
            (args.phase.clone(), Fields(vec!["*".to_owned()]))
        } else {
            (args.phase.clone().or_else(|| (!stopped_too).then(others)), form.fields())
        };
        let query = ListQuery {
            label: args.labels.selector.clone(),
            phase,
            agent: args.agent.clone(),
            directory,
            condition: args.condition.clone(),
            fields,
        };
        Ok(Self { args, form, query, stopped_too })
    }

    /// Prints the rows in the order of the command line, in a form for people.
    fn print(&self, mut rows: Vec<Row<'_>>, is_headless: bool) -> Result<(), Error> {
        sort(&mut rows, self.args.sort);
        let (screen, is_fleet) = (Screen::stdout(), self.args.all_hosts);
        let line = |row: &Row<'_>, name: String| {
            let host = row.host.map(|host| format!("{host}/")).unwrap_or_default();
            format!("{host}{name}\n")
        };
        let table = match &self.form {
            Form::Ids => return print(&rows.iter().map(|row| line(row, row.view.id.to_string())).collect::<String>()),
            Form::Names => return print(&rows.iter().map(|row| line(row, label(row.view))).collect::<String>()),
            Form::Table { is_wide } => table(&rows, is_fleet, *is_wide, screen, Timestamp::now()),
            Form::Columns(columns) => custom(columns, &rows, is_fleet, screen),
            Form::Documents(_) => return Ok(()),
        };
        let is_headless = is_headless || self.args.no_headers;
        Context::table(&if is_headless { table.without_head() } else { table })
    }
}

/// The sessions of one machine.
#[derive(Debug, Default)]
struct MachineList {
    sessions: Vec<(SessionView, Value)>,
    unreadable: Vec<UnreadableSession>,
    /// Sessions whose staleness could not be checked.
    unchecked: Vec<UncheckedSession>,
}

impl MachineList {
    fn of(pages: &Pages) -> Result<Self, Error> {
        let sessions = pages.sessions()?.into_iter().zip(pages.documents().cloned()).collect();
        Ok(Self { sessions, unreadable: pages.unreadable().cloned().collect(), unchecked: Vec::new() })
    }

    fn rows<'a>(&'a self, host: Option<&'a str>) -> impl Iterator<Item = Row<'a>> {
        self.sessions.iter().map(move |(view, document)| Row { host, view, document })
    }

    /// Reports the sessions that could not be read or checked. `host` is the machine in a list of several.
    fn tell_omitted(&self, host: Option<&str>) -> Result<(), Error> {
        let host = host.map(|host| format!("{host}: ")).unwrap_or_default();
        for unchecked in &self.unchecked {
            tell(&format!("{host}cannot check session {}: {}", unchecked.id, unchecked.reason))?;
        }
        for unreadable in &self.unreadable {
            tell(&format!("{host}cannot read session {}: {}", unreadable.id, unreadable.reason))?;
        }
        Ok(())
    }
}

/// Lists sessions, with `--watch` again and again.
pub(super) async fn ls(context: &mut Context, args: LsArgs) -> Result<u8, Error> {
    let wish = Wish::of(context, args)?;
    if wish.args.all_hosts {
        return fleet::ls(context, &wish).await;
    }
    if wish.args.watch || wish.args.stale {
        reach(context.starter.as_ref(), &mut context.client).await?;
    }
    if wish.args.watch {
        return watch::watch(&wish, vec![fleet::Place::of_client(context.client.clone())]).await;
    }
    if wish.args.stale {
        return ls_stale(context, &wish).await;
    }
    if let (Some(form), None) = (wish.form.documents(), wish.args.sort) {
        let list = async |client: &Client| client.list_all(&wish.query).await;
        return form.print(&first(context.starter.as_ref(), &mut context.client, list).await?.raw).map(|()| 0);
    }
    let read = async |client: &Client| {
        let mut pages = Pages::new(wish.query.clone());
        pages.refresh(client).await.map(|_| pages)
    };
    let pages = first(context.starter.as_ref(), &mut context.client, read).await?;
    let list = MachineList::of(&pages)?;
    if let Some(form) = wish.form.documents() {
        let mut rows: Vec<Row<'_>> = list.rows(None).collect();
        sort(&mut rows, wish.args.sort);
        let sessions = rows.iter().map(|row| row.document.clone()).collect();
        return form.print_value(&SessionList { sessions, ..pages.whole() }).map(|()| 0);
    }
    wish.print(list.rows(None).collect(), false)?;
    list.tell_omitted(None)?;
    let is_hidden = !wish.stopped_too && matches!(wish.form, Form::Table { .. }) && Screen::stderr().terminal;
    if is_hidden {
        tell_hidden(context, &wish.query).await?;
    }
    Ok(0)
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

/// Lists the stale sessions with a line for each finding.
async fn ls_stale(context: &Context, wish: &Wish) -> Result<u8, Error> {
    let document = context.client.list_stale(&wish.query).await?;
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    let SessionList { sessions, unreadable, unchecked, .. } = document.value;
    let sessions = sessions.into_iter().map(|view| (view, Value::Null)).collect();
    let list = MachineList { sessions, unreadable, unchecked };
    print_stale(&list.rows(None).collect::<Vec<_>>(), false)?;
    list.tell_omitted(None)?;
    Ok(0)
}

fn print_stale(rows: &[Row<'_>], is_fleet: bool) -> Result<(), Error> {
    if rows.is_empty() {
        tell("no session is stale")
    } else {
        Context::table(&stale_table(rows, is_fleet, Screen::stdout()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_column_asks_for_its_field_or_for_the_whole_session() {
        let Ok(ListOutput::Columns(columns)) = "custom-columns=ID:.id,TEAM:.spec.labels.team".parse() else { panic!() };
        let wanted = Form::Columns(columns).fields();
        assert!(wanted.0.iter().any(|name| name == "spec.labels") && wanted.0.iter().all(|name| name != "*"));
        let Ok(ListOutput::Columns(columns)) = "custom-columns=A:.moon".parse() else { panic!() };
        assert_eq!(Form::Columns(columns).fields(), Fields(vec!["*".to_owned()]), "an unknown field is no error");
    }
}
