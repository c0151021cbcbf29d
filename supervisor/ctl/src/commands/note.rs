//! Implements `agentctl note preview`: shows the note that a session's agent would get with the next prompt.

use agentd_api::note::NoteView;
use agentd_api::session::ResumeNote;

use super::{Context, print, tell};
use crate::error::Error;
use agentd_screen::terminal::Screen;

pub(super) async fn preview(context: &Context, session: &str) -> Result<u8, Error> {
    let id = context.client.find(session).await?.value.id;
    let document = context.client.note(id.as_str()).await?;
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(0);
    }
    let view = &document.value;
    if let Some(note) = &view.note {
        print(&format!("{}\n", Screen::stdout().text(note)))?;
    }
    remarks(view).iter().try_for_each(|remark| tell(remark))?;
    Ok(0)
}

/// Returns what the note itself does not show.
fn remarks(view: &NoteView) -> Vec<String> {
    let mut remarks = Vec::new();
    if view.note.is_none() {
        remarks.push(match view.mode {
            ResumeNote::Off => "no note: the session's notes are off".to_owned(),
            _ if view.variables.is_some() => "no note: the template gives no text".to_owned(),
            _ if view.resumed_now => "no note: the session's agent has not worked yet".to_owned(),
            _ => "no note: the agent was not started again since the last turn".to_owned(),
        });
    }
    remarks.extend(view.error.iter().map(|error| format!("the configured template failed: {error}")));
    remarks.extend(view.undetermined.iter().map(|line| format!("not determined: {line}")));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remarks_tell_why_there_is_no_note_and_what_is_unknown() {
        let view = |mode: &str, resumed_now: bool| -> NoteView {
            serde_json::from_value(serde_json::json!({
                "session": "abc", "note": null, "mode": mode, "resumed_now": resumed_now,
                "undetermined": ["the prerequisite \"vpn\" was not checked yet"],
            }))
            .unwrap()
        };
        let unknown = "not determined: the prerequisite \"vpn\" was not checked yet";
        assert_eq!(remarks(&view("off", true)), ["no note: the session's notes are off", unknown]);
        assert_eq!(remarks(&view("full", true)), ["no note: the session's agent has not worked yet", unknown]);
        let running = remarks(&view("brief", false));
        assert_eq!(running[0], "no note: the agent was not started again since the last turn");
        let failed = NoteView { note: Some("n".to_owned()), error: Some("line 1: x".to_owned()), ..view("full", true) };
        assert_eq!(remarks(&failed), ["the configured template failed: line 1: x", unknown]);
    }
}
