//! Traces of requests and launches for a collector of OpenTelemetry. They are off by default.
//!
//! Spans are those of the crate `tracing` with the target [`TARGET`]. The log does not show them. While no collector is
//! configured, they are disabled and cost one comparison each. A collector that does not answer delays nothing: spans
//! wait in a bounded queue, and further spans are dropped.

mod collector;
mod switch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanLimits};
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::registry::LookupSpan;

pub use collector::ExporterError;
use switch::{Switch, Switched};

/// Target of all spans that belong to a trace.
pub const TARGET: &str = "agentd::trace";

/// Header of a trace's context (W3C Trace Context, section 3.2).
pub const TRACEPARENT: &str = "traceparent";

/// Maximum number of attributes of a span, and of events and links.
const LIMIT: u32 = 32;

/// The traces of this process: turned on and off at any time.
#[derive(Clone)]
pub struct Traces {
    switch: Arc<Switch>,
    provider: SdkTracerProvider,
}

impl fmt::Debug for Traces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Traces").field("switch", &self.switch).finish_non_exhaustive()
    }
}

impl Traces {
    /// Creates the traces of a process, turned off. `service` and `version` are the attributes `service.name` and
    /// `service.version` of all spans.
    pub fn new(service: &'static str, version: &'static str) -> Self {
        let version = opentelemetry::KeyValue::new("service.version", version);
        let resource = Resource::builder_empty().with_service_name(service).with_attribute(version).build();
        let switch = Arc::new(Switch::new(resource.clone()));
        let limits = SpanLimits {
            max_events_per_span: LIMIT,
            max_attributes_per_span: LIMIT,
            max_links_per_span: LIMIT,
            ..SpanLimits::default()
        };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_span_limits(limits)
            .with_span_processor(Switched(Arc::clone(&switch)))
            .build();
        Self { switch, provider }
    }

    /// Returns the layer that turns spans into those of a trace.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let switch = Arc::clone(&self.switch);
        // The callers' threads and source files are no help to an operator.
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("agentd"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(
                FilterFn::new(move |metadata| metadata.is_span() && metadata.target() == TARGET && switch.is_on())
                    .with_max_level_hint(LevelFilter::INFO),
            )
    }

    /// Sends the spans from now on to the collector at this URL, or turns the traces off. Spans that wait for an
    /// earlier collector are sent there in the background. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// The exporter cannot be built. The earlier collector stays in use.
    pub fn send_to(&self, endpoint: Option<&str>) -> Result<(), ExporterError> {
        if self.switch.set(endpoint)? {
            // Each place that creates a span remembers whether the span is wanted.
            tracing::callsite::rebuild_interest_cache();
        }
        Ok(())
    }

    /// Sends the spans that wait, and turns the traces off. Blocks for `time` at most.
    pub fn end(&self, time: Duration) {
        self.switch.end(time);
    }
}

/// Returns a filter for layers that show no spans of traces, as those of the log.
pub fn without_traces() -> FilterFn {
    FilterFn::new(|metadata| metadata.target() != TARGET)
}

/// Returns the trace id of a span: 32 hexadecimal digits. `None` without a trace.
pub fn trace_id(span: &Span) -> Option<String> {
    let context = span.context();
    let context = context.span().span_context().clone();
    context.is_valid().then(|| context.trace_id().to_string())
}

/// Returns the context of a span as a value of the header [`TRACEPARENT`]. `None` without a trace.
pub fn parent_of(span: &Span) -> Option<String> {
    let context = span.context();
    let context = context.span().span_context().clone();
    let flags = context.trace_flags();
    context.is_valid().then(|| format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()))
}

/// Makes the span continue the trace of a header [`TRACEPARENT`]. A value that is not valid changes nothing, as the
/// standard demands (W3C Trace Context, section 3.2.2.5). Must be called before anything else uses the span.
pub fn continue_from(span: &Span, parent: &str) {
    let context = TraceContextPropagator::new().extract(&OneHeader(parent));
    if context.span().span_context().is_valid() {
        // Fails only for a span without a trace.
        let _ = span.set_parent(context);
    }
}

/// Returns the header [`TRACEPARENT`] of a request. `None` if the header is missing, repeated or not ASCII.
pub fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    value.to_str().ok()
}

struct OneHeader<'value>(&'value str);

impl Extractor for OneHeader<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == TRACEPARENT).then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

#[cfg(test)]
mod tests {
    use tracing::info_span;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[tokio::test]
    async fn a_span_has_a_trace_only_while_there_is_a_collector() {
        let traces = Traces::new("test", "0");
        let subscriber = tracing_subscriber::registry().with(traces.layer());
        let _guard = tracing::subscriber::set_default(subscriber);
        let span = || info_span!(target: TARGET, "one");
        assert_eq!(trace_id(&span()), None);
        traces.send_to(Some("http://127.0.0.1:1")).unwrap();
        let first = span();
        let id = trace_id(&first).unwrap();
        assert_eq!(parent_of(&first).unwrap().split('-').nth(1), Some(&*id));
        let inner = first.in_scope(span);
        assert_eq!(trace_id(&inner), Some(id));
        traces.send_to(None).unwrap();
        assert_eq!(trace_id(&span()), None);
    }

    #[tokio::test]
    async fn a_header_continues_a_trace_if_it_is_valid() {
        let traces = Traces::new("test", "0");
        let subscriber = tracing_subscriber::registry().with(traces.layer());
        let _guard = tracing::subscriber::set_default(subscriber);
        traces.send_to(Some("http://127.0.0.1:1")).unwrap();
        let id = |parent: &str| {
            let span = info_span!(target: TARGET, "one");
            continue_from(&span, parent);
            trace_id(&span).unwrap()
        };
        assert_eq!(id(PARENT), "4bf92f3577b34da6a3ce929d0e0e4736");
        for invalid in
            ["", "00", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "x\u{e9}", &"0".repeat(9_999)]
        {
            assert_ne!(id(invalid), "4bf92f3577b34da6a3ce929d0e0e4736", "{invalid:.60}");
        }
    }

    #[test]
    fn a_repeated_header_is_no_header() {
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, PARENT.parse().unwrap());
        assert_eq!(traceparent(&headers), Some(PARENT));
        headers.append(TRACEPARENT, PARENT.parse().unwrap());
        assert_eq!(traceparent(&headers), None);
    }
}
