//! agent-provision: asks the platform's metadata service, at the first boot, for the node's configuration and for facts about the
//! machine.
//!
//! ```text
//! questions (tables) ─► inquiry (machine) ─► http ─► 169.254.169.254
//!                            │ findings
//!                            ▼
//!                  user_data (checks) ─► store ─► /var/lib/orlop/config, /run/orlop/platform.json
//! ```
//! In: `/run/orlop/platform.json`, in which init names the platform. Out: the accepted user data and the facts, kept for every later
//! boot. Decisions are pure: `questions`, `facts`, `inquiry`, `user_data`, `azure` and `pace` know no socket and no clock; `run` drives
//! them. Invariants: requests go to fixed addresses and to no other, never by a proxy, and no redirect is followed; no answer
//! takes more than 1 MiB of memory; a document that is refused is not kept. Specification: docs/reference/platforms.md.
#![forbid(unsafe_code)]

pub mod azure;
pub mod exchange;
pub mod facts;
mod http;
pub mod inquiry;
pub mod pace;
pub mod questions;
pub mod run;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod user_data;

pub use run::{Endpoints, Limits, ProvisionOutlet, Settings, run};
pub use store::StoreError;
