//! Implements `agentctl audit`: shows the calls that changed or revealed something, with their callers and
//! outcomes.

use std::path::Path;

use agentd_api::audit::{AuditList, AuditRecord};

use super::{Context, tell};
use crate::args::AuditArgs;
use crate::error::Error;
use agentd_screen::table::{Cut, Table};

pub(super) async fn audit(context: &Context, args: &AuditArgs) -> Result<u8, Error> {
    let session = args.session.as_deref();
    let document = context.client.audit(session, args.since.as_deref(), args.limit).await?;
    if context.json {
        return context.print_document(&document.raw).map(|()| 0);
    }
    Context::table(&table(&document.value))?;
    if document.value.unreadable > 0 {
        tell(&format!("{} lines of the audit log cannot be read and are left out", document.value.unreadable))?;
    }
    Ok(0)
}

fn table(list: &AuditList) -> Table {
    let mut table = Table::new(&[
        ("TIME", Cut::Never),
        ("CALLER", Cut::Never),
        ("CALL", Cut::Start),
        ("SESSION", Cut::Never),
        ("OUTCOME", Cut::Never),
    ]);
    for record in &list.records {
        table.row([
            format!("{:.0}", record.time),
            caller(record),
            format!("{} {}", record.method, record.path),
            record.session.clone().unwrap_or_else(|| "-".to_owned()),
            outcome(record),
        ]);
    }
    table
}

fn caller(record: &AuditRecord) -> String {
    let requester = &record.requester;
    let pid = requester.pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
    let program = requester.program.as_deref().map(Path::new).and_then(Path::file_name);
    let program = program.map(|name| format!(" {}", name.to_string_lossy())).unwrap_or_default();
    let session = requester.session.as_ref().map(|session| format!(" in {session}")).unwrap_or_default();
    let token = requester.token.as_ref().map(|token| format!(" with the token {token}")).unwrap_or_default();
    format!("uid {}{program}{pid}{session}{token}", requester.uid)
}

fn outcome(record: &AuditRecord) -> String {
    let code = record.code.map(|code| format!(" {}", code.as_str())).unwrap_or_default();
    let missing = match record.unrecorded {
        0 => String::new(),
        unrecorded => format!(" (after {unrecorded} unrecorded calls)"),
    };
    format!("{}{code}{missing}", record.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_who_called_what_and_what_came_of_it() {
        let record = serde_json::json!({
            "time": "2026-01-01T00:00:00.5Z", "request": "1-2", "method": "POST", "path": "/v1/drain",
            "requester": { "uid": 1000, "pid": 7, "program": "/usr/bin/curl", "session": "abcdefghjkmn" },
            "status": 403, "code": "forbidden",
            "unrecorded": 3,
        });
        let list = AuditList { records: vec![serde_json::from_value(record).unwrap()], unreadable: 0 };
        let text = table(&list).render(None);
        let row = text.lines().nth(1).unwrap();
        let cells: Vec<&str> = row.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect();
        let expected = [
            "2026-01-01T00:00:00Z",
            "uid 1000 curl pid 7 in abcdefghjkmn",
            "POST /v1/drain",
            "-",
            "403 forbidden (after 3 unrecorded calls)",
        ];
        assert_eq!(cells, expected);
    }
}
