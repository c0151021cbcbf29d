//! Implements `agentctl env`: an agent's environment, the origin of each variable, its changes, and the key of
//! the stored environment.

mod home;
mod keep;
mod scripts;
mod terminal;

pub(super) use scripts::allow_file;

use agentd_api::environment::{ChangeView, DifferenceView, EnvironmentView, FileView, StepView, VariableView};
use serde::Serialize;

use super::{Context, print, tell};
use crate::args::{Against, EnvArgs, Range};
use crate::error::{Error, exit};
use crate::machine::Machine;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;
use home::HomeDiffers;
use terminal::Terminal;

pub(super) async fn env(context: &Context, args: EnvArgs) -> Result<u8, Error> {
    match args.scripts {
        None => variables(context, &args).await,
        Some(command) => scripts::scripts(context, command).await,
    }
}

pub(super) async fn rotate_key(context: &Context) -> Result<u8, Error> {
    let document = context.client.rotate_key().await?;
    let rotation = &document.value;
    if context.json {
        context.print_document(&document.raw)?;
    } else {
        let screen = Screen::stdout();
        let mut lines = vec![format!("key {}, {} sessions\n", rotation.key, rotation.rewritten.len())];
        let failed = rotation.failed.iter();
        lines.extend(failed.map(|failed| format!("{}: {}\n", failed.session, screen.line(&failed.reason))));
        if !rotation.kept_keys.is_empty() {
            lines.push(format!("still needed: {}\n", rotation.kept_keys.join(", ")));
        }
        print(&screen.text(&lines.concat()))?;
    }
    Ok(if rotation.failed.is_empty() { 0 } else { exit::FAILED })
}

async fn variables(context: &Context, args: &EnvArgs) -> Result<u8, Error> {
    let session = args.session.as_deref().unwrap_or_default();
    let id = context.client.find(session).await?.value.id;
    match args.diff {
        Some(Against::Terminal) => return terminal::difference(context, id.as_str(), session, args.values).await,
        Some(Against::Moments(range)) => return difference(context, id.as_str(), range, args.values).await,
        None => {}
    }
    let values = args.values || args.explain.is_some();
    let document = context.client.environment(id.as_str(), args.at, values).await?;
    if let Some(name) = &args.explain {
        return explain(context, &document.value, name);
    }
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    let (view, screen) = (document.value, Screen::stdout());
    if args.ran {
        return scripts::ran(&view, screen);
    }
    if args.dropped {
        Context::table(&dropped_table(&view, screen))?;
        return Ok(0);
    }
    if args.values {
        // A value may be long, and a cut value is worse than a long line.
        print(&screen.text(&variable_table(&view, screen, true).render(None)))?;
    } else {
        Context::table(&variable_table(&view, screen, false))?;
    }
    // Printed for pipes too: a user who counts the lines should know that variables are missing.
    if !view.dropped.is_empty() {
        tell(&format!("{} were dropped: agentctl env {session} --dropped", view.dropped.len()))?;
    }
    if view.scripts.iter().any(|run| !run.warnings.is_empty()) {
        tell(&format!("scripts printed errors: agentctl env {session} --scripts"))?;
    }
    for part in &view.without {
        tell(&format!("built by a degraded launch, without {part}"))?;
    }
    for missing in &view.missing {
        tell(&format!("{} is no longer available, and the agent runs without this variable", missing.name))?;
    }
    Ok(0)
}

async fn difference(context: &Context, id: &str, range: Range, values: bool) -> Result<u8, Error> {
    let document = context.client.environment_difference(id, (range.from, range.to), values).await?;
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    let (view, screen) = (document.value, Screen::stdout());
    let table = difference_table(&view, screen, values);
    if values {
        print(&screen.text(&table.render(None)))?;
    } else {
        Context::table(&table)?;
    }
    if !view.not_compared.is_empty() && Screen::stderr().terminal {
        tell(&format!("secrets that are not stored cannot be compared: {}", view.not_compared.join(", ")))?;
    }
    Ok(0)
}

