//! Kernel uevents as they arrive on NETLINK_KOBJECT_UEVENT: `action@devpath`, then `KEY=value`, NUL between.

/// The part of a uevent that init looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uevent {
    /// `add`, `change`, `remove`, ...
    pub action: String,
    /// `block`, `virtio-ports`, ...
    pub subsystem: String,
    /// Path below /dev, if the device has a node.
    pub devname: String,
    /// It names what drives it.
    pub modalias: bool,
}

/// Parses one message; `None` if it is not the kernel's own form (udev's messages start with `libudev`).
#[must_use]
pub fn parse(message: &[u8]) -> Option<Uevent> {
    let mut fields = message.split(|b| *b == 0);
    let header = std::str::from_utf8(fields.next()?).ok()?;
    let (action, path) = header.split_once('@')?;
    if action.is_empty() || !path.starts_with('/') {
        return None;
    }
    let mut event = Uevent { action: action.to_string(), ..Uevent::default() };
    for field in fields {
        let Some((key, value)) = std::str::from_utf8(field).ok().and_then(|f| f.split_once('=')) else {
            continue;
        };
        match key {
            "SUBSYSTEM" => event.subsystem = value.to_string(),
            "DEVNAME" => event.devname = value.to_string(),
            "MODALIAS" => event.modalias = true,
            _ => {}
        }
    }
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kernel_messages() {
        let message = b"add@/devices/pci0000:00/virtio1/block/vda\0ACTION=add\0SUBSYSTEM=block\0DEVNAME=vda\0SEQNUM=7\0";
        let want = Uevent {
            action: "add".into(),
            subsystem: "block".into(),
            devname: "vda".into(),
            modalias: false,
        };
        assert_eq!(parse(message), Some(want));
        for other in [&b"libudev\0\xfe\xed"[..], b"", b"@/x", b"add@relative", b"\xff@/x\0"] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes(message in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&message);
        }
    }
}
