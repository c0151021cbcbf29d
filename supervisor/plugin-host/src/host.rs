//! The host: one engine, one cache of compiled components, and the way from a file to a plugin that can be called.
//!
//! ```text
//! bytes -> pinned hash -> a component at all? -> compiled (child, cached) -> world, version, imports against the grant
//!       -> linked with the granted imports -> describes itself -> Plugin
//! ```
//! No code of the plugin runs before the last step.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::Component;
use wasmtime::{Config, Engine};

use crate::cache::{Cache, CompileLimits, CompiledError, Hash, blocking, hash, hex};
use crate::call::NoSession;
use crate::epoch::Ticker;
use crate::grant::{self, Capability, Grant, PACKAGE_VERSION, Refusal};
use crate::limits::{Bytes, Limits, STACK};
use crate::plugin::{CallError, Linked, Plugin, World};

/// The largest component that is read; one of a whole Python interpreter is 18 MB.
const COMPONENT: usize = 64 << 20;
/// How long a component's name for itself may take.
const DESCRIBE: Limits = Limits { time: Duration::from_secs(2), memory: 64 << 20, output: 64 << 10 };

/// What a host needs.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Where compiled components are kept: made with mode 0700 if it is not there, and tightened to it.
    pub cache: PathBuf,
    /// The program that is run as `PROGRAM compile IN OUT`; it calls [`crate::compile`].
    pub compiler: PathBuf,
    pub compile_limits: CompileLimits,
    /// Of the call in which a component describes itself.
    pub describe_limits: Limits,
}

impl HostOptions {
    /// With the default limits.
    pub fn new(cache: impl Into<PathBuf>, compiler: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            compiler: compiler.into(),
            compile_limits: CompileLimits::default(),
            describe_limits: DESCRIBE,
        }
    }
}

/// Why there is no host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("could not prepare the engine for plugins")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("could not start the clock for plugins")]
    Clock(#[source] io::Error),
    #[error("could not use {path} for compiled plugins")]
    Cache { path: PathBuf, source: io::Error },
}

/// Where a component comes from.
#[derive(Debug, Clone)]
pub enum Source {
    BuiltIn {
        name: &'static str,
        bytes: &'static [u8],
    },
    /// Its name is the file's, without `.wasm`.
    File {
        path: PathBuf,
        sha256: Option<[u8; 32]>,
    },
}

impl Source {
    /// The name that the plugin goes by until and after it has described itself.
    pub fn name(&self) -> String {
        match self {
            Self::BuiltIn { name, .. } => (*name).to_owned(),
            Self::File { path, .. } => path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        }
    }
}

/// Why a plugin was not loaded. Each names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("could not read plugin {plugin:?} from {path}")]
    Read { plugin: String, path: PathBuf, source: io::Error },
    #[error("plugin {plugin:?} is larger than {}", Bytes(*limit))]
    Size { plugin: String, limit: usize },
    #[error("plugin {plugin:?} is not the pinned one: its SHA-256 is {found}, pinned is {pinned}")]
    Pin { plugin: String, found: String, pinned: String },
    #[error("plugin {plugin:?} is {is}, not a WebAssembly component")]
    NotComponent { plugin: String, is: &'static str },
    #[error("plugin {plugin:?} could not be compiled")]
    Compile { plugin: String, source: CompiledError },
    #[error("plugin {plugin:?} imports {import:?}, which it is not granted")]
    NotGranted { plugin: String, import: String, capability: Capability },
    #[error("plugin {plugin:?} imports {import:?}; there is no WASI here")]
    Wasi { plugin: String, import: String },
    #[error("plugin {plugin:?} imports {import:?}, which does not exist here")]
    UnknownImport { plugin: String, import: String },
    #[error(
        "plugin {plugin:?} is made for version {found} of agentd:plugin/{interface}, and this is version {supported}"
    )]
    Version { plugin: String, interface: String, found: String, supported: &'static str },
    #[error("plugin {plugin:?} is neither a provider nor a prerequisite: it exports {}", list(exports))]
    World { plugin: String, exports: Vec<String> },
    #[error("plugin {plugin:?} does not fit the interface of its world")]
    Link { plugin: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("plugin {plugin:?} could not describe itself")]
    Describe { plugin: String, source: CallError },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

impl LoadError {
    /// A stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "plugin-unreadable",
            Self::Size { .. } => "plugin-too-large",
            Self::Pin { .. } => "plugin-not-pinned",
            Self::NotComponent { .. } => "plugin-not-a-component",
            Self::Compile { .. } => "plugin-not-compiled",
            Self::NotGranted { .. } => "plugin-not-granted",
            Self::Wasi { .. } => "plugin-wasi",
            Self::UnknownImport { .. } => "plugin-unknown-import",
            Self::Version { .. } => "plugin-version",
            Self::World { .. } => "plugin-wrong-world",
            Self::Link { .. } => "plugin-misfit",
            Self::Describe { .. } => "plugin-not-described",
        }
    }

    /// What the user can do, where it is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Pin { .. } => Some("pin the new SHA-256 if you meant to change the file".to_owned()),
            Self::NotComponent { is: "a core module", .. } => {
                Some("build it with wasm-component-ld as its linker".to_owned())
            }
            Self::NotGranted { capability, .. } => {
                capability.grant_line().map(|line| format!("if you trust it, grant it in its configuration: {line}"))
            }
            Self::Wasi { .. } => {
                Some("build it for wasm32-unknown-unknown, or have its toolchain stub WASI (--stub-wasi)".to_owned())
            }
            Self::Version { supported, .. } => Some(format!("build it against agentd:plugin@{supported}")),
            _ => None,
        }
    }
}

