//! Networks of real sites: registries with an authority and a password of their own, proxies.

pub mod registries;
