//! The three built-in providers as native code: their own sources, compiled into this program. The SDK's host for tests
//! replaces agentd. It answers from memory, as agentd does if all inputs are known.
//!
//! The sources use the SDK by its crate name. They find its parts at this program's root, which exports them again.
//! Only the macro that exports a component is different there: it makes the function `provide`.

#![allow(clippy::duplicate_mod, reason = "the tests of one of the sources read a file of another")]

#[path = "../../plugins/env-script/src/lib.rs"]
#[allow(dead_code, unused_imports, reason = "a component's source, of which one function is called")]
mod env_script;
#[path = "../../plugins/snapshot/src/lib.rs"]
#[allow(dead_code, unused_imports, reason = "a component's source, of which one function is called")]
mod snapshot;
#[path = "../../plugins/whitelist/src/lib.rs"]
#[allow(dead_code, unused_imports, reason = "a component's source, of which one function is called")]
mod whitelist;

use std::io::{self, Read as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sdk::fake::Host;
use sdk::{Change, Effect, Failure, Request, Session, Variable};
use serde_json::{Value, json};

use crate::table::median;

type Provide = fn(&Request) -> Result<Vec<Change>, Failure>;

fn provider(name: &str) -> Result<Provide> {
    Ok(match name {
        "snapshot" => snapshot::provide,
        "whitelist" => whitelist::provide,
        "env-script" => env_script::provide,
        _ => bail!("there is no built-in provider {name:?}"),
    })
}

/// The only script of the host, and the variable that it sets.
pub(crate) const SCRIPT: &str = "{config}/env-setup.sh";
pub(crate) const SET: (&str, &str) = ("BENCH_SCRIPT", "1");

fn host(environment: &[(String, Vec<u8>)]) -> Host {
    Host::new()
        .login(environment.iter().cloned())
        .nothing_at("**")
        .script(SCRIPT, |after| _ = after.insert(SET.0.to_owned(), SET.1.into()))
}

fn request(environment: &[(String, Vec<u8>)]) -> Request {
    Request {
        session: Session {
            id: "bench".to_owned(),
            name: None,
            agent: "demo".to_owned(),
            directory: "/tmp".to_owned(),
            launch: 1,
        },
        environment: environment.iter().map(|(name, value)| Variable::new(name, value.clone())).collect(),
        settings: Vec::new(),
    }
}

/// Returns the duration of a call in this process, and the number of changes in its answer.
pub(crate) fn call(name: &str, environment: &[(String, Vec<u8>)], calls: usize) -> Result<(Duration, usize)> {
    let (provide, request) = (provider(name)?, request(environment));
    host(environment).run(|| {
        let changes = provide(&request).map_err(|failure| anyhow::anyhow!("{name}: {failure:?}"))?.len();
        let one = |_| {
            let begun = Instant::now();
            std::hint::black_box(provide(std::hint::black_box(&request))).ok();
            begun.elapsed()
        };
        Ok((median((0..calls).map(one).collect()), changes))
    })
}

/// Encodes the input and output of a child process that is a provider: variables as pairs of texts.
pub(crate) fn encode(environment: &[(String, Vec<u8>)]) -> Vec<u8> {
    let pairs: Vec<_> = environment.iter().map(|(name, value)| (name, String::from_utf8_lossy(value))).collect();
    json!({ "environment": pairs }).to_string().into_bytes()
}

/// Runs this program as a provider: one request on stdin, and the changes on stdout.
pub(crate) fn serve(name: &str) -> Result<()> {
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text)?;
    let asked: Value = serde_json::from_slice(&text)?;
    let pairs: Vec<(String, String)> = serde_json::from_value(asked["environment"].clone())?;
    let environment: Vec<_> = pairs.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
    let (provide, request) = (provider(name)?, request(&environment));
    let changes = host(&environment).run(|| provide(&request));
    let changes = changes.map_err(|failure| anyhow::anyhow!("{name}: {failure:?}"))?;
    let changes: Vec<Value> = changes.iter().map(told).collect::<Result<_>>()?;
    serde_json::to_writer(io::stdout().lock(), &changes)?;
    Ok(io::stdout().flush()?)
}

fn told(change: &Change) -> Result<Value> {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    Ok(match &change.effect {
        Effect::Set(variable) => {
            json!({ "set": variable.name, "value": text(&variable.value), "origin": change.origin })
        }
        Effect::Unset(removal) => json!({ "unset": removal.name, "reason": removal.reason }),
        other => bail!("a built-in provider gave {other:?}"),
    })
}
