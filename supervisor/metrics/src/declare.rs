//! The declaration of metric families: one macro writes the fields, the registration and the list for the reference.

use agentd_api::doc::Named;
use prometheus_client::registry::Unit;

/// Type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows. Its series end in `_total`.
    Counter,
    /// A number that grows and falls.
    Gauge,
    /// A distribution of observed values.
    Histogram,
}

/// A label of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Name of the label.
    pub name: &'static str,
    /// All values of the label. `None` for names of agents, plugins, routes and sessions, which are bounded in number.
    pub values: Option<&'static [&'static str]>,
}

/// A family as the reference shows it.
#[derive(Debug, Clone, Copy)]
pub struct Described {
    /// Name without prefix, unit and suffix, with the help text.
    pub named: Named,
    /// Type of the family.
    pub kind: Kind,
    /// Unit of the values: empty, `seconds` or `bytes`.
    pub unit: &'static str,
    /// Upper bounds of the buckets of a histogram.
    pub buckets: &'static [f64],
    /// The labels of each series.
    pub labels: &'static [Label],
}

/// Prefix of all names.
pub(crate) const PREFIX: &str = "agentd";

impl Described {
    /// Returns the name of the family, as its `# TYPE` line in `OpenMetrics` has it.
    pub fn name(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!("_{}", self.unit) };
        format!("{PREFIX}_{}{unit}", self.named.name)
    }

    /// Returns the names of the series that queries can use.
    pub fn series(&self) -> Vec<String> {
        let name = self.name();
        match self.kind {
            Kind::Counter => vec![format!("{name}_total")],
            Kind::Gauge => vec![name],
            Kind::Histogram => ["bucket", "count", "sum"].map(|part| format!("{name}_{part}")).to_vec(),
        }
    }

    /// Returns the help text, without the full stop that the encoder adds.
    pub(crate) fn help(&self) -> String {
        self.named.meaning().trim_end_matches('.').to_owned()
    }

    pub(crate) fn registered_unit(&self) -> Option<Unit> {
        match self.unit {
            "seconds" => Some(Unit::Seconds),
            "bytes" => Some(Unit::Bytes),
            _ => None,
        }
    }

    /// Returns each combination of label values, if all labels have fixed values.
    pub(crate) fn combinations(&self) -> Vec<Vec<&'static str>> {
        let mut all = vec![Vec::new()];
        for label in self.labels {
            let Some(values) = label.values else { return Vec::new() };
            let longer = |before: Vec<&'static str>| values.iter().map(move |value| [&before[..], &[*value]].concat());
            all = all.into_iter().flat_map(longer).collect();
        }
        all
    }
}

/// Declares the families. Each has a doc comment, a field, its type, a name, an optional unit, optional buckets, and
/// its labels. `label in VALUES` has fixed values.
macro_rules! families {
    ($(
        $(#[doc = $doc:literal])+
        $field:ident: $kind:ident = $name:literal $($unit:ident)? $(in buckets $buckets:ident)?
            [$($label:ident $(in $values:ident)?),*];
    )*) => {
        /// All families, in the order of the page.
        const FAMILIES: &[Described] = &[$(Described {
            named: Named { name: $name, doc: &[$($doc,)+] },
            kind: Kind::$kind,
            unit: families!(@unit $($unit)?),
            buckets: families!(@buckets $($buckets)?),
            labels: &[$(Label { name: stringify!($label), values: families!(@values $($values)?) }),*],
        }),*];

        /// The metrics of one daemon. Shared.
        #[derive(Debug)]
        pub struct Metrics {
            registry: Registry,
            /// Held while values that belong together are replaced, and while the page is written.
            page: Mutex<()>,
            agents: Names,
            plugins: Names,
            hooks: Names,
            places: Names,
            $($(#[doc = $doc])+ pub $field: $kind<{ <[&str]>::len(&[$(stringify!($label)),*]) }>,)*
        }

        impl Metrics {
            /// All families, in the order of the page.
            pub const ALL: &'static [Described] = FAMILIES;

            /// Creates the metrics of a daemon of this version, with the value 0 for each series that is known.
            pub fn new(version: &str) -> Self {
                let mut registry = Registry::with_prefix(PREFIX);
                let mut all = FAMILIES.iter();
                $(let $field = $kind::register(all.next().expect("each field has an entry"), &mut registry);)*
                let build = Info::new(vec![("version", version.to_owned())]);
                registry.register("build", BUILD_HELP, build);
                let [agents, plugins, hooks, places] = std::array::from_fn(|_| Names::default());
                Self { registry, page: Mutex::default(), agents, plugins, hooks, places, $($field),* }
            }
        }
    };
    (@unit) => { "" };
    (@unit $unit:ident) => { stringify!($unit) };
    (@buckets) => { &[] };
    (@buckets $buckets:ident) => { $buckets };
    (@values) => { None };
    (@values $values:ident) => { Some(label::$values) };
}

pub(crate) use families;
