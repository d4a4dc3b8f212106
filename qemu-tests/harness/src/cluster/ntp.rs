//! A small NTP server in a cluster's network, which may lie (RFC 5905, 7.3; SNTP: 14).
//!
//! In: packets of clients on port 123 of the control plane's network namespace. Out: answers of a server of stratum 1 whose
//! clock is the host's and an offset. It stops when it is dropped.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::proxy::inside;

const PORT: u16 = 123;
/// Bytes of a packet without extensions.
const PACKET: usize = 48;
/// Seconds from 1900 to 1970.
const ERA: i64 = 2_208_988_800;
/// The thread looks this often whether it shall stop.
const LOOK: Duration = Duration::from_millis(200);

/// A running server.
pub struct NtpServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NtpServer {
    /// Starts it in the network of process `pid`; its clock shows `offset_s` seconds more than the host's.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn start(pid: i32, offset_s: i64) -> Result<NtpServer> {
        // The socket stays in the network of the thread that makes it.
        let socket = inside(pid, async || -> Result<UdpSocket> {
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("bind the port of NTP")
        })?;
        socket.set_read_timeout(Some(LOOK)).context("limit a read")?;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 512];
            while !seen.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut packet) else { continue };
                if let Some(answer) = answer(&packet[..length], now(offset_s)) {
                    // A client that has gone needs no answer.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(NtpServer { stop, thread: Some(thread) })
    }
}

impl Drop for NtpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Seconds since 1900 modulo 2^32, and their fraction.
fn now(offset_s: i64) -> [u8; 8] {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0) + ERA + offset_s;
    let fraction = (u64::from(since.subsec_nanos()) << 32) / 1_000_000_000;
    let [.., s0, s1, s2, s3] = seconds.to_be_bytes();
    let [.., f0, f1, f2, f3] = fraction.to_be_bytes();
    [s0, s1, s2, s3, f0, f1, f2, f3]
}

/// The answer to a client's packet; `None` for anything else. Pure.
fn answer(question: &[u8], time: [u8; 8]) -> Option<[u8; PACKET]> {
    const CLIENT: u8 = 3;
    if question.len() < PACKET || question[0] & 7 != CLIENT {
        return None;
    }
    let mut answer = [0; PACKET];
    // Version 4, server; stratum 1; the client's poll interval; a precision of a microsecond.
    answer[..4].copy_from_slice(&[0x24, 1, question[2], 0xec]);
    answer[12..16].copy_from_slice(b"TEST");
    answer[16..24].copy_from_slice(&time);
    answer[24..32].copy_from_slice(&question[40..48]);
    answer[32..40].copy_from_slice(&time);
    answer[40..48].copy_from_slice(&time);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_packet_is_answered_with_its_own_time_as_origin() {
        let mut question = [0; PACKET];
        question[0] = 0x23;
        question[40..48].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let reply = answer(&question, [9; 8]).unwrap();
        assert_eq!((reply[0], reply[1]), (0x24, 1));
        assert_eq!(reply[24..32], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((&reply[32..40], &reply[40..48]), (&[9; 8][..], &[9; 8][..]));
        assert!(answer(&question[..47], [9; 8]).is_none());
        question[0] = 0x24;
        assert!(answer(&question, [9; 8]).is_none(), "a server's packet");
    }

    #[test]
    fn a_lie_is_the_hosts_time_and_its_offset() {
        let seconds = |time: [u8; 8]| u32::from_be_bytes([time[0], time[1], time[2], time[3]]);
        let difference = seconds(now(86_400)).wrapping_sub(seconds(now(0)));
        assert!((86_398..=86_400).contains(&difference), "{difference}");
    }
}
