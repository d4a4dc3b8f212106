//! The only source of randomness in a simulated run: a small seeded generator, so that a seed replays a run.
//!
//! The generator is the one that the agent's machines use ([`Entropy`]): good enough to pick faults, not for secrets.

use agent_types::entropy::Entropy;

/// A seeded generator; the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng {
    stream: Entropy,
}

impl Rng {
    /// Starts from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Not the stream that an agent of the same seed draws from.
        Rng { stream: Entropy::new(seed ^ 0x9E37_79B9_7F4A_7C15) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.stream.next_u64()
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of `items`; `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let i = usize::try_from(self.below(items.len() as u64)).ok()?;
        items.get(i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers_and_bounds_hold() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        for _ in 0..1000 {
            assert_eq!(a.next_u64(), b.next_u64());
        }
        let mut r = Rng::new(1);
        assert!((0..1000).all(|_| (3..=9).contains(&r.between(3, 9))));
        assert_ne!(Rng::new(1).next_u64(), Rng::new(2).next_u64());
    }
}
