//! Parts of a prompt besides its text: files, images, audio and links. Their JSON is that of the Agent Client Protocol
//! (<https://agentclientprotocol.com/protocol/content>).

use serde::{Deserialize, Serialize};

/// A part of a prompt besides its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PromptPart {
    /// An image.
    Image(Media),
    /// A sound.
    Audio(Media),
    /// A resource with its content.
    Resource {
        /// The resource.
        resource: EmbeddedResource,
    },
    /// A resource that the agent can read by itself.
    ResourceLink(Link),
}

/// An image or a sound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Media {
    /// The content in base64.
    pub data: String,
    /// Media type, such as `image/png`.
    pub mime_type: String,
    /// Address of the original, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// A resource with its content: `text`, or `blob` in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EmbeddedResource {
    /// Address of the resource, such as `file:///work/a.rs`.
    pub uri: String,
    /// Media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Content as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Content in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
}

/// A resource that the agent can read by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// Address of the resource.
    pub uri: String,
    /// Name of the resource.
    pub name: String,
    /// Media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

impl PromptPart {
    /// Returns the content, which is text or base64. A link has no content.
    pub fn content(&self) -> Option<&str> {
        match self {
            Self::Image(media) | Self::Audio(media) => Some(&media.data),
            Self::Resource { resource } => resource.text.as_deref().or(resource.blob.as_deref()),
            Self::ResourceLink(_) => None,
        }
    }

    /// Returns the content for a change.
    pub fn content_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Image(media) | Self::Audio(media) => Some(&mut media.data),
            Self::Resource { resource } => resource.text.as_mut().or(resource.blob.as_mut()),
            Self::ResourceLink(_) => None,
        }
    }

    /// Returns the address of the original.
    pub fn uri(&self) -> Option<&str> {
        match self {
            Self::Image(media) | Self::Audio(media) => media.uri.as_deref(),
            Self::Resource { resource } => Some(&resource.uri),
            Self::ResourceLink(link) => Some(&link.uri),
        }
    }

    /// Returns the media type.
    pub fn mime_type(&self) -> Option<&str> {
        match self {
            Self::Image(media) | Self::Audio(media) => Some(&media.mime_type),
            Self::Resource { resource } => resource.mime_type.as_deref(),
            Self::ResourceLink(link) => link.mime_type.as_deref(),
        }
    }

    /// Describes the part to people: its kind and its name.
    pub fn describe(&self) -> String {
        let what = match self {
            Self::Image(_) => "image",
            Self::Audio(_) => "audio",
            Self::Resource { .. } => "file",
            Self::ResourceLink(_) => "link",
        };
        match (self.uri(), self.mime_type()) {
            (Some(uri), _) => format!("{what} {}", name(uri)),
            (None, Some(kind)) => format!("{what} ({kind})"),
            (None, None) => what.to_owned(),
        }
    }

    /// Returns the mistake of a part that no agent could read.
    ///
    /// # Errors
    ///
    /// The text names the mistake.
    pub fn check(&self) -> Result<(), String> {
        let is_base64 = |text: &str| base64_length(text).is_some();
        match self {
            Self::Image(media) if !media.mime_type.starts_with("image/") => {
                Err(format!("an image has the media type {:?}", media.mime_type))
            }
            Self::Audio(media) if !media.mime_type.starts_with("audio/") => {
                Err(format!("a sound has the media type {:?}", media.mime_type))
            }
            Self::Image(media) | Self::Audio(media) if !is_base64(&media.data) => {
                Err("the `data` of an image or a sound is not base64".to_owned())
            }
            Self::Resource { resource } => match (&resource.text, &resource.blob) {
                (Some(_), None) => Ok(()),
                (None, Some(blob)) if is_base64(blob) => Ok(()),
                (None, Some(_)) => Err(format!("the `blob` of {:?} is not base64", resource.uri)),
                _ => Err(format!("the resource {:?} has not exactly one of `text` and `blob`", resource.uri)),
            },
            _ => Ok(()),
        }
    }
}

/// Returns a prompt for people: its text, and a line for each part that the text does not name.
pub fn shown(text: &str, parts: &[PromptPart]) -> String {
    let is_named = |part: &&PromptPart| part.uri().is_some_and(|uri| text.contains(uri) || text.contains(name(uri)));
    let others = parts.iter().filter(|part| !is_named(part)).map(|part| format!("[{}]", part.describe()));
    let text = Some(text.to_owned()).filter(|text| !text.is_empty());
    text.into_iter().chain(others).collect::<Vec<_>>().join("\n")
}

/// Returns the last part of an address.
fn name(uri: &str) -> &str {
    let path = uri.split(['?', '#']).next().unwrap_or(uri).trim_end_matches('/');
    path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(uri)
}

