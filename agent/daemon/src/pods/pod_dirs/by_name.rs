//! Locks by name for work in blocking threads: work on one name waits for nothing but earlier work on that name.
//!
//! In: a name. Out: a guard. Invariant: a name that is not held takes no memory.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Locks by name. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ByName(Arc<(Mutex<BTreeSet<Vec<u8>>>, Condvar)>);

/// Holds a name until it is dropped.
#[derive(Debug)]
pub(super) struct NameLock {
    locks: ByName,
    name: Vec<u8>,
}

impl ByName {
    /// Waits until the name is free, and holds it.
    pub(super) fn lock(&self, name: &[u8]) -> NameLock {
        let (held, freed) = &*self.0;
        // Every change of the set is whole, also if a holder panicked.
        let held = held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held =
            freed.wait_while(held, |held| held.contains(name)).unwrap_or_else(PoisonError::into_inner);
        held.insert(name.to_vec());
        NameLock { locks: self.clone(), name: name.to_vec() }
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        let (held, freed) = &*self.locks.0;
        held.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
        freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn names_wait_for_themselves_alone() {
        let locks = ByName::default();
        let first = locks.lock(b"a");
        // A name with the same sum of bytes, and any other, is free.
        drop((locks.lock(b"b"), locks.lock(b"c")));
        let (send, got) = channel();
        std::thread::scope(|scope| {
            let other = locks.clone();
            scope.spawn(move || {
                let _second = other.lock(b"a");
                send.send(()).unwrap();
            });
            assert!(got.try_recv().is_err(), "the name is held");
            drop(first);
            got.recv().unwrap();
        });
        assert!(locks.0.0.lock().unwrap().is_empty(), "a name that is not held takes no memory");
    }
}
