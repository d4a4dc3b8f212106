//! Ports of this machine that lead to the guest, by QEMU's own network (pure).

use std::fmt;
use std::str::FromStr;

/// A TCP port of this machine's loopback that leads to a port of the guest. It works in a network that leads nowhere, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForward {
    /// Port of this machine's 127.0.0.1.
    pub host: u16,
    /// Port of the guest.
    pub guest: u16,
}

impl FromStr for PortForward {
    type Err = String;

    fn from_str(text: &str) -> Result<PortForward, String> {
        let port = |part: &str| {
            // A number alone: `+80` is one to the parser of numbers.
            let digits = part.bytes().all(|b| b.is_ascii_digit());
            part.parse::<u16>().ok().filter(|port| digits && *port > 0)
        };
        let (host, guest) = text.split_once(':').ok_or("must be HOST_PORT:GUEST_PORT, such as 8080:80")?;
        let of = |name: &str, part: &str| {
            port(part).ok_or_else(|| format!("{name} is {part:?}, and must be a port from 1 to 65535"))
        };
        Ok(PortForward { host: of("HOST_PORT", host)?, guest: of("GUEST_PORT", guest)? })
    }
}

impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.guest)
    }
}

/// What QEMU's own network gets in addition.
pub(super) fn options(forwards: &[PortForward]) -> String {
    let one = |forward: &PortForward| format!(",hostfwd=tcp:127.0.0.1:{}-:{}", forward.host, forward.guest);
    forwards.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_this_machine_and_one_of_the_guest() {
        let forward: PortForward = "18080:80".parse().expect("two ports");
        assert_eq!(forward, PortForward { host: 18080, guest: 80 });
        assert_eq!(forward.to_string(), "18080:80");
        assert_eq!(options(&[forward, forward]), ",hostfwd=tcp:127.0.0.1:18080-:80".repeat(2));
        assert_eq!(options(&[]), "");
    }

    #[test]
    fn what_is_no_pair_of_ports_is_refused_by_name() {
        for (text, named) in [
            ("", "HOST_PORT:GUEST_PORT"),
            ("8080", "HOST_PORT:GUEST_PORT"),
            (":80", "HOST_PORT is \"\""),
            ("0:80", "HOST_PORT is \"0\""),
            ("+80:80", "HOST_PORT is \"+80\""),
            ("70000:80", "HOST_PORT is \"70000\""),
            ("8080:", "GUEST_PORT is \"\""),
            ("8080:http", "GUEST_PORT is \"http\""),
            ("127.0.0.1:8080:80", "HOST_PORT is \"127.0.0.1\""),
        ] {
            let refused = text.parse::<PortForward>().expect_err(text);
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }
}
