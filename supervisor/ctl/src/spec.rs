//! Builds the spec of a session from the command line, and creates the session.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use agentd_api::doctor::shell_word;
use agentd_api::environment::{EnvironmentSpec, Refresh, SnapshotSource};
use agentd_api::isolation::Isolation;
use agentd_api::mcp::McpChoice;
use agentd_api::quantity::Time;
use agentd_api::session::{PermissionPolicy, RestartPolicy, ResumeNote, SessionLimits, SessionSpec, SessionView};
use agentd_api::snapshot::{TerminalSnapshot, TerminalVariable};
use agentd_api::{ByteString, Code};

use crate::args::{EnvFrom, IsolationArg, Note, Permissions, RefreshPolicy, Restart, SpecArgs};
use crate::error::Error;
use crate::machine::Machine;
use crate::repository;
use agentd_client::{Client, Document, Terms};

/// Refuses a prompt of one word that names an agent or a directory: the user forgot a flag.
pub(crate) async fn is_no_prompt(client: &Client, args: &SpecArgs) -> Result<(), Error> {
    let [word] = args.text.as_slice() else { return Ok(()) };
    let is_here = Machine::of(client) == Machine::This;
    let flag = if is_here && word.contains('/') && Path::new(word).is_dir() || word == "." || word == ".." {
        "--dir"
    } else if args.agent.is_none()
        && args.command.is_empty()
        && client.agents().await?.value.agents.iter().any(|agent| agent.name == *word)
    {
        "--agent"
    } else {
        return Ok(());
    };
    let what = if flag == "--dir" { "a directory" } else { "the name of an agent" };
    let quoted = shell_word(word);
    // A word that begins with a hyphen would be another flag.
    let prompt = if word.starts_with('-') { format!("--prompt={quoted}") } else { format!("--prompt {quoted}") };
    Err(Error::Usage {
        detail: format!("{word:?} is {what}, and would be sent as a prompt"),
        hint: format!("give {flag} {quoted}, or {prompt} to send it"),
    })
}

/// Builds the spec of a session on `machine` from the arguments. The daemon refuses mistakes that only it can detect.
pub(crate) fn spec(args: SpecArgs, machine: &Machine) -> Result<SessionSpec, Error> {
    let env_setup = args
        .env_setup
        .map(|path| std::fs::read_to_string(&path).map_err(|source| Error::File { path, source }))
        .transpose()?;
    let prompt = args.prompt.or_else(|| (!args.text.is_empty()).then(|| args.text.join(" ")));
    let is_elsewhere = args.workspace.workspace || args.workspace.worktree.is_some() || args.workspace.parent.is_some();
    let directory = if is_elsewhere { PathBuf::new() } else { machine.directory(args.dir.as_deref())? };
    let spec = SessionSpec {
        name: args.name,
        labels: args.label.into_iter().collect(),
        agent: args.agent,
        command: Some(args.command).filter(|command| !command.is_empty()),
        mode: args.options.mode,
        model: args.options.model,
        options: args.options.options.into_iter().collect(),
        directories: args.add_dir.iter().map(|path| machine.absolute(path)).collect::<Result<_, _>>()?,
        mcp: chosen_servers(args.options.mcp, args.options.no_mcp),
        initial_prompt: prompt.map(|prompt| prompt_text(&prompt)).transpose()?,
        answer_schema: args.batch.schema.map(|path| read_schema(&path)).transpose()?,
        interactive: !args.batch.batch,
        env_setup,
        permissions: match args.permissions {
            Permissions::Ask => PermissionPolicy::Ask,
            Permissions::Allow => PermissionPolicy::Allow,
            Permissions::Deny => PermissionPolicy::Deny,
        },
        restart: args.restart.map(|restart| match restart {
            Restart::Never => RestartPolicy::Never,
            Restart::OnFailure => RestartPolicy::OnFailure,
        }),
        environment: EnvironmentSpec {
            source: args.env_from.map(|from| match from {
                EnvFrom::LoginShell => SnapshotSource::LoginShell,
                EnvFrom::Terminal => SnapshotSource::Terminal,
                EnvFrom::Stored => SnapshotSource::Stored,
            }),
            refresh: args.refresh.map(|refresh| match refresh {
                RefreshPolicy::Fresh => Refresh::Fresh,
                RefreshPolicy::Stored => Refresh::Stored,
                RefreshPolicy::Warn => Refresh::Warn,
            }),
            env: given(args.env)?,
            allow: args.allow,
            drop: args.drop,
            ..EnvironmentSpec::default()
        },
        resume_note: args.resume_note.map(|note| match note {
            Note::Off => ResumeNote::Off,
            Note::Brief => ResumeNote::Brief,
            Note::Full => ResumeNote::Full,
        }),
        limits: SessionLimits {
            memory: args.memory.map(|size| size.0),
            tasks: args.tasks,
            cpu_weight: args.cpu_weight,
            idle_seconds: args.idle.map(Time::seconds),
            turn_seconds: args.turn_limit.map(Time::seconds),
            permission_seconds: args.permission_limit.map(Time::seconds),
            session_seconds: args.batch.session_limit.map(Time::seconds),
            cost: args.batch.cost_limit,
            ..SessionLimits::default()
        },
        requires: args.require,
        tags: args.tag,
        isolation: args.isolation.map(|level| match level {
            IsolationArg::None => Isolation::None,
            IsolationArg::Guard => Isolation::Guard,
        }),
        place: args.place,
        ..SessionSpec::new(directory)
    };
    repository::add(spec, &args.workspace, args.dir, machine)
}

