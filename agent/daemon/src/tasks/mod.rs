//! Tasks and threads: owners of tasks, mailboxes, locks by key, the error that the agent stops, and the bounded pools of threads for blocking work.

pub mod actor;
pub mod alive;
pub(crate) mod keyed_locks;
pub mod mailbox;
pub mod pools;
pub(crate) mod read_rate;
pub(crate) mod stops;