/// Returns the number of bytes that a text in base64 encodes (RFC 4648, section 4), or `None` for another text.
pub fn base64_length(text: &str) -> Option<usize> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).ok().map(|bytes| bytes.len())
}

/// Beginning and end of the placeholder that the journal has in place of a large content.
const PLACEHOLDER: (&str, &str) = ("‹content sha256:", "›");

/// Returns the placeholder of a content with this SHA-256 in hexadecimal. The keeper puts the content of the session's
/// file of this name in its place.
pub fn placeholder(digest: &str) -> String {
    format!("{}{digest}{}", PLACEHOLDER.0, PLACEHOLDER.1)
}

/// Returns the digest of a placeholder at the start of a text, and the length of the placeholder in bytes.
pub fn digest_at(text: &str) -> Option<(&str, usize)> {
    const DIGITS: usize = 64;
    let rest = text.strip_prefix(PLACEHOLDER.0)?;
    let digest = rest.get(..DIGITS)?;
    let is_digest = digest.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let length = PLACEHOLDER.0.len() + DIGITS + PLACEHOLDER.1.len();
    (is_digest && rest[DIGITS..].starts_with(PLACEHOLDER.1)).then_some((digest, length))
}

/// Finds the next placeholder in a text: its position, its length, and its digest.
pub fn next_placeholder(text: &str) -> Option<(usize, usize, &str)> {
    text.match_indices(PLACEHOLDER.0).find_map(|(at, _)| {
        let (digest, length) = digest_at(&text[at..])?;
        Some((at, length, digest))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn part(value: Value) -> PromptPart {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_part_has_the_json_of_the_protocol() {
        for value in [
            json!({ "type": "image", "data": "AAAA", "mimeType": "image/png", "uri": "file:///a.png" }),
            json!({ "type": "audio", "data": "AAAA", "mimeType": "audio/wav" }),
            json!({ "type": "resource", "resource": { "uri": "file:///a", "mimeType": "text/plain", "text": "t" } }),
            json!({ "type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/x", "size": 7 }),
        ] {
            assert_eq!(serde_json::to_value(part(value.clone())).unwrap(), value);
            assert_eq!(part(value).check(), Ok(()));
        }
        let image = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png", "uri": "file:///d/a.png" });
        assert_eq!(part(image).describe(), "image a.png");
        assert_eq!(
            part(json!({ "type": "audio", "data": "", "mimeType": "audio/wav" })).describe(),
            "audio (audio/wav)"
        );
    }

    #[test]
    fn a_prompt_shows_the_parts_that_its_text_does_not_name() {
        let parts: Vec<PromptPart> = serde_json::from_value(json!([
            { "type": "resource_link", "uri": "file:///d/a.rs", "name": "a.rs" },
            { "type": "image", "data": "AAAA", "mimeType": "image/png" },
        ]))
        .unwrap();
        assert_eq!(shown("look at @a.rs", &parts), "look at @a.rs\n[image (image/png)]");
        assert_eq!(shown("", &parts), "[link a.rs]\n[image (image/png)]");
        assert_eq!(shown("plain", &[]), "plain");
    }

    #[test]
    fn a_part_that_no_agent_could_read_is_a_mistake() {
        for (value, expected) in [
            (json!({ "type": "image", "data": "AAAA", "mimeType": "text/plain" }), "media type \"text/plain\""),
            (json!({ "type": "image", "data": "not base64", "mimeType": "image/png" }), "not base64"),
            (json!({ "type": "resource", "resource": { "uri": "a:b" } }), "exactly one"),
            (json!({ "type": "resource", "resource": { "uri": "a:b", "text": "", "blob": "" } }), "exactly one"),
            (json!({ "type": "resource", "resource": { "uri": "a:b", "blob": "%" } }), "not base64"),
        ] {
            let error = part(value.clone()).check().unwrap_err();
            assert!(error.contains(expected), "{value}: {error}");
        }
    }

    #[test]
    fn a_placeholder_is_found_and_nothing_like_one() {
        let digest = "0123456789abcdef".repeat(4);
        let text = format!("a ‹content sha256:0› {} b", placeholder(&digest));
        let (at, length, found) = next_placeholder(&text).unwrap();
        assert_eq!((found, &text[at..at + length]), (digest.as_str(), placeholder(&digest).as_str()));
        for other in ["", "‹content sha256:", "‹content sha256:é", &format!("‹content sha256:{}X", "a".repeat(64))]
        {
            assert_eq!(next_placeholder(other), None, "{other}");
        }
        assert_eq!(next_placeholder(&placeholder(&"A".repeat(64))), None);
    }
}
