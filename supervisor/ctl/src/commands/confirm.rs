//! Asks the user to confirm an action.

use std::io::{self, Write as _};

use crate::error::Error;
use crate::input::Input;
use agentd_screen::terminal::{Screen, TextStyle};

/// Prints the question and returns whether the user confirms. Returns `None` without a terminal to ask on.
pub(super) async fn confirmed(question: &str) -> Result<Option<bool>, Error> {
    let mut input = Input::open().map_err(Error::Input)?;
    if !input.terminal {
        return Ok(None);
    }
    input.forget_typed();
    let mut out = io::stderr();
    let question = Screen::stderr().paint(TextStyle::Ask, &format!("{question} [y/N] "));
    out.write_all(question.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)?;
    let answer = input.line().await.transpose().map_err(Error::Input)?.unwrap_or_default();
    Ok(Some(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")))
}
