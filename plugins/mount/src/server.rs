//! Finds the server and port behind a mount.

use agentd_plugin_checks::address::{self, Endpoint, host};
use agentd_plugin_sdk::{CheckRequest, Failure};

/// The server that the settings name.
#[derive(Debug, Default)]
pub(crate) struct Setting<'a> {
    server: Option<&'a str>,
    port: Option<u16>,
}

impl<'a> Setting<'a> {
    pub(crate) fn of(request: &'a CheckRequest) -> Result<Self, Failure> {
        let server = match request.setting("server")? {
            None => None,
            Some(text) => {
                let wrong = || {
                    Failure::configuration(
                        "server",
                        format!("must be the name of a host or its address, and is {text:?}"),
                    )
                };
                Some(host(text).ok_or_else(wrong)?)
            }
        };
        Ok(Self { server, port: address::port(request)? })
    }

    /// Returns the server behind a mount. `None` if the mount has no server, or if the server does not use TCP.
    pub(crate) fn behind(&self, kind: &str, source: &str, options: &[String]) -> Result<Option<Endpoint>, Failure> {
        let protocol = Protocol::of(kind, source);
        let named = self.server.or_else(|| protocol.and_then(|protocol| protocol.host(source)));
        let Some(named) = named else { return Ok(None) };
        let option = |name: &str| options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
        if option("proto").is_some_and(|proto| !proto.starts_with("tcp")) {
            return Ok(None);
        }
        let used = option("port").and_then(|port| port.parse().ok()).filter(|port| *port != 0);
        let Some(port) = self.port.or(used).or(protocol.map(Protocol::port)) else {
            let what = "must be set, because the kind of file system does not determine it";
            return Err(Failure::configuration("port", what));
        };
        Ok(Some(Endpoint { host: named.to_owned(), port }))
    }
}

/// The network protocol of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Nfs,
    Smb,
    Sshfs,
}

impl Protocol {
    /// Returns the protocol by the kind of file system, or by the form of the source if the kind is unknown.
    fn of(kind: &str, source: &str) -> Option<Self> {
        let kind = kind.trim_end_matches('*');
        match kind {
            "cifs" | "smb3" => Some(Self::Smb),
            "fuse.sshfs" => Some(Self::Sshfs),
            _ if kind.starts_with("nfs") => Some(Self::Nfs),
            "" if source.starts_with("//") => Some(Self::Smb),
            "" if source.contains(":/") => Some(Self::Nfs),
            _ => None,
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Nfs => 2049,
            Self::Smb => 445,
            Self::Sshfs => 22,
        }
    }

    /// Returns the host of `host:/path`, `user@host:path`, `[fd00::1]:/path` or `//host/share`.
    fn host(self, source: &str) -> Option<&str> {
        let named = match self {
            Self::Smb => source.strip_prefix("//")?.split('/').next()?,
            Self::Nfs | Self::Sshfs => {
                let source = source.rsplit_once('@').map_or(source, |(_, source)| source);
                match source.strip_prefix('[') {
                    Some(rest) => rest.split_once("]:")?.0,
                    // An IPv6 address may be written without brackets.
                    None => source.split_once(":/").or_else(|| source.split_once(':'))?.0,
                }
            }
        };
        host(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_told_by_the_source_and_the_port_by_the_kind() {
        for (kind, source, options, expected) in [
            ("nfs4", "files.corp:/export/home", &[][..], Some(("files.corp", 2049))),
            ("nfs", "10.0.0.9:/x", &[], Some(("10.0.0.9", 2049))),
            ("nfs4", "[fd00::9]:/x", &[], Some(("fd00::9", 2049))),
            ("nfs4", "fd00::9:/x", &[], Some(("fd00::9", 2049))),
            ("nfs4", "files:/x", &["rw", "port=20490", "proto=tcp6"], Some(("files", 20490))),
            ("nfs", "files:/x", &["proto=udp"], None),
            ("nfs4", "files:/x", &["proto=rdma"], None),
            ("nfs4", "files:/x", &["port=0"], Some(("files", 2049))),
            ("cifs", "//win.corp/share/dir", &[], Some(("win.corp", 445))),
            ("smb3", "//win/share", &[], Some(("win", 445))),
            ("fuse.sshfs", "me@host.corp:/data", &[], Some(("host.corp", 22))),
            ("fuse.sshfs", "host:", &[], Some(("host", 22))),
            ("nfs*", "files:/*", &[], Some(("files", 2049))),
            ("", "files:/x", &[], Some(("files", 2049))),
            ("", "//win/share", &[], Some(("win", 445))),
            ("ext4", "/dev/sda1", &[], None),
            ("", "/dev/sda1", &[], None),
            ("ceph", "mon1:6789:/", &[], None),
            ("nfs4", "*:/export", &[], None),
            ("tmpfs", "tmpfs", &[], None),
        ] {
            let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
            let found = Setting::default().behind(kind, source, &options).unwrap();
            let expected = expected.map(|(host, port)| Endpoint { host: host.to_owned(), port });
            assert_eq!(found, expected, "{kind} {source}");
        }
    }

    #[test]
    fn the_settings_go_before_and_a_port_that_nobody_tells_is_missing() {
        let setting = Setting { server: Some("store"), port: Some(6789) };
        let server = Some(Endpoint { host: "store".to_owned(), port: 6789 });
        assert_eq!(setting.behind("ceph", "mon1:/", &[]), Ok(server));
        let setting = Setting { server: Some("store"), port: None };
        let server = Some(Endpoint { host: "store".to_owned(), port: 2049 });
        assert_eq!(setting.behind("nfs4", "files:/x", &[]), Ok(server));
        assert!(
            matches!(setting.behind("ceph", "mon1:/", &[]), Err(Failure::Configuration(error)) if error.key == "port")
        );
    }
}
