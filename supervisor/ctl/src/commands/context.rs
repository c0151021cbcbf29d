//! Implements `agentctl context`, `hint` and `title`: what a session remembers beside its conversation.

use agentd_api::context::{ContextChange, ContextMode, ContextView, FILES};

use super::{Context, print, tell};
use crate::args::context::{ContextArgs, HintArgs, TitleArgs};
use crate::error::Error;
use crate::machine::Machine;
use crate::spec::prompt_text;
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::Screen;

/// Shows the context, or changes one of its sets and shows the result.
pub(super) async fn context(context: &Context, args: ContextArgs) -> Result<u8, Error> {
    let id = context.client.find(&args.session).await?.value.id;
    let document = match args.set {
        Some(set) if !args.items.is_empty() || args.replace || args.url.is_some() => {
            let mode = if args.replace { ContextMode::Replace } else { ContextMode::Merge };
            let items =
                args.items.into_iter().map(|item| absolute(&Machine::of(&context.client), &set, item)).collect();
            // A URL alone changes no item of the set.
            let sets = [(set, items)].into_iter().filter(|(_, items): &(_, Vec<_>)| args.replace || !items.is_empty());
            let change = ContextChange { mode, sets: sets.collect(), applet_url: args.url };
            context.client.change_context(id.as_str(), &change).await?
        }
        set => {
            let mut document = context.client.context(id.as_str()).await?;
            document.value.sets.retain(|name, _| set.as_ref().is_none_or(|set| set == name));
            document
        }
    };
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    for warning in &document.value.warnings {
        tell(warning)?;
    }
    Context::table(&table(&document.value, Screen::stdout()))?;
    Ok(0)
}

/// Makes the path of a file absolute, as a shell's user expects. The daemon has another working directory.
fn absolute(machine: &Machine, set: &str, item: String) -> String {
    if set != FILES || *machine != Machine::This {
        return item;
    }
    std::path::absolute(&item).ok().and_then(|path| path.into_os_string().into_string().ok()).unwrap_or(item)
}

fn table(view: &ContextView, screen: Screen) -> Table {
    let mut table = Table::new(&[("SET", Cut::Never), ("ITEM", Cut::Start), ("STATE", Cut::Never)]);
    for (set, items) in &view.sets {
        for item in items {
            let state = if item.missing { "missing" } else { "" };
            table.row([screen.line(set), screen.line(&item.value), state.to_owned()]);
        }
    }
    if let Some(url) = &view.applet_url {
        table.row(["applet url".to_owned(), screen.line(url), String::new()]);
    }
    table
}

/// Shows, sets or removes the environment hint.
pub(super) async fn hint(context: &Context, args: HintArgs) -> Result<u8, Error> {
    let found = context.client.find(&args.session).await?;
    let document = if args.remove {
        context.client.set_hint(found.value.id.as_str(), None).await?
    } else if args.text.is_empty() {
        found
    } else {
        let hint = prompt_text(&args.text.join(" "))?;
        context.client.set_hint(found.value.id.as_str(), Some(hint)).await?
    };
    shown(context, &document.raw, document.value.status.hint.as_deref())
}

/// Shows, sets or removes the title.
pub(super) async fn title(context: &Context, args: TitleArgs) -> Result<u8, Error> {
    let found = context.client.find(&args.session).await?;
    let document = if args.remove {
        context.client.set_title(found.value.id.as_str(), None).await?
    } else if args.text.is_empty() {
        found
    } else {
        context.client.set_title(found.value.id.as_str(), Some(args.text.join(" "))).await?
    };
    shown(context, &document.raw, document.value.status.title.as_deref())
}

fn shown(context: &Context, raw: &[u8], text: Option<&str>) -> Result<u8, Error> {
    if context.json {
        context.print_document(raw)?;
    } else if let Some(text) = text {
        print(&format!("{}\n", Screen::stdout().text(text)))?;
    }
    Ok(0)
}
