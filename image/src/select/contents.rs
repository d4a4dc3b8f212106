//! Parses `image/contents.txt`, the table of what the image contains and why.

use super::glob;
use crate::profile::Profile;

/// One part of the image with a size budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Name from its section header.
    pub name: String,
    /// Upper limit for the uncompressed files of the release profile, bytes.
    pub budget: u64,
}

/// One line: a pattern or a library name, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Index into [`Contents::components`].
    pub component: usize,
    /// Pattern without braces, or a SONAME if `library`.
    pub pattern: String,
    /// A library opened by name.
    pub library: bool,
    /// Why it is there.
    pub reason: String,
    /// Only in the test profile.
    pub test_only: bool,
    /// Line in the table, for messages.
    pub line: usize,
}

/// The whole table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// In file order.
    pub components: Vec<Component>,
    /// In file order, braces expanded.
    pub rules: Vec<Rule>,
}

/// What is wrong with the table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("contents table, line {line}: {what}")]
pub struct ContentsError {
    /// 1-based.
    pub line: usize,
    /// What is expected there.
    pub what: String,
}

impl Contents {
    /// Parses the table.
    ///
    /// # Errors
    /// The first line that is not a section, a rule or a comment.
    pub fn parse(text: &str) -> Result<Contents, ContentsError> {
        let mut contents = Contents::default();
        for (i, raw) in text.lines().enumerate() {
            let line = i + 1;
            let error = |what: &str| ContentsError { line, what: what.to_owned() };
            let trimmed = raw.trim();
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            if let Some(header) = trimmed.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
                let (name, budget) =
                    header.split_once(" budget=").ok_or_else(|| error("[NAME budget=MIB] expected"))?;
                let mib: u64 = budget.parse().map_err(|_| error("the budget is a whole number of MiB"))?;
                contents.components.push(Component { name: name.to_owned(), budget: mib << 20 });
                continue;
            }
            if contents.components.is_empty() {
                return Err(error("a rule stands below a [component]"));
            }
            contents.rule(trimmed, line)?;
        }
        Ok(contents)
    }

    fn rule(&mut self, text: &str, line: usize) -> Result<(), ContentsError> {
        let (test_only, rest) = match text.strip_prefix("test:") {
            Some(rest) => (true, rest.trim_start()),
            None => (false, text),
        };
        let (library, rest) = match rest.strip_prefix("lib:") {
            Some(rest) => (true, rest.trim_start()),
            None => (false, rest),
        };
        let Some((pattern, reason)) = rest.split_once("  ") else {
            return Err(ContentsError { line, what: "PATTERN, two spaces, reason expected".to_owned() });
        };
        for pattern in glob::expand(pattern.trim()) {
            self.rules.push(Rule {
                component: self.components.len() - 1,
                pattern,
                library,
                reason: reason.trim().to_owned(),
                test_only,
                line,
            });
        }
        Ok(())
    }

    /// The rules that count in a profile.
    pub fn rules_for(&self, profile: Profile) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |r| !r.test_only || profile == Profile::Test)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;

    #[test]
    fn the_committed_table_parses_and_names_no_shell_for_release() {
        for contents in Arch::ALL.map(committed) {
            names_no_shell(&contents);
        }
    }

    fn committed(arch: Arch) -> Contents {
        Contents::parse(&arch.fill(include_str!("../../contents.txt"))).expect("parses")
    }

    fn names_no_shell(contents: &Contents) {
        assert!(contents.components.len() > 5);
        for rule in contents.rules_for(Profile::Release) {
            let name = rule.pattern.rsplit('/').next().unwrap_or_default();
            assert!(!["bash", "sh", "dash", "agetty", "login", "sulogin"].contains(&name), "{rule:?}");
            assert!(!rule.pattern.starts_with("usr/bin/*"), "{rule:?}");
            assert!(!rule.pattern.contains("@multiarch") && !rule.pattern.contains(": "), "{rule:?}");
        }
    }

    /// Paths of Debian's kernel package. Each module brings those that it depends on (docs/decisions/modules.md).
    #[test]
    fn modules_of_add_ons_and_of_machines_are_chosen() {
        let is_chosen_for = |arch: Arch, module: &str| {
            let path = format!("usr/lib/modules/6.12.117+deb13-{}/kernel/{module}.ko.xz", arch.name());
            committed(arch).rules_for(Profile::Release).any(|rule| glob::matches(&rule.pattern, &path))
        };
        let is_chosen = |module: &str| is_chosen_for(Arch::Amd64, module);
        let of_add_ons = [
            "fs/ceph/ceph",
            "fs/nfs/nfs",
            "fs/smb/client/cifs",
            "drivers/net/vxlan/vxlan",
            "drivers/net/wireguard/wireguard",
            "drivers/scsi/lpfc/lpfc",
            "drivers/scsi/qla2xxx/qla2xxx",
            "drivers/vfio/pci/vfio-pci",
            "drivers/vfio/vfio_iommu_type1",
            "drivers/vhost/vhost_net",
            "arch/x86/kvm/kvm-intel",
            "net/bridge/br_netfilter",
            "net/ipv4/ipip",
            "net/netfilter/ipset/ip_set",
            "net/netfilter/ipvs/ip_vs",
            "net/netfilter/nf_conntrack",
            "net/netfilter/nft_masq",
            "net/openvswitch/openvswitch",
            "net/openvswitch/vport-vxlan",
            "net/sctp/sctp",
        ];
        // Network cards of clouds, hypervisors and servers, and what else the initrd does not load.
        let of_machines = [
            "drivers/net/ethernet/amazon/ena/ena",
            "drivers/net/ethernet/broadcom/bnxt/bnxt_en",
            "drivers/net/ethernet/google/gve/gve",
            "drivers/net/ethernet/intel/ice/ice",
            "drivers/net/ethernet/mellanox/mlx5/core/mlx5_core",
            "drivers/net/ethernet/microsoft/mana/mana",
            "drivers/net/ethernet/qlogic/qed/qed",
            "drivers/net/ethernet/qlogic/qede/qede",
            "drivers/net/hyperv/hv_netvsc",
            "drivers/net/usb/r8152",
            "drivers/net/virtio_net",
            "drivers/net/vmxnet3/vmxnet3",
            "drivers/net/xen-netfront",
            "drivers/watchdog/hpwdt",
            "drivers/watchdog/wdat_wdt",
            "fs/udf/udf",
        ];
        for module in of_add_ons.into_iter().chain(of_machines) {
            assert!(is_chosen(module), "{module}");
        }
        assert!(is_chosen_for(Arch::Arm64, "arch/arm64/crypto/sha3-ce"));
        assert!(!is_chosen_for(Arch::Arm64, "arch/x86/kvm/kvm-intel"));
        assert!(is_chosen_for(Arch::Arm64, "drivers/net/ethernet/qlogic/qede/qede"));
        assert!(!is_chosen("fs/smb/server/ksmbd") && !is_chosen("net/batman-adv/batman-adv"));
    }

    /// Network cards are the same in machines of both; microcode is not (docs/decisions/firmware.md).
    #[test]
    fn every_architecture_has_firmware_of_network_cards_and_its_own_licences() {
        let chosen = |arch: Arch, path: &str| {
            committed(arch).rules_for(Profile::Release).any(|rule| glob::matches(&rule.pattern, path))
        };
        for arch in Arch::ALL {
            for path in [
                "usr/lib/firmware/bnx2/bnx2-rv2p-09-6.0.17.fw",
                "usr/lib/firmware/bnx2x/bnx2x-e2-7.13.21.0.fw",
                "usr/lib/firmware/qed/qed_init_values_zipped-8.59.1.0.bin",
                "usr/lib/firmware/intel/ice/ddp/ice.pkg",
                "usr/lib/firmware/rtl_nic/rtl8125b-2.fw",
                "usr/share/doc/firmware-bnx2x/copyright",
            ] {
                assert!(chosen(arch, path), "{path} for {}", arch.name());
            }
            for package in ["amd64-microcode", "intel-microcode"] {
                let has = arch.facts().microcode_packages.contains(&package);
                let licence = format!("usr/share/doc/{package}/copyright");
                assert_eq!(chosen(arch, &licence), has, "{licence} for {}", arch.name());
            }
        }
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, line) in
            [("usr/bin/x  y", 1), ("[a budget=1]\nusr/bin/x", 2), ("[a]\n", 1), ("\n[a budget=x]", 2)]
        {
            assert_eq!(Contents::parse(text).expect_err(text).line, line, "{text}");
        }
    }

    #[test]
    fn test_rules_stay_out_of_release() {
        let c = Contents::parse("[a budget=2]\nx  for x\ntest: {y,z}  for y\nlib: l.so  dl").expect("parses");
        assert_eq!(c.components[0].budget, 2 << 20);
        assert_eq!(c.rules_for(Profile::Release).count(), 2);
        assert_eq!(c.rules_for(Profile::Test).count(), 4);
        assert!(c.rules[3].library);
    }
}
