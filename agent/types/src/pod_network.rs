//! Checks whether a CNI configuration gives pods addresses of the Node's ranges.
//!
//! In: a configuration list that the runtime made from a template, the Node's `podCIDRs`. Out: whether it is
//! current. Pure. Invariant: an unreadable configuration is not current. Format: CNI's network configuration
//! list with the plugin `host-local`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

/// True if the list's addresses are those of `cidrs`, neither more nor less.
#[must_use]
pub fn follows(list: &str, cidrs: &[String]) -> bool {
    let wanted: Option<BTreeSet<_>> = cidrs.iter().map(|text| network(text)).collect();
    let given = serde_json::from_str(list).ok().and_then(|list| ranges(&list));
    wanted.is_some_and(|wanted| !wanted.is_empty() && Some(wanted) == given)
}

fn ranges(list: &Value) -> Option<BTreeSet<(IpAddr, u8)>> {
    let plugins = list["plugins"].as_array()?;
    let sets = plugins.iter().filter_map(|plugin| plugin["ipam"]["ranges"].as_array()).flatten();
    let subnets = sets.flat_map(|set| set.as_array().into_iter().flatten());
    subnets.map(|range| network(range["subnet"].as_str()?)).collect()
}

/// The first address of a range and the length of its prefix, in any spelling.
fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.trim().split_once('/')?;
    let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
    let first = match address {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32_u32.checked_sub(prefix.into())?).unwrap_or(0);
            IpAddr::from((u32::from(ip) & mask).to_be_bytes())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128_u32.checked_sub(prefix.into())?).unwrap_or(0);
            IpAddr::from((u128::from(ip) & mask).to_be_bytes())
        }
    };
    Some((first, prefix))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(subnets: &[&str]) -> String {
        let ranges: Vec<Value> = subnets.iter().map(|s| json!([{"subnet": s}])).collect();
        json!({"cniVersion": "1.0.0", "name": "orlop", "plugins": [
            {"type": "bridge", "ipam": {"type": "host-local", "ranges": ranges}}, {"type": "portmap"}]})
        .to_string()
    }

    fn cidrs(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|t| (*t).to_owned()).collect()
    }

    #[test]
    fn the_same_ranges_however_they_are_spelled() {
        let both = list(&["10.1.2.0/24", "fd00:0:0:1::/64"]);
        assert!(follows(&both, &cidrs(&["10.1.2.0/24", "fd00:0:0:1::/64"])));
        assert!(follows(&both, &cidrs(&["fd00::1:0:0:0:0/64", "10.1.2.9/24"])));
        assert!(follows(&list(&["0.0.0.0/0"]), &cidrs(&["10.0.0.0/0"])));
    }

    #[test]
    fn other_ranges_fewer_more_or_nonsense() {
        let one = list(&["10.1.2.0/24"]);
        for other in [
            &["10.1.3.0/24"][..],
            &["10.1.2.0/25"],
            &["10.1.2.0/24", "fd00::/64"],
            &[],
            &["x"],
            &["10.1.2.0/33"],
        ] {
            assert!(!follows(&one, &cidrs(other)), "{other:?}");
        }
        assert!(!follows(&list(&["10.1.2.0/24", "10.1.3.0/24"]), &cidrs(&["10.1.2.0/24"])));
        for broken in ["", "{", "{}", "[]", r#"{"plugins": [{"ipam": {"ranges": [[{"subnet": 7}]]}}]}"#] {
            assert!(!follows(broken, &cidrs(&["10.1.2.0/24"])), "{broken}");
        }
    }
}
