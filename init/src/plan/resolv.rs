//! resolv.conf from networkd's state, where the node's configuration leaves name servers or search domains to DHCP.

/// First line of a file made here; init's own starts otherwise.
const MARK: &str = "# Name servers from DHCP.";
/// What follows this line in init's own file was added here.
const DOMAINS_MARK: &str = "# Search domains from DHCP.";
/// As many as Kubernetes takes over into a pod (`MaxDNSSearchPaths`).
const DOMAINS_MAX: usize = 32;

/// The new text, or `None` if `current` is right. `state` is /run/systemd/netif/state. A file that names a server and
/// has no mark comes from the configuration: it keeps its lines, and has DHCP's search domains if it has none.
#[must_use]
pub fn update(current: &str, state: &str) -> Option<String> {
    let from_configuration =
        !current.starts_with(MARK) && current.lines().any(|l| l.starts_with("nameserver "));
    let mut text = if from_configuration {
        let (own, _) = current.split_once(DOMAINS_MARK).unwrap_or((current, ""));
        if own.lines().any(|l| l.starts_with("search ")) {
            return None;
        }
        own.to_owned()
    } else {
        let mut text = format!("{MARK}\n");
        // libc reads three servers; an address may carry a port or a server name, which libc does not read.
        for server in values(state, "DNS").filter_map(|s| s.split('#').next()).take(3) {
            text.push_str(&format!("nameserver {server}\n"));
        }
        text
    };
    let search: Vec<&str> = values(state, "DOMAINS").filter_map(domain).take(DOMAINS_MAX).collect();
    if !search.is_empty() {
        if from_configuration {
            text.push_str(&format!("{DOMAINS_MARK}\n"));
        }
        text.push_str(&format!("search {}\n", search.join(" ")));
    }
    (text != current).then_some(text)
}

/// The words of one line of the state.
fn values<'a>(state: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    let line = state.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_default().split_whitespace()
}

/// A domain to search in: not the root (`.`), which every name is in, and nothing that is no name.
fn domain(text: &str) -> Option<&str> {
    let name = text.trim_end_matches('.');
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let labels = name.split('.').all(|label| !label.is_empty());
    (labels && name.bytes().all(fits)).then_some(name)
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
        let configured = "# Made\nnameserver 1.2.3.4\nsearch corp.example\n";
        assert_eq!(update(configured, state), None, "configured");
    }

    #[test]
    fn configured_servers_go_with_dhcps_search_domains() {
        let servers = "# Made\nnameserver 1.2.3.4\n";
        let with = update(servers, "DNS=1.2.3.4\nDOMAINS=a.lan b.lan\n").expect("made");
        assert_eq!(with, format!("{servers}# Search domains from DHCP.\nsearch a.lan b.lan\n"));
        assert_eq!(update(&with, "DOMAINS=a.lan b.lan\n"), None, "unchanged");
        let renewed = update(&with, "DOMAINS=c.lan\n").expect("another lease");
        assert_eq!(renewed, format!("{servers}# Search domains from DHCP.\nsearch c.lan\n"));
        assert_eq!(update(&renewed, "").as_deref(), Some(servers), "lease lost");
        assert_eq!(update(servers, ""), None, "no domains");
    }

    #[test]
    fn the_root_and_what_is_no_name_are_not_searched() {
        let search = |domains: &str| {
            let text = update("", &format!("DNS=10.0.0.1\nDOMAINS={domains}\n")).expect("made");
            text.lines().find_map(|l| l.strip_prefix("search ").map(str::to_owned))
        };
        assert_eq!(search("."), None);
        assert_eq!(search(""), None);
        assert_eq!(search(". Corp.Example. ~lan a..b .c x\u{1}y é"), Some("Corp.Example".to_owned()));
        let many = (0..40).map(|n| format!("d{n}")).collect::<Vec<_>>().join(" ");
        assert_eq!(search(&many).map(|s| s.split(' ').count()), Some(32));
    }
}
