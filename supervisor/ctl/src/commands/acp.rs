//! Implements `agentctl acp`: an agent for editors.

use agentd_api::isolation::Isolation;
use agentd_api::session::{PermissionPolicy, SessionSpec};

use super::Context;
use crate::args::acp::AcpArgs;
use crate::args::{IsolationArg, Permissions};
use crate::editor::{self, Options};
use crate::error::Error;

pub(super) async fn acp(context: &Context, args: AcpArgs) -> Result<u8, Error> {
    let spec = SessionSpec {
        agent: args.agent,
        command: Some(args.command).filter(|command| !command.is_empty()),
        labels: args.label.into_iter().collect(),
        permissions: match args.permissions {
            Permissions::Ask => PermissionPolicy::Ask,
            Permissions::Allow => PermissionPolicy::Allow,
            Permissions::Deny => PermissionPolicy::Deny,
        },
        requires: args.require,
        tags: args.tag,
        isolation: args.isolation.map(|level| match level {
            IsolationArg::None => Isolation::None,
            IsolationArg::Guard => Isolation::Guard,
        }),
        place: args.place,
        ..SessionSpec::new("")
    };
    let options = Options { spec, terms: args.terms.into() };
    editor::serve(context.client.clone(), context.starter.clone(), options).await.map(|()| 0)
}
