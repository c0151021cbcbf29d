//! Implements `agentctl top`: shows the view, and attaches to a session where the view asks for it.

use super::{Context, talk};
use crate::args::top::TopArgs;
use crate::error::Error;
use crate::top::{Outcome, Top};

/// Number of the latest events that an attachment shows first, as with `agentctl attach`.
const LAST: u64 = 200;

pub(super) async fn top(context: &Context, args: TopArgs) -> Result<u8, Error> {
    let mut view = Top::new(context.client.clone(), context.starter.clone(), &args.filter.join(" "));
    loop {
        match view.show().await? {
            Outcome::Quit(status) => return Ok(status),
            Outcome::Signalled(number) => {
                signal_hook::low_level::emulate_default_handler(number).map_err(Error::Setup)?;
            }
            Outcome::Attach(id) => {
                if let Err(error) = talk::attach(context, Some(id.as_str()), Some(LAST)).await {
                    view.report(&error);
                }
            }
        }
    }
}

/// Refuses where the view cannot be shown.
pub(super) fn check(context: &Context) -> Result<(), Error> {
    if context.json {
        return Err(Error::Usage {
            detail: "agentctl top draws on a terminal, and prints no documents".to_owned(),
            hint: "agentctl ls --watch -o json prints each change of the sessions".to_owned(),
        });
    }
    crate::top::check()
}
