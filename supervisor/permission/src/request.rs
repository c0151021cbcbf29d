//! Matches the patterns of rules against a permission request, and determines how certain a match is.
//!
//! `strict` means a rule that denies or asks, which matches if any part matches. A rule that allows matches only if
//! every part matches and no part is unknown.

use std::cell::OnceCell;

use super::PermissionDraft;
use super::RequestingSession;
use super::paths;
use super::programs::{Runs, runs};
use agentd_glob::{Fits, fits};

pub(super) struct Request<'a> {
    pub(super) asker: RequestingSession<'a>,
    draft: &'a PermissionDraft,
    /// Programs that the command runs. The command is parsed once, and only if a rule needs it.
    command: OnceCell<Runs>,
    title: OnceCell<Runs>,
}

/// Kinds of tools that run no command (ACP `ToolKind`).
const NO_COMMANDS: &[&str] = &["read", "edit", "delete", "move", "search", "think", "fetch", "switch_mode"];
/// Kinds of tools that access no file of this machine.
const NO_FILES: &[&str] = &["think", "fetch", "switch_mode"];

impl<'a> Request<'a> {
    pub(super) fn new(asker: RequestingSession<'a>, draft: &'a PermissionDraft) -> Self {
        Self { asker, draft, command: OnceCell::new(), title: OnceCell::new() }
    }

    /// Returns the kind that the agent reports. ACP uses `other` for an unspecified kind.
    fn said_kind(&self) -> Option<&str> {
        self.draft.tool_kind.as_deref().filter(|kind| *kind != "other")
    }

    fn runs(&self) -> Option<&Runs> {
        let command = self.draft.details.command.as_ref()?;
        Some(self.command.get_or_init(|| {
            let mut runs = runs(command);
            runs.undecided |= self.draft.details.cut;
            runs
        }))
    }

    fn title_runs(&self) -> &Runs {
        self.title.get_or_init(|| runs(unquoted(&self.draft.title)))
    }

    pub(super) fn kind(&self, pattern: &str, strict: bool) -> Fits {
        let runs_command = self.draft.details.command.is_some();
        let of_command = || Fits::of(runs_command && fits(pattern, "execute") == Fits::Yes);
        match &self.draft.tool_kind {
            Some(kind) if !strict => fits(pattern, kind),
            Some(kind) if self.said_kind().is_some() || fits(pattern, kind) == Fits::Yes => {
                fits(pattern, kind).max(of_command())
            }
            _ if runs_command => of_command(),
            _ if strict => Fits::Perhaps,
            _ => Fits::No,
        }
    }

    pub(super) fn tool(&self, pattern: &str, strict: bool) -> Fits {
        match &self.draft.details.tool {
            Some(tool) => fits(pattern, tool),
            None if strict => Fits::Perhaps,
            None => Fits::No,
        }
    }

    pub(super) fn title(&self, pattern: &str, strict: bool) -> Fits {
        let title = fits(pattern, &self.draft.title).max(fits(pattern, unquoted(&self.draft.title)));
        if strict {
            return title.max(self.command(pattern, true));
        }
        // An approval by title covers only the commands that the title shows.
        match self.runs() {
            Some(runs) => title.min(allowed(pattern, runs)),
            None if self.said_kind().is_none_or(|kind| kind == "execute") => {
                title.min(allowed(pattern, self.title_runs()))
            }
            None => title,
        }
    }

    pub(super) fn command(&self, pattern: &str, strict: bool) -> Fits {
        let may_run = self.said_kind().is_none_or(|kind| !NO_COMMANDS.contains(&kind));
        match self.runs() {
            Some(runs) if strict => denied(pattern, runs),
            Some(runs) if may_run => allowed(pattern, runs),
            None if strict && may_run => denied(pattern, self.title_runs()).max(Fits::Perhaps),
            _ => Fits::No,
        }
    }

    pub(super) fn path(&self, pattern: &str, strict: bool) -> Fits {
        let details = &self.draft.details;
        let works_in = self.asker.works_in.and_then(std::path::Path::to_str);
        let directory = details.directory.as_deref().map(|inside| paths::normal(inside, works_in, self.asker.home));
        let directory = directory.as_deref().or(works_in);
        let pattern = paths::pattern(pattern, self.asker.directory.to_str(), self.asker.home);
        let of = |path: &str| fits(&pattern, &paths::normal(path, directory, self.asker.home));
        let named = || details.paths.iter().chain(details.diffs.iter().map(|diff| &diff.path)).map(|path| of(path));
        if !strict {
            let all = named().min().unwrap_or(Fits::No);
            return if details.command.is_none() && !details.cut { all } else { Fits::No };
        }
        let mut any = named().max().unwrap_or(Fits::No);
        if details.cut {
            any = any.max(Fits::Perhaps);
        }
        if let Some(runs) = self.runs() {
            let directory = if runs.moves { None } else { directory };
            let words = runs.words.iter().flat_map(|word| paths::in_word(word));
            let of_words = words.map(|path| fits(&pattern, &paths::normal(path, directory, self.asker.home)));
            any =
                any.max(of_words.max().unwrap_or(Fits::No)).max(if runs.undecided { Fits::Perhaps } else { Fits::No });
        } else if named().next().is_none() && self.said_kind().is_none_or(|kind| !NO_FILES.contains(&kind)) {
            any = any.max(Fits::Perhaps);
        }
        any
    }
}

fn denied(pattern: &str, runs: &Runs) -> Fits {
    let of = |candidate: &super::programs::Candidate| {
        let fits = fits(pattern, &candidate.text);
        if candidate.sure { fits } else { fits.min(Fits::Perhaps) }
    };
    let any = runs.candidates.iter().map(of).max().unwrap_or(Fits::No);
    if runs.undecided { any.max(Fits::Perhaps) } else { any }
}

fn allowed(pattern: &str, runs: &Runs) -> Fits {
    let all = runs
        .candidates
        .iter()
        .filter(|candidate| candidate.whole)
        .map(|candidate| fits(pattern, &candidate.text))
        .min();
    if runs.undecided { Fits::No } else { all.unwrap_or(Fits::No) }
}

/// Returns the title without the backticks that some agents put around a command.
fn unquoted(title: &str) -> &str {
    title.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')).unwrap_or(title)
}
