//! A node and what is published: from a directory, from a web server, and from a registry.

mod directory;
mod https;
mod publisher;
mod ranges;
mod registry;
