//! The script of a session's workflow. It runs behind the scripts of the directory and of the session.

use agentd_plugin_host::Setting;

use super::directories::ScriptDirectories;
use super::proposed::append;

/// Path of the workflow's script for a provider. The script itself lies elsewhere: the grant of `env-script` covers the
/// session's directory, and not every workflow's.
pub(super) const PATH: &str = "{session}/workflow-env.sh";

/// Adds the workflow's script to the settings of `env-script`. Without an approval the launch fails, as for a script of
/// the directory.
pub(crate) fn add(settings: &mut Vec<Setting>, places: &ScriptDirectories) {
    if places.workflow.is_some() {
        append(settings, PATH);
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
        assert_eq!(settings[0].values.last().unwrap(), PATH);
        assert_eq!(settings[0].values.len(), 4);
        let (place, _) = places.locate(PATH, None).unwrap();
        assert_eq!((place.script.to_str(), place.directory.to_str()), (Some("/flows/env.sh"), Some("/flows")));
        let (place, _) = places.locate("{session}/env-setup.sh", None).unwrap();
        assert_eq!(place.directory.to_str(), Some("/w"));
    }
}
