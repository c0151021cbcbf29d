//! Implements the commands: one function per command turns arguments into calls and answers into text.

mod acp;
mod adopt;
mod agent;
mod apply;
mod apply_schedules;
mod audit;
mod batch;
mod bulk;
mod check;
mod config;
mod confirm;
mod context;
mod dial;
mod doctor;
mod drain;
mod edited;
mod environment;
mod events;
mod feed;
mod get;
mod hooks;
mod host;
mod info;
mod life;
mod list;
mod ls;
mod man;
mod mcp;
mod names;
mod note;
mod options;
mod place;
mod plugin;
mod prune;
mod reload;
mod repository;
mod schedule;
mod secret;
mod service;
mod snapshot;
mod spec;
mod talk;
mod top;
mod ui;
mod upgrade;
mod validate;
mod wait;
mod waiting;
mod workflow;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use agentd_api::session::SessionView;
use agentd_remote::{Hosts, SshHost};

use crate::args::life::{ResumeArgs, RmArgs, StopArgs};
use crate::args::{Cli, Command, Global, NoteCommand};
use crate::connector::by_ssh;
use crate::document::DocumentForm;
use crate::documents;
use crate::error::Error;
use crate::machine::Machine;
use crate::reach::reach;
use crate::start::{Starter, home_directory};
use agentd_client::Client;
use agentd_client::Way;
use agentd_screen::table::Table;
use agentd_screen::terminal::{self, Screen};

/// Time limit of an agent's start.
const START_WAIT: Duration = Duration::from_mins(1);
/// Time limit of an agent's end, longer than an orderly end takes.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// State that every command receives.
struct Context {
    client: Client,
    /// Words after `agentctl` with which another command reaches the same daemon; empty for the usual one.
    options: Vec<String>,
    /// Starts the daemon; `None` if this program must not.
    starter: Option<Starter>,
    /// Whether documents for programs are wanted.
    json: bool,
    /// Form of documents for programs.
    form: DocumentForm,
    verbose: bool,
    /// Whether no daemon may be started, on other machines neither.
    no_start: bool,
}

/// Runs a command and returns its exit status.
pub(crate) fn run(cli: Cli) -> Result<u8, Error> {
    if matches!(cli.command, Command::DemoAgent) {
        let settings = agentd_demo::Settings::of_this_process(home_directory).map_err(Error::Setup)?;
        return agentd_demo::serve(io::stdin(), io::stdout(), settings).map(|()| 0).map_err(Error::Output);
    }
    match &cli.command {
        Command::Completions { shell } => {
            let script = documents::completions(*shell).map_err(Error::Setup)?;
            return print(&script).map(|()| 0);
        }
        Command::Man { directory } => return man::man(directory.as_deref()),
        Command::Names(args) => return names::names(args),
        Command::Host(command) => {
            let form = cli.global.form();
            return host::host(command.clone(), cli.global.socket, form);
        }
        _ => {}
    }
    let mut global = cli.global;
    if global.yaml && cli.command.prints_a_stream() {
        return Err(Error::Usage {
            detail: "this command prints a stream of events, which has no form in YAML".to_owned(),
            hint: "give --json instead of --yaml".to_owned(),
        });
    }
    if matches!(cli.command, Command::Mcp) && global.url.is_none() {
        // agentd names the socket for this server; an address in the agent's environment is of another daemon.
        global.socket = global.socket.or_else(|| std::env::var_os("AGENTD_SOCKET").map(PathBuf::from));
    }
    let is_of_all = matches!(&cli.command, Command::Ls(args) if args.all_hosts);
    if is_of_all && (global.host.is_some() || global.socket.is_some() || global.url.is_some()) {
        return Err(Error::Usage {
            detail: "--all-hosts cannot be given with --host, --socket or --url".to_owned(),
            hint: "--all-hosts means this machine and all machines of agentctl host ls".to_owned(),
        });
    }
    let of_this_machine = cli.command.of_this_machine();
    let mut context = Context::new(&global, of_this_machine.is_some() || is_of_all)?;
    if let Some(what) = of_this_machine {
        Machine::of(&context.client).only_this(what)?;
    }
    if matches!(cli.command, Command::Top(_)) {
        top::check(&context)?;
    }
    crate::runtime()?.block_on(dispatch(&mut context, cli.command))
}

/// Hides the type of a command's future. Otherwise the compiler merges all commands into one function of 370 KB, which
/// is slow to compile.
fn boxed<'a>(
    command: impl Future<Output = Result<u8, Error>> + 'a,
) -> Pin<Box<dyn Future<Output = Result<u8, Error>> + 'a>> {
    Box::pin(command)
}

