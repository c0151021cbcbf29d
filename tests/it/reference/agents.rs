//! The page of the known agents, and the table of their variables for the whitelist.

use std::fmt::Write as _;

use agentd_catalogue::{Cloud, Entry, Knowledge, KnownAgent, all};

pub(super) fn page() -> String {
    let mut page = String::from(
        "# Known agents\n\nFacts about agents, from `supervisor/catalogue/agents`. Each file there has the form of the \
         public registry of the\nAgent Client Protocol. `agentctl agent show NAME` prints the facts of one agent, and \
         its installation on this machine.\n",
    );
    for agent in all() {
        section(&mut page, agent);
    }
    page
}

fn section(page: &mut String, agent: &KnownAgent) {
    let Knowledge { command, install, programs, environment, conversations, login, quirks, .. } = &agent.agentd;
    let Entry { name, version, description, .. } = &agent.entry;
    let seen = version.as_ref().map(|version| format!(", seen in version {version}")).unwrap_or_default();
    let _ = write!(page, "\n## {}\n\n{description} ({name}{seen}).\n\n", agent.name());
    let mut row = |key: &str, text: String| {
        if !text.is_empty() {
            page.push_str(&wrapped(&format!("- {key}: {text}")));
        }
    };
    let code = |words: &[String]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    row("command", format!("`{}`", command.join(" ")));
    row("install", if install.starts_with("see ") { install.clone() } else { format!("`{install}`") });
    row("recognised by", code(programs));
    row("sets", environment.iter().map(|(name, value)| format!("`{name}={value}`")).collect::<Vec<_>>().join(", "));
    row("keys", code(&login.keys));
    row("login command", login.command.first().map(|_| format!("`{}`", login.command.join(" "))).unwrap_or_default());
    row("login leaves", code(&login.files));
    let conversations =
        conversations.iter().map(|place| format!("`{}`, by default `{}`", place.variable, place.default));
    row("conversations", conversations.collect::<Vec<_>>().join("; "));
    for quirk in quirks {
        row(&format!("seen in {}", quirk.seen), quirk.text.clone());
    }
}

/// Wraps an item of a list at blanks.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 118;
    let (mut wrapped, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let is_first = column == 0;
        if !is_first && column + 1 + word.len() > WIDTH {
            wrapped.push_str("\n  ");
            column = 2;
        } else if !is_first {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += word.len();
    }
    wrapped + "\n"
}

/// Returns the source of the whitelist's table.
pub(super) fn table() -> String {
    let mut text = String::from(
        "//! Variables of the known agents. Generated from `supervisor/catalogue/agents` by \
         `AGENTD_TEST_REWRITE=1 cargo test \
         -p\n//! agentd --test it -- reference::`.\n\nuse super::{Agent, Cloud};\n\n\
         #[rustfmt::skip]\npub(super) const AGENTS: &[Agent] = &[\n",
    );
    for agent in all() {
        let Knowledge { programs, variables, clouds, .. } = &agent.agentd;
        let others = programs.iter().map(String::as_str).filter(|name| !name.contains('/') && *name != agent.name());
        let names: Vec<&str> = std::iter::once(agent.name()).chain(others).collect();
        let _ = writeln!(text, "    Agent {{\n        names: &{names:?},\n        variables: &[");
        list(&mut text, 12, variables);
        text.push_str("        ],\n        clouds: &[\n");
        for Cloud { switch, variables } in clouds {
            let _ = writeln!(
                text,
                "            Cloud {{\n                switch: {switch:?},\n                variables: &["
            );
            list(&mut text, 20, variables);
            text.push_str("                ],\n            },\n");
        }
        text.push_str("        ],\n    },\n");
    }
    text + "];\n"
}

fn list(text: &mut String, indent: usize, names: &[String]) {
    for name in names {
        let _ = writeln!(text, "{:indent$}{name:?},", "");
    }
}
