//! Shows a notification on the user's desktop: by the service `org.freedesktop.Notifications` on the session bus, or by
//! the program of a system without that service.

use std::collections::HashMap;
use std::time::Duration;

use agentd_api::chain;
use agentd_api::hook::{HookFault, HookMessage};
use agentd_host::platform::NOTIFIER;
use agentd_session::generation::Generation;
use zbus::{Connection, Variant};

use crate::body::{escaped, text};
use crate::command::run_program;
use crate::send::{SendFailure, Sent};

const SERVICE: &str = "org.freedesktop.Notifications";
const OBJECT: &str = "/org/freedesktop/Notifications";
/// Lets the service choose how long it shows the notification.
const DEFAULT_TIME: i32 = -1;

/// Shows the message.
pub(crate) async fn show(
    generation: &Generation,
    message: &HookMessage,
    timeout: Duration,
) -> Result<Sent, SendFailure> {
    let title = message.data.session.as_ref().map_or_else(
        || "agentd".to_owned(),
        |session| {
            let label = session.name.as_ref().map_or_else(|| session.id.to_string(), ToString::to_string);
            format!("agentd: {label}")
        },
    );
    if let Some(notifier) = NOTIFIER {
        let mut arguments: Vec<String> = notifier[1..].iter().map(|&argument| argument.to_owned()).collect();
        arguments.extend([title, text(message)]);
        let ran = run_program(generation, notifier[0], &arguments, Vec::new(), Vec::new(), timeout).await;
        return ran.map_err(|failure| match failure.code {
            HookFault::HookTimeout => failure,
            _ => SendFailure { code: HookFault::HookDesktopFailed, ..failure },
        });
    }
    let failed = |error: zbus::Error| SendFailure::new(HookFault::HookDesktopFailed, chain(&error));
    let notifying = async {
        let bus = Connection::session().await.map_err(failed)?;
        // The body can have markup (Desktop Notifications Specification, "Markup").
        let body = escaped(&text(message));
        let hints: HashMap<&str, Variant<'_>> = HashMap::new();
        let arguments = ("agentd", 0_u32, "", title.as_str(), body.as_str(), Vec::<&str>::new(), hints, DEFAULT_TIME);
        bus.call_method(Some(SERVICE), OBJECT, Some(SERVICE), "Notify", &arguments).await.map_err(failed)?;
        Ok(Sent::default())
    };
    let late = || SendFailure::new(HookFault::HookTimeout, format!("no answer on the session bus within {timeout:?}"));
    tokio::time::timeout(timeout, notifying).await.unwrap_or_else(|_| Err(late()))
}
