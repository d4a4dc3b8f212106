//! The node's rule that pods of the standalone network leave it under the node's address: the network's configuration
//! in, text for `nft -f` out. One rule for the whole range, in place of the bridge plugin's one for each pod, which
//! takes four program starts.

use serde_json::Value;
use std::fmt::Write;

/// The rules for the network of a configuration that init wrote, or `None` if it is not ours, or the plugin masquerades
/// by itself (`ipMasq`, as earlier versions wrote it).
#[must_use]
pub fn rules(conflist: &str) -> Option<String> {
    let list: Value = serde_json::from_str(conflist).ok()?;
    let bridge = list.get("plugins")?.get(0).filter(|p| p.get("type").is_some_and(|t| t == "bridge"))?;
    if bridge.get("ipMasq").is_some_and(|masq| masq == true) {
        return None;
    }
    let mut text = String::new();
    for subnet in
        bridge.pointer("/ipam/ranges")?.as_array()?.iter().filter_map(|set| set.pointer("/0/subnet"))
    {
        let subnet = subnet.as_str().filter(|s| !s.is_empty() && s.chars().all(of_an_address))?;
        let (family, multicast) =
            if subnet.contains(':') { ("ip6", "ff00::/8") } else { ("ip", "224.0.0.0/4") };
        // Declared before it is emptied: the text applies as a whole, and again.
        let table = format!("table {family} orlop_pods");
        let _ = write!(
            text,
            "{table}\nflush {table}\n{table} {{\n\tchain postrouting {{\n\t\ttype nat hook postrouting priority srcnat\n\t\t{family} saddr \
             {subnet} {family} daddr != {subnet} {family} daddr != {multicast} masquerade\n\t}}\n}}\n"
        );
    }
    (!text.is_empty()).then_some(text)
}

fn of_an_address(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(plugin: &str) -> String {
        format!(r#"{{"name":"orlop","plugins":[{{"type":"bridge",{plugin}}},{{"type":"portmap"}}]}}"#)
    }

    #[test]
    fn one_rule_for_the_range() {
        let made = rules(&list(r#""ipam":{"ranges":[[{"subnet":"10.88.0.0/16"}]]}"#)).expect("rules");
        let want = "table ip orlop_pods\nflush table ip orlop_pods\ntable ip orlop_pods {\n\tchain postrouting {\n\t\ttype nat \
                    hook postrouting priority srcnat\n\t\tip saddr 10.88.0.0/16 ip daddr != 10.88.0.0/16 ip daddr != \
                    224.0.0.0/4 masquerade\n\t}\n}\n";
        assert_eq!(made, want);
        let six = rules(&list(r#""ipam":{"ranges":[[{"subnet":"fd00:1::/64"}]]}"#)).expect("rules");
        assert!(six.contains("ip6 daddr != ff00::/8 masquerade"), "{six}");
    }

    #[test]
    fn nothing_where_it_is_not_ours_to_do() {
        let ranges = r#""ipam":{"ranges":[[{"subnet":"10.88.0.0/16"}]]}"#;
        let injected = r#""ipam":{"ranges":[[{"subnet":"10.88.0.0/16 accept; flush ruleset"}]]}"#;
        let own = list(&format!(r#""ipMasq":true,{ranges}"#));
        for none in [
            own.as_str(),
            &list(injected),
            &list(r#""ipam":{}"#),
            r#"{"plugins":[{"type":"calico"}]}"#,
            "",
            "[]",
        ] {
            assert_eq!(rules(none), None, "{none}");
        }
    }
}