async fn dispatch(context: &mut Context, command: Command) -> Result<u8, Error> {
    let alone = match &command {
        Command::Version
        | Command::Reload { .. }
        | Command::Config(_)
        | Command::Drain { .. }
        | Command::Service(_)
        | Command::Doctor(_)
        // Both servers look for a daemon at each call.
        | Command::Acp(_)
        | Command::Mcp
        // Each machine is reached by itself, and the list needs no question before it.
        | Command::Ls(_) => true,
        Command::Plugin(command) => !command.asks_the_daemon(),
        _ => false,
    };
    if !alone {
        reach(context.starter.as_ref(), &mut context.client).await?;
    }
    match command {
        Command::Run(args) => boxed(talk::run(context, args)).await,
        Command::New(args) => boxed(life::new(context, args)).await,
        Command::Ls(args) => boxed(ls::ls(context, args)).await,
        Command::Show(args) => boxed(list::show(context, &args.session)).await,
        Command::Attach(args) => {
            boxed(talk::attach(context, args.session.as_deref(), (!args.from_start).then_some(args.last))).await
        }
        Command::Prompt(args) => boxed(talk::prompt(context, args)).await,
        Command::Context(args) => boxed(context::context(context, args)).await,
        Command::Hint(args) => boxed(context::hint(context, args)).await,
        Command::Wait(args) => boxed(wait::wait(context, args)).await,
        Command::Set(args) => boxed(spec::set(context, args)).await,
        Command::Repo(command) => boxed(repository::repository(context, command)).await,
        Command::Workflow(command) => boxed(workflow::workflow(context, command)).await,
        Command::Hooks { command } => boxed(hooks::hooks(context, command)).await,
        Command::Schedule(command) => boxed(schedule::schedule(context, command)).await,
        Command::Edit(args) => boxed(spec::edit(context, &args.session)).await,
        Command::Get(args) => boxed(get::get(context, args)).await,
        Command::Apply(args) => boxed(apply::apply(context, args)).await,
        Command::Diff(args) => boxed(apply::diff(context, args)).await,
        Command::Title(args) => boxed(context::title(context, args)).await,
        Command::Cancel(args) => boxed(life::cancel(context, &args.session)).await,
        Command::Stop(StopArgs { sessions, chosen, no_wait }) => match chosen.selector {
            Some(selector) => boxed(bulk::stop(context, &selector, no_wait)).await,
            None => boxed(life::stop(context, &sessions, no_wait)).await,
        },
        Command::Resume(ResumeArgs { session, chosen, no_wait, new_conversation, terms }) => {
            match (chosen.selector, session) {
                (None, Some(session)) => {
                    boxed(life::resume(context, &session, no_wait, new_conversation, terms.into())).await
                }
                (Some(selector), _) => boxed(bulk::resume(context, &selector, new_conversation)).await,
                (None, None) => Ok(0),
            }
        }
        Command::Adopt(args) => boxed(adopt::adopt(context, args)).await,
        Command::Rm(RmArgs { sessions, chosen, force, keep_conversation }) => {
            let sessions = match chosen.selector {
                Some(selector) => bulk::ids(context, selector).await?,
                None => sessions,
            };
            boxed(life::rm(context, &sessions, force, keep_conversation)).await
        }
        Command::Prune(args) => boxed(prune::prune(context, &args)).await,
        Command::Audit(args) => boxed(audit::audit(context, &args)).await,
        Command::Check(args) => boxed(check::check(context, args)).await,
        Command::Validate(args) => boxed(validate::validate(context, &args.session)).await,
        Command::Options(args) => boxed(options::options(context, &args.session)).await,
        Command::Note(NoteCommand::Preview { session }) => boxed(note::preview(context, &session)).await,
        Command::Env(args) => boxed(environment::env(context, args)).await,
        Command::Secret { command } => boxed(secret::secret(context, command)).await,
        Command::Answer(args) => boxed(talk::answer(context, args)).await,
        Command::Top(args) => boxed(top::top(context, args)).await,
        Command::Events(args) => match &args.session {
            Some(session) => boxed(events::events(context, session, args.after, args.last, !args.no_follow)).await,
            None => boxed(feed::feed(context, args)).await,
        },
        Command::Snapshot(command) => boxed(snapshot::snapshot(context, command)).await,
        Command::Place(command) => boxed(place::place(context, command)).await,
        Command::Plugin(command) => boxed(plugin::plugin(context, command)).await,
        Command::Doctor(args) => boxed(doctor::doctor(context, &args)).await,
        Command::Reload { dry_run } => boxed(reload::reload(context, dry_run)).await,
        Command::Config(command) => boxed(config::config(context, command)).await,
        Command::Drain { undo, no_wait } => boxed(drain::drain(context, undo, no_wait)).await,
        Command::Service(command) => boxed(service::service(context, command)).await,
        Command::Acp(args) => boxed(acp::acp(context, args)).await,
        Command::Mcp => boxed(mcp::mcp(context)).await,
        Command::Agent(command) => boxed(agent::agent(context, command)).await,
        Command::Agents => boxed(info::agents(context)).await,
        Command::Version => boxed(info::version(context)).await,
        Command::Ui(args) => boxed(ui::ui(context, &args)).await,
        Command::Dial => boxed(dial::dial(context)).await,
        Command::UpgradeCheck { program } => boxed(upgrade::check(context, program)).await,
        Command::Completions { .. }
        | Command::Man { .. }
        | Command::Names(_)
        | Command::Host(_)
        | Command::DemoAgent => {
            unreachable!("`run` handles commands that need no context")
        }
    }
}

