//! Plugins against their host: the committed ones, hostile ones, and the cache of compiled code between them.

mod answers;
mod bench;
mod builtin;
mod cache;
mod compiler;
mod grants;
mod guest;
mod hostile;
mod refused;