fn difference_table(view: &DifferenceView, screen: Screen, values: bool) -> Table {
    let columns = [
        ("", Cut::Never),
        ("NAME", Cut::Never),
        ("SET BY", Cut::End),
        ("NOW SET BY", Cut::End),
        ("VALUE", Cut::Never),
        ("NEW VALUE", Cut::Never),
    ];
    let mut table = Table::new(&columns[..if values { 6 } else { 4 }]);
    for (sign, list) in [("+", &view.added), ("~", &view.changed), ("-", &view.removed)] {
        for change in list {
            let mut row = vec![sign.to_owned(), screen.line(&change.name)];
            row.extend([&change.before, &change.after].map(|side| screen.line(&provider(side.as_ref()))));
            if values {
                row.extend([&change.before, &change.after].map(|side| side_value(change, side.as_ref(), screen)));
            }
            table.row(row);
        }
    }
    table
}

/// Returns the provider that set or dropped a variable.
fn provider(step: Option<&StepView>) -> String {
    match step {
        Some(step) if step.removed => format!("dropped by {}", step.provider),
        Some(step) => step.provider.clone(),
        None => "-".to_owned(),
    }
}

fn side_value(change: &ChangeView, step: Option<&StepView>, screen: Screen) -> String {
    match step.filter(|step| !step.removed) {
        Some(_) if change.secret => "‹secret›".to_owned(),
        Some(step) => {
            let value = step.value.as_ref().map(|value| screen.line(&value.display())).unwrap_or_default();
            // The path of a file is equal on both sides.
            step.file.iter().fold(value, |value, file| format!("{value} ({})", content(file)))
        }
        None => String::new(),
    }
}

/// Formats the size and the digest of a file's content.
fn content(file: &FileView) -> String {
    format!("{} bytes, sha256 {}", file.size, file.digest.get(..12).unwrap_or(&file.digest))
}

/// History of a variable in the pipeline.
#[derive(Debug, Serialize)]
struct Explanation {
    name: String,
    /// `set`, `dropped`, `missing` (a value that is no longer available), or `unknown` (no step has named the
    /// variable).
    state: &'static str,
    secret: bool,
    /// Name of the configured secret in this variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    named_secret: Option<String>,
    /// Steps in order; the last step decides the variable's state.
    history: Vec<StepView>,
    /// Whether this terminal has the variable. Present only if the agent does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_terminal: Option<bool>,
    /// Reason why the agent does not have the variable, if no step has a reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Remedy by which the agent receives the variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// Difference between the homes of the terminal and the agent. Present only for `HOME`, and for variables
    /// of the terminal that the agent does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    home_differs: Option<HomeDiffers>,
}

impl Explanation {
    fn new(name: &str, state: &'static str) -> Self {
        let name = name.to_owned();
        let (in_terminal, why, remedy) = (None, None, None);
        let home_differs = None;
        let history = Vec::new();
        Self { name, state, secret: false, named_secret: None, history, in_terminal, why, remedy, home_differs }
    }
}

fn explanation(view: &EnvironmentView, name: &str, terminal: &Terminal) -> Explanation {
    let variable = view.variables.iter().map(|variable| (variable, "set"));
    let missing = view.missing.iter().map(|variable| (variable, "missing"));
    if let Some((variable, state)) = variable.chain(missing).find(|(variable, _)| variable.name == name) {
        let earlier = variable.history.split_last().map(|(_, earlier)| earlier).unwrap_or_default();
        let history = earlier.iter().cloned().chain([variable.last_step()]).collect();
        let named_secret = variable.named_secret.clone();
        let home_differs = HomeDiffers::find(terminal, view).filter(|_| name == "HOME");
        let of_name = Explanation::new(name, state);
        return Explanation { secret: variable.secret, named_secret, history, home_differs, ..of_name };
    }
    let dropped = view.dropped.iter().find(|dropped| dropped.name == name);
    let mut explanation = Explanation::new(name, if dropped.is_some() { "dropped" } else { "unknown" });
    if let Some(dropped) = dropped {
        explanation.history =
            if dropped.history.is_empty() { vec![dropped.last_step()] } else { dropped.history.clone() };
    }
    explanation.in_terminal = Some(terminal.contains_key(name));
    explanation.home_differs = HomeDiffers::find(terminal, view).filter(|_| terminal.contains_key(name));
    if let Some(here) = terminal::here(name, terminal, view) {
        (explanation.why, explanation.remedy) = (here.why, Some(here.remedy));
    }
    explanation
}

