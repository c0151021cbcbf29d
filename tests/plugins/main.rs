//! Plugins against their host: the committed ones, hostile ones, and the cache of compiled code between them.

mod bench;
mod builtin;
mod cache;
mod compiler;
mod guest;
mod hostile;
mod refused;
