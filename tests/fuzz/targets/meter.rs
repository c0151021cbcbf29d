//! Measures the memory of one run, so that a small input cannot cause a large allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Allocated bytes, and their maximum since the last reset.
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The allocator of the system, which counts the allocated bytes.
struct Meter;

#[global_allocator]
static METER: Meter = Meter;

// SAFETY: each call is passed on to the allocator of the system without a change.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller has promised that the layout has a size.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller has promised that this allocator returned the memory for this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Fails if `work` needs more memory at once than `base` and `factor` bytes for each byte of the input.
pub fn bounded(input: &[u8], base: usize, factor: usize, work: impl FnOnce()) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    let used = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    let allowed = base + factor * input.len();
    assert!(used <= allowed, "{} bytes of input needed {used} bytes of memory; {allowed} are allowed", input.len());
}
