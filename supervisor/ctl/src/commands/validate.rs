//! Implements `agentctl validate`: shows likely mistakes in a session's environment before its next launch.

use agentd_api::validation::{ValidationView, Warning};

use super::{Context, print, tell};
use crate::error::{Error, exit};
use agentd_screen::terminal::Screen;

pub(super) async fn validate(context: &Context, session: &str) -> Result<u8, Error> {
    let id = context.client.find(session).await?.value.id;
    let document = context.client.validation(id.as_str()).await?;
    let view = &document.value;
    if context.json {
        context.print_document(&document.raw)?;
    } else {
        print(&report(view, Screen::stdout()))?;
        if view.launch.is_none() {
            tell("the session was never launched, so only its scripts were checked")?;
        }
    }
    Ok(if view.warnings.is_empty() { 0 } else { exit::FAILED })
}

fn report(view: &ValidationView, screen: Screen) -> String {
    if view.warnings.is_empty() {
        return "no mistakes found\n".to_owned();
    }
    let line = |one: &Warning| format!("{}: {}\n", screen.line(&one.reason), screen.line(&one.message));
    view.warnings.iter().map(line).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_is_a_line() {
        let mut view: ValidationView = serde_json::from_value(serde_json::json!({
            "session": "abc", "scripts": [],
            "warnings": [
                { "reason": "PathEntryMissing", "path": "/x", "message": "there is no /x" },
                { "reason": "ScriptSyntax", "path": "/s", "message": "two\nlines" },
            ],
        }))
        .unwrap();
        let screen = Screen { terminal: false, colour: false };
        assert_eq!(report(&view, screen), "PathEntryMissing: there is no /x\nScriptSyntax: two lines\n");
        view.warnings.clear();
        assert_eq!(report(&view, screen), "no mistakes found\n");
    }
}
