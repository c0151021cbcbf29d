//! The additional directories that an editor names when it opens a session (ACP `additionalDirectories`).
//!
//! The protocol does not distinguish an empty list from a missing one. Both leave an existing session unchanged.

use std::path::PathBuf;

use agentd_api::session::SessionView;
use agentd_api::spec::SpecPatch;
use serde_json::{Map, json};

use super::host::{is_same_directory, tell};
use super::refusal;
use super::wire::{INVALID_PARAMS, Refusal};
use agentd_client::Client;

/// Refuses relative paths.
pub(super) fn check(given: &[PathBuf]) -> Result<(), Refusal> {
    match given.iter().find(|path| !path.is_absolute()) {
        Some(path) => {
            let text = format!("\"additionalDirectories\" has \"{}\", which is not an absolute path", path.display());
            Err(Refusal::new(INVALID_PARAMS, text))
        }
        None => Ok(()),
    }
}

/// Changes the additional directories of an existing session to those of the editor. A running agent gets them with the
/// next launch.
pub(super) async fn change(client: &Client, view: &SessionView, given: &[PathBuf]) -> Result<(), Refusal> {
    if given.is_empty() || has_all(&view.spec.directories, given).await && has_all(given, &view.spec.directories).await
    {
        return Ok(());
    }
    let patch = SpecPatch(Map::from_iter([("directories".to_owned(), json!(given))]));
    client.change_spec(view.id.as_str(), &patch, None).await.map_err(|error| refusal::of(&error.into()))?;
    if !view.status.phase.is_over() {
        let text = "the agent gets the additional directories of the editor with the next launch; agentctl stop and \
                    agentctl resume apply them now";
        tell(view.id.as_str(), text);
    }
    Ok(())
}

/// Reports whether each directory of `wanted` is among those of `list`.
async fn has_all(list: &[PathBuf], wanted: &[PathBuf]) -> bool {
    for path in wanted {
        let mut is_found = list.contains(path);
        for other in list {
            is_found = is_found || is_same_directory(path, other).await;
        }
        if !is_found {
            return false;
        }
    }
    true
}
