//! A value that counts its changes, so that observers need not compare it.
//!
//! In: reads and changes through the value itself. Out: a revision. Invariant: with the same revision the
//! value is the same.

use std::ops::{Deref, DerefMut};

/// A value and the number of times that it was accessed to be changed.
#[derive(Clone, Debug, Default)]
pub struct Revised<T> {
    value: T,
    revision: u64,
}

impl<T> Revised<T> {
    /// Differs from an earlier one if the value may have changed.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

impl<T> Deref for Revised<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Revised<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.revision += 1;
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_change_is_counted_and_a_read_is_not() {
        let mut map: Revised<BTreeMap<u8, u8>> = Revised::default();
        map.insert(1, 2);
        let revision = map.revision();
        assert_eq!((map.get(&1), map.iter().count()), (Some(&2), 1));
        assert_eq!(map.revision(), revision);
        map.insert(1, 3);
        assert_ne!(map.revision(), revision);
    }
}
