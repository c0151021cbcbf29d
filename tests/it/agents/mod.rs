//! MCP servers and logins, which agents get before their conversation.

mod login;
mod servers;
