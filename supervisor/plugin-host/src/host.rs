//! The host: one engine, one cache of compiled components, and the steps from a file to a loaded plugin.
//!
//! ```text
//! bytes -> pinned hash -> a component at all? -> compiled (child, cached) -> world, version, imports against the grant
//!       -> linked with the granted imports -> describes itself -> wants against the grant, settings -> Plugin
//! ```
//! No code of the plugin runs before `describe`.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use wasmtime::Engine;

use crate::cache::{Cache, Compiled, Hash, OnCompile, blocking, hash};
use crate::call::{Description, NoSession, Setting};
use crate::code::{Code, find_out};
use crate::compiler::{CompileLimits, Compiler};
use crate::epoch::Ticker;
use crate::error::LoadError;
use crate::grant::{
    Admission, Capability, ComponentRequests, Grant, PREREQUISITE, PatternError, Patterns, Refusal, Rules, Target,
    Variables, admit, target_of,
};
use crate::inspect::Inspection;
use crate::limits::Limits;
use crate::linked::Linked;
use crate::plugin::{Facts, Plugin, World};

/// Maximum size of a component in bytes. A component with a Python interpreter has 18 MB.
const COMPONENT: usize = 64 << 20;
/// Limits of the call in which a component describes itself.
const DESCRIBE: Limits = Limits { time: Duration::from_secs(2), memory: 64 << 20, output: 64 << 10, log: 20 };

/// Options of a host.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Directory of compiled components. Created with mode 0700, or tightened to that mode.
    pub cache: PathBuf,
    /// The compiler program, run as `PROGRAM compile --code CODE` from stdin to stdout. It calls
    /// [`crate::compile`].
    pub compiler: PathBuf,
    /// Kind of code to compile plugins to. If `None`, native code where the system allows it, otherwise code
    /// for the interpreter.
    pub code: Option<Code>,
    /// Limits of one compilation.
    pub compile_limits: CompileLimits,
    /// Limits of the call in which a component describes itself.
    pub describe_limits: Limits,
}

impl HostOptions {
    /// Makes options with the default limits.
    pub fn new(cache: impl Into<PathBuf>, compiler: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            compiler: compiler.into(),
            code: None,
            compile_limits: CompileLimits::default(),
            describe_limits: DESCRIBE,
        }
    }
}

/// Why a host could not be created.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// wasmtime's engine could not be configured.
    #[error("could not prepare the engine for plugins")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The clock thread could not be started.
    #[error("could not start the clock for plugins")]
    Clock(#[source] io::Error),
    /// The cache directory could not be used.
    #[error("could not use {path} for compiled plugins")]
    Cache { path: PathBuf, source: io::Error },
}

/// Source of a component.
#[derive(Debug, Clone)]
pub enum Source {
    /// A component inside the binary.
    BuiltIn { name: &'static str, bytes: &'static [u8] },
    /// A component file. Its default name is the file's name without `.wasm`.
    File {
        path: PathBuf,
        /// The pinned digest, if the configuration has one.
        sha256: Option<[u8; 32]>,
    },
}

impl Source {
    /// Returns the default name of the plugin.
    pub fn name(&self) -> String {
        match self {
            Self::BuiltIn { name, .. } => (*name).to_owned(),
            Self::File { path, .. } => path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        }
    }
}

/// Conditions under which a plugin is loaded.
#[derive(Clone, Default)]
pub struct LoadTerms {
    /// Name of the plugin. The source's default name if absent.
    pub name: Option<String>,
    /// The grant of the plugin.
    pub grant: Grant,
    /// Denials of the administrator, which override the grant.
    pub deny: Option<Grant>,
    /// Settings of each use of the plugin. They are checked against the settings that the plugin accepts.
    pub settings: Vec<Vec<Setting>>,
    /// Whether a provider may change any variable. Built-in plugins without a grant of variables may.
    pub any_variable: bool,
    /// Callback around a compilation, which can take long.
    pub on_compile: Option<OnCompile>,
}

impl fmt::Debug for LoadTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadTerms").field("name", &self.name).field("grant", &self.grant).finish_non_exhaustive()
    }
}

