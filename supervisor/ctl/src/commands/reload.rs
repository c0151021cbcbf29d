//! reload: has the daemon read its configuration again, or say what that would do.

use agentd_api::configuration::{Effect, Mistake};
use agentd_api::plugin::ReloadView;

use super::{Context, print, print_document, tell};
use crate::error::{Error, exit};
use crate::terminal::Screen;

/// The exit status is 1 where something is not in force as the files say it.
pub(super) async fn reload(context: &Context, dry_run: bool) -> Result<u8, Error> {
    let document = context.client.reload(dry_run).await?;
    let view = &document.value;
    let status = if view.mistakes.is_empty() { 0 } else { exit::FAILED };
    if context.json {
        print_document(&document.raw)?;
        return Ok(status);
    }
    print(&Screen::stdout().text(&changes(view)))?;
    view.mistakes.iter().try_for_each(|mistake| tell(&told(mistake)))?;
    if context.verbose {
        for file in &view.files {
            tell(&format!("read: {}", file.display()))?;
        }
    }
    Ok(status)
}

fn told(mistake: &Mistake) -> String {
    format!("{mistake}; {}", mistake.consequence.explained())
}

fn changes(view: &ReloadView) -> String {
    let (changed, nothing) =
        if view.dry_run { ("would change", "nothing would change") } else { ("changed", "nothing has changed") };
    if view.changed.is_empty() {
        return format!("{nothing}\n");
    }
    // A daemon of before there were effects names only those that wait for its next start.
    let effect = |key: &String| {
        let known = view.changes.iter().find(|change| change.key == *key).map(|change| change.effect);
        known.or_else(|| view.restart.contains(key).then_some(Effect::NextStart))
    };
    let line = |key: &String| match effect(key) {
        Some(Effect::Now) => format!("{changed}: {key} (takes effect now)\n"),
        Some(Effect::NextLaunch) => format!("{changed}: {key} (takes effect at each session's next launch)\n"),
        Some(Effect::NextStart) => format!("{changed}: {key} (takes effect when agentd is started again)\n"),
        Some(Effect::Unknown) | None => format!("{changed}: {key}\n"),
    };
    view.changed.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use agentd_api::configuration::Change;

    use super::*;

    #[test]
    fn what_has_changed_is_told_a_line_a_key_with_the_moment_of_its_effect() {
        let mut view = ReloadView::default();
        assert_eq!(changes(&view), "nothing has changed\n");
        view.changed = ["agents.a.command", "launch.manager", "limits.body", "x"].map(str::to_owned).to_vec();
        view.restart = vec!["launch.manager".to_owned()];
        let change = |key: &str, effect| Change { key: key.to_owned(), effect };
        view.changes = vec![change("agents.a.command", Effect::NextLaunch), change("limits.body", Effect::Now)];
        assert_eq!(
            changes(&view),
            "changed: agents.a.command (takes effect at each session's next launch)\n\
             changed: launch.manager (takes effect when agentd is started again)\n\
             changed: limits.body (takes effect now)\nchanged: x\n"
        );
        view.dry_run = true;
        assert!(changes(&view).starts_with("would change: agents.a.command"));
    }
}
