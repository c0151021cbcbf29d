//! Reads the configuration again while another configuration is in force, and decides which of the new files take
//! effect.
//!
//! - A mistake of the administrator keeps the whole former configuration in force.
//! - A mistake of the user keeps the user's former file in force, together with the administrator's new files.
//! - After a start with a mistake there is no former configuration. The valid part of the files takes effect, as at a
//!   start.

use agentd_api::configuration::{Consequence, Mistake};

use super::assemble::{Loaded, Origins, assemble, load};
use super::files::{Sources, Text, read_system, read_user};

/// Reads the configuration again. An error contains the mistakes of the administrator, and the former configuration
/// then stays in force.
pub fn reload(sources: &Sources, before: &Origins) -> Result<Loaded, Vec<Mistake>> {
    if before.refuses() {
        return Ok(load(sources));
    }
    let mut texts = Vec::new();
    read_system(&sources.system, &mut texts).map_err(|mistake| vec![keep_former(mistake)])?;
    combine(&texts, read_user(sources), sources, before)
}

/// Combines the administrator's files with the user's new file. If that has mistakes, the user's former file is used
/// instead.
pub(super) fn combine(
    system: &[Text],
    user: Result<Option<Text>, Mistake>,
    sources: &Sources,
    before: &Origins,
) -> Result<Loaded, Vec<Mistake>> {
    let (mut mistakes, mut parts) = (Vec::new(), vec![before.user.clone()]);
    match user {
        Ok(new) => parts.insert(0, new),
        Err(mistake) => mistakes.push(mistake),
    }
    let mut tried = Vec::new();
    for part in parts {
        let loaded = assemble(system.to_vec(), part, sources);
        if !loaded.read.refuses() {
            return Ok(with_mistakes(loaded, mistakes.into_iter().map(keep_former).collect()));
        }
        mistakes.extend(refusing_mistakes(&loaded.read).cloned());
        tried.insert(0, loaded);
    }
    // Neither file of the user is valid with the administrator's files. The administrator's files are at fault only
    // if they have mistakes together with each file of the user, and without one.
    tried.push(assemble(system.to_vec(), None, sources));
    let of_user = |mistake: &Mistake| mistake.file.as_ref() == Some(&sources.user);
    let of_system = |loaded: &Loaded| -> Vec<Mistake> {
        refusing_mistakes(&loaded.read).filter(|mistake| !of_user(mistake)).cloned().collect()
    };
    if let Some(right) = tried.iter().position(|loaded| of_system(loaded).is_empty()) {
        if mistakes.iter().any(of_user) {
            mistakes.retain(of_user);
        }
        return Ok(with_mistakes(tried.swap_remove(right), mistakes));
    }
    let fewest = tried.iter().rev().map(of_system).min_by_key(Vec::len).unwrap_or_default();
    Err(fewest.into_iter().map(keep_former).collect())
}

/// Puts these mistakes before the mistakes of the configuration, each once.
fn with_mistakes(mut loaded: Loaded, mistakes: Vec<Mistake>) -> Loaded {
    let known = &mut loaded.read.mistakes;
    for mistake in mistakes.into_iter().rev() {
        if !known.iter().any(|known| known.key == mistake.key && known.message == mistake.message) {
            known.insert(0, mistake);
        }
    }
    loaded
}

fn refusing_mistakes(read: &Origins) -> impl Iterator<Item = &Mistake> {
    read.mistakes.iter().filter(|mistake| mistake.consequence == Consequence::LaunchesRefused)
}

fn keep_former(mistake: Mistake) -> Mistake {
    Mistake { consequence: Consequence::FormerInForce, ..mistake }
}
