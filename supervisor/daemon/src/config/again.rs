//! Reads the configuration again while another is in force, and decides which of the new files take effect.
//!
//! A mistake of the administrator's leaves everything as it was. A mistake of the user's leaves the user's former part in force, beside what
//! the administrator says now. After a start with a mistake there is no former part: what can be read now is used, as at a start.

use agentd_api::configuration::{Consequence, Mistake};

use super::assemble::{Loaded, Read, assemble, load};
use super::files::{Sources, Text, read_system, read_user};

/// Reads the configuration again; an error is the administrator's mistakes, for which everything stays as it was.
pub(crate) fn load_again(sources: &Sources, before: &Read) -> Result<Loaded, Vec<Mistake>> {
    if before.refuses() {
        return Ok(load(sources));
    }
    let mut texts = Vec::new();
    read_system(&sources.system, &mut texts).map_err(|mistake| vec![former(mistake)])?;
    beside(&texts, read_user(sources), sources, before)
}

/// Puts the administrator's files together with the first part of the user's that fits: the new one, else the former one.
pub(super) fn beside(
    system: &[Text],
    user: Result<Option<Text>, Mistake>,
    sources: &Sources,
    before: &Read,
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
            return Ok(with(loaded, mistakes.into_iter().map(former).collect()));
        }
        mistakes.extend(refusing(&loaded.read).cloned());
        tried.insert(0, loaded);
    }
    // Neither part fits. The administrator's files are at fault only if they are so beside each part, and without any.
    tried.push(assemble(system.to_vec(), None, sources));
    let of_user = |mistake: &Mistake| mistake.file.as_ref() == Some(&sources.user);
    let of_system = |loaded: &Loaded| -> Vec<Mistake> {
        refusing(&loaded.read).filter(|mistake| !of_user(mistake)).cloned().collect()
    };
    if let Some(right) = tried.iter().position(|loaded| of_system(loaded).is_empty()) {
        if mistakes.iter().any(of_user) {
            mistakes.retain(of_user);
        }
        return Ok(with(tried.swap_remove(right), mistakes));
    }
    let fewest = tried.iter().rev().map(of_system).min_by_key(Vec::len).unwrap_or_default();
    Err(fewest.into_iter().map(former).collect())
}

/// Puts these mistakes before those that the configuration has, each once.
fn with(mut loaded: Loaded, mistakes: Vec<Mistake>) -> Loaded {
    let known = &mut loaded.read.mistakes;
    for mistake in mistakes.into_iter().rev() {
        if !known.iter().any(|known| known.key == mistake.key && known.message == mistake.message) {
            known.insert(0, mistake);
        }
    }
    loaded
}

fn refusing(read: &Read) -> impl Iterator<Item = &Mistake> {
    read.mistakes.iter().filter(|mistake| mistake.consequence == Consequence::LaunchesRefused)
}

fn former(mistake: Mistake) -> Mistake {
    Mistake { consequence: Consequence::FormerInForce, ..mistake }
}
