//! reload: has the daemon read its configuration again.

use agentd_api::plugin::ReloadView;

use super::{Context, print, print_document, tell};
use crate::error::Error;
use crate::terminal::Screen;

pub(super) async fn reload(context: &Context) -> Result<u8, Error> {
    let document = context.client.reload().await?;
    if context.json {
        print_document(&document.raw)?;
        return Ok(0);
    }
    let view = &document.value;
    print(&Screen::stdout().text(&changes(view)))?;
    if !view.restart.is_empty() {
        tell(&format!("{} takes effect when agentd is started again", view.restart.join(", ")))?;
    }
    if context.verbose {
        for file in &view.files {
            tell(&format!("read: {}", file.display()))?;
        }
    }
    Ok(0)
}

fn changes(view: &ReloadView) -> String {
    if view.changed.is_empty() {
        return "nothing has changed\n".to_owned();
    }
    format!("changed: {}\n", view.changed.join("\nchanged: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_told_a_line_a_key() {
        let mut view = ReloadView::default();
        assert_eq!(changes(&view), "nothing has changed\n");
        view.changed = vec!["limits.body".to_owned(), "plugins.x".to_owned()];
        assert_eq!(changes(&view), "changed: limits.body\nchanged: plugins.x\n");
    }
}
