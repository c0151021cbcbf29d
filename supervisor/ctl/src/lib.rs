pub mod demo_agent;
mod start;
