//! A lock that stays usable after a panic.
//!
//! In: a value that several threads use. Out: a guard. Invariant: a thread gets the lock also after a panic of the last holder. A
//! release build aborts at a panic, so no thread sees the poison; in tests the panic itself fails the test. The holder changes the
//! value in complete steps. Decisions have one owner and no lock: agent-core may not use this type (its clippy.toml).

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value behind a lock.
#[derive(Debug, Default)]
pub struct Lock<T: ?Sized>(Mutex<T>);

impl<T> Lock<T> {
    /// The value behind a free lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }
}

impl<T: ?Sized> Lock<T> {
    /// Waits for the value. The guard must not be held across an await.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_of_the_holder_does_not_lock_the_value_up() {
        let lock = Lock::new(vec![1]);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut guard = lock.lock();
            guard.push(2);
            panic!("while it is held");
        }));
        assert!(panicked.is_err());
        lock.lock().push(3);
        assert_eq!(*lock.lock(), [1, 2, 3]);
    }
}
