//! Reading a request: the plugin's settings and the environment so far.

use crate::{Failure, Request, Variable};

impl Request {
    /// The setting's values, where it is set: a list's, or the one of a scalar.
    pub fn settings(&self, key: &str) -> Option<&[String]> {
        self.settings.iter().find(|setting| setting.key == key).map(|setting| &setting.values[..])
    }

    /// The setting's one value, where it is set.
    pub fn setting(&self, key: &str) -> Result<Option<&str>, Failure> {
        match self.settings(key) {
            None => Ok(None),
            Some([value]) => Ok(Some(value)),
            Some(_) => Err(Failure::Configuration(format!("{key:?} must be one value, not a list"))),
        }
    }

    /// The setting as `true` or `false`, where it is set.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, Failure> {
        match self.setting(key)? {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(Failure::Configuration(format!("{key:?} is {other:?}; it must be true or false"))),
        }
    }

    /// Refuses a setting that is not one of these: a misspelt key must not pass for the default.
    pub fn only_settings(&self, known: &[&str]) -> Result<(), Failure> {
        match self.settings.iter().find(|setting| !known.contains(&setting.key.as_str())) {
            None => Ok(()),
            Some(setting) => Err(Failure::Configuration(format!(
                "there is no setting {:?}; there are {}",
                setting.key,
                known.join(", ")
            ))),
        }
    }

    /// The variable's value in the environment so far.
    pub fn variable(&self, name: &str) -> Option<&[u8]> {
        self.environment.iter().find(|variable| variable.name == name).map(|variable| &variable.value[..])
    }

    /// The same, where it is UTF-8.
    pub fn variable_str(&self, name: &str) -> Option<&str> {
        self.variable(name).and_then(|value| std::str::from_utf8(value).ok())
    }
}

impl Variable {
    pub fn new(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Session, Setting};

    fn request(settings: &[(&str, &[&str])]) -> Request {
        Request {
            session: Session { id: "s".into(), name: None, agent: "demo".into(), directory: "/".into(), launch: 1 },
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
        assert!(matches!(request.setting("two"), Err(Failure::Configuration(text)) if text.contains("\"two\"")));
        assert_eq!(request.settings("none"), Some(&[][..]));
    }

    #[test]
    fn a_flag_is_true_or_false_and_nothing_else() {
        let request = request(&[("yes", &["true"]), ("no", &["false"]), ("other", &["1"])]);
        assert_eq!(
            (request.flag("yes"), request.flag("no"), request.flag("absent")),
            (Ok(Some(true)), Ok(Some(false)), Ok(None))
        );
        assert!(matches!(request.flag("other"), Err(Failure::Configuration(_))));
    }

    #[test]
    fn a_misspelt_setting_is_refused_by_name() {
        let request = request(&[("alow", &["A"])]);
        assert!(
            matches!(request.only_settings(&["allow"]), Err(Failure::Configuration(text)) if text.contains("\"alow\""))
        );
        assert_eq!(request.only_settings(&["allow", "alow"]), Ok(()));
    }

    #[test]
    fn a_variable_is_bytes_and_text_only_where_it_is_text() {
        let request = request(&[]);
        assert_eq!(request.variable_str("TEXT"), Some("é"));
        assert_eq!((request.variable("BYTES"), request.variable_str("BYTES")), (Some(&[0xff][..]), None));
    }
}
