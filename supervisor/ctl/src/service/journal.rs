//! Reads the journal of agentd's service.

use super::host::Host;
use super::manager::Service;

/// Reports whether the user has a journal. Without a persistent journal, users' lines are in the system's journal.
pub(crate) async fn has_user_journal(host: &Host) -> bool {
    let probe = ["journalctl", "--user", "--quiet", "--lines=1", "--output=cat"];
    host.said(&probe).await.is_some_and(|said| !said.is_empty())
}

/// Returns the last lines of agentd's service, as far as this user may read them.
pub(crate) async fn last_lines(host: &Host, service: &Service) -> Vec<String> {
    let which = match service {
        Service::System { user } => format!("--unit=agentd@{}.service", user.as_deref().unwrap_or("*")),
        Service::User if has_user_journal(host).await => "--user --unit=agentd.service".to_owned(),
        Service::User => "--user-unit=agentd.service".to_owned(),
        Service::Launchd => return Vec::new(),
    };
    let command: Vec<&str> = ["journalctl", "--quiet", "--no-pager", "--output=cat", "--lines=10"]
        .into_iter()
        .chain(which.split(' '))
        .collect();
    let said = host.said(&command).await.unwrap_or_default();
    said.lines().map(str::to_owned).collect()
}
