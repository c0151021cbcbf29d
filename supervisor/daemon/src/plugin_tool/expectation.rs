//! What a case expects of a plugin: changes, a failure or a report; compared with what came, and written as it stands in the case.

use std::time::Duration;

use agentd_api::ByteString;
use agentd_plugins::{Change, Effect, Failure, Outcome, Report};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

/// Of a report.
const OUTCOMES: [&str; 4] = ["pass", "warn", "fail", "unknown"];

/// One of the three.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Expectation {
    changes: Option<Vec<Changed>>,
    failure: Option<Failure>,
    report: Option<Reported>,
}

/// A change: the variable stands under what is done to it.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Changed {
    set: Option<String>,
    unset: Option<String>,
    prepend: Option<String>,
    append: Option<String>,
    secret: Option<String>,
    file: Option<String>,
    /// Of `set`.
    value: Option<ByteString>,
    /// Of `unset`.
    reason: Option<String>,
    /// Of `prepend` and `append`.
    entry: Option<ByteString>,
    /// Of `secret`: its name in the configuration.
    named: Option<String>,
    /// Of `file`.
    file_name: Option<String>,
    content: Option<ByteString>,
    origin: Option<String>,
    /// Milliseconds.
    valid_for: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Reported {
    outcome: String,
    summary: String,
    #[serde(default)]
    facts: Vec<Fact>,
    remedy: Option<String>,
    valid_for: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fact {
    name: String,
    value: String,
}

impl Expectation {
    pub(crate) fn changes(changes: Vec<Change>) -> Self {
        Self { changes: Some(changes.into_iter().map(Changed::from).collect()), ..Self::default() }
    }

    /// The variables that the changes are of.
    pub(crate) fn variables(&self) -> Vec<String> {
        self.changes.iter().flatten().filter_map(Changed::variable).collect()
    }

    pub(crate) fn failure(failure: Failure) -> Self {
        Self { failure: Some(failure), ..Self::default() }
    }

    pub(crate) fn report(report: Report) -> Self {
        Self { report: Some(report.into()), ..Self::default() }
    }

    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<(), String> {
        let said = [self.changes.is_some(), self.failure.is_some(), self.report.is_some()];
        if said.into_iter().filter(|said| *said).count() != 1 {
            return Err("it expects not one of changes, failure, report".to_owned());
        }
        if let Some(Reported { outcome, .. }) = &self.report
            && !OUTCOMES.contains(&outcome.as_str())
        {
            return Err(format!("there is no outcome {outcome:?}; there are {}", OUTCOMES.join(", ")));
        }
        self.changes.iter().flatten().try_for_each(Changed::check)
    }

    /// As it stands in a case, under `expect`.
    fn item(&self) -> Item {
        let mut expect = Table::new();
        expect.set_implicit(true);
        if let Some(changes) = &self.changes {
            let item = if changes.is_empty() {
                expect.set_implicit(false);
                Item::Value(Value::Array(Array::new()))
            } else {
                Item::ArrayOfTables(changes.iter().map(Changed::table).collect::<ArrayOfTables>())
            };
            expect.insert("changes", item);
        }
        if let Some(failure) = &self.failure {
            let mut table = Table::new();
            let (kind, text) = failure_words(failure);
            table.insert(kind, Item::Value(text));
            expect.insert("failure", Item::Table(table));
        }
        if let Some(report) = &self.report {
            expect.insert("report", Item::Table(report.table()));
        }
        Item::Table(expect)
    }

    /// Its text, as in a case.
    pub(crate) fn text(&self) -> String {
        let mut document = DocumentMut::new();
        document.insert("expect", self.item());
        document.to_string().trim_start().to_owned()
    }

    /// The text of a case, with this as what it expects; the rest stays as it is.
    pub(crate) fn written_to(&self, case: &str) -> Result<String, toml_edit::TomlError> {
        let mut document: DocumentMut = case.parse()?;
        document.remove("expect");
        let kept = document.to_string();
        let kept = kept.trim_end();
        Ok(if kept.is_empty() { self.text() } else { format!("{kept}\n\n{}", self.text()) })
    }
}

fn failure_words(failure: &Failure) -> (&'static str, Value) {
    match failure {
        Failure::Configuration { key, message } => {
            let table = [("key", key.as_str()), ("message", message.as_str())].into_iter().collect::<InlineTable>();
            ("configuration", Value::InlineTable(table))
        }
        Failure::NotGranted(text) => ("not-granted", text.into()),
        Failure::NotApproved(text) => ("not-approved", text.into()),
        Failure::NotFound(text) => ("not-found", text.into()),
        Failure::TimedOut(text) => ("timed-out", text.into()),
        Failure::TooLarge(text) => ("too-large", text.into()),
        Failure::Unavailable(text) => ("unavailable", text.into()),
        Failure::Failed(text) => ("failed", text.into()),
    }
}

/// Text as it is, anything else as base64.
fn bytes(value: &ByteString) -> Value {
    let encoded = || Value::InlineTable([("base64", STANDARD.encode(value.as_bytes()))].into_iter().collect());
    value.as_str().map_or_else(encoded, Value::from)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A TOML integer ends where an `i64` does; nothing holds for longer.
fn number(number: u64) -> Value {
    i64::try_from(number).unwrap_or(i64::MAX).into()
}

impl Changed {
    /// What is done, to which variable.
    fn kind(&self) -> Option<(&'static str, &str)> {
        let kinds = [
            ("set", &self.set),
            ("unset", &self.unset),
            ("prepend", &self.prepend),
            ("append", &self.append),
            ("secret", &self.secret),
            ("file", &self.file),
        ];
        let mut given = kinds.into_iter().filter_map(|(kind, name)| Some((kind, name.as_deref()?)));
        let first = given.next()?;
        given.next().is_none().then_some(first)
    }

    fn check(&self) -> Result<(), String> {
        let Some((kind, name)) = self.kind() else {
            return Err("a change has not one of set, unset, prepend, append, secret, file".to_owned());
        };
        for (key, article, of, needed, given) in [
            ("value", "a value", &["set"][..], true, self.value.is_some()),
            ("entry", "an entry", &["prepend", "append"], true, self.entry.is_some()),
            ("named", "a name of a secret", &["secret"], true, self.named.is_some()),
            ("file-name", "a file-name", &["file"], true, self.file_name.is_some()),
            ("content", "a content", &["file"], true, self.content.is_some()),
            ("reason", "a reason", &["unset"], false, self.reason.is_some()),
        ] {
            let fits = of.contains(&kind);
            if fits && needed && !given {
                return Err(format!("the change of {name:?} has no {key}"));
            }
            if given && !fits {
                return Err(format!("the change of {name:?} has {article}, which does not go with {kind}"));
            }
        }
        Ok(())
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        if let Some((kind, name)) = self.kind() {
            table.insert(kind, Item::Value(name.into()));
        }
        let texts = [
            ("reason", &self.reason),
            ("named", &self.named),
            ("file-name", &self.file_name),
            ("origin", &self.origin),
        ];
        for (key, value) in [("value", &self.value), ("entry", &self.entry), ("content", &self.content)] {
            if let Some(value) = value {
                table.insert(key, Item::Value(bytes(value)));
            }
        }
        for (key, text) in texts {
            if let Some(text) = text {
                table.insert(key, Item::Value(text.into()));
            }
        }
        if let Some(valid_for) = self.valid_for {
            table.insert("valid-for", Item::Value(number(valid_for)));
        }
        table
    }
}

impl Changed {
    fn variable(&self) -> Option<String> {
        let Self { set, unset, prepend, append, secret, file, .. } = self;
        [set, unset, prepend, append, secret, file].into_iter().flatten().next().cloned()
    }
}

impl From<Change> for Changed {
    fn from(change: Change) -> Self {
        let Change { effect, origin, valid_for } = change;
        let about = Self { origin, valid_for: valid_for.map(milliseconds), ..Self::default() };
        match effect {
            Effect::Set { name, value } => Self { set: Some(name), value: Some(value.into()), ..about },
            Effect::Unset { name, reason } => Self { unset: Some(name), reason, ..about },
            Effect::Prepend { name, entry } => Self { prepend: Some(name), entry: Some(entry.into()), ..about },
            Effect::Append { name, entry } => Self { append: Some(name), entry: Some(entry.into()), ..about },
            Effect::Secret { name, secret } => Self { secret: Some(name), named: Some(secret), ..about },
            Effect::File { name, file_name, content } => {
                Self { file: Some(name), file_name: Some(file_name), content: Some(content.into()), ..about }
            }
        }
    }
}

impl Reported {
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.insert("outcome", Item::Value(self.outcome.as_str().into()));
        table.insert("summary", Item::Value(self.summary.as_str().into()));
        if !self.facts.is_empty() {
            let fact =
                |fact: &Fact| [("name", &fact.name), ("value", &fact.value)].into_iter().collect::<InlineTable>();
            table.insert("facts", Item::Value(Value::Array(self.facts.iter().map(fact).collect())));
        }
        if let Some(remedy) = &self.remedy {
            table.insert("remedy", Item::Value(remedy.into()));
        }
        if let Some(valid_for) = self.valid_for {
            table.insert("valid-for", Item::Value(number(valid_for)));
        }
        table
    }
}

impl From<Report> for Reported {
    fn from(report: Report) -> Self {
        let [pass, warn, fail, unknown] = OUTCOMES;
        let outcome = match report.outcome {
            Outcome::Pass => pass,
            Outcome::Warn => warn,
            Outcome::Fail => fail,
            Outcome::Unknown => unknown,
        };
        Self {
            outcome: outcome.to_owned(),
            summary: report.summary,
            facts: report.facts.into_iter().map(|(name, value)| Fact { name, value }).collect(),
            remedy: report.remedy,
            valid_for: report.valid_for.map(milliseconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_effects() -> Vec<Change> {
        let file = Effect::File { name: "F".into(), file_name: "f".into(), content: b"a\nb \"c\"\n".to_vec() };
        let timed = Change { origin: Some("/o".into()), valid_for: Some(Duration::from_secs(9)), ..Change::from(file) };
        vec![
            Change::set("A", "text"),
            Change::set("B", vec![0xff, b'=']),
            Change::unset("C", Some("why".into())),
            Change::unset("D", None),
            Effect::Prepend { name: "PATH".into(), entry: b"/x".to_vec() }.into(),
            Effect::Append { name: "PATH".into(), entry: b"/y\xe9".to_vec() }.into(),
            Effect::Secret { name: "T".into(), secret: "token".into() }.into(),
            timed,
        ]
    }

    fn back(text: &str) -> Expectation {
        #[derive(Deserialize)]
        struct Case {
            expect: Expectation,
        }
        toml::from_str::<Case>(text).unwrap_or_else(|error| panic!("{error}\n{text}")).expect
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let report = |valid_for, remedy: Option<&str>| Report {
            outcome: Outcome::Warn,
            summary: "s".into(),
            facts: vec![("a".into(), "b".into())],
            remedy: remedy.map(str::to_owned),
            valid_for,
        };
        for expectation in [
            Expectation::changes(all_effects()),
            Expectation::changes(Vec::new()),
            Expectation::failure(Failure::Configuration { key: "a.b".into(), message: "no".into() }),
            Expectation::failure(Failure::NotFound("x".into())),
            Expectation::report(report(Some(Duration::from_millis(1500)), Some("r"))),
            Expectation::report(report(None, None)),
        ] {
            expectation.check().unwrap();
            assert_eq!(back(&expectation.text()), expectation, "{}", expectation.text());
        }
    }

    #[test]
    fn an_update_changes_what_is_expected_and_nothing_else() {
        let case = "# why\n[settings]\nroot = \"/x\" # here\n\n[[expect.changes]]\nset = \"OLD\"\nvalue = \"\"\n\n[environment]\nA = \"1\"\n";
        let written = Expectation::changes(vec![Change::set("NEW", "1")]).written_to(case).unwrap();
        assert!(written.starts_with("# why\n[settings]\nroot = \"/x\" # here\n"), "{written}");
        assert!(
            written.contains("[environment]\nA = \"1\"\n\n[[expect.changes]]\nset = \"NEW\"\nvalue = \"1\"\n"),
            "{written}"
        );
        assert!(!written.contains("OLD"), "{written}");
        let again = Expectation::failure(Failure::Failed("x".into())).written_to(&written).unwrap();
        assert!(again.ends_with("A = \"1\"\n\n[expect.failure]\nfailed = \"x\"\n"), "{again}");
        let first = Expectation::changes(Vec::new()).written_to("").unwrap();
        assert_eq!(first, "[expect]\nchanges = []\n");
    }
}
