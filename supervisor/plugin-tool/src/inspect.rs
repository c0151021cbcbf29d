//! Converts the inspection of a component into the document for `agentctl`.

use std::path::Path;

use agentd_api::plugin_tool::{Inspection as View, ToolSetting, ToolWant};
use agentd_plugin_host::{CheckMoment, Description, Inspection, Want};

pub(super) fn view(file: &Path, inspection: Inspection) -> View {
    let Inspection { description, world, interface, imports, size, sha256 } = inspection;
    let Description { name, version, summary, settings, wants, moment } = description;
    let moment = moment.map(|moment| match moment {
        CheckMoment::BeforeEnvironment => "before-environment",
        CheckMoment::AfterEnvironment => "after-environment",
    });
    View {
        file: file.display().to_string(),
        size: size as u64,
        sha256,
        interface: interface.to_owned(),
        world: world.to_string(),
        name,
        version,
        summary,
        moment: moment.map(str::to_owned),
        imports: imports.iter().filter_map(|import| short(import)).map(str::to_owned).collect(),
        wants: wants.into_iter().map(want).collect(),
        settings: settings
            .into_iter()
            .map(|setting| ToolSetting { key: setting.key, summary: setting.summary, required: setting.required })
            .collect(),
    }
}

fn want(want: Want) -> ToolWant {
    ToolWant { capability: want.capability.to_string(), patterns: want.patterns, reason: want.reason }
}

/// Returns an import's name without its package and version. Returns `None` for `types`, which has no functions.
fn short(import: &str) -> Option<&str> {
    let name = import.rsplit_once('/').map_or(import, |(_, name)| name);
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    (name != "types").then_some(name)
}
