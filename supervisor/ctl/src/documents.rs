//! Completion scripts and man pages, generated from the definition of the command line.
//!
//! Nothing in them depends on the time or the machine: the same build always writes the same bytes.

use std::io;

use clap::{Command, CommandFactory as _};
use clap_complete::{Generator, generate};
use clap_complete_nushell::Nushell;
use clap_mangen::Man;

use crate::args::{Cli, Shell};
use crate::completed_names::with_names;

/// A generated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// File name, such as `agentctl-env-allow.1`.
    pub(crate) name: String,
    /// Content, in roff with the macros of man(7).
    pub(crate) text: String,
}

/// Returns the completion script of a shell.
pub(crate) fn completions(shell: Shell) -> io::Result<String> {
    fn script(generator: impl Generator) -> Vec<u8> {
        let mut script = Vec::new();
        generate(generator, &mut Cli::command(), "agentctl", &mut script);
        script
    }
    let script = match shell {
        Shell::Bash => script(clap_complete::Shell::Bash),
        Shell::Elvish => script(clap_complete::Shell::Elvish),
        Shell::Fish => script(clap_complete::Shell::Fish),
        Shell::Nushell => script(Nushell),
        Shell::Zsh => script(clap_complete::Shell::Zsh),
    };
    let script = text(script)?;
    Ok(with_names(shell, &script, &Cli::command()))
}

/// Returns agentctl(1) and a page for each subcommand that the help shows, sorted by file name.
pub(crate) fn man_pages() -> io::Result<Vec<Page>> {
    let mut pages = Vec::new();
    let mut command = Cli::command();
    command.build();
    collect(&command, &mut pages)?;
    pages.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(pages)
}

/// Adds the page of a command and the pages of its subcommands.
fn collect(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    let version = concat!("agentctl ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(version).manual("agentctl Manual");
    let mut roff = Vec::new();
    man.render(&mut roff)?;
    pages.push(Page { name: man.get_filename(), text: text(roff)? });
    command.get_subcommands().filter(|command| !command.is_hide_set()).try_for_each(|command| collect(command, pages))
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(io::Error::other)
}