fn explain(context: &Context, view: &EnvironmentView, name: &str) -> Result<u8, Error> {
    // A terminal of another machine has nothing to compare.
    let terminal =
        if Machine::of(&context.client) == Machine::This { terminal::this_terminal() } else { Terminal::new() };
    let explanation = explanation(view, name, &terminal);
    if context.json {
        context.print_value(&explanation)?;
        return Ok(0);
    }
    print(&Screen::stdout().text(&explained(&explanation, Screen::stdout())))?;
    Ok(0)
}

fn explained(explanation: &Explanation, screen: Screen) -> String {
    let name = screen.line(&explanation.name);
    let remedy = explanation.remedy.iter().map(|remedy| format!("  remedy: {}\n", screen.line(remedy)));
    let home = explanation.home_differs.iter().map(|differs| format!("  {}\n", screen.line(&differs.line())));
    let remedy = remedy.chain(home);
    let Some(last) = explanation.history.last() else {
        let never = format!("{name} is not set: no provider has set or removed it\n");
        let here = explanation.in_terminal == Some(true);
        let here = here.then(|| {
            let why = explanation.why.as_deref().unwrap_or_default();
            format!("  this terminal has it, but the login shell does not: {}\n", screen.line(why))
        });
        return std::iter::once(never).chain(here).chain(remedy).collect();
    };
    let origin = |step: &StepView| {
        step.origin.as_ref().map(|path| format!(" ({})", screen.line(&path.to_string_lossy()))).unwrap_or_default()
    };
    let value = |step: &StepView| match &step.value {
        _ if explanation.secret => "‹secret›".to_owned(),
        Some(value) => format!("{:?}", value.display()),
        None => "a value that is not kept".to_owned(),
    };
    let by = format!("{}, step {}{}", screen.line(&last.provider), last.step, origin(last));
    let first = match explanation.state {
        "missing" => format!("{name} is not set: it is a secret of {by} that is no longer available\n"),
        _ if last.removed => {
            let reason = last.reason.as_ref().map(|reason| format!(": {}", screen.line(reason))).unwrap_or_default();
            format!("{name} is not set: dropped by {by}{reason}\n")
        }
        _ => format!("{name} is {}, set by {by}\n", value(last)),
    };
    let file = last.file.iter().map(|file| format!("  a file of the session: {}\n", content(file)));
    let named = explanation
        .named_secret
        .iter()
        .map(|name| format!("  the secret {}, fetched at each launch: agentctl secret ls\n", screen.line(name)));
    let expires = last
        .expires_at
        .iter()
        .map(|at| format!("  valid until {at}; then {} is called again\n", screen.line(&last.provider)));
    let before = explanation.history.iter().rev().skip(1).map(|step| {
        let by = format!("{}, step {}{}", screen.line(&step.provider), step.step, origin(step));
        if step.removed {
            format!("  before: dropped by {by}\n")
        } else {
            format!("  before: {}, set by {by}\n", value(step))
        }
    });
    std::iter::once(first).chain(file).chain(named).chain(expires).chain(before).chain(remedy).collect()
}

