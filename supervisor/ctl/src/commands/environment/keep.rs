//! Implements `agentctl env keep`: makes the daemon add names to the whitelist of the user's configuration, and
//! shows the changes.

use agentd_api::keep::{KeepRequest, KeepView};

use crate::args::environment::KeepArgs;
use crate::commands::{Context, edited, print, tell};
use crate::error::{Error, exit};
use crate::machine::Machine;
use agentd_screen::terminal::Screen;

pub(super) async fn keep(context: &Context, args: KeepArgs) -> Result<u8, Error> {
    let KeepArgs { names, agent, directory, dry_run } = args;
    let directory = directory.map(|directory| Machine::of(&context.client).absolute(&directory)).transpose()?;
    let document = context.client.keep(&KeepRequest { names, agent, directory, dry_run }).await?;
    let view = &document.value;
    let status = if view.mistakes.is_empty() { 0 } else { exit::FAILED };
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(status);
    }
    print(&Screen::stdout().text(&report(view)))?;
    for remark in remarks(view) {
        tell(&remark)?;
    }
    Ok(status)
}

/// Formats the file's name with the removed and the added lines.
fn report(view: &KeepView) -> String {
    if view.lines.is_empty() {
        return format!("kept already: {}\n", view.already.join(", "));
    }
    edited::diff(&view.file, &view.lines)
}

fn remarks(view: &KeepView) -> Vec<String> {
    let mut remarks = Vec::new();
    if !view.secrets.is_empty() && !view.added.is_empty() {
        let names = view.secrets.join(", ");
        remarks.push(format!(
            "warning: {names} looks like a secret: every agent in this scope receives its value, and may send \
                 it anywhere"
        ));
        remarks.push("  [secrets] in the configuration gives a secret to one agent: agentctl secret ls".to_owned());
    }
    if view.added.is_empty() {
        return remarks;
    }
    if view.dry_run {
        remarks.push("nothing was written".to_owned());
        return remarks;
    }
    let (mistakes, is_in_force) = edited::after_reload(&view.mistakes);
    remarks.extend(mistakes);
    if !is_in_force {
        return remarks;
    }
    remarks.push(
        "the configuration was reloaded: a session has the variable from its next launch on (agentctl stop S && \
             agentctl resume S)"
            .to_owned(),
    );
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(extra: &serde_json::Value) -> KeepView {
        let mut view = serde_json::json!({
            "file": "/c/agentd.toml", "keys": ["plugins.whitelist.settings.allow"], "added": ["A_TOKEN"], "already": [],
            "secrets": ["A_TOKEN"],
            "lines": [{ "line": 3, "added": false, "text": "allow = \
                 []" }, { "line": 3, "added": true, "text": "allow = [\"A_TOKEN\"]" }],
        });
        view.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn the_lines_are_shown_with_their_place_and_a_secret_is_warned_of() {
        let view = view(&serde_json::json!({}));
        assert_eq!(report(&view), "/c/agentd.toml:3\n-allow = []\n+allow = [\"A_TOKEN\"]\n");
        let remarks = remarks(&view).join("\n");
        assert!(remarks.contains("A_TOKEN looks like a secret") && remarks.contains("next launch"), "{remarks}");
    }

    #[test]
    fn what_is_kept_already_and_a_dry_run_are_said_to_be() {
        let already = view(&serde_json::json!({ "added": [], "already": ["A"], "lines": [], "secrets": [] }));
        assert_eq!((report(&already).as_str(), remarks(&already).len()), ("kept already: A\n", 0));
        let dry = view(&serde_json::json!({ "dry_run": true, "secrets": [] }));
        assert_eq!(remarks(&dry), ["nothing was written"]);
        let mistake = serde_json::json!({ "message": "no such key", "consequence": "former-in-force" });
        let refused = view(&serde_json::json!({ "mistakes": [mistake], "secrets": [] }));
        let told = remarks(&refused).join("\n");
        assert!(
            told.contains("no such key") && told.contains("not in force") && !told.contains("next launch"),
            "{told}"
        );
    }
}
