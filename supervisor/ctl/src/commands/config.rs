//! Implements `agentctl config`: mistakes of the configuration, its values with their places, and its files. No
//! daemon is needed.

use std::ffi::OsString;

use agentd_api::configuration::{ConfigurationCheck, ConfigurationPaths, ConfigurationShow, ConfigurationValue};

use super::{Context, print, tell};
use crate::args::config::ConfigCommand;
use crate::error::{Error, exit};
use crate::tool::{Document, ask_of};
use agentd_screen::terminal::Screen;

const TOOL: &str = "config-tool";

pub(super) async fn config(context: &Context, command: ConfigCommand) -> Result<u8, Error> {
    match command {
        ConfigCommand::Check { files, system } => {
            let mut arguments: Vec<OsString> = vec!["check".into()];
            arguments.extend(system.then(|| "--system".into()));
            arguments.push("--".into());
            arguments.extend(files.into_iter().map(OsString::from));
            check(context, &ask_of(TOOL, arguments).await?)
        }
        ConfigCommand::Show => show(context, &ask_of(TOOL, ["show"]).await?),
        ConfigCommand::Path => path(context, &ask_of(TOOL, ["path"]).await?),
    }
}

/// Prints the mistakes. Returns exit status 1 if there is a mistake.
fn check(context: &Context, document: &Document<ConfigurationCheck>) -> Result<u8, Error> {
    let found = &document.value;
    let status = if found.mistakes.is_empty() { 0 } else { exit::FAILED };
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(status);
    }
    let screen = Screen::stdout();
    for mistake in &found.mistakes {
        print(&screen.text(&format!("{mistake}\n")))?;
    }
    for warning in &found.warnings {
        print(&screen.text(&format!("warning: {warning}\n")))?;
    }
    if found.mistakes.is_empty() {
        let files = match found.files.len() {
            0 => "there is no configuration file; the defaults apply".to_owned(),
            1 => "1 file has no mistake".to_owned(),
            count => format!("{count} files have no mistake"),
        };
        print(&screen.text(&format!("{files}\n")))?;
    }
    if context.verbose {
        found.files.iter().try_for_each(|file| tell(&format!("read: {}", file.display())))?;
    }
    Ok(status)
}

fn show(context: &Context, document: &Document<ConfigurationShow>) -> Result<u8, Error> {
    let shown = &document.value;
    let status = if shown.mistakes.is_empty() { 0 } else { exit::FAILED };
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(status);
    }
    print(&Screen::stdout().text(&shown.values.iter().map(line).collect::<String>()))?;
    shown.mistakes.iter().try_for_each(|mistake| tell(&mistake.to_string()))?;
    Ok(status)
}

/// Formats a value as a line of valid TOML, with the value's place as a comment.
fn line(value: &ConfigurationValue) -> String {
    let ConfigurationValue { key, value, file, line } = value;
    match (file, line) {
        (Some(file), Some(line)) => format!("{key} = {value}  # {}:{line}\n", file.display()),
        _ => format!("{key} = {value}\n"),
    }
}

fn path(context: &Context, document: &Document<ConfigurationPaths>) -> Result<u8, Error> {
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    for path in &document.value.paths {
        let missing = if path.exists { "" } else { ", not there" };
        print(&Screen::stdout().text(&format!("{}  ({}{missing})\n", path.path.display(), path.owner)))?;
    }
    Ok(0)
}
