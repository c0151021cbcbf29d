//! Implements `agentctl set` and `agentctl edit`: changes of a session's specification.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::Command;

use agentd_api::Code;
use agentd_api::session::SessionView;
use agentd_api::spec::{Effect, FIELDS, SpecChangeView, SpecPatch};
use serde_json::{Map, Value};

use super::confirm::confirmed;
use super::{Context, label, print, tell};
use crate::args::spec::SetArgs;
use crate::error::Error;
use crate::spec_patch;
use agentd_client::Document;

/// Sets fields of the specification.
pub(super) async fn set(context: &Context, args: SetArgs) -> Result<u8, Error> {
    let patch = spec_patch::of_fields(&args.fields)?;
    let id = context.client.find(&args.session).await?.value.id;
    let changed = context.client.change_spec(id.as_str(), &patch, args.generation).await?;
    report(context, &changed)
}

/// Lets the user edit the specification as TOML, and changes what differs.
pub(super) async fn edit(context: &Context, session: &str) -> Result<u8, Error> {
    let found = context.client.find(session).await?.value;
    let before = fields(&found)?;
    let file = tempfile::Builder::new().prefix("agentctl-").suffix(".toml").tempfile().map_err(Error::Setup)?;
    let mut text = document(&found, &before)?;
    loop {
        write(file.path(), &text)?;
        run_editor(file.path())?;
        let edited = std::fs::read_to_string(file.path()).map_err(|source| file_error(file.path(), source))?;
        if edited == text {
            tell("nothing changed")?;
            return Ok(0);
        }
        let sent = match toml::from_str::<Map<String, Value>>(&edited) {
            Ok(after) => {
                let patch = SpecPatch(agentd_specs::between(&before, &after));
                let changed = context.client.change_spec(found.id.as_str(), &patch, Some(found.generation)).await;
                changed.map_err(Error::from)
            }
            Err(error) => {
                let detail = format!("the document is not valid TOML: {}", error.message());
                Err(Error::Usage { detail, hint: "correct it".to_owned() })
            }
        };
        let error = match sent {
            Ok(changed) => return report(context, &changed),
            Err(error) => error,
        };
        // Another edit of the same document cannot help against a change by another client.
        let may_help = error.problem_code() != Some(Code::GenerationChanged) && io::stdin().is_terminal();
        if may_help {
            error.report(None);
            if confirmed("edit it again?").await? == Some(true) {
                text = edited;
                continue;
            }
        }
        let (_, kept) = file.keep().map_err(|error| Error::Setup(error.error))?;
        tell(&format!("nothing was changed; your text is in {}", kept.display()))?;
        return Err(error);
    }
}

/// Returns the fields of a session's specification.
fn fields(view: &SessionView) -> Result<Map<String, Value>, Error> {
    match serde_json::to_value(&*view.spec).map_err(Error::Request)? {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// Returns the specification as a TOML document with an explanation.
fn document(view: &SessionView, fields: &Map<String, Value>) -> Result<String, Error> {
    let mut text = format!("# The specification of the session {} (generation {}).\n", label(view), view.generation);
    for effect in [Effect::Live, Effect::NextTurn, Effect::NextLaunch, Effect::Never] {
        let names: Vec<&str> = FIELDS.iter().filter(|field| field.effect == effect).map(|field| field.name).collect();
        let _ = writeln!(text, "# A change takes effect {}: {}.", effect.describe(), names.join(", "));
    }
    text.push_str("# A field that you remove gets its default.\n\n");
    text.push_str(&toml::to_string_pretty(fields).map_err(|error| Error::Setup(io::Error::other(error)))?);
    Ok(text)
}

fn file_error(path: &Path, source: io::Error) -> Error {
    Error::File { path: path.to_owned(), source }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Runs the user's editor. As for git and kubectl, the variable may contain arguments.
fn run_editor(path: &Path) -> Result<(), Error> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let editor = named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(|| "vi".into());
    let mut line = editor.clone();
    line.push(" \"$@\"");
    let status = Command::new("sh").arg("-c").arg(line).arg("sh").arg(path).status();
    let reason = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Err(Error::Usage {
        detail: format!("the editor {} failed: {reason}", editor.display()),
        hint: "set VISUAL or EDITOR to an editor; agentctl set changes single fields without one".to_owned(),
    })
}

/// Prints the changed fields, each with the time of its effect.
fn report(context: &Context, changed: &Document<SpecChangeView>) -> Result<u8, Error> {
    if context.json {
        context.print_document(&changed.raw)?;
        return Ok(0);
    }
    let SpecChangeView { changes, session } = &changed.value;
    if changes.is_empty() {
        tell("nothing changed")?;
        return Ok(0);
    }
    let mut text = format!("{}: generation {}\n", label(session), session.generation);
    for change in changes {
        let _ = writeln!(text, "  {} takes effect {}", change.field, change.effect.describe());
    }
    print(&text)?;
    Ok(0)
}
