//! The keeper's binary. Parses the role and calls the library.
//!
//! Exit status: 0 success; 1 failure, with the reason on stderr; 2 invalid arguments; 3 another process holds
//! the session's journal. The roles `place` and `enter` for a place have those of their modules.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use agentd_keeper::cli::{self, Role, USAGE};
use agentd_keeper::hold::HoldError;
use agentd_keeper::place::{attach, digest, far, near, stay};
use agentd_keeper::{enter, environment, hold, look, run, standby};

fn main() -> ExitCode {
    let role = match cli::parse(std::env::args_os().skip(1)) {
        Ok(role) => role,
        Err(error) => {
            report(&error);
            let _ = writeln!(std::io::stderr(), "{USAGE}");
            return ExitCode::from(2);
        }
    };
    let held = match &role {
        Role::Hold(args) => Some(hold::hold(args)),
        Role::Standby => Some(standby::standby()),
        _ => None,
    };
    if let Some(Err(error @ HoldError::Held { .. })) = &held {
        report(error);
        return ExitCode::from(3);
    }
    let placed = match &role {
        Role::Far => Some(far::enter()),
        Role::Place(report) => Some(near::place(*report)),
        Role::Stay(name) => Some(stay::stay(name)),
        Role::Attach(name, starts) => Some(attach::attach(name, *starts)),
        Role::List => Some(attach::list()),
        Role::End(name) => Some(attach::end(name)),
        Role::Digest => Some(digest::print()),
        _ => None,
    };
    if let Some(Ok(status)) = placed {
        return ExitCode::from(status);
    }
    let done = match role {
        Role::Far | Role::Place(_) | Role::Stay(_) | Role::Attach(..) | Role::List | Role::End(_) | Role::Digest => {
            placed.map_or(Ok(()), |placed| placed.map(drop)).map_err(Box::from)
        }
        Role::Hold(_) | Role::Standby => held.unwrap_or(Ok(())).map_err(Box::from),
        Role::Run => run::run(std::io::stdin(), &mut std::io::stdout()).map_err(Box::from),
        Role::Look(seconds) => look::look(seconds, std::io::stdin(), &mut std::io::stdout()).map_err(Box::from),
        Role::Enter(request, report) => enter::enter(request, report).map_err(Box::from),
        Role::Isolation => enter::survey(&mut std::io::stdout()).map_err(Box::from),
        Role::DumpEnvironment(target, label) => environment::dump(&target, &label).map_err(Box::from),
        Role::Version => writeln!(std::io::stdout(), "agentd-keeper {}", env!("CARGO_PKG_VERSION")).map_err(Box::from),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error: Box<dyn Error> = error;
            report(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

/// Prints an error with its chain of causes on one line. A failed write is ignored, because stderr may be
/// closed.
fn report(error: &dyn Error) {
    let _ = writeln!(std::io::stderr(), "agentd-keeper: {}", agentd_api::chain(error));
}
