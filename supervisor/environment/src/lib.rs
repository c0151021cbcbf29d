//! Builds a session's environment with an ordered pipeline of providers. Each provider is a sandboxed plugin, and
//! the pipeline starts from an empty environment.
//!
//! The host does for a provider the work that its sandbox forbids: it runs a shell or reads a script under the
//! provider's grant. The configuration sets the order of the pipeline. agentd's own steps come last: the named
//! secrets and agentd's variables.
//!
//! Each folder needs only folders above it in this table:
//!
//! | folder | job |
//! |---|---|
//! | `login` | captures the environment of the user's login shell |
//! | `secrets` | reads the named secrets, and hides secret values in messages |
//! | `merge` | applies changes step by step, with the origin of each value |
//! | `store` | stores environments and snapshots, sealed if so configured |
//! | `snapshot` | keeps captures and decides when one is still valid |
//! | `script` | finds, approves, runs and checks environment scripts |
//! | `pipeline` | calls the providers and applies agentd's own steps |
//! | `expiry` | renews values of limited lifetime |

mod blocking;
mod expiry;
mod lock;
mod login;
mod merge;
mod pipeline;
mod script;
mod secrets;
mod snapshot;
mod store;

pub use expiry::{Renewal, renew_at, restore_obstacle};
pub use login::capture::Capture;
pub use login::seed::{PlaceUser, Seed};
pub use login::sources;
pub use merge::{Environment, drift, with_secrets, without_secrets};
pub use pipeline::files::{SessionFile, provide as provide_files, remove as remove_files, write as write_files};
pub use pipeline::identity::identify as known_agent;
pub use pipeline::{
    BuildFailure, BuiltEnvironment, InScope, Pipeline, SESSION_VARIABLE, SOCKET_VARIABLE, Scopes, Target,
};
pub use script::complaints::of_runs as warnings_of_runs;
pub use script::directories::{ResolvedPlaces, ScriptDirectories, WorkflowScript};
pub use script::proposed::NAME as PROPOSED_SCRIPT;
pub use script::trust::{Script, Trust, TrustError, VERSIONS as TRUST_VERSIONS, sourced};
pub use script::upward::ScriptPlace;
pub use script::validate::{Digests, NamedPlaces, Scripts};
pub use script::{inconsistencies, project};
pub use secrets::{HiddenValues, MissingSecret, Secrets, assigned as assigned_secrets, redacted as redacted_script};
pub use secrets::{secret_credential, secret_file};
pub use snapshot::{
    Options as SnapshotOptions, SessionSnapshot, SnapshotError, SnapshotFinding, SnapshotPlace, SnapshotRequest,
    SnapshotTotals, Snapshots, TerminalError, Times as SnapshotTimes,
};
pub use store::{EnvironmentError, Environments, StoredEnvironments, VERSIONS as ENVIRONMENT_VERSIONS};
