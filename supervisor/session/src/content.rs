//! Contents of prompts: large ones are files of the session, so that the journal has their digests only. The keeper
//! puts a content into the line for the agent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use agentd_api::prompt::{PromptPart, placeholder};
use agentd_api::{Code, Problem};
use agentd_host::directories::make_private;
use agentd_keeper::protocol::contents;
use sha2::{Digest as _, Sha256};

/// Maximum number of parts of one prompt.
const MOST: usize = 64;
/// Maximum size in bytes of all contents of a session.
const ALL: u64 = 1 << 30;
/// Maximum length in bytes of a content that the journal has in full.
const INLINE: usize = 4 << 10;

/// Checks the parts of a prompt, and stores their large contents in the session's directory. The result has their
/// placeholders.
///
/// # Errors
///
/// There are too many parts, one of them is not valid, or a file cannot be written.
pub async fn store(directory: PathBuf, parts: Vec<PromptPart>) -> Result<Vec<PromptPart>, Problem> {
    let invalid = |detail: String| {
        Problem::new(Code::InvalidRequest, detail).hint("the parts are those of the protocol's prompts, without text")
    };
    if parts.len() > MOST {
        return Err(invalid(format!("the prompt has {} parts, and at most {MOST} are allowed", parts.len())));
    }
    for part in &parts {
        part.check().map_err(|mistake| invalid(format!("parts: {mistake}")))?;
    }
    let stored = agentd_host::work::blocking(move || stored(&directory, parts)).await;
    let stored = stored.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    stored.map_err(|error| {
        Problem::new(Code::JournalNotWritable, format!("cannot store a content of the prompt: {error}"))
            .hint("nothing was sent; check the disk of the state directory")
    })
}

fn stored(directory: &Path, mut parts: Vec<PromptPart>) -> io::Result<Vec<PromptPart>> {
    for content in parts.iter_mut().filter_map(PromptPart::content_mut).filter(|content| content.len() > INLINE) {
        let digest = agentd_api::hex(&Sha256::digest(content.as_bytes()));
        write(&contents(directory), &digest, content)?;
        *content = placeholder(&digest);
    }
    Ok(parts)
}

/// Writes the file of a content, unless the session has it already.
fn write(directory: &Path, digest: &str, content: &str) -> io::Result<()> {
    let file = directory.join(digest);
    if file.exists() {
        return Ok(());
    }
    make_private(directory).map_err(io::Error::other)?;
    let sizes = fs::read_dir(directory)?.map(|file| Ok(file?.metadata()?.len()));
    if sizes.sum::<io::Result<u64>>()? + content.len() as u64 > ALL {
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, format!("the session has {} MiB already", ALL >> 20)));
    }
    agentd_host::files::write(&file, content.as_bytes())
}

#[cfg(test)]
mod tests {
    use agentd_api::prompt::{EmbeddedResource, digest_at};

    use super::*;

    fn file(text: &str) -> PromptPart {
        let (uri, text) = ("file:///a".to_owned(), Some(text.to_owned()));
        PromptPart::Resource { resource: EmbeddedResource { uri, mime_type: None, text, blob: None } }
    }

    #[tokio::test]
    async fn a_large_content_is_a_file_and_a_small_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let (small, large) = (file("small"), file(&"é".repeat(INLINE)));
        let parts = vec![small.clone(), large.clone(), large.clone()];
        let stored = store(directory.path().to_owned(), parts).await.unwrap();
        assert_eq!(stored[0], small);
        let digest = digest_at(stored[1].content().unwrap()).unwrap().0;
        let file = contents(directory.path()).join(digest);
        assert_eq!(fs::read_to_string(file).unwrap(), large.content().unwrap());
        assert_eq!((&stored[1], fs::read_dir(contents(directory.path())).unwrap().count()), (&stored[2], 1));
    }

    #[tokio::test]
    async fn parts_that_are_wrong_or_too_many_store_nothing() {
        let directory = tempfile::tempdir().unwrap();
        for parts in [vec![file(&"x".repeat(INLINE * 2)), PromptPart::Image(image("?"))], vec![file(""); MOST + 1]] {
            let problem = store(directory.path().to_owned(), parts).await.unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    fn image(data: &str) -> agentd_api::prompt::Media {
        agentd_api::prompt::Media { data: data.to_owned(), mime_type: "image/png".to_owned(), uri: None }
    }
}
