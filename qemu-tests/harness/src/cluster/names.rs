//! The name server of a cluster's nodes: it answers that no name exists.
//!
//! In: questions on port 53 of the control plane's network namespace, which nodes have in their resolv.conf. Out:
//! NXDOMAIN. Without it a node's resolver would get an ICMP error, which the kernel sends once a second only; more
//! frequent questions wait for seconds, and a kubelet asks for its own name when it starts. Source of the format: RFC
//! 1035, 4.1.

use std::io;
use std::net::Ipv4Addr;

use tokio::net::UdpSocket;

/// Port of name servers.
const PORT: u16 = 53;
/// Longer questions are of no resolver that is here.
const QUESTION_MAX: usize = 512;
/// Bytes before the question.
const HEADER: usize = 12;

/// Binds the port, in the network namespace of the calling thread.
///
/// # Errors
/// If the port is in use.
pub async fn listen() -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).await
}

/// Answers for as long as there is a network.
pub async fn answer(socket: UdpSocket) {
    let mut packet = [0; QUESTION_MAX];
    while let Ok((len, from)) = socket.recv_from(&mut packet).await {
        if let Some(answer) = no_such_name(&packet[..len]) {
            // A client that has gone needs no answer.
            let _ = socket.send_to(&answer, from).await;
        }
    }
}

/// NXDOMAIN for a packet with one question; `None` for anything else. Pure.
fn no_such_name(packet: &[u8]) -> Option<Vec<u8>> {
    let (id, flags) = (packet.get(..2)?, packet.get(2..4)?);
    if flags[0] & 0x80 != 0 || packet.get(4..6)? != [0, 1] {
        return None;
    }
    let mut end = HEADER;
    loop {
        let label = usize::from(*packet.get(end)?);
        end += 1 + label;
        if label == 0 {
            break;
        }
    }
    let question = packet.get(HEADER..end + 4)?;
    // An answer to the question, with recursion; one question and no other section.
    let counts = [0, 1, 0, 0, 0, 0, 0, 0];
    Some([id, &[0x80 | flags[0], 0x83], &counts, question].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: &[u8] = b"\x04peer\x00\x00\x01\x00\x01";

    fn packet(flags: [u8; 2], counts: [u8; 8], rest: &[u8]) -> Vec<u8> {
        [&[0xab, 0xcd], &flags, &counts[..], rest].concat()
    }

    #[test]
    fn no_name_is_known() {
        // An OPT record follows the question; the answer does not repeat it.
        let asked = packet([1, 0], [0, 1, 0, 0, 0, 0, 0, 1], &[QUESTION, b"\x00\x00\x29rest"].concat());
        let answer = packet([0x81, 0x83], [0, 1, 0, 0, 0, 0, 0, 0], QUESTION);
        assert_eq!(no_such_name(&asked), Some(answer));
    }

    #[test]
    fn what_is_no_question_is_not_answered() {
        let one = [0, 1, 0, 0, 0, 0, 0, 0];
        for packet in [
            packet([0x81, 0], one, QUESTION),
            packet([1, 0], [0, 2, 0, 0, 0, 0, 0, 0], QUESTION),
            packet([1, 0], one, &QUESTION[..7]),
            packet([1, 0], one, b"\xff"),
            Vec::new(),
        ] {
            assert_eq!(no_such_name(&packet), None, "{packet:?}");
        }
    }
}
