//! Implements `agentctl get`: prints sessions as files of specifications, as JSON, or parts of their documents.

use agentd_api::session::{SessionSpec, SessionView};
use serde_json::{Value, json};
use serde_json_path::JsonPath;

use super::{Context, label, print, tell};
use crate::args::files::{GetArgs, Output};
use crate::error::Error;
use agentd_screen::terminal::Screen;
use agentd_specs::{Format, portable};

/// A session, and its document with the fields that this version does not know.
struct Found {
    view: SessionView,
    document: Value,
}

pub(super) async fn get(context: &Context, args: GetArgs) -> Result<u8, Error> {
    let GetArgs { sessions, output, labels } = args;
    if context.json && output.is_some() {
        return Err(Error::Usage {
            detail: "--json and --output cannot both be given".to_owned(),
            hint: "remove one of the two".to_owned(),
        });
    }
    let is_one = sessions.len() == 1;
    let mut found = Vec::new();
    if sessions.is_empty() {
        let list = context.client.list(labels.selector).await?;
        if context.json {
            return context.print_document(&list.raw).map(|()| 0);
        }
        for unreadable in &list.value.unreadable {
            tell(&format!("cannot read session {}: {}", unreadable.id, unreadable.reason))?;
        }
        let mut documents: Value = serde_json::from_slice(&list.raw).map_err(Error::Request)?;
        for (index, view) in list.value.sessions.into_iter().enumerate() {
            found.push(Found { view, document: documents["sessions"][index].take() });
        }
        found.sort_by_key(|found| found.view.created);
    }
    for session in &sessions {
        let one = context.client.find(session).await?;
        if context.json {
            context.print_document(&one.raw)?;
            continue;
        }
        found.push(Found { document: serde_json::from_slice(&one.raw).map_err(Error::Request)?, view: one.value });
    }
    if context.json {
        return Ok(0);
    }
    let text = match output.unwrap_or(Output::Yaml) {
        Output::Toml => file(Format::Toml, &found, is_one)?,
        Output::Yaml => file(Format::Yaml, &found, is_one)?,
        Output::Json if is_one => json_text(&found[0].document)?,
        Output::Json => {
            json_text(&json!({ "sessions": found.iter().map(|found| &found.document).collect::<Vec<_>>() }))?
        }
        Output::Name => found.iter().map(|found| label(&found.view) + "\n").collect(),
        Output::Path(path) => found.iter().map(|found| values(&path, &found.document)).collect(),
    };
    print(&Screen::stdout().text(&text))?;
    Ok(0)
}

/// Writes the specifications as a file. A file of many leaves out sessions without a name, which no file can name.
fn file(format: Format, found: &[Found], is_one: bool) -> Result<String, Error> {
    let specs: Vec<SessionSpec> = found.iter().map(|found| portable(&found.view)).collect();
    let named: Vec<SessionSpec> = specs.iter().filter(|spec| spec.name.is_some()).cloned().collect();
    let written = match specs.as_slice() {
        [one] if is_one => {
            if one.name.is_none() {
                let id = &found[0].view.id;
                tell(&format!("this session has no name, which agentctl apply needs: agentctl set {id} name=NAME"))?;
            }
            format.write(one)
        }
        _ => {
            if named.len() < specs.len() {
                let unnamed = specs.len() - named.len();
                tell(&format!("{unnamed} without a name left out; agentctl set S name=NAME gives a name"))?;
            }
            format.write_all(&named)
        }
    };
    written.map_err(|reason| Error::Usage {
        detail: format!("cannot write the specification in this format: {reason}"),
        hint: "try -o yaml or -o json".to_owned(),
    })
}

fn json_text(document: &Value) -> Result<String, Error> {
    serde_json::to_string_pretty(document).map(|text| text + "\n").map_err(Error::Request)
}

/// Returns the values of a path, one a line. A text stands without quotes.
fn values(path: &JsonPath, document: &Value) -> String {
    let line = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned) + "\n";
    path.query(document).iter().map(|value| line(value)).collect()
}
