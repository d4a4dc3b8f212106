//! The C library's heap, which Rust's standard allocator uses.
//!
//! glibc keeps freed memory in case it is wanted again: after a hundred pods have started at once that is half of
//! what the agent holds. It also begins an arena for each thread, up to eight for each processor, and what one thread has
//! freed is of no use to another. See malloc_trim(3), mallopt(3).
#![allow(unsafe_code)]

/// Gives pages without live allocations back to the kernel. Takes a few milliseconds for a heap of tens of MiB, in
/// which no other thread can allocate.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called at any time from any thread: it takes the allocator's own locks, moves no live
    // allocation, and its argument is only how much to leave at the top of the heap.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Arenas that [`share_arenas`] allows: one for each of the threads that carry the work.
#[cfg(target_env = "gnu")]
const ARENAS: i32 = 2;

/// Has all threads share two arenas. To be called before there are threads; a C library that refuses goes on as it was.
pub fn share_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt changes a limit of the allocator's under its own lock; it takes and answers plain numbers.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, ARENAS);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Resident memory of this process in KiB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("this process has a status");
        orlop_config::procfs::kilobytes(&status, "VmRSS").expect("it has its memory") / 1024
    }

    #[test]
    fn freed_pages_between_live_allocations_go_back() {
        // Blocks too small for mappings of their own; every hundredth stays, so the heap's end cannot move down.
        let mut blocks: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 4096]).collect();
        let full = resident();
        let mut index = 0;
        blocks.retain(|_| {
            index += 1;
            index % 100 == 0
        });
        give_back();
        let left = resident();
        assert_eq!(blocks.len(), 200);
        assert!(left + 40 * 1024 < full, "{full} KiB before, {left} KiB after");
    }
}
