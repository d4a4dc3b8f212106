//! Kernel settings and modules of the image and of the node's configuration: the text of `sysctl.d` and `modules-load.d` files
//! in, what to write and load out.

/// One kernel setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As configured.
    pub name: String,
    /// Below /proc/sys.
    pub path: String,
    /// What it is to be.
    pub value: String,
}

/// Settings of a `sysctl.d` file: `name = value`, `#` and `;` comments.
#[must_use]
pub fn settings(text: &str) -> Vec<Setting> {
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(['#', ';']));
    lines
        .filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            let name = name.trim();
            Some(Setting { name: name.into(), path: setting_path(name)?, value: value.trim().into() })
        })
        .collect()
}

/// `net.ipv4.ip_forward` and `net/ipv4/conf/eth0.1/forwarding`: whichever separator comes first separates, the
/// other one is swapped. `None` if it would leave /proc/sys.
fn setting_path(name: &str) -> Option<String> {
    let swap = name.find(['.', '/']).is_some_and(|at| name[at..].starts_with('.'));
    let path: String = name
        .chars()
        .map(|c| match c {
            '.' if swap => '/',
            '/' if swap => '.',
            c => c,
        })
        .collect();
    let clean = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    clean.then(|| format!("/proc/sys/{path}"))
}

/// Is the value in force? The kernel answers with tabs where lists were written with blanks.
#[must_use]
pub fn in_force(found: &str, wanted: &str) -> bool {
    found.split_whitespace().eq(wanted.split_whitespace())
}

/// Module names of a `modules-load.d` file.
#[must_use]
pub fn modules(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(['#', ';']));
    lines.map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_to_paths() {
        let cases = [
            ("net.ipv4.ip_forward", Some("/proc/sys/net/ipv4/ip_forward")),
            ("net/ipv4/conf/eth0.1/forwarding", Some("/proc/sys/net/ipv4/conf/eth0.1/forwarding")),
            ("net.ipv4.conf.eth0/1.forwarding", Some("/proc/sys/net/ipv4/conf/eth0.1/forwarding")),
            ("../../etc/passwd", None),
            ("kernel//x", None),
            ("", None),
        ];
        for (name, want) in cases {
            assert_eq!(setting_path(name).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn files() {
        let text =
            "# made by init\nvm.swappiness = 10\n\nnet.ipv4.ip_local_port_range=1024 65535\nnonsense\n";
        let found: Vec<(String, String)> = settings(text).into_iter().map(|s| (s.name, s.value)).collect();
        let want = [("vm.swappiness", "10"), ("net.ipv4.ip_local_port_range", "1024 65535")];
        assert_eq!(found, want.map(|(a, b)| (a.to_string(), b.to_string())));
        assert_eq!(modules("# x\nbr_netfilter\n\n ip_vs \n"), ["br_netfilter", "ip_vs"]);
        assert!(in_force("1024\t65535\n", "1024 65535") && !in_force("0\n", "1"));
    }

    /// A setting below net.bridge or net.netfilter exists only while its module is loaded.
    #[test]
    fn the_image_loads_the_modules_of_its_settings() {
        let loaded =
            modules(include_str!("../../../image/rootfs/common/usr/lib/modules-load.d/50-orlop.conf"));
        assert_eq!(loaded, ["br_netfilter", "nf_conntrack"]);
        let set = settings(include_str!("../../../image/rootfs/common/usr/lib/sysctl.d/50-orlop.conf"));
        let of = |name: &str| set.iter().find(|s| s.name == name).map(|s| s.path.as_str());
        for name in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
            let path = format!("/proc/sys/net/bridge/{name}");
            assert_eq!(of(&format!("net.bridge.{name}")), Some(path.as_str()));
        }
        let modular = [("net.bridge.", "br_netfilter"), ("net.netfilter.", "nf_conntrack")];
        for setting in &set {
            let needs = modular.iter().find(|(prefix, _)| setting.name.starts_with(prefix));
            assert!(needs.is_none_or(|(_, module)| loaded.iter().any(|l| l == module)), "{}", setting.name);
        }
    }
}
