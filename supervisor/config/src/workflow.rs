//! Parses the description of a workflow: `workflow.toml`, or the `ambient.json` of the Ambient Code platform.

use std::path::{Path, PathBuf};

use agentd_api::workflow::{WorkflowDescription, is_below};
use serde::Deserialize;

/// Files that describe a workflow, relative to its directory. The first one that exists is used.
pub const WORKFLOW_FILES: [&str; 2] = ["workflow.toml", ".ambient/ambient.json"];

/// Longest text of a description, in bytes.
const LONGEST: usize = 64 << 10;
/// Maximum number of paths and of prerequisites.
const MOST: usize = 64;

/// A description as `workflow.toml` has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Toml {
    name: String,
    system_prompt: Option<String>,
    startup_prompt: Option<String>,
    #[serde(default)]
    paths: Vec<PathBuf>,
    environment_script: Option<PathBuf>,
    #[serde(default)]
    requires: Vec<String>,
}

/// A description as `ambient.json` has it. The platform ignores fields that it does not know, such as `results`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ambient {
    name: String,
    system_prompt: Option<String>,
    startup_prompt: Option<String>,
    #[serde(default)]
    paths: Vec<PathBuf>,
    environment_script: Option<PathBuf>,
    #[serde(default)]
    prerequisites: Vec<String>,
}

/// Parses the text of a workflow's file.
///
/// # Errors
///
/// A text for people that names the place and the remedy.
pub fn parse_workflow(file: &Path, text: &str) -> Result<WorkflowDescription, String> {
    let description = if file.extension().is_some_and(|extension| extension == "json") {
        // Some editors write a byte order mark.
        let text = text.trim_start_matches('\u{feff}');
        let Ambient { name, system_prompt, startup_prompt, paths, environment_script, prerequisites } =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        WorkflowDescription { name, system_prompt, startup_prompt, paths, environment_script, requires: prerequisites }
    } else {
        let Toml { name, system_prompt, startup_prompt, paths, environment_script, requires } =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        WorkflowDescription { name, system_prompt, startup_prompt, paths, environment_script, requires }
    };
    check(description)
}

fn check(mut description: WorkflowDescription) -> Result<WorkflowDescription, String> {
    let is_odd = |text: &str| text.trim().is_empty() || text.len() > 100 || text.chars().any(char::is_control);
    if is_odd(&description.name) {
        return Err("`name` has 1 to 100 characters in one line".to_owned());
    }
    for (field, prompt) in
        [("the system prompt", &mut description.system_prompt), ("the startup prompt", &mut description.startup_prompt)]
    {
        if prompt.as_ref().is_some_and(|prompt| prompt.len() > LONGEST) {
            return Err(format!("{field} has more than {LONGEST} bytes"));
        }
        if prompt.as_ref().is_some_and(|prompt| prompt.contains('\0')) {
            return Err(format!("{field} contains a NUL character"));
        }
        // An agent refuses an empty prompt.
        *prompt = prompt.take().filter(|prompt| !prompt.trim().is_empty());
    }
    if description.paths.len() > MOST || description.requires.len() > MOST {
        return Err(format!("there are more than {MOST} paths or prerequisites"));
    }
    if let Some(path) = description.paths.iter().find(|path| !path.is_absolute() && !is_below(path)) {
        let path = path.display();
        return Err(format!("the path {path} leads out of the workflow's directory; write it as an absolute path"));
    }
    match &description.environment_script {
        Some(script) if !is_below(script) || script.file_name().is_none() => {
            Err(format!("the script {} is not below the workflow's directory", script.display()))
        }
        _ => Ok(description),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(text: &str) -> Result<WorkflowDescription, String> {
        parse_workflow(Path::new("/w/workflow.toml"), text)
    }

    #[test]
    fn both_notations_give_one_description() {
        let expected = WorkflowDescription {
            name: "Triage".to_owned(),
            system_prompt: Some("Be brief.".to_owned()),
            startup_prompt: Some("Greet the user.".to_owned()),
            paths: vec!["docs".into(), "/srv/spec".into()],
            environment_script: Some("env.sh".into()),
            requires: vec!["vpn".to_owned()],
        };
        let text = "name = \"Triage\"\nsystem_prompt = \"Be brief.\"\nstartup_prompt = \"Greet the user.\"\n\
                    paths = [\"docs\", \"/srv/spec\"]\nenvironment_script = \"env.sh\"\nrequires = [\"vpn\"]\n";
        assert_eq!(toml(text).unwrap(), expected);
        let text = r#"{"name":"Triage","description":"d","systemPrompt":"Be brief.","startupPrompt":"Greet the user.",
            "paths":["docs","/srv/spec"],"environmentScript":"env.sh","prerequisites":["vpn"],
            "results":{"Report":"artifacts/*.md"}}"#;
        let file = Path::new("/w/.ambient/ambient.json");
        assert_eq!(parse_workflow(file, text).unwrap(), expected);
        assert_eq!(parse_workflow(file, &format!("\u{feff}{text}")).unwrap(), expected);
    }

    #[test]
    fn a_description_needs_a_name_and_keeps_to_its_directory() {
        assert_eq!(toml("name = \"x\"\nstartup_prompt = \" \\n\"").unwrap().startup_prompt, None);
        for (text, message) in [
            ("", "missing field `name`"),
            ("name = \"a\\nb\"", "`name` has"),
            ("name = \"x\"\nstartup = \"y\"", "unknown field `startup`"),
            // A project declares no hook.
            ("name = \"x\"\n[[hooks]]\ncommand = [\"/bin/true\"]", "unknown field `hooks`"),
            ("name = \"x\"\npaths = [\"../y\"]", "leads out of"),
            ("name = \"x\"\nenvironment_script = \"/etc/profile\"", "is not below"),
            ("name = \"x\"\nenvironment_script = \".\"", "is not below"),
            ("name = \"x\"\nsystem_prompt = \"a\\u0000\"", "NUL"),
        ] {
            let error = toml(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
        let long = format!("name = \"x\"\nsystem_prompt = \"{}\"", "a".repeat(LONGEST + 1));
        assert!(toml(&long).unwrap_err().contains("more than 65536 bytes"));
    }
}
