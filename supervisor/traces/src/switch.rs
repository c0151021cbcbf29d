//! The destination of finished spans, which a reload replaces.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanProcessor};

use crate::collector::{self, ExporterError};

/// Maximum number of spans that wait for the collector.
const QUEUE: usize = 2_048;
/// Maximum number of spans in one request to the collector.
const BATCH: usize = 256;
/// Time between two requests to the collector.
const PAUSE: Duration = Duration::from_secs(1);

/// Passes finished spans on to the processor of the present collector.
#[derive(Debug)]
pub(crate) struct Switch {
    resource: Resource,
    is_on: AtomicBool,
    present: RwLock<Option<Present>>,
}

#[derive(Debug)]
struct Present {
    endpoint: String,
    processor: Arc<BatchSpanProcessor>,
}

impl Switch {
    pub(crate) fn new(resource: Resource) -> Self {
        Self { resource, is_on: AtomicBool::new(false), present: RwLock::new(None) }
    }

    /// Reports whether there is a collector.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Replaces the collector. Returns whether anything changed.
    pub(crate) fn set(&self, endpoint: Option<&str>) -> Result<bool, ExporterError> {
        // No code under this lock can leave the value inconsistent.
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        if present.as_ref().map(|present| &*present.endpoint) == endpoint {
            return Ok(false);
        }
        let next = match endpoint {
            Some(endpoint) => {
                let config = BatchConfigBuilder::default()
                    .with_max_queue_size(QUEUE)
                    .with_max_export_batch_size(BATCH)
                    .with_scheduled_delay(PAUSE)
                    .build();
                let mut processor = BatchSpanProcessor::new(collector::exporter(endpoint)?, config);
                processor.set_resource(&self.resource);
                Some(Present { endpoint: endpoint.to_owned(), processor: Arc::new(processor) })
            }
            None => None,
        };
        self.is_on.store(next.is_some(), Ordering::Relaxed);
        if let Some(former) = std::mem::replace(&mut *present, next) {
            tokio::task::spawn_blocking(move || former.processor.shutdown_with_timeout(collector::TIME));
        }
        Ok(true)
    }

    /// Sends the spans that wait, for `time` at most.
    pub(crate) fn end(&self, time: Duration) {
        let present = self.present.write().unwrap_or_else(PoisonError::into_inner).take();
        self.is_on.store(false, Ordering::Relaxed);
        if let Some(present) = present {
            // The collector's failure is in the log already.
            let _ = present.processor.shutdown_with_timeout(time);
        }
    }
}

/// The switch as a processor of the provider.
#[derive(Debug)]
pub(crate) struct Switched(pub(crate) Arc<Switch>);

impl SpanProcessor for Switched {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let present = self.0.present.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(present) = &*present {
            present.processor.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
