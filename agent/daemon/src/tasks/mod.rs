//! Tasks and threads: owners of tasks, mailboxes, locks by key, and the bounded pools of threads for blocking work.

pub mod actor;
pub mod alive;
pub(crate) mod keyed_locks;
pub mod mailbox;
pub mod pools;
