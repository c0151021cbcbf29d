//! Implements the expected result of a case: changes, a failure or a report. Compares it with the actual result, and
//! writes it into the case.

use std::time::Duration;

use agentd_api::ByteString;
use agentd_plugin_host::{Change, CheckOutcome, Effect, Failure, Report};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

/// Outcomes of a report.
const OUTCOMES: [&str; 4] = ["pass", "warn", "fail", "unknown"];

/// Expected result; exactly one field is set.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Expectation {
    changes: Option<Vec<ExpectedChange>>,
    failure: Option<Failure>,
    report: Option<ExpectedReport>,
}

/// A change. The key of the operation (`set`, `unset`, …) holds the variable's name.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct ExpectedChange {
    set: Option<String>,
    unset: Option<String>,
    prepend: Option<String>,
    append: Option<String>,
    secret: Option<String>,
    file: Option<String>,
    /// New value, for `set`.
    value: Option<ByteString>,
    /// Reason, for `unset`.
    reason: Option<String>,
    /// List entry, for `prepend` and `append`.
    entry: Option<ByteString>,
    /// Name of the secret in the configuration, for `secret`.
    named: Option<String>,
    /// Name of the file, for `file`.
    file_name: Option<String>,
    content: Option<ByteString>,
    origin: Option<String>,
    /// Validity in milliseconds.
    valid_for: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ExpectedReport {
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
        Self { changes: Some(changes.into_iter().map(ExpectedChange::from).collect()), ..Self::default() }
    }

    /// Returns the names of the variables that the changes affect.
    pub(crate) fn variables(&self) -> Vec<String> {
        self.changes.iter().flatten().filter_map(ExpectedChange::variable).collect()
    }

    pub(crate) fn failure(failure: Failure) -> Self {
        Self { failure: Some(failure), ..Self::default() }
    }

    pub(crate) fn report(report: Report) -> Self {
        Self { report: Some(report.into()), ..Self::default() }
    }

    /// Validates the expectation. The error describes the mistake.
    pub(crate) fn check(&self) -> Result<(), String> {
        let kinds = [self.changes.is_some(), self.failure.is_some(), self.report.is_some()];
        if kinds.into_iter().filter(|is_given| *is_given).count() != 1 {
            return Err("expect must have exactly one of changes, failure, report".to_owned());
        }
        if let Some(ExpectedReport { outcome, .. }) = &self.report
            && !OUTCOMES.contains(&outcome.as_str())
        {
            return Err(format!("unknown outcome {outcome:?}; use one of {}", OUTCOMES.join(", ")));
        }
        self.changes.iter().flatten().try_for_each(ExpectedChange::check)
    }

    /// Returns the value of the case's key `expect`.
    fn item(&self) -> Item {
        let mut expect = Table::new();
        expect.set_implicit(true);
        if let Some(changes) = &self.changes {
            let item = if changes.is_empty() {
                expect.set_implicit(false);
                Item::Value(Value::Array(Array::new()))
            } else {
                Item::ArrayOfTables(changes.iter().map(ExpectedChange::table).collect::<ArrayOfTables>())
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

    /// Returns the expectation's text, as in a case.
    pub(crate) fn text(&self) -> String {
        let mut document = DocumentMut::new();
        document.insert("expect", self.item());
        document.to_string().trim_start().to_owned()
    }

    /// Returns the text of a case with this expectation. The rest of the text stays unchanged.
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

/// Returns text as a string, and other bytes as base64.
fn bytes(value: &ByteString) -> Value {
    let encoded = || Value::InlineTable([("base64", STANDARD.encode(value.as_bytes()))].into_iter().collect());
    value.as_str().map_or_else(encoded, Value::from)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Converts to a TOML integer, which is at most the maximum of an `i64`. No validity is longer.
fn number(number: u64) -> Value {
    i64::try_from(number).unwrap_or(i64::MAX).into()
}

impl ExpectedChange {
    /// Returns the operation and its variable. Returns `None` unless exactly one operation is set.
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
            return Err("a change must have exactly one of set, unset, prepend, append, secret, file".to_owned());
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
                return Err(format!("the change of {name:?} has {article}, which {kind} does not allow"));
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

impl ExpectedChange {
    fn variable(&self) -> Option<String> {
        let Self { set, unset, prepend, append, secret, file, .. } = self;
        [set, unset, prepend, append, secret, file].into_iter().flatten().next().cloned()
    }
}

impl From<Change> for ExpectedChange {
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

impl ExpectedReport {
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

impl From<Report> for ExpectedReport {
    fn from(report: Report) -> Self {
        let [pass, warn, fail, unknown] = OUTCOMES;
        let outcome = match report.outcome {
            CheckOutcome::Pass => pass,
            CheckOutcome::Warn => warn,
            CheckOutcome::Fail => fail,
            CheckOutcome::Unknown => unknown,
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
    fn a_written_expectation_is_read_back_unchanged() {
        let report = |valid_for, remedy: Option<&str>| Report {
            outcome: CheckOutcome::Warn,
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
    fn an_update_changes_only_the_expectation() {
        let case = "# why\n[settings]\nroot = \"/x\" # here\n\n\
            [[expect.changes]]\nset = \"OLD\"\nvalue = \"\"\n\n[environment]\nA = \"1\"\n";
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