/// The plugin host. Cheap to clone. Use one for the whole process.
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    ticker: Arc<Ticker>,
    cache: Arc<Cache>,
    code: Code,
    describe: Limits,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("code", &self.inner.code).field("cache", &self.inner.cache).finish_non_exhaustive()
    }
}

impl Host {
    /// Creates a host: opens the cache, finds out the kind of code if needed, and starts the clock.
    pub fn new(options: HostOptions) -> Result<Self, HostError> {
        let HostOptions { cache, compiler, code, compile_limits, describe_limits } = options;
        let unusable = |source| HostError::Cache { path: cache.clone(), source };
        Cache::make_private(&cache).map_err(unusable)?;
        let code = code.unwrap_or_else(|| find_out(&cache));
        let engine = code.engine_config(None).and_then(|config| Engine::new(&config));
        let engine = engine.map_err(|error| HostError::Engine(error.into()))?;
        let ticker = Arc::new(Ticker::start(engine.clone()).map_err(HostError::Clock)?);
        let compiler = Compiler { program: compiler, code, limits: compile_limits };
        let cache = Arc::new(Cache::open(cache.clone(), compiler).map_err(unusable)?);
        Ok(Self { inner: Arc::new(Inner { engine, ticker, cache, code, describe: describe_limits }) })
    }

    /// Returns the kind of code that plugins are compiled to.
    pub fn code(&self) -> Code {
        self.inner.code
    }

    /// Loads a component with a grant and without denials. The module's comment lists the steps.
    #[boxed]
    pub async fn load(&self, source: Source, grant: &Grant) -> Result<Plugin, LoadError> {
        self.load_with(source, LoadTerms { grant: grant.clone(), ..LoadTerms::default() }).await
    }

    /// Loads a component under the given conditions.
    #[boxed]
    pub async fn load_with(&self, source: Source, terms: LoadTerms) -> Result<Plugin, LoadError> {
        let LoadTerms { name, grant, deny, settings, any_variable, on_compile } = terms;
        let own = matches!(source, Source::BuiltIn { .. }) && grant.variables.is_none();
        let on_compile = on_compile.unwrap_or_else(|| Arc::new(|_| ()));
        let plugin = name.unwrap_or_else(|| source.name());
        let read = self.read(&plugin, source, &on_compile).await?;
        let requested = ComponentRequests { imports: read.imports.clone(), wants: None };
        let admission = admitted(&plugin, &requested, &grant, deny.as_ref())?;
        let mut rules = rules(&plugin, &grant, deny.as_ref())?;
        if any_variable || own {
            rules.granted.variables = Variables::Any;
        }
        let mut linked = self.link(&plugin, &read, rules, admission.linked)?;
        let description = self.describe(&plugin, &linked).await?;
        let requested = ComponentRequests { wants: Some(description.wants.clone()), ..requested };
        let admission = admitted(&plugin, &requested, &grant, deny.as_ref())?;
        linked.wants(compiled(&plugin, &Grant::wanted(&description.wants), Refusal::Want)?);
        let facts = Facts {
            description,
            narrowed: admission.narrowed,
            sha256: hex::encode(read.digest),
            interface: read.made.version,
        };
        let plugin = Plugin::new(linked, facts);
        settings.iter().try_for_each(|settings| plugin.check_settings(settings))?;
        Ok(plugin)
    }

    /// Inspects a component without a grant. The component describes itself, and every host call of it fails.
    #[boxed]
    pub async fn inspect(&self, source: Source) -> Result<Inspection, LoadError> {
        let plugin = source.name();
        let nobody: OnCompile = Arc::new(|_| ());
        let read = self.read(&plugin, source, &nobody).await?;
        let requested = ComponentRequests { imports: read.imports.clone(), wants: None };
        let admission = admitted(&plugin, &requested, &everything(), None)?;
        let linked = self.link(&plugin, &read, Rules::default(), admission.linked)?;
        let description = self.describe(&plugin, &linked).await?;
        Ok(Inspection {
            description,
            world: linked.world(),
            interface: read.made.version,
            imports: read.imports,
            size: read.size,
            sha256: hex::encode(read.digest),
        })
    }

