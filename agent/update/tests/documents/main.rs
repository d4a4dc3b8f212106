//! A node and what is published: from a directory, and from a web server.

mod directory;
mod https;
mod publisher;
mod ranges;
