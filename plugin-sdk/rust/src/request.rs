//! Access to a request's settings and environment.

use crate::{CheckRequest, Failure, Request, Setting, Variable};

macro_rules! reads {
    ($request:ty) => {
        impl $request {
            /// Returns the setting's values, or `None` if it is not set. A scalar is one value.
            pub fn settings(&self, key: &str) -> Option<&[String]> {
                values(&self.settings, key)
            }

            /// Returns the values of a required setting.
            pub fn required_settings(&self, key: &str) -> Result<&[String], Failure> {
                self.settings(key).ok_or_else(|| Failure::configuration(key, "must be set, and is not"))
            }

            /// Returns the setting's single value, or `None` if it is not set.
            pub fn setting(&self, key: &str) -> Result<Option<&str>, Failure> {
                one(&self.settings, key)
            }

            /// Returns the single value of a required setting.
            pub fn required_setting(&self, key: &str) -> Result<&str, Failure> {
                self.setting(key)?.ok_or_else(|| Failure::configuration(key, "must be set, and is not"))
            }

            /// Returns the setting as a boolean, or `None` if it is not set.
            pub fn flag(&self, key: &str) -> Result<Option<bool>, Failure> {
                flag(&self.settings, key)
            }

            /// Returns the setting as a whole number, or `None` if it is not set.
            pub fn number(&self, key: &str) -> Result<Option<u64>, Failure> {
                number(&self.settings, key)
            }

            /// Refuses settings other than these, so that a misspelt key is not ignored.
            ///
            /// The host checks settings against the plugin's description. Use this function for keys that
            /// depend on other settings.
            pub fn only_settings(&self, known: &[&str]) -> Result<(), Failure> {
                only(&self.settings, known)
            }

            /// Returns the variable's value in the environment of the previous pipeline steps.
            pub fn variable(&self, name: &str) -> Option<&[u8]> {
                self.environment.iter().find(|variable| variable.name == name).map(|variable| &variable.value[..])
            }

            /// Returns the variable's value if it is UTF-8.
            pub fn variable_str(&self, name: &str) -> Option<&str> {
                self.variable(name).and_then(|value| std::str::from_utf8(value).ok())
            }
        }
    };
}

reads!(Request);
reads!(CheckRequest);

fn values<'a>(settings: &'a [Setting], key: &str) -> Option<&'a [String]> {
    settings.iter().find(|setting| setting.key == key).map(|setting| &setting.values[..])
}

fn one<'a>(settings: &'a [Setting], key: &str) -> Result<Option<&'a str>, Failure> {
    match values(settings, key) {
        None => Ok(None),
        Some([value]) => Ok(Some(value)),
        Some(_) => Err(Failure::configuration(key, "must be one value, not a list")),
    }
}

fn flag(settings: &[Setting], key: &str) -> Result<Option<bool>, Failure> {
    match one(settings, key)? {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => Err(Failure::configuration(key, format!("must be true or false, and is {other:?}"))),
    }
}

fn number(settings: &[Setting], key: &str) -> Result<Option<u64>, Failure> {
    let Some(text) = one(settings, key)? else { return Ok(None) };
    let wrong = |_| Failure::configuration(key, format!("must be a whole number, and is {text:?}"));
    text.parse().map(Some).map_err(wrong)
}

fn only(settings: &[Setting], known: &[&str]) -> Result<(), Failure> {
    match settings.iter().find(|setting| !known.contains(&setting.key.as_str())) {
        None => Ok(()),
        Some(Setting { key, .. }) => {
            Err(Failure::configuration(key, format!("unknown setting {key:?}; known settings: {}", known.join(", "))))
        }
    }
}

impl Variable {
    /// Makes a variable.
    pub fn new(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(settings: &[(&str, &[&str])]) -> CheckRequest {
        CheckRequest {
            session: None,
            environment: vec![Variable::new("TEXT", "é"), Variable::new("BYTES", vec![0xff])],
            settings: settings
                .iter()
                .map(|(key, values)| Setting { key: (*key).into(), values: values.iter().map(|&v| v.into()).collect() })
                .collect(),
        }
    }

    #[test]
    fn a_scalar_is_one_value_a_list_is_not_and_what_is_not_set_is_nothing() {
        let request = request(&[("one", &["1"]), ("two", &["1", "2"]), ("none", &[])]);
        assert_eq!(request.setting("one"), Ok(Some("1")));
        assert_eq!(request.setting("absent"), Ok(None));
        assert!(matches!(request.setting("two"), Err(Failure::Configuration(error)) if error.key == "two"));
        assert_eq!(request.settings("none"), Some(&[][..]));
    }

    #[test]
    fn what_must_be_there_is_named_where_it_is_not() {
        let request = request(&[("one", &["1"])]);
        assert_eq!(
            (request.required_setting("one"), request.required_settings("one").map(<[_]>::len)),
            (Ok("1"), Ok(1))
        );
        for missing in [request.required_setting("two").err(), request.required_settings("two").err()] {
            assert!(matches!(missing, Some(Failure::Configuration(error)) if error.key == "two"));
        }
    }

    #[test]
    fn a_flag_is_true_or_false_and_a_number_is_whole() {
        let request = request(&[("yes", &["true"]), ("no", &["false"]), ("other", &["1"])]);
        assert_eq!(
            (request.flag("yes"), request.flag("no"), request.flag("absent")),
            (Ok(Some(true)), Ok(Some(false)), Ok(None))
        );
        assert!(matches!(request.flag("other"), Err(Failure::Configuration(_))));
        assert_eq!((request.number("other"), request.number("absent")), (Ok(Some(1)), Ok(None)));
        assert!(
            matches!(request.number("yes"), Err(Failure::Configuration(error)) if error.message.contains("\"true\""))
        );
    }

    #[test]
    fn a_misspelt_setting_is_refused_by_name() {
        let request = request(&[("alow", &["A"])]);
        let Err(Failure::Configuration(refused)) = request.only_settings(&["allow"]) else { panic!("not refused") };
        assert!(refused.key == "alow" && refused.message.contains("allow"), "{refused:?}");
        assert_eq!(request.only_settings(&["allow", "alow"]), Ok(()));
    }

    #[test]
    fn a_variable_is_bytes_and_text_only_where_it_is_text() {
        let request = request(&[]);
        assert_eq!(request.variable_str("TEXT"), Some("é"));
        assert_eq!((request.variable("BYTES"), request.variable_str("BYTES")), (Some(&[0xff][..]), None));
    }
}
