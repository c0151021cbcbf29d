//! The settings of encrypted connections: the certificates that the machine trusts.

use std::sync::Arc;

use agentd_api::hook::HookFault;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::send::SendFailure;

/// Settings that are read once for each hook, at its first encrypted connection.
#[derive(Debug, Default)]
pub(crate) struct Tls(OnceCell<Arc<ClientConfig>>);

impl Tls {
    /// Returns what encrypts connections.
    pub(crate) async fn connector(&self) -> Result<TlsConnector, SendFailure> {
        let config = self.0.get_or_try_init(|| async {
            let read = agentd_host::work::blocking(read).await;
            read.unwrap_or_else(|error| Err(error.to_string()))
                .map_err(|detail| SendFailure::new(HookFault::HookUnreachable, detail))
        });
        config.await.map(|config| TlsConnector::from(Arc::clone(config)))
    }
}

/// Reads the certificates of the machine, or those of `SSL_CERT_FILE`.
fn read() -> Result<Arc<ClientConfig>, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(format!("this machine has no certificates to check the receiver{why}"));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}