fn variable_table(view: &EnvironmentView, screen: Screen, values: bool) -> Table {
    // Only few environments have variables that expire.
    let expires = view.variables.iter().any(|variable| variable.expires_at.is_some());
    let mut columns = vec![("NAME", Cut::Never), ("PROVIDER", Cut::Never), ("ORIGIN", Cut::Start)];
    columns.extend(expires.then_some(("EXPIRES", Cut::Never)));
    columns.extend(values.then_some(("VALUE", Cut::Never)));
    let mut table = Table::new(&columns);
    for variable in &view.variables {
        let origin = variable.origin.as_ref().map(|path| path.to_string_lossy()).unwrap_or_default();
        let mut row = vec![screen.line(&variable.name), screen.line(&variable.provider), screen.line(&origin)];
        if expires {
            row.push(variable.expires_at.map(|at| at.to_string()).unwrap_or_default());
        }
        if values {
            row.push(shown_value(variable, screen));
        }
        table.row(row);
    }
    table
}

fn shown_value(variable: &VariableView, screen: Screen) -> String {
    match &variable.value {
        _ if variable.secret => "‹secret›".to_owned(),
        // Each value has one line of the table; --json has the exact bytes.
        Some(value) => screen.line(&value.display()),
        None => String::new(),
    }
}

