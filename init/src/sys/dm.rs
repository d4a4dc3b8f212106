//! Device-mapper ioctls: make a read-only device from one target. Upstream: linux/dm-ioctl.h, interface 4.0.
#![allow(unsafe_code)]

use crate::plan::verity::Target;
use nix::errno::Errno;
use nix::libc;
use std::fs::File;
use std::os::fd::AsRawFd;

/// Size of `struct dm_ioctl`, which precedes every payload.
const HEADER: usize = 312;
/// Offset of the payload: the header rounded up to 8.
const PAYLOAD: usize = 312;
const NAME_AT: usize = 48;
const NAME_MAX: usize = 127;
const UUID_AT: usize = 176;
const UUID_MAX: usize = 128;
const FLAGS_AT: usize = 28;
const DEV_AT: usize = 40;

const FLAG_READONLY: u32 = 1;

const DEV_CREATE: u8 = 3;
const DEV_REMOVE: u8 = 4;
const DEV_SUSPEND: u8 = 6;
const TABLE_LOAD: u8 = 9;

/// An ioctl that failed.
#[derive(Debug, thiserror::Error)]
#[error("device-mapper {operation} of \"{name}\"")]
pub struct DmError {
    /// `create`, `table load`, `resume`, `remove`.
    pub operation: &'static str,
    /// Device name.
    pub name: String,
    /// The kernel's answer; its reason is in kmsg.
    #[source]
    pub source: Errno,
}

/// Makes device `name` from `target` and brings it up; returns its `major:minor`.
/// A device that could not be brought up is removed again.
///
/// # Errors
/// The failed operation.
pub fn create_read_only(
    control: &File,
    name: &str,
    uuid: &str,
    target: &Target,
) -> Result<(u64, u64), DmError> {
    let fail = |operation| move |source| DmError { operation, name: name.to_string(), source };
    let mut create = request(name, uuid, 0, None);
    ioctl(control, DEV_CREATE, &mut create).map_err(fail("create"))?;
    let device = device_number(&create);
    let up = ioctl(control, TABLE_LOAD, &mut request(name, "", FLAG_READONLY, Some(target)))
        .map_err(fail("table load"))
        // "suspend" without its flag is resume.
        .and_then(|()| ioctl(control, DEV_SUSPEND, &mut request(name, "", 0, None)).map_err(fail("resume")));
    if let Err(e) = up {
        // The table's error is the one to report.
        let _ = ioctl(control, DEV_REMOVE, &mut request(name, "", 0, None));
        return Err(e);
    }
    Ok(device)
}

fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    buffer[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_len(buffer: &mut [u8], at: usize, value: usize) {
    put(buffer, at, &u32::try_from(value).unwrap_or(u32::MAX).to_ne_bytes());
}

/// The whole argument of an ioctl: header, and one target specification if there is a table.
fn request(name: &str, uuid: &str, flags: u32, target: Option<&Target>) -> Vec<u8> {
    let mut payload = Vec::new();
    if let Some(target) = target {
        // struct dm_target_spec: start, length, status, next, type; then parameters with their NUL, padded.
        payload.extend_from_slice(&0u64.to_ne_bytes());
        payload.extend_from_slice(&target.sectors.to_ne_bytes());
        payload.extend_from_slice(&[0; 8]);
        let mut kind = [0u8; 16];
        let length = target.kind.len().min(15);
        kind[..length].copy_from_slice(&target.kind.as_bytes()[..length]);
        payload.extend_from_slice(&kind);
        payload.extend_from_slice(target.params.as_bytes());
        payload.push(0);
        payload.resize(payload.len().next_multiple_of(8), 0);
    }
    let mut buffer = vec![0u8; PAYLOAD + payload.len()];
    let total = buffer.len();
    put(&mut buffer, 0, &4u32.to_ne_bytes());
    put_len(&mut buffer, 12, total);
    put_len(&mut buffer, 16, PAYLOAD);
    put_len(&mut buffer, 20, usize::from(target.is_some()));
    put(&mut buffer, FLAGS_AT, &flags.to_ne_bytes());
    put(&mut buffer, NAME_AT, &name.as_bytes()[..name.len().min(NAME_MAX)]);
    put(&mut buffer, UUID_AT, &uuid.as_bytes()[..uuid.len().min(UUID_MAX)]);
    put(&mut buffer, PAYLOAD, &payload);
    buffer
}

fn device_number(answer: &[u8]) -> (u64, u64) {
    let dev = answer[DEV_AT..DEV_AT + 8].try_into().map_or(0, u64::from_ne_bytes);
    (nix::sys::stat::major(dev), nix::sys::stat::minor(dev))
}

fn ioctl(control: &File, command: u8, buffer: &mut [u8]) -> Result<(), Errno> {
    let code = nix::request_code_readwrite!(0xfd, command, HEADER);
    assert!(buffer.len() >= HEADER, "request() makes at least a header");
    // SAFETY: the kernel reads and writes at most `data_size` bytes, which request() sets to the length of
    // this buffer; the buffer outlives the call and the descriptor is open.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), code, buffer.as_mut_ptr()) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_a_table_load() {
        let target = Target { sectors: 80, kind: "verity", params: "1 254:2".into() };
        let b = request("orlop-root", "CRYPT-VERITY-00", FLAG_READONLY, Some(&target));
        let u32_at = |at: usize| u32::from_ne_bytes(b[at..at + 4].try_into().expect("four bytes"));
        assert_eq!((u32_at(0), u32_at(12), u32_at(16), u32_at(20), u32_at(28)), (4, 360, 312, 1, 1));
        assert_eq!(&b[48..59], b"orlop-root\0");
        assert_eq!(&b[176..192], b"CRYPT-VERITY-00\0");
        assert_eq!(b[312 + 8], 80);
        assert_eq!(&b[312 + 24..312 + 31], b"verity\0");
        assert_eq!(&b[312 + 40..312 + 48], b"1 254:2\0");
    }

    #[test]
    fn names_too_long_are_cut_not_overrun() {
        let b = request(&"n".repeat(500), &"u".repeat(500), 0, None);
        assert_eq!((b.len(), b[NAME_AT + NAME_MAX], b[UUID_AT + UUID_MAX]), (HEADER, 0, 0));
    }

    #[test]
    fn device_numbers_decode() {
        let mut b = vec![0u8; HEADER];
        b[DEV_AT..DEV_AT + 8].copy_from_slice(&0xfe01u64.to_ne_bytes());
        assert_eq!(device_number(&b), (254, 1));
    }
}
