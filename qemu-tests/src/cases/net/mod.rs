//! Networks of real sites: registries with an authority and a password of their own, proxies; bonds and VLANs.

pub mod bond;
pub mod registries;