/// Where plugins live. Cheap to clone; keep one for the whole process.
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    ticker: Arc<Ticker>,
    cache: Arc<Cache>,
    describe: Limits,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("cache", &self.inner.cache).finish_non_exhaustive()
    }
}

impl Host {
    pub fn new(options: HostOptions) -> Result<Self, HostError> {
        let HostOptions { cache, compiler, compile_limits, describe_limits } = options;
        let engine = Engine::new(&engine_config(false)).map_err(|error| HostError::Engine(error.into()))?;
        let ticker = Arc::new(Ticker::start(engine.clone()).map_err(HostError::Clock)?);
        let cache = Cache::open(cache.clone(), compiler, compile_limits)
            .map_err(|source| HostError::Cache { path: cache, source })?;
        Ok(Self { inner: Arc::new(Inner { engine, ticker, cache: Arc::new(cache), describe: describe_limits }) })
    }

    /// Loads a component: the steps are in the module's comment.
    pub async fn load(&self, source: Source, grant: &Grant) -> Result<Plugin, LoadError> {
        let plugin = source.name();
        let compile = |source| LoadError::Compile { plugin: plugin.clone(), source };
        let (bytes, digest) = blocking(move || read(source)).await.map_err(compile)??;
        let component = self.inner.cache.load(&self.inner.engine, bytes, digest).await.map_err(compile)?;
        let linked = self.link(&plugin, grant, &component)?;
        let services = Arc::new(NoSession { plugin: plugin.clone() });
        let description = linked
            .describe(services, self.inner.describe)
            .await
            .map_err(|source| LoadError::Describe { plugin, source })?;
        Ok(Plugin::new(linked, description))
    }

    fn link(&self, plugin: &str, grant: &Grant, component: &Component) -> Result<Linked, LoadError> {
        let refused = |refusal| refuse(plugin, refusal);
        let ty = component.component_type();
        let engine = &self.inner.engine;
        let world = match grant::world(ty.exports(engine).map(|(name, _)| name)).map_err(refused)? {
            grant::PREREQUISITE => World::Prerequisite,
            _ => World::Provider,
        };
        let imports = grant::admit(ty.imports(engine).map(|(name, _)| name), grant).map_err(refused)?;
        let ticker = Arc::clone(&self.inner.ticker);
        Linked::new(plugin.to_owned(), ticker, grant.clone(), imports, world, component)
            .map_err(|error| LoadError::Link { plugin: plugin.to_owned(), source: error.into() })
    }
}

fn refuse(plugin: &str, refusal: Refusal) -> LoadError {
    let plugin = plugin.to_owned();
    match refusal {
        Refusal::NotGranted { import, capability } => LoadError::NotGranted { plugin, import, capability },
        Refusal::Wasi { import } => LoadError::Wasi { plugin, import },
        Refusal::Unknown { import } => LoadError::UnknownImport { plugin, import },
        Refusal::Version { interface, found } => {
            LoadError::Version { plugin, interface, found, supported: PACKAGE_VERSION }
        }
        Refusal::World { exports } => LoadError::World { plugin, exports },
    }
}

/// The bytes of a component, known by their hash.
fn read(source: Source) -> Result<(Arc<[u8]>, Hash), LoadError> {
    let plugin = source.name();
    let (bytes, pinned): (Arc<[u8]>, _) = match source {
        Source::BuiltIn { bytes, .. } => (bytes.into(), None),
        Source::File { path, sha256 } => match read_file(&path) {
            Ok(bytes) => (bytes.into(), sha256),
            Err(source) => return Err(LoadError::Read { plugin, path, source }),
        },
    };
    if bytes.len() > COMPONENT {
        return Err(LoadError::Size { plugin, limit: COMPONENT });
    }
    let found = hash(&bytes);
    if let Some(pinned) = pinned.filter(|pinned| *pinned != found) {
        return Err(LoadError::Pin { plugin, found: hex(&found), pinned: hex(&pinned) });
    }
    // The preamble: magic, version, layer (the component model's Binary.md).
    match bytes.get(..8) {
        Some(b"\0asm\x0d\0\x01\0") => Ok((bytes, found)),
        Some(b"\0asm\x01\0\0\0") => Err(LoadError::NotComponent { plugin, is: "a core module" }),
        Some([0, b'a', b's', b'm', ..]) => {
            Err(LoadError::NotComponent { plugin, is: "WebAssembly of an unknown kind" })
        }
        _ => Err(LoadError::NotComponent { plugin, is: "something else" }),
    }
}

/// One byte more than is allowed is enough to know.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(COMPONENT as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The settings that the compiler's engine and the daemon's must share; only the first has a compiler.
pub(crate) fn engine_config(compiler: bool) -> Config {
    let mut config = Config::new();
    config.enable_compiler(compiler).epoch_interruption(true).max_wasm_stack(STACK).wasm_memory64(false);
    config
}
