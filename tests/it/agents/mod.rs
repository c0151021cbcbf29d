//! What an agent gets and needs before its conversation: MCP servers, and a login.

mod login;
mod servers;