impl Context {
    /// Finds the daemon. A command of this machine ignores the user's default machine.
    fn new(global: &Global, is_of_this_machine: bool) -> Result<Self, Error> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let (json, form) = (global.form().is_some(), global.form().unwrap_or(DocumentForm::Json));
        let text = environment_text;
        let no_start = global.no_start;
        let mut options = Vec::new();
        let mut name = |option: &str, value: &OsStr| {
            options.extend([option.to_owned(), value.to_string_lossy().into_owned()]);
        };
        if let Some(host) = chosen_host(global, is_of_this_machine)? {
            name("--host", host.name().as_ref());
            if let Some(socket) = &global.socket {
                name("--socket", socket.as_ref());
            }
            let host = host.program(text("AGENTD_HOST_PROGRAM")).socket(global.socket.clone());
            let host = if global.no_start { host.without_start() } else { host };
            let client = Client::by(by_ssh(host));
            return Ok(Self { client, options, starter: None, json, form, verbose: global.verbose, no_start });
        }
        if let Some(url) = global.url.clone().or_else(|| text("AGENTD_URL").filter(|_| global.socket.is_none())) {
            let token = global.token_file.clone().or_else(|| variable("AGENTD_TOKEN_FILE"));
            let client = Client::by(Way::of_url(&url, token.as_deref())?);
            name("--url", url.as_ref());
            if let Some(token) = &token {
                name("--token-file", absolute(token).as_ref());
            }
            return Ok(Self { client, options, starter: None, json, form, verbose: global.verbose, no_start });
        }
        let given = global.socket.clone().or_else(|| variable("AGENTD_SOCKET"));
        let starter = if global.no_start || given.is_some() {
            None
        } else {
            Some(Starter::beside_this_program().map_err(Error::Setup)?)
        };
        if let Some(socket) = &given {
            name("--socket", absolute(socket).as_ref());
        }
        let socket = given.unwrap_or_else(default_socket);
        Ok(Self { client: Client::new(socket), options, starter, json, form, verbose: global.verbose, no_start })
    }

    /// Prints a document for programs, in the form that the user chose.
    fn print_document(&self, raw: &[u8]) -> Result<(), Error> {
        self.form.print(raw)
    }

    /// Prints a value for programs, in the form that the user chose.
    fn print_value(&self, value: &impl serde::Serialize) -> Result<(), Error> {
        self.form.print_value(value)
    }

    /// Prints a table, cut to the width of the terminal.
    fn table(table: &Table) -> Result<(), Error> {
        print(&Screen::stdout().text(&table.render(terminal::columns())))
    }
}

/// Returns a path that is also valid in another working directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the other machine that the user chose by `--host`, by `AGENTD_HOST`, or as the default.
fn chosen_host(global: &Global, is_of_this_machine: bool) -> Result<Option<SshHost>, Error> {
    let read = || Ok::<_, Error>(Hosts::read(&hosts_file().map_err(Error::Setup)?)?);
    if let Some(given) = &global.host {
        return Ok(read()?.find(given)?);
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if is_of_this_machine || global.url.is_some() || global.socket.is_some() {
        return Ok(None);
    }
    if let Some(given) = variable("AGENTD_HOST") {
        return Ok(read()?.find(&given.to_string_lossy())?);
    }
    // An agent that calls agentctl means its own agentd.
    if ["AGENTD_URL", "AGENTD_SOCKET", "AGENTD_SESSION"].into_iter().any(|name| variable(name).is_some()) {
        return Ok(None);
    }
    // Without a home directory there is no file.
    let Ok(file) = hosts_file() else { return Ok(None) };
    let hosts = Hosts::read(&file)?;
    Ok(hosts.default.as_ref().map_or(Ok(None), |default| hosts.find(default))?)
}

/// Returns the value of a variable that is not empty.
fn environment_text(name: &str) -> Option<String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// Returns the path of the file with the names of other machines.
fn hosts_file() -> io::Result<PathBuf> {
    Hosts::file(std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from), home_directory)
}

fn default_socket() -> PathBuf {
    let uid = nix::unistd::getuid();
    let user = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name);
    let variable = |name: &str| std::env::var_os(name);
    agentd_api::paths::client_socket(variable, uid.as_raw(), user.as_deref(), std::path::Path::exists)
}

/// Prints a text that is safe to print.
fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}

/// Prints a remark on standard error: neither an error nor output.
fn tell(text: &str) -> Result<(), Error> {
    let screen = Screen::stderr();
    let text = screen.paint(terminal::TextStyle::Dim, &screen.text(text));
    io::stderr().write_all(format!("{text}\n").as_bytes()).map_err(Error::Output)
}

/// Returns the user's name for a session: its name, else its id.
fn label(view: &SessionView) -> String {
    view.spec.name.as_ref().map_or_else(|| view.id.to_string(), ToString::to_string)
}
