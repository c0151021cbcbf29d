//! Implements `agentctl reload`: makes the daemon read its configuration again, or shows the changes that a
//! reload would make.

use agentd_api::Code;
use agentd_api::configuration::{Effect, Mistake};
use agentd_api::plugin::ReloadView;

use super::{Context, print, tell};
use crate::error::{Error, exit};
use agentd_screen::terminal::Screen;

/// Reloads the configuration. Returns exit status 1 if a part of the files is not in force.
pub(super) async fn reload(context: &Context, dry_run: bool) -> Result<u8, Error> {
    let document = if dry_run {
        context.client.foresee_reload().await.map_err(|error| match error.problem_code() {
            Some(Code::MethodNotAllowed | Code::NoSuchPath) => Error::Session {
                detail: "the running agentd is too old for --dry-run; nothing was changed".to_owned(),
                hint: Some("agentctl config check checks the files without a daemon".to_owned()),
            },
            _ => error.into(),
        })?
    } else {
        context.client.reload().await?
    };
    let view = &document.value;
    let status = if view.mistakes.is_empty() { 0 } else { exit::FAILED };
    if context.json {
        context.print_document(&document.raw)?;
        return Ok(status);
    }
    print(&Screen::stdout().text(&changes(view)))?;
    view.mistakes.iter().try_for_each(|mistake| tell(&told(mistake)))?;
    if !view.compiling.is_empty() {
        let names = view.compiling.join(", ");
        tell(&format!("still compiling: {names}; a launch that needs one of them waits"))?;
    }
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
    // A daemon of an older release lists only the keys that take effect at its next start.
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
    fn a_dry_run_never_reloads_a_daemon_that_does_not_know_it() {
        use std::io::{BufRead as _, BufReader, Write as _};

        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            let body = r#"{"status":405,"code":"method-not-allowed","detail":"the path answers to POST"}"#;
            write!(stream, "HTTP/1.1 405 No\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
            request
        });
        let client = agentd_client::Client::new(socket);
        let context = Context {
            client,
            options: Vec::new(),
            starter: None,
            json: false,
            form: crate::document::DocumentForm::Json,
            verbose: false,
            no_start: true,
        };
        let error = crate::runtime().unwrap().block_on(reload(&context, true)).unwrap_err();
        assert!(error.to_string().contains("nothing was changed"), "{error}");
        let request = server.join().unwrap();
        assert!(!request.starts_with("POST"), "an older daemon reloads at this: {request}");
    }

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
