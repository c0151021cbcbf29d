//! Constructors of failures, with which a plugin or the host reports that an operation failed.

use crate::{Failure, SettingError};

impl Failure {
    /// Makes the failure for a missing or wrong setting. `message` has the expected value and the actual value.
    pub fn configuration(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Configuration(SettingError { key: key.into(), message: message.into() })
    }

    /// Makes the failure for a file, program, secret or host that does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::NotFound(message.into())
    }

    /// Makes the failure for a subject that exists but cannot be used now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable(message.into())
    }

    /// Makes any other failure. The message names the operation, its subject and the error.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// Returns the failure's text, without its kind.
    pub fn message(&self) -> &str {
        match self {
            Self::Configuration(error) => &error.message,
            Self::NotGranted(text)
            | Self::NotApproved(text)
            | Self::NotFound(text)
            | Self::TimedOut(text)
            | Self::TooLarge(text)
            | Self::Unavailable(text)
            | Self::Failed(text) => text,
        }
    }

    /// Puts the failed operation in front of the failure's text.
    #[must_use]
    pub fn of(self, what: &str) -> Self {
        let with = |text: String| format!("{what}: {text}");
        match self {
            Self::Configuration(error) => Self::configuration(error.key, with(error.message)),
            Self::NotGranted(text) => Self::NotGranted(with(text)),
            Self::NotApproved(text) => Self::NotApproved(with(text)),
            Self::NotFound(text) => Self::NotFound(with(text)),
            Self::TimedOut(text) => Self::TimedOut(with(text)),
            Self::TooLarge(text) => Self::TooLarge(with(text)),
            Self::Unavailable(text) => Self::Unavailable(with(text)),
            Self::Failed(text) => Self::Failed(with(text)),
        }
    }
}

/// Turns the failure [`Failure::NotFound`] into `None`. All other failures stay failures.
pub trait OrNone<T> {
    /// Returns `None` instead of [`Failure::NotFound`].
    fn or_none(self) -> Result<Option<T>, Failure>;
}

impl<T> OrNone<T> for Result<T, Failure> {
    fn or_none(self) -> Result<Option<T>, Failure> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(Failure::NotFound(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_being_done_goes_in_front_and_the_kind_stays() {
        let failure = Failure::TimedOut("after 5 s".to_owned()).of("reading the list");
        assert_eq!(failure, Failure::TimedOut("reading the list: after 5 s".to_owned()));
        let failure = Failure::configuration("modules", "must be set").of("checking");
        assert_eq!(failure, Failure::configuration("modules", "checking: must be set"));
        assert_eq!(failure.message(), "checking: must be set");
    }

    #[test]
    fn only_what_is_not_there_is_nothing() {
        assert_eq!(Ok(1).or_none(), Ok(Some(1)));
        assert_eq!(Err::<u8, _>(Failure::not_found("no")).or_none(), Ok(None));
        assert_eq!(Err::<u8, _>(Failure::failed("no")).or_none(), Err(Failure::failed("no")));
    }
}
