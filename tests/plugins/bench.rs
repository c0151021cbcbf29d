//! A plugin host with its own cache directory, and services that answer from a table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentd_plugin_host::{
    Call, CommandGrant, Failure, Grant, Host, HostOptions, Limits, LoadError, LogLevel, Places, Plugin, Services,
    SessionFacts, Source, SourcedScript, Variables, builtin,
};
use tempfile::TempDir;

/// Returns the path of this package's example `compile`, which `cargo test` builds beside the tests.
pub(crate) fn compiler() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join("examples/compile");
    assert!(
        path.exists(),
        "{} is not built; `cargo test -p agentd-plugin-host` and `cargo build --examples` do",
        path.display()
    );
    path
}

pub(crate) struct Bench {
    pub(crate) directory: TempDir,
    pub(crate) host: Host,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut HostOptions)) -> Self {
        let directory = TempDir::new().unwrap();
        let mut options = HostOptions::new(directory.path().join("cache"), compiler());
        change(&mut options);
        Self { host: Host::new(options).unwrap(), directory }
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    /// Returns the paths of the files in the cache directory, in sorted order.
    pub(crate) fn compiled(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = std::fs::read_dir(self.cache()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    pub(crate) async fn load_built_in(&self, name: &str) -> Plugin {
        let built_in = builtin().iter().find(|built_in| built_in.name == name).unwrap();
        self.load(source(name), &built_in.grant()).await.unwrap()
    }

    pub(crate) async fn load(&self, source: Source, grant: &Grant) -> Result<Plugin, LoadError> {
        self.host.load(source, grant).await
    }

    /// Writes the bytes to a file of this name and loads the file as a plugin.
    pub(crate) async fn load_bytes(&self, name: &str, bytes: &[u8], grant: &Grant) -> Result<Plugin, LoadError> {
        let path = self.directory.path().join(format!("{name}.wasm"));
        std::fs::write(&path, bytes).unwrap();
        self.load(Source::File { path, sha256: None }, grant).await
    }

    /// Asserts that the host can still load and run a built-in plugin.
    pub(crate) async fn still_works(&self) {
        let plugin = self.load_built_in("snapshot").await;
        let changes = plugin.provide(call(Fake::default().login(&[("A", b"1")]))).await.unwrap();
        assert_eq!(changes.len(), 1);
    }
}

/// Returns the source of the built-in component of this name.
pub(crate) fn source(name: &str) -> Source {
    let built_in = builtin().iter().find(|built_in| built_in.name == name).unwrap();
    Source::BuiltIn { name: built_in.name, bytes: built_in.bytes }
}

pub(crate) fn everything() -> Grant {
    let anything = || vec!["*".to_owned()];
    Grant {
        login_shell: true,
        script: anything(),
        command: vec![CommandGrant::from("**").with_variables(["*"])],
        file: anything(),
        network: anything(),
        mount: anything(),
        process: anything(),
        secret: anything(),
        variables: Some(anything()),
    }
}

pub(crate) fn call(services: impl Services + 'static) -> Call {
    Call {
        session: Some(SessionFacts {
            id: "s1".into(),
            name: None,
            agent: "demo".into(),
            directory: "/tmp".into(),
            launch: 1,
        }),
        environment: Vec::new(),
        foreign: Vec::new(),
        settings: Vec::new(),
        places: Places::default(),
        services: Arc::new(services),
        limits: Limits { time: Duration::from_secs(5), ..Limits::default() },
    }
}

/// Services that answer from a table.
#[derive(Clone, Default)]
pub(crate) struct Fake {
    login: Vec<(String, Vec<u8>)>,
    scripts: BTreeMap<String, Vec<(String, Vec<u8>)>>,
    pub(crate) log: Arc<Mutex<Vec<(LogLevel, String)>>>,
}

fn owned(variables: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
    variables.iter().map(|&(name, value)| (name.to_owned(), value.to_vec())).collect()
}

impl Fake {
    pub(crate) fn login(mut self, variables: &[(&str, &[u8])]) -> Self {
        self.login = owned(variables);
        self
    }

    /// Adds a script that sets these variables. All other scripts are absent.
    pub(crate) fn script(mut self, path: &str, variables: &[(&str, &[u8])]) -> Self {
        self.scripts.insert(path.to_owned(), owned(variables));
        self
    }
}

#[async_trait::async_trait]
impl Services for Fake {
    fn log(&self, level: LogLevel, message: &str) {
        self.log.lock().unwrap().push((level, message.to_owned()));
    }

    async fn login_environment(&self, _: Instant) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        Ok(self.login.clone())
    }

    async fn locate_scripts(&self, paths: Vec<String>, _: Instant) -> Result<Vec<Option<String>>, Failure> {
        let located = |path: &String| self.scripts.contains_key(path).then(|| format!("/resolved/{path}"));
        Ok(paths.iter().map(located).collect())
    }

    async fn source_script(&self, path: &str, environment: Variables, _: Instant) -> Result<SourcedScript, Failure> {
        let Some(variables) = self.scripts.get(path) else { return Err(Failure::NotFound(path.to_owned())) };
        let mut after: BTreeMap<_, _> = environment.into_iter().collect();
        after.extend(variables.iter().cloned());
        Ok(SourcedScript { path: format!("/resolved/{path}"), environment: after.into_iter().collect() })
    }
}

/// Services whose login shell never ends.
pub(crate) struct Stuck;

#[async_trait::async_trait]
impl Services for Stuck {
    fn log(&self, _: LogLevel, _: &str) {}

    async fn login_environment(&self, _: Instant) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        std::future::pending().await
    }

    async fn source_script(&self, _: &str, _: Variables, _: Instant) -> Result<SourcedScript, Failure> {
        std::future::pending().await
    }
}
