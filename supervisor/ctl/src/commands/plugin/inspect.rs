//! Implements `agentctl plugin inspect`: prints a component's description of itself.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;

use agentd_api::plugin_tool::Inspection;

use crate::commands::{Context, print};
use crate::error::Error;
use crate::tool::ask;
use agentd_screen::terminal::{Screen, TextStyle};

pub(super) async fn inspect(context: &Context, file: &Path) -> Result<u8, Error> {
    let document = ask::<Inspection>([OsStr::new("inspect"), file.as_os_str()]).await?;
    if context.json {
        context.print_document(&document.raw)?;
    } else {
        print(&shown(Screen::stdout(), &document.value))?;
    }
    Ok(0)
}

fn shown(screen: Screen, plugin: &Inspection) -> String {
    let line = |text: &str| screen.line(text);
    let mut text = format!("{} {}\n", screen.paint(TextStyle::Bold, &line(&plugin.name)), line(&plugin.version));
    let _ = writeln!(text, "{}\n", line(&plugin.summary));
    let world = match &plugin.moment {
        Some(moment) => format!("{}, checked {}", plugin.world, moment.replace('-', " the ")),
        None => plugin.world.clone(),
    };
    for (key, value) in [
        ("world", world),
        ("interface", plugin.interface.clone()),
        ("imports", plugin.imports.join(" ")),
        ("size", format!("{} bytes", plugin.size)),
        ("sha256", plugin.sha256.clone()),
    ] {
        let _ = writeln!(text, "{key:<9} {}", line(&value));
    }
    text.push_str(if plugin.wants.is_empty() { "\nwants nothing\n" } else { "\nwants\n" });
    for want in &plugin.wants {
        let _ = writeln!(text, "  {}: {}", line(&want.capability), line(&want.reason));
        for pattern in &want.patterns {
            let _ = writeln!(text, "    {}", line(pattern));
        }
    }
    text.push_str(if plugin.settings.is_empty() { "\nhas no settings\n" } else { "\nsettings\n" });
    let width = plugin.settings.iter().map(|setting| setting.key.len()).max().unwrap_or_default();
    for setting in &plugin.settings {
        let required = if setting.required { " (required)" } else { "" };
        let _ = writeln!(text, "  {:<width$}  {}{required}", line(&setting.key), line(&setting.summary));
    }
    text
}
