//! The script that was proposed for a session. It runs after the session's own script, if the owner has approved
//! exactly its content.
//!
//! Without an approval the launch continues without the script: an agent must not be able to keep its own session
//! from being launched. A warning names the command that shows and approves the script.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::doctor::shell_word;
use agentd_api::reason;
use agentd_api::scripts::ScriptState;
use agentd_api::validation::Warning;
use agentd_plugin_host::Setting;

use super::directories::ScriptDirectories;
use super::scripts::configured;
use super::trust::{Script, Trust, TrustError};
use super::validate::warning;
use agentd_api::chain;

/// Name of the file in the session's directory.
pub const NAME: &str = "proposed-env.sh";
/// Path of the file for a provider.
const PATH: &str = "{session}/proposed-env.sh";

/// Returns the file of a session's proposed script, and the script with its approval state.
pub(super) async fn look(
    places: &ScriptDirectories,
    trust: &Arc<Trust>,
) -> Option<(PathBuf, Result<Option<Script>, TrustError>)> {
    let (file, trust) = (places.session.join(NAME), Arc::clone(trust));
    let look = move || {
        let looked = trust.examine(&file);
        (file, looked)
    };
    agentd_host::work::blocking(look).await.ok()
}

/// Adds the approved script to the settings of `env-script`, behind all other scripts.
pub(crate) async fn add(settings: &mut Vec<Setting>, places: &ScriptDirectories, trust: &Arc<Trust>) {
    let Some((_, Ok(Some(script)))) = look(places, trust).await else { return };
    if script.state == ScriptState::Approved {
        append(settings, PATH);
    }
}

/// Adds a script to the settings of `env-script`, behind the others.
pub(super) fn append(settings: &mut Vec<Setting>, path: &str) {
    let is_set = |key: &str| settings.iter().any(|setting| setting.key == key);
    // The plugin refuses settings with both keys, and its message must not be lost.
    if is_set("scripts") && is_set("directory_names") {
        return;
    }
    let mut values = configured(settings);
    values.push(path.to_owned());
    settings.retain(|setting| setting.key != "scripts" && setting.key != "directory_names");
    settings.push(Setting { key: "scripts".to_owned(), values });
}

/// Returns the warning about a script that does not run. A denied script is no reason to warn: the owner wants that.
pub(super) fn approval_warning(
    places: &ScriptDirectories,
    file: &Path,
    looked: &Result<Option<Script>, TrustError>,
) -> Option<Warning> {
    let script = match looked {
        Err(error) => return Some(warning(reason::SCRIPT_UNREADABLE, file, chain(error))),
        Ok(script) => script.as_ref()?,
    };
    if matches!(script.state, ScriptState::Approved | ScriptState::Denied) {
        return None;
    }
    let session = places.session.file_name().unwrap_or_default().to_string_lossy();
    let message = format!(
        "the proposed script {} is {} and does not run; read it, and then run `agentctl env allow --session {}`",
        script.named.display(),
        script.state.as_str(),
        shell_word(&session)
    );
    Some(warning(reason::SCRIPT_NOT_APPROVED, &script.named, message))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn setting(key: &str, values: &[&str]) -> Setting {
        Setting { key: key.to_owned(), values: values.iter().map(|&value| value.to_owned()).collect() }
    }

    #[test]
    fn an_approved_script_runs_behind_all_others() {
        let appended = |settings: &[Setting]| {
            let mut settings = settings.to_vec();
            append(&mut settings, PATH);
            settings
        };
        let usual = ["{config}/env-setup.sh", "{cwd}/.agentd-env.sh", "{session}/env-setup.sh", PATH];
        assert_eq!(appended(&[]), [setting("scripts", &usual)]);
        assert_eq!(appended(&[setting("scripts", &["/x"])]), [setting("scripts", &["/x", PATH])]);
        let named = ["{config}/env-setup.sh", "{cwd}/.a.sh", "{session}/env-setup.sh", PATH];
        assert_eq!(appended(&[setting("directory_names", &[".a.sh"])]), [setting("scripts", &named)]);
        let both = [setting("scripts", &["/x"]), setting("directory_names", &[".a.sh"])];
        assert_eq!(appended(&both), both, "the plugin refuses these");
    }

    #[tokio::test]
    async fn only_an_approved_script_is_added_and_every_other_but_a_denied_one_is_warned_of() {
        let directory = tempfile::tempdir().unwrap();
        let session = directory.path().canonicalize().unwrap().join("k3m");
        std::fs::create_dir(&session).unwrap();
        let trust = Arc::new(Trust::open(directory.path()).unwrap());
        let places = ScriptDirectories {
            config: "/c".into(),
            cwd: "/w".into(),
            session: session.clone(),
            given: None,
            workflow: None,
        };
        let file = session.join(NAME);
        let write = |text: &str| agentd_host::files::write(&file, text.as_bytes()).unwrap();
        let found = async || {
            let mut settings = Vec::new();
            add(&mut settings, &places, &trust).await;
            let (file, looked) = look(&places, &trust).await.unwrap();
            (!settings.is_empty(), approval_warning(&places, &file, &looked).map(|one| one.message))
        };
        assert_eq!(found().await, (false, None), "there is no proposal");
        write("export A=1");
        let (runs, message) = found().await;
        let message = message.unwrap();
        assert!(!runs && message.contains("is not-approved") && message.contains("--session k3m"), "{message}");
        trust.allow(std::slice::from_ref(&file), None, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(found().await, (true, None));
        write("export A=2");
        let (runs, message) = found().await;
        assert!(!runs && message.unwrap().contains("is changed"));
        trust.deny(std::slice::from_ref(&file), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(found().await, (false, None));
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(Path::new("/etc"), &file).unwrap();
        let (runs, message) = found().await;
        assert!(!runs && message.is_some());
    }
}
