//! Tests: the gate, its verdicts and orders as tables, windows and semaphore as properties, the machine against a small model.

mod gate;
mod machine;
mod orders;
mod semaphore;
mod turns;
mod windows;