fn dropped_table(view: &EnvironmentView, screen: Screen) -> Table {
    let mut table = Table::new(&[("NAME", Cut::Never), ("PROVIDER", Cut::Never), ("REASON", Cut::End)]);
    for dropped in &view.dropped {
        let reason = dropped.reason.as_deref().unwrap_or_default();
        table.row([screen.line(&dropped.name), screen.line(&dropped.provider), screen.line(reason)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen() -> Screen {
        Screen { terminal: true, colour: false }
    }

    fn view() -> EnvironmentView {
        serde_json::from_value(serde_json::json!({
            "captured": "2026-01-01T00:00:00Z", "launch": 2, "digest": "",
            "variables": [
                { "name": "EDITOR", "value": "vi", "provider": "env-script", "step": 3, "origin": "/s.sh", "history": [
                    { "provider": "snapshot", "step": 1, "value": "ed" },
                    { "provider": "env-script", "step": 3, "origin": "/s.sh" } ] },
                { "name": "API_KEY", "value": "hunter2", "provider": "snapshot", "step": 1, "secret": true },
            ],
            "dropped": [{ "name": "OLD", "provider": "whitelist", "step": 2, "reason": "on no list", "history": [
                { "provider": "snapshot", "step": 1 },
                { "provider": "whitelist", "step": 2, "removed": true, "reason": "on no list" } ] }],
            "missing": [{ "name": "TOKEN", "provider": "snapshot", "step": 1, "secret": true }],
        }))
        .unwrap()
    }

    #[test]
    fn a_variable_is_explained_whether_it_is_there_was_dropped_or_never_was() {
        let text = |name: &str| explained(&explanation(&view(), name, &Terminal::new()), screen());
        assert_eq!(
            text("EDITOR"),
            "EDITOR is \"vi\", set by env-script, step 3 (/s.sh)\n  before: \"ed\", set by snapshot, step 1\n"
        );
        assert_eq!(text("API_KEY"), "API_KEY is ‹secret›, set by snapshot, step 1\n");
        assert_eq!(
            text("OLD"),
            "OLD is not set: dropped by whitelist, step 2: on no list\n  before: a value that is not kept, set \
                 by snapshot, step 1\n  remedy: agentctl env keep OLD\n"
        );
        assert!(text("TOKEN").contains("no longer available"));
        assert!(text("NEVER").contains("no provider has set or removed it"));
        let here = Terminal::from([("NEVER".to_owned(), b"1".to_vec())]);
        let text = explained(&explanation(&view(), "NEVER", &here), screen());
        assert!(text.contains("this terminal has it") && text.contains("--env-from terminal"), "{text}");
    }

    #[test]
    fn a_file_a_named_secret_and_a_limit_are_told() {
        let file = |digest: &str| serde_json::json!({ "size": 12, "digest": digest.repeat(16) });
        let view: EnvironmentView = serde_json::from_value(serde_json::json!({
            "captured": "2026-01-01T00:00:00Z", "launch": 1, "digest": "",
            "variables": [
                { "name": "KUBECONFIG", "value": "/run/f", "provider": "corp", "step": 3, "file": file("00ff"),
                  "expires_at": "2026-01-01T01:00:00Z" },
                { "name": "KEY", "provider": "corp", "step": 3, "origin": "corp-key", "secret": true,
                "named_secret": "corp-key" },
            ],
        }))
        .unwrap();
        let text = |name: &str| explained(&explanation(&view, name, &Terminal::new()), screen());
        assert_eq!(
            text("KUBECONFIG"),
            "KUBECONFIG is \"/run/f\", set by corp, step 3\n  a file of the session: 12 bytes, sha256 00ff00ff00ff\n  \
             valid until 2026-01-01T01:00:00Z; then corp is called again\n"
        );
        assert!(
            text("KEY").contains("is ‹secret›") && text("KEY").contains("the secret corp-key, fetched at each launch")
        );
        let table = variable_table(&view, screen(), false).render(None);
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!((rows[0].len(), &rows[1][..]), (4, &["KUBECONFIG", "corp", "2026-01-01T01:00:00Z"][..]));

        let side = |digest: &str| {
            serde_json::json!({ "provider": "corp", "step": 3, "value": "/run/f",
        "file": file(digest) })
        };
        let difference: DifferenceView = serde_json::from_value(serde_json::json!({
            "from": "last", "to": "now", "added": [], "removed": [],
            "changed": [{ "name": "KUBECONFIG", "before": side("00ff"), "after": side("ff00") }],
        }))
        .unwrap();
        let text = difference_table(&difference, screen(), true).render(None);
        assert!(
            text.contains("/run/f (12 bytes, sha256 00ff00ff00ff)") && text.contains("sha256 ff00ff00ff00"),
            "{text}"
        );
    }

    #[test]
    fn a_difference_shows_both_sides_and_no_secret() {
        let view: DifferenceView = serde_json::from_value(serde_json::json!({
            "from": "last", "to": "now",
            "added": [{ "name": "NEW", "before": { "provider": "whitelist", "step": 2, "removed": true },
                        "after": { "provider": "env-script", "step": 3, "value": "1" } }],
            "changed": [{ "name": "KEY", "secret": true, "before": { "provider": "a", "step": 1, "value": "x" },
                          "after": { "provider": "b", "step": 2, "value": "y" } }],
            "removed": [{ "name": "GONE", "before": { "provider": "a", "step": 1, "value": "z" } }],
        }))
        .unwrap();
        let text = difference_table(&view, screen(), true).render(None);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["+", "NEW", "dropped", "by", "whitelist", "env-script", "1"]);
        assert_eq!(rows[2], ["~", "KEY", "a", "b", "‹secret›", "‹secret›"]);
        assert_eq!(rows[3], ["-", "GONE", "a", "-", "z"]);
    }

    #[test]
    fn a_secrets_value_is_not_shown_even_if_the_daemon_sent_it() {
        let view: EnvironmentView = serde_json::from_value(serde_json::json!({
            "captured": "2026-01-01T00:00:00Z", "launch": 1, "digest": "",
            "variables": [
                { "name": "KEY", "value": "hunter2", "provider": "env-script", "step": 3, "origin": "/s.sh",
                "secret": true },
                { "name": "TWO", "value": "a\nb", "provider": "snapshot", "step": 1 },
            ],
        }))
        .unwrap();
        let screen = Screen { terminal: true, colour: false };
        let text = variable_table(&view, screen, true).render(None);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["KEY", "env-script", "/s.sh", "‹secret›"]);
        assert_eq!(rows[2], ["TWO", "snapshot", "a", "b"]);
        assert!(!variable_table(&view, screen, false).render(None).contains("VALUE"));
    }
}
