//! resolv.conf from networkd's state, when the node's configuration leaves name servers to DHCP.

/// First line of a file made here; init's own starts otherwise.
const MARK: &str = "# Name servers from DHCP.";

/// The new text, or `None` if `current` is right or comes from the configuration (it names a server and has no
/// mark). `state` is /run/systemd/netif/state.
#[must_use]
pub fn update(current: &str, state: &str) -> Option<String> {
    let from_configuration =
        !current.starts_with(MARK) && current.lines().any(|l| l.starts_with("nameserver "));
    if from_configuration {
        return None;
    }
    let value = |key: &str| {
        let line = state.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().split_whitespace().map(str::to_string).collect::<Vec<_>>()
    };
    let mut text = format!("{MARK}\n");
    // libc reads three servers; an address may carry a port or a server name, which libc does not read.
    for server in value("DNS").iter().filter_map(|s| s.split('#').next()).take(3) {
        text.push_str(&format!("nameserver {server}\n"));
    }
    let search = value("DOMAINS");
    if !search.is_empty() {
        text.push_str(&format!("search {}\n", search.join(" ")));
    }
    (text != current).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dhcp_fills_what_the_configuration_leaves_open() {
        let state =
            "# private\nOPER_STATE=routable\nDNS=10.0.2.3 fd00::3#dns.lan 9.9.9.9 1.1.1.1\nDOMAINS=lan\n";
        let made = update("# Made from the node's configuration.\n", state).expect("made");
        let want = "# Name servers from DHCP.\nnameserver 10.0.2.3\nnameserver fd00::3\nnameserver 9.9.9.9\nsearch lan\n";
        assert_eq!(made, want);
        assert_eq!(update(&made, state), None, "unchanged");
        assert_eq!(update(&made, "").as_deref(), Some("# Name servers from DHCP.\n"), "lease lost");
        assert_eq!(update("# Made\nnameserver 1.2.3.4\n", state), None, "configured");
    }
}
