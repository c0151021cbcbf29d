//! Comments that the checker lets through.
//!
//! agentd is a name that is written small. `code` may begin a sentence.

/// Returns the number of active sessions.
///
/// ```
/// assert_eq!(1, 1); // nobody is told what is so
/// ```
// a plain comment may be a note
pub fn active() -> usize {
    let nobody = "told by whoever asks"; // a note behind code is not read: nobody, anew
    nobody.len()
}
