//! Tests of plugins and their host: the built-in plugins, hostile plugins, and the cache of compiled code.

mod answers;
mod bench;
mod builtin;
mod cache;
mod compiler;
mod grants;
mod guest;
mod hostile;
mod prerequisites;
#[path = "../harness/quote.rs"]
mod quote;
#[path = "../harness/random.rs"]
#[allow(dead_code, reason = "the tests of the whole use the rest")]
mod random;
mod refused;
