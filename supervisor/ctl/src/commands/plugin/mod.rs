//! Implements `agentctl plugin`: the tools of plugin authors, and the state of the daemon's plugins.
//!
//! Not responsible for running a component: `agentd plugin-tool`, a child of this program, does that.

mod case;
mod check;
mod inspect;
mod ls;
mod new;
mod templates;
mod test;

use super::Context;
use crate::args::plugin::PluginCommand;
use crate::error::Error;

pub(super) async fn plugin(context: &Context, command: PluginCommand) -> Result<u8, Error> {
    match command {
        PluginCommand::Ls => ls::ls(context).await,
        PluginCommand::Show { name } => ls::show(context, &name).await,
        PluginCommand::New(args) => new::new(args),
        PluginCommand::Inspect { file } => inspect::inspect(context, &file).await,
        PluginCommand::Check(args) => check::check(context, args).await,
        PluginCommand::Case { session, plugin } => case::case(context, &session, plugin.as_deref()).await,
        PluginCommand::Test(args) => test::test(context, args).await,
    }
}
