//! Known agents, and the MCP servers and logins that agents get before their conversation.

mod adoption;
mod catalogue;
mod login;
mod removal;
mod servers;
