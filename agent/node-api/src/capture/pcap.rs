//! Files of pcap, as every reader of captures takes them (draft-ietf-opsawg-pcap). Pure. Why no crate: it is two records of numbers.

/// Magic of times in microseconds.
const MAGIC: u32 = 0xa1b2_c3d4;
/// Version 2.4.
const VERSION: (u16, u16) = (2, 4);
/// Bytes of the head of a packet.
pub(super) const PACKET_HEAD: usize = 16;

/// What a packet begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    /// A header of Ethernet, also on the loopback interface.
    Ethernet,
    /// A header of IPv4 or IPv6.
    Ip,
}

impl LinkKind {
    /// Of an interface, by its hardware type (`ARPHRD_*` of linux/if_arp.h); `None`: its packets are not understood here.
    pub(super) fn of(hardware: u32) -> Option<LinkKind> {
        match hardware {
            // Ethernet, loopback.
            1 | 772 => Some(LinkKind::Ethernet),
            // Tunnels: none, IPIP, IPv6, SIT.
            65534 | 768 | 769 | 776 => Some(LinkKind::Ip),
            _ => None,
        }
    }

    /// `LINKTYPE_*`.
    fn number(self) -> u32 {
        match self {
            LinkKind::Ethernet => 1,
            LinkKind::Ip => 101,
        }
    }
}

/// The head of a file.
pub(super) fn file_head(link: LinkKind, snap_bytes: u32) -> Vec<u8> {
    let mut head = Vec::with_capacity(24);
    head.extend_from_slice(&MAGIC.to_le_bytes());
    head.extend_from_slice(&VERSION.0.to_le_bytes());
    head.extend_from_slice(&VERSION.1.to_le_bytes());
    // Two fields that no reader uses.
    head.extend_from_slice(&[0; 8]);
    head.extend_from_slice(&snap_bytes.to_le_bytes());
    head.extend_from_slice(&link.number().to_le_bytes());
    head
}

/// When a packet came: seconds since 1970, and microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketTime {
    pub(super) seconds: u32,
    pub(super) micros: u32,
}

/// Appends a packet; it is cut to `snap_bytes`.
pub(super) fn packet(out: &mut Vec<u8>, time: PacketTime, bytes: &[u8], snap_bytes: usize) {
    let kept = bytes.get(..snap_bytes).unwrap_or(bytes);
    // A packet has fewer bytes than 32 bits count.
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    for number in [time.seconds, time.micros, length(kept), length(bytes)] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_as_other_programs_write_it() {
        let mut file = file_head(LinkKind::Ethernet, 256);
        packet(&mut file, PacketTime { seconds: 0x0102_0304, micros: 7 }, &[0xaa, 0xbb, 0xcc], 2);
        let want: [&[u8]; 4] = [
            &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 1, 0, 0, 1, 0, 0, 0],
            &[4, 3, 2, 1, 7, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0],
            &[0xaa, 0xbb],
        ];
        assert_eq!(file, want.concat());
    }

    #[test]
    fn a_packet_that_is_short_is_whole() {
        let mut file = Vec::new();
        packet(&mut file, PacketTime { seconds: 1, micros: 2 }, &[5; 3], 256);
        assert_eq!(file.len(), PACKET_HEAD + 3);
        assert_eq!((&file[8..12], &file[12..16]), (&[3, 0, 0, 0][..], &[3, 0, 0, 0][..]));
        assert_eq!(file_head(LinkKind::Ip, 1)[20..], [101, 0, 0, 0]);
    }

    #[test]
    fn interfaces_of_other_kinds_are_not_understood() {
        assert_eq!(LinkKind::of(1), Some(LinkKind::Ethernet));
        assert_eq!(LinkKind::of(65534), Some(LinkKind::Ip));
        // Wireless monitor, InfiniBand.
        for other in [803, 32, 0] {
            assert_eq!(LinkKind::of(other), None, "{other}");
        }
    }
}
