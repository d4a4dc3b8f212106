//! A filter of system calls whose listener decides: seccomp(2), seccomp_unotify(2).
//!
//! In: numbers of calls. Out: each of them, made by the thread that asked to be listened to or by one that it started, as a
//! notification that waits for an answer. Invariant: calls that are not asked for are never held up.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc::{self, c_long};
use nix::sys::prctl::set_no_new_privs;

/// A call that waits for its answer.
pub(crate) struct Notification {
    id: u64,
    /// Thread.
    pub(crate) pid: i32,
    /// Number of the call.
    pub(crate) number: c_long,
    /// As the call got them.
    pub(crate) arguments: [u64; 6],
}

/// One instruction of the filter.
fn instruction(code: u32, jump_true: u8, k: u32) -> libc::sock_filter {
    let code = u16::try_from(code).expect("codes are 16 bits");
    libc::sock_filter { code, jt: jump_true, jf: 0, k }
}

/// Puts this thread under a filter; answers its listener. There is no way out of it for the thread.
pub(crate) fn listen(numbers: &[c_long]) -> nix::Result<OwnedFd> {
    // Otherwise it takes CAP_SYS_ADMIN.
    set_no_new_privs()?;
    let mut filter = Vec::new();
    // The number is the first thing in seccomp_data. This program makes calls of one architecture alone.
    filter.push(instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0));
    for (at, number) in numbers.iter().enumerate() {
        // Over the rest of the list and the answer "allow".
        let over = u8::try_from(numbers.len() - at).expect("fewer than 256 calls");
        let number = u32::try_from(*number).expect("a number of a call");
        filter.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, over, number));
    }
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_USER_NOTIF));
    let length = u16::try_from(filter.len()).expect("a short filter");
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which points to `len` instructions that live until the call is over.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    let listener = i32::try_from(Errno::result(listener)?).expect("a file descriptor");
    // SAFETY: the call has just made this descriptor, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// The next call that waits; none if its thread was killed meanwhile.
pub(crate) fn receive(listener: &OwnedFd) -> Option<Notification> {
    // SAFETY: all zeroes is a value of this plain struct, and the one that the kernel asks for.
    let mut raw: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the request writes one `seccomp_notif` to where it points; the struct is as large as this kernel's interface
    // says by the request's number.
    let told = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut raw) };
    Errno::result(told).ok()?;
    Some(Notification {
        id: raw.id,
        pid: i32::try_from(raw.pid).ok()?,
        number: c_long::from(raw.data.nr),
        arguments: raw.data.args,
    })
}

/// Lets the call go on, or has it fail.
pub(crate) fn answer(listener: &OwnedFd, notification: &Notification, failure: Option<Errno>) {
    let (error, flags) = match failure {
        Some(errno) => (-(errno as i32), 0),
        None => (0, u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).expect("a flag of 32 bits")),
    };
    let mut response = libc::seccomp_notif_resp { id: notification.id, val: 0, error, flags };
    // SAFETY: the request reads one `seccomp_notif_resp` from where it points. If the thread is gone it fails, and no
    // answer is needed.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
}
