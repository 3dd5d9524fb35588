//! The authenticated channel.