    async fn read(&self, plugin: &str, source: Source, on_compile: &OnCompile) -> Result<Read, LoadError> {
        let compile = |source| LoadError::Compile { plugin: plugin.to_owned(), source };
        let name = plugin.to_owned();
        let (bytes, digest) = blocking(move || read(name, source)).await.map_err(compile)??;
        let size = bytes.len();
        let engine = &self.inner.engine;
        let code = self.inner.cache.load(engine, bytes, digest, on_compile).await.map_err(compile)?;
        let ty = code.component.component_type();
        let made = target_of(ty.exports(engine).map(|(name, _)| name))
            .map_err(|refusal| LoadError::Refused { plugin: plugin.to_owned(), refusal })?;
        let imports = ty.imports(engine).map(|(name, _)| name.to_owned()).collect();
        Ok(Read { code: Arc::new(code), made, imports, size, digest })
    }

    fn link(&self, plugin: &str, read: &Read, rules: Rules, imports: Vec<Capability>) -> Result<Linked, LoadError> {
        let world = if read.made.interface == PREREQUISITE { World::Prerequisite } else { World::Provider };
        let ticker = Arc::clone(&self.inner.ticker);
        Linked::new(plugin.to_owned(), ticker, rules, imports, world, Arc::clone(&read.code))
            .map_err(|error| LoadError::Link { plugin: plugin.to_owned(), source: error.into() })
    }

    async fn describe(&self, plugin: &str, linked: &Linked) -> Result<Description, LoadError> {
        let services = Arc::new(NoSession { plugin: plugin.to_owned() });
        let described = linked.describe(services, self.inner.describe).await;
        described.map_err(|source| LoadError::Describe { plugin: plugin.to_owned(), source })
    }
}

/// A component that was read and compiled.
struct Read {
    code: Arc<Compiled>,
    made: Target,
    /// Names of the component's imports.
    imports: Vec<String>,
    size: usize,
    digest: Hash,
}

/// Returns a grant that admits every import. For inspection only.
fn everything() -> Grant {
    let any = || vec!["*".to_owned()];
    Grant {
        login_shell: true,
        script: any(),
        command: vec!["*".into()],
        file: any(),
        network: any(),
        mount: any(),
        process: any(),
        secret: any(),
        variables: Some(any()),
    }
}

/// Compares the request with the grant. Returns the first refusal as an error.
fn admitted(
    plugin: &str,
    requested: &ComponentRequests,
    grant: &Grant,
    deny: Option<&Grant>,
) -> Result<Admission, LoadError> {
    let mut admission = admit(requested, grant, deny);
    if admission.refused.is_empty() {
        return Ok(admission);
    }
    Err(LoadError::Refused { plugin: plugin.to_owned(), refusal: admission.refused.swap_remove(0) })
}

/// Compiles the patterns of a grant.
fn compiled(plugin: &str, grant: &Grant, refusal: fn(PatternError) -> Refusal) -> Result<Patterns, LoadError> {
    Patterns::new(grant).map_err(|error| LoadError::Refused { plugin: plugin.to_owned(), refusal: refusal(error) })
}

/// Compiles the patterns of the grant and of the denials.
fn rules(plugin: &str, grant: &Grant, deny: Option<&Grant>) -> Result<Rules, LoadError> {
    let granted = compiled(plugin, grant, Refusal::Grant)?;
    let denied = deny.map(|deny| compiled(plugin, deny, Refusal::Deny)).transpose()?.unwrap_or_default();
    Ok(Rules { granted, denied, wanted: None })
}

/// Reads a component and checks its size, its pinned digest and its preamble.
fn read(plugin: String, source: Source) -> Result<(Arc<[u8]>, Hash), LoadError> {
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
        return Err(LoadError::Pin { plugin, found: hex::encode(found), pinned: hex::encode(pinned) });
    }
    // The preamble: magic number, version and layer (the component model's Binary.md).
    match bytes.get(..8) {
        Some(b"\0asm\x0d\0\x01\0") => Ok((bytes, found)),
        Some(b"\0asm\x01\0\0\0") => Err(LoadError::NotComponent { plugin, is: "a core module" }),
        Some([0, b'a', b's', b'm', ..]) => {
            Err(LoadError::NotComponent { plugin, is: "WebAssembly of an unknown kind" })
        }
        _ => Err(LoadError::NotComponent { plugin, is: "a file of another format" }),
    }
}

/// Reads at most one byte more than the size limit, which suffices to detect a file that is too large.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(COMPONENT as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
