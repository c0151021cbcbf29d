//! The answer to `session/list`: every session of this user, newest first, in pages.

use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1::{ListSessionsResponse, SessionInfo};
use agentd_api::session::SessionView;
use serde::Deserialize;
use serde_json::json;

use super::wire::{INVALID_PARAMS, Refusal};
use crate::session::agent;

/// Number of sessions on a page.
const PAGE: usize = 100;

#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    pub(super) cwd: Option<PathBuf>,
    #[serde(default)]
    cursor: Option<String>,
}

/// Returns one page. The order is that of the creation: a session does not change its page while it works.
pub(super) fn page(
    mut sessions: Vec<SessionView>,
    asked: &Asked,
    is_in: impl Fn(&Path) -> bool,
) -> Result<ListSessionsResponse, Refusal> {
    let place = |view: &SessionView| format!("{}.{}", view.created.as_microsecond(), view.id);
    sessions.retain(|view| view.spec.directory.is_absolute() && is_in(&view.spec.directory));
    sessions.sort_by(|a, b| b.created.cmp(&a.created).then_with(|| b.id.as_str().cmp(a.id.as_str())));
    let begin = match &asked.cursor {
        None => 0,
        // The session of the cursor may be gone.
        Some(cursor) => {
            let known = cursor.split_once('.').and_then(|(time, id)| Some((time.parse::<i64>().ok()?, id)));
            let (time, id) = known.ok_or_else(|| Refusal::new(INVALID_PARAMS, "the cursor is not valid"))?;
            sessions.partition_point(|view| (view.created.as_microsecond(), view.id.as_str()) >= (time, id))
        }
    };
    let rest = sessions.split_off(begin);
    let next = rest.get(PAGE).and_then(|_| rest.get(PAGE - 1)).map(place);
    let infos = rest.iter().take(PAGE).map(|view| {
        let directory = asked.cwd.clone().unwrap_or_else(|| view.spec.directory.clone());
        let name = view.spec.name.as_ref().map(ToString::to_string);
        let meta = json!({ "phase": view.status.phase, "name": name, "agent": agent(view) });
        SessionInfo::new(view.id.to_string(), directory)
            .additional_directories(view.spec.directories.clone())
            .title(view.status.title.clone().or(name))
            .updated_at(view.status.updated.to_string())
            .meta(serde_json::Map::from_iter([("agentd".to_owned(), meta)]))
    });
    Ok(ListSessionsResponse::new(infos.collect()).next_cursor(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(n: usize) -> SessionView {
        serde_json::from_value(json!({
            "id": format!("k{n:04}"), "generation": 1, "created": format!("2026-01-01T00:00:00.{:06}Z", n / 2),
            "spec": { "directory": if n == 7 { "/other" } else { "/work" } },
            "status": {
                "phase": "idle", "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": 1,
                "updated": "2026-01-02T00:00:00Z", "title": format!("number {n}"),
            },
        }))
        .unwrap()
    }

    #[test]
    fn pages_have_each_session_once_also_if_the_last_one_of_a_page_is_gone() {
        let mut sessions: Vec<SessionView> = (0..250).map(view).collect();
        let (mut asked, mut ids) = (Asked::default(), Vec::new());
        loop {
            let page = page(sessions.clone(), &asked, |_| true).unwrap();
            ids.extend(page.sessions.iter().map(|info| info.session_id.to_string()));
            let Some(cursor) = page.next_cursor else { break };
            let last = ids.last().unwrap();
            sessions.retain(|view| view.id.as_str() != last.as_str());
            asked.cursor = Some(cursor);
        }
        let expected: Vec<String> = (0..250).rev().map(|n| format!("k{n:04}")).collect();
        assert_eq!(ids, expected);
    }

    #[test]
    fn a_directory_selects_its_sessions_and_a_wrong_cursor_is_refused() {
        let sessions: Vec<SessionView> = (0..9).map(view).collect();
        let asked = Asked { cwd: Some("/o".into()), cursor: None };
        let one = page(sessions.clone(), &asked, |directory| directory == Path::new("/other")).unwrap();
        assert_eq!(one.sessions.len(), 1);
        assert_eq!(one.sessions[0].cwd, Path::new("/o"), "the editor finds its own name of the directory");
        assert_eq!(one.sessions[0].title.as_deref(), Some("number 7"));
        for cursor in ["", "x", "1", "x.k"] {
            let asked = Asked { cwd: None, cursor: Some(cursor.to_owned()) };
            assert!(page(sessions.clone(), &asked, |_| true).is_err(), "{cursor}");
        }
    }
}
