//! How the kernel corrects its clock: `adjtimex(2)`, which is asked and changes nothing.
//!
//! Why no crate: neither nix nor rustix has the call.
#![allow(unsafe_code)]

use std::io;

use agent_kubelet_api::node_metrics::TimexReading;
use nix::libc;

/// The state of a clock that no other one vouches for (`TIME_ERROR`).
const NOT_SYNCHRONIZED: i32 = 5;

/// Reads the state of the kernel's clock.
///
/// # Errors
/// The kernel's refusal.
pub fn read() -> io::Result<TimexReading> {
    // SAFETY: the struct has only integers, for which zeros are values; `modes` 0 asks for no change.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer leads to a struct of the size that the kernel writes, and is not kept by it.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TimexReading {
        synchronized: state != NOT_SYNCHRONIZED,
        offset: timex.offset,
        freq: timex.freq,
        maxerror: timex.maxerror,
        esterror: timex.esterror,
        status: timex.status.into(),
        constant: timex.constant,
        tick: timex.tick,
        ppsfreq: timex.ppsfreq,
        jitter: timex.jitter,
        shift: timex.shift.into(),
        stabil: timex.stabil,
        jitcnt: timex.jitcnt,
        calcnt: timex.calcnt,
        errcnt: timex.errcnt,
        stbcnt: timex.stbcnt,
        tai: timex.tai.into(),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_has_a_tick_and_is_not_changed() {
        // A sandbox may refuse the call; then there is nothing to compare.
        let Ok(first) = super::read() else { return };
        assert!((9_000..=11_000).contains(&first.tick), "{first:?}");
        let second = super::read().unwrap();
        assert_eq!((first.tick, first.constant), (second.tick, second.constant));
    }
}
