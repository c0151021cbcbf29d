//! Puts Acme's toolchain into a session's environment.

use std::time::Duration;

use agentd_plugin_sdk::{
    Capability, Change, Description, Failure, OrNone, Provider, Request, export_provider, file, log,
};

const CURRENT: &str = "/opt/acme/CURRENT";
const RELEASES: &str = "/opt/acme/releases";

struct AcmeToolchain;

impl Provider for AcmeToolchain {
    fn describe() -> Description {
        Description::new("acme-toolchain", env!("CARGO_PKG_VERSION"), "puts Acme's toolchain in front of PATH")
            .setting("release", "which release; default: the one that /opt/acme/CURRENT names")
            .wants(Capability::File, [CURRENT, "/opt/acme/releases/*"], "finds the release")
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        let release = match request.setting("release")? {
            Some(release) => release.to_owned(),
            None => file::read_text(CURRENT)?.trim().to_owned(),
        };
        let directory = format!("{RELEASES}/{release}");
        if file::inspect(&directory).or_none()?.is_none() {
            return Err(Failure::configuration("release", format!("there is no {directory}")));
        }
        log::info(format!("the toolchain is {directory}"));
        Ok(vec![
            Change::prepend("PATH", format!("{directory}/bin")),
            // Writes a file for the session and sets ACME_CONFIG to its path.
            Change::file("ACME_CONFIG", "acme.conf", format!("toolchain = {directory}\n")),
            // After an hour agentd calls the plugin again, and tells the user if CURRENT names another release.
            Change::set("ACME_RELEASE", release).from_file(CURRENT).valid_for(Duration::from_hours(1)),
        ])
    }
}

export_provider!(AcmeToolchain);

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_plugin_sdk::fake::Host;

    #[test]
    fn the_current_release_is_in_front_of_path() {
        let host = Host::new().file(CURRENT, "2026.2\n").directory("/opt/acme/releases/2026.2", ["bin", "lib"]);
        let changes = host.provide::<AcmeToolchain>().unwrap();
        assert_eq!(changes[0], Change::prepend("PATH", "/opt/acme/releases/2026.2/bin"));
        assert_eq!(changes[1], Change::file("ACME_CONFIG", "acme.conf", "toolchain = /opt/acme/releases/2026.2\n"));
    }

    #[test]
    fn a_release_that_is_not_there_is_told() {
        let host = Host::new().setting("release", ["1999"]).nothing_at("/opt/acme/releases/*");
        let failure = host.provide::<AcmeToolchain>().unwrap_err();
        assert_eq!(failure, Failure::configuration("release", "there is no /opt/acme/releases/1999"));
    }

    #[test]
    fn a_release_is_one_name() {
        let host = Host::new().setting("release", ["../../home/me/releases"]);
        assert!(matches!(host.provide::<AcmeToolchain>(), Err(Failure::NotGranted(_))));
    }
}
