//! The script of a session's workflow. It runs behind the scripts of the directory and of the session.

use agentd_plugin_host::Setting;

use super::directories::ScriptDirectories;
use super::proposed::append;

/// Returns the path of the workflow's script for a provider.
pub(super) fn path(places: &ScriptDirectories) -> Option<&str> {
    places.workflow.as_ref()?.script.to_str()
}

/// Adds the workflow's script to the settings of `env-script`. Without an approval the launch fails, as for a script of
/// the directory.
pub(crate) fn add(settings: &mut Vec<Setting>, places: &ScriptDirectories) {
    if let Some(path) = path(places) {
        append(settings, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::directories::WorkflowScript;

    #[test]
    fn the_script_runs_behind_the_configured_ones_in_the_workflows_directory() {
        let of = WorkflowScript { script: "/flows/env.sh".into(), directory: "/flows".into() };
        let mut places = ScriptDirectories {
            config: "/c".into(),
            cwd: "/w".into(),
            session: "/s".into(),
            given: None,
            workflow: None,
        };
        let mut settings = Vec::new();
        add(&mut settings, &places);
        assert!(settings.is_empty());
        places.workflow = Some(of);
        add(&mut settings, &places);
        assert_eq!(settings[0].values.last().unwrap(), "/flows/env.sh");
        assert_eq!(settings[0].values.len(), 4);
        let (place, _) = places.locate("/flows/env.sh", None).unwrap();
        assert_eq!(place.directory.to_str(), Some("/flows"));
        let (place, _) = places.locate("/other.sh", None).unwrap();
        assert_eq!(place.directory.to_str(), Some("/w"));
    }
}
