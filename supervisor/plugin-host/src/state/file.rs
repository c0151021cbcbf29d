//! The capability `file`: reads files and directories.

use std::sync::Arc;

use super::permit::{Gate, refused};
use super::{Answer, CallState};
use crate::bindings::provider::agentd::plugin::file;
use crate::call::Failure;
use crate::grant::{Outside, ResolvedFronts};
use crate::services::{CONTENT, ENTRIES, FileKind, Metadata};
use crate::text::shown;

/// A path that a plugin requests, with what is needed to decide about it.
struct Ask {
    /// Description for messages: `the file "x"`.
    what: String,
    written: String,
    absolute: String,
    led: Arc<ResolvedFronts>,
}

impl CallState {
    async fn ask(&mut self, noun: &str, path: &str) -> Result<Ask, Failure> {
        let what = format!("{noun} {}", shown(path));
        let (asked, absolute) = self.asked_absolute(&what, path)?;
        let led = self.led().await?;
        // A path that is denied by its own name is not accessed at all.
        match self.bounds.rules.judge(&self.places, &led, |patterns| patterns.file(&absolute)) {
            Err(outside @ (Outside::Denied | Outside::NotDescribed)) => return Err(refused(&what, outside)),
            Ok(()) | Err(Outside::Granted | Outside::Wanted | Outside::Variables) => {}
        }
        Ok(Ask { what, written: asked.written, absolute, led })
    }

    fn gate<'a>(&'a self, ask: &'a Ask) -> Gate<'a> {
        let (rules, places) = (&self.bounds.rules, &self.places);
        Gate::new(&ask.what, &ask.absolute, |path| rules.judge(places, &ask.led, |patterns| patterns.file(path)))
    }

    async fn inspected(&mut self, path: &str) -> Result<Metadata, Failure> {
        let ask = self.ask("the file", path).await?;
        let gate = self.gate(&ask);
        let allowed = |resolved: &str| gate.allows(resolved);
        let work = self.services.machine().inspect_file(&ask.written, &allowed, self.host_deadline);
        let answer = self.bounded(&ask.what, work).await;
        gate.told(answer)
    }

    async fn content(&mut self, path: &str) -> Result<Vec<u8>, Failure> {
        let ask = self.ask("the file", path).await?;
        let gate = self.gate(&ask);
        let allowed = |resolved: &str| gate.allows(resolved);
        let work = self.services.machine().read_file(&ask.written, &allowed, self.host_deadline);
        let answer = self.bounded(&ask.what, work).await;
        let content = gate.told(answer)?;
        if content.len() > CONTENT {
            return Err(Failure::TooLarge(format!("{} is more than {CONTENT} bytes", ask.what)));
        }
        Ok(content)
    }

    async fn names(&mut self, path: &str) -> Result<Vec<String>, Failure> {
        let ask = self.ask("the directory", path).await?;
        let gate = self.gate(&ask);
        let allowed = |resolved: &str| gate.allows(resolved);
        let work = self.services.machine().list_directory(&ask.written, &allowed, self.host_deadline);
        let answer = self.bounded(&ask.what, work).await;
        let names = gate.told(answer)?;
        if names.len() > ENTRIES {
            return Err(Failure::TooLarge(format!("{} has more than {ENTRIES} entries", ask.what)));
        }
        Ok(names)
    }
}

impl file::Host for CallState {
    async fn inspect(&mut self, path: String) -> Answer<file::Metadata> {
        let metadata = self.inspected(&path).await.map(|metadata| file::Metadata {
            path: metadata.path,
            kind: match metadata.kind {
                FileKind::File => file::Kind::File,
                FileKind::Directory => file::Kind::Directory,
                FileKind::Other => file::Kind::Other,
            },
            size: metadata.size,
            modified: metadata.modified,
        });
        Ok(metadata.map_err(Into::into))
    }

    async fn read(&mut self, path: String) -> Answer<Vec<u8>> {
        Ok(self.content(&path).await.map_err(Into::into))
    }

    async fn entries(&mut self, path: String) -> Answer<Vec<String>> {
        Ok(self.names(&path).await.map_err(Into::into))
    }
}
