//! Tests: the gate and its verdicts as tables, windows and semaphore as properties, the machine against a small model.

mod gate;
mod machine;
mod semaphore;
mod turns;
mod windows;
