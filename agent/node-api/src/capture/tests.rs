//! Limits of a capture, and a capture of the loopback interface.

use std::net::UdpSocket;

use super::filter::PacketFilter;
use super::*;

fn wish(packets: u64, bytes: u64) -> CaptureWish {
    CaptureWish {
        interface: "lo".to_owned(),
        time: Duration::from_secs(20),
        bytes,
        packets,
        snap_bytes: 64,
        filter: PacketFilter::default(),
    }
}

fn capture(wish: CaptureWish, pieces_max: usize) -> (Capture, mpsc::Receiver<CapturePiece>) {
    let interface = Interface { number: 1, hardware: LOOPBACK, link: LinkKind::Ethernet };
    let (pieces, taken) = mpsc::channel(pieces_max);
    let capture =
        Capture { interface, wish, pieces, piece: Vec::new(), in_piece: 0, bytes: 0, count: 0, lost: 0 };
    (capture, taken)
}

#[test]
fn packets_and_bytes_end_a_capture() {
    let (mut by_packets, mut taken) = capture(wish(2, 1 << 20), 4);
    assert_eq!(by_packets.take(&[1; 100]), Ok(()));
    assert_eq!(by_packets.take(&[1; 100]), Err("packets"));
    by_packets.send();
    assert_eq!((by_packets.count, by_packets.lost), (2, 0));
    // Each is cut to 64 bytes, and has a head of 16.
    assert_eq!(taken.try_recv().unwrap().data.len(), 160);
    let (mut by_bytes, _taken) = capture(wish(u64::MAX, 170), 4);
    assert_eq!((by_bytes.take(&[1; 100]), by_bytes.take(&[1; 100])), (Ok(()), Ok(())));
    assert_eq!(by_bytes.take(&[1; 100]), Err("bytes"));
    assert_eq!(by_bytes.take(&[]), Err("bytes"), "16 bytes are more than the ten that are left");
}

#[test]
fn a_client_that_reads_nothing_loses_packets_that_do_not_count() {
    let (mut slow, mut taken) = capture(wish(u64::MAX, 1 << 20), 1);
    for _ in 0..3 {
        assert_eq!(slow.take(&[1; 10]), Ok(()));
        slow.send();
    }
    assert_eq!((slow.count, slow.lost, slow.bytes), (1, 2, 26));
    assert_eq!(taken.try_recv().unwrap().data.len(), 26);
    slow.send();
    assert!(taken.try_recv().is_err(), "an empty piece is not sent");
}

#[test]
fn interfaces_are_those_of_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    for (name, hardware) in [("eth0", "1"), ("ib0", "32")] {
        let at = dir.path().join("sys/class/net").join(name);
        std::fs::create_dir_all(&at).unwrap();
        std::fs::write(at.join("ifindex"), "7\n").unwrap();
        std::fs::write(at.join("type"), format!("{hardware}\n")).unwrap();
    }
    let found = interface(dir.path(), "eth0").unwrap();
    assert_eq!((found.number, found.link), (7, LinkKind::Ethernet));
    for name in ["ib0", "eth1"] {
        assert_eq!(interface(dir.path(), name).unwrap_err().reason, Reason::BadRequest, "{name}");
    }
}

#[test]
fn a_record_names_what_is_captured() {
    let request = CaptureRequest { interface: "eth0".to_owned(), port: 443, ..CaptureRequest::default() };
    assert_eq!(object(&request), "interface eth0 port 443");
}

#[tokio::test]
async fn a_capture_of_the_loopback_interface_has_a_datagram_once() {
    let Ok(lo) = interface(Path::new("/"), "lo") else {
        eprintln!("skipped: this machine has no loopback interface");
        return;
    };
    if let Err(error) = packet_socket(lo) {
        eprintln!("skipped: captures need CAP_NET_RAW: {error}");
        return;
    }
    let places = CapturePlaces::default();
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = receiver.local_addr().unwrap();
    let filter = PacketFilter { port: Some(address.port()), ..PacketFilter::default() };
    let wish = CaptureWish { filter, ..wish(2, 1 << 20) };
    let mut pieces = begin(Path::new("/"), wish, places.take().unwrap()).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for text in ["first datagram", "second datagram"] {
        sender.send_to(text.as_bytes(), address).unwrap();
    }
    let (mut file, mut end) = (Vec::new(), None);
    while let Some(piece) = pieces.next().await {
        let piece = piece.unwrap();
        file.extend(piece.data);
        end = end.or(piece.end);
    }
    let end = end.unwrap();
    assert_eq!((end.reason.as_str(), end.packets, end.lost_packets), ("packets", 2, 0));
    let times = |text: &[u8]| file.windows(text.len()).filter(|window| *window == text).count();
    assert_eq!((times(b"first datagram"), times(b"second datagram")), (1, 1));
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    // Its place is free again when the capture has ended.
    let free = async {
        while places.0.available_permits() < CAPTURES_MAX {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(5), free).await.unwrap();
}

#[test]
fn captures_are_few() {
    let places = CapturePlaces::default();
    let taken: Vec<OwnedSemaphorePermit> = (0..CAPTURES_MAX).map(|_| places.take().unwrap()).collect();
    assert_eq!(places.take().unwrap_err().reason, Reason::TooManyStreams);
    drop(taken);
    assert!(places.take().is_ok());
}