/// Returns the choice of MCP servers.
fn chosen_servers(wanted: Vec<String>, unwanted: Vec<String>) -> BTreeMap<String, McpChoice> {
    let choice = |is_wanted: bool| move |name: String| (name, McpChoice::Configured(is_wanted));
    wanted.into_iter().map(choice(true)).chain(unwanted.into_iter().map(choice(false))).collect()
}

/// Parses the variables of `--env NAME=VALUE`. The last value of a name counts. The daemon validates them.
fn given(words: Vec<String>) -> Result<BTreeMap<String, String>, Error> {
    let pair = |word: String| match word.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        // Without a `=` the whole word may be a secret's value.
        None => Err(Error::Usage {
            detail: "--env has a word without a `=`".to_owned(),
            hint: "give --env NAME=VALUE; --allow NAME keeps a variable that the login shell has".to_owned(),
        }),
    };
    words.into_iter().map(pair).collect()
}

/// Returns the prompt of the command line; `-` reads it from standard input.
pub(crate) fn prompt_text(given: &str) -> Result<String, Error> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(Error::Input)?;
    Ok(text)
}

/// Reads the file of a JSON Schema. The daemon validates the schema.
pub(crate) fn read_schema(path: &Path) -> Result<serde_json::Value, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|error| Error::Usage {
        detail: format!("{} is not JSON: {error}", path.display()),
        hint: "--schema names a file with a JSON Schema".to_owned(),
    })
}

/// Creates a session. If it begins with this terminal's environment, that environment is sent first.
pub(crate) async fn create(
    client: &Client,
    mut spec: SessionSpec,
    terms: Terms,
) -> Result<Document<SessionView>, Error> {
    if spec.environment.source != Some(SnapshotSource::Terminal) {
        match client.create(&spec, terms).await {
            // The configuration requires the terminal's environment.
            Err(error) if error.problem_code() == Some(Code::SnapshotNeeded) => {}
            other => return Ok(other?),
        }
    }
    spec.environment.snapshot = Some(send_terminal(client).await?);
    Ok(client.create(&spec, terms).await?)
}

/// Sends this terminal's environment, and returns its id.
pub(crate) async fn send_terminal(client: &Client) -> Result<String, Error> {
    Machine::of(client).only_this("the environment of this terminal")?;
    Ok(client.add_snapshot(&of_this_terminal()).await?.id)
}

/// Collects this terminal's environment. A name that is not UTF-8 has no form in the API, and is left out.
fn of_this_terminal() -> TerminalSnapshot {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        Some(TerminalVariable { name: name.into_string().ok()?, value: ByteString::from(value.as_os_str()) })
    });
    TerminalSnapshot { variables: variables.collect() }
}
