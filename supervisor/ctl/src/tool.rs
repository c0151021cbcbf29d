//! Runs the daemon's tools without a daemon: `agentd plugin-tool` and `agentd config-tool`, of the agentd
//! beside this program.

use std::ffi::OsStr;
use std::path::PathBuf;

use agentd_api::plugin_tool::{Answer, ToolProblem};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::process::Command;

use crate::error::Error;

/// Answer of a tool: the parsed value, and the unchanged document.
pub(crate) struct Document<T> {
    pub(crate) value: T,
    pub(crate) raw: Bytes,
}

/// Envelope of a tool's answer.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    answer: &'a serde_json::value::RawValue,
}

/// Runs `agentd plugin-tool` with these arguments.
pub(crate) async fn ask<T: DeserializeOwned>(
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<Document<T>, Error> {
    ask_of("plugin-tool", arguments).await
}

/// Runs one of the tools with these arguments.
pub(crate) async fn ask_of<T: DeserializeOwned>(
    tool: &str,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<Document<T>, Error> {
    let program = std::env::current_exe().map(|own| own.with_file_name("agentd")).map_err(Error::Setup)?;
    let failed = |program: PathBuf, reason: String| Error::NoTool { program, reason };
    let output = match Command::new(&program).arg(tool).args(arguments).output().await {
        Ok(output) => output,
        Err(error) => return Err(failed(program, error.to_string())),
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(program, format!("{}: {said}", output.status)));
    }
    match serde_json::from_slice::<Answer<T>>(&output.stdout) {
        Ok(Answer::Answer(value)) => match serde_json::from_slice::<Raw<'_>>(&output.stdout) {
            Ok(raw) => Ok(Document { value, raw: Bytes::copy_from_slice(raw.answer.get().as_bytes()) }),
            Err(error) => Err(failed(program, error.to_string())),
        },
        Ok(Answer::Error(ToolProblem { message, hint, .. })) => Err(Error::Tool { message, hint }),
        Err(error) => Err(failed(program, error.to_string())),
    }
}
