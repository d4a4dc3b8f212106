//! Images: credentials, records of pulls, the images in use, and the collection of unused images and dead containers.

pub mod credential_plugins;
pub mod garbage_collection;
pub mod image_uses;
pub mod pull_records;
pub mod pulls;
