//! Prints an error with its causes.

/// Returns the error and its sources as one line. Each source follows the error that it explains, after `: `.
///
/// An error's own `Display` never prints its source, so no text appears twice.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
