//! Randomness for jitter, from the one provider of cryptography.
//!
//! In: nothing. Out: a number. Invariant: never fails; a system without randomness yields the middle.

use ring::rand::{SecureRandom, SystemRandom};

/// Uniform in 0.0..1.0.
pub(crate) fn fraction() -> f64 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 0.5,
    }
}
