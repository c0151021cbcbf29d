//! The files of the page, compressed into the program by `build.rs`.

use std::io::{self, Read as _};

use bytes::Bytes;
use flate2::read::GzDecoder;

/// Name of the document at `/`.
pub(crate) const INDEX: &str = "index.html";

/// A file of the page.
#[derive(Debug)]
pub(crate) struct Asset {
    name: &'static str,
    gzip: &'static [u8],
}

static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Finds a file by its name.
pub(crate) fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

impl Asset {
    /// Returns the content, compressed with gzip.
    pub(crate) fn compressed(&self) -> Bytes {
        Bytes::from_static(self.gzip)
    }

    /// Returns the content for a client that takes no gzip.
    pub(crate) fn plain(&self) -> io::Result<Bytes> {
        let mut content = Vec::new();
        GzDecoder::new(self.gzip).read_to_end(&mut content)?;
        Ok(content.into())
    }

    /// Returns the media type, by the end of the name.
    pub(crate) fn content_type(&self) -> &'static str {
        match self.name.rsplit_once('.').map_or("", |(_, end)| end) {
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            "png" => "image/png",
            "woff2" => "font/woff2",
            "json" => "application/json",
            "txt" => "text/plain; charset=utf-8",
            _ => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded_unchanged() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dist");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let asset = find(entry.file_name().to_str().unwrap()).unwrap();
            assert_eq!(asset.plain().unwrap(), std::fs::read(entry.path()).unwrap(), "{}", asset.name);
            assert_ne!(asset.content_type(), "application/octet-stream", "{}", asset.name);
            count += 1;
        }
        assert_eq!(count, ASSETS.len());
        assert!(find(INDEX).is_some());
    }
}
