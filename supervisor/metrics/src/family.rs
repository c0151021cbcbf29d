//! Families with a fixed number of labels. A value is named by its label values, in the order of the declaration.

use std::borrow::Cow;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter as RawCounter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge as RawGauge;
use prometheus_client::metrics::histogram::Histogram as RawHistogram;
use prometheus_client::registry::{Metric, Registry};

use crate::declare::Described;

type Labels = Vec<(&'static str, Cow<'static, str>)>;
type RawAmount = RawCounter<f64, AtomicU64>;
type RawLevel = RawGauge<f64, AtomicU64>;

fn labels<const N: usize>(described: &Described, values: [&str; N]) -> Labels {
    described.labels.iter().zip(values).map(|(label, value)| (label.name, Cow::Owned(value.to_owned()))).collect()
}

/// Registers a family, and creates the series whose label values are all known.
fn register<M: Clone + 'static, C: MetricConstructor<M> + Clone + Send + Sync + 'static>(
    described: &'static Described,
    family: Family<Labels, M, C>,
    registry: &mut Registry,
) -> Family<Labels, M, C>
where
    Family<Labels, M, C>: Metric,
{
    match described.registered_unit() {
        Some(unit) => registry.register_with_unit(described.named.name, described.help(), unit, family.clone()),
        None => registry.register(described.named.name, described.help(), family.clone()),
    }
    begin(described, &family);
    family
}

fn begin<M: Clone, C: MetricConstructor<M>>(described: &Described, family: &Family<Labels, M, C>) {
    for values in described.combinations() {
        let names = described.labels.iter().map(|label| label.name);
        let labels: Labels = names.zip(values).map(|(name, value)| (name, Cow::Borrowed(value))).collect();
        drop(family.get_or_create(&labels));
    }
}

/// Numbers that only grow.
#[derive(Debug)]
pub struct Counter<const N: usize> {
    described: &'static Described,
    family: Family<Labels, RawAmount>,
}

impl<const N: usize> Counter<N> {
    pub(crate) fn register(described: &'static Described, registry: &mut Registry) -> Self {
        Self { described, family: register(described, Family::default(), registry) }
    }

    /// Adds 1.
    pub fn count(&self, values: [&str; N]) {
        self.add(values, 1.0);
    }

    /// Adds an amount, which is not negative.
    pub fn add(&self, values: [&str; N], amount: f64) {
        self.family.get_or_create(&labels(self.described, values)).inc_by(amount);
    }

    /// Raises the value to a total that was measured elsewhere. A lower total is that of another process or snapshot,
    /// and the value begins again with it, as Prometheus expects it.
    pub fn set_total(&self, values: [&str; N], total: f64) {
        let counter = self.family.get_or_create(&labels(self.described, values));
        counter.inner().store(total.to_bits(), std::sync::atomic::Ordering::Relaxed);
    }

    /// Removes all series but those with fixed label values, which begin again with 0.
    pub fn reset(&self) {
        self.family.clear();
        begin(self.described, &self.family);
    }
}

/// Numbers that grow and fall.
#[derive(Debug)]
pub struct Gauge<const N: usize> {
    described: &'static Described,
    family: Family<Labels, RawLevel>,
}

impl<const N: usize> Gauge<N> {
    pub(crate) fn register(described: &'static Described, registry: &mut Registry) -> Self {
        Self { described, family: register(described, Family::default(), registry) }
    }

    /// Sets the value.
    pub fn set(&self, values: [&str; N], value: f64) {
        self.family.get_or_create(&labels(self.described, values)).set(value);
    }

    /// Adds 1.
    pub fn count(&self, values: [&str; N]) {
        self.family.get_or_create(&labels(self.described, values)).inc();
    }

    /// Adds 1 until the returned value is dropped.
    #[must_use]
    pub fn hold(&self, values: [&str; N]) -> Held {
        let gauge = self.family.get_or_create(&labels(self.described, values)).clone();
        gauge.inc();
        Held(gauge)
    }

    /// Removes all series but those with fixed label values, which become 0.
    pub fn reset(&self) {
        self.family.clear();
        begin(self.described, &self.family);
    }
}

/// Guard of one unit of a gauge.
#[derive(Debug)]
pub struct Held(RawLevel);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Creates the histogram of a new series.
#[derive(Debug, Clone)]
struct Buckets(&'static [f64]);

impl MetricConstructor<RawHistogram> for Buckets {
    fn new_metric(&self) -> RawHistogram {
        RawHistogram::new(self.0.iter().copied())
    }
}

/// Distributions of durations.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    described: &'static Described,
    family: Family<Labels, RawHistogram, Buckets>,
}

impl<const N: usize> Histogram<N> {
    pub(crate) fn register(described: &'static Described, registry: &mut Registry) -> Self {
        let family = Family::new_with_constructor(Buckets(described.buckets));
        Self { described, family: register(described, family, registry) }
    }

    /// Adds one observed duration.
    pub fn observe(&self, values: [&str; N], duration: Duration) {
        self.family.get_or_create(&labels(self.described, values)).observe(duration.as_secs_f64());
    }
}
