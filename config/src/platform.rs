//! The platform of a node: its name by SMBIOS, and what its metadata service said about the machine.
//!
//! In: words of the firmware; the text of a report. Out: [`PlatformName`], [`PlatformReport`], and the NodeConfig that follows from
//! the facts. init, the provisioning unit and readers of `/run/orlop/platform.json` share the format. See docs/reference/platforms.md.

use crate::formats;
use crate::node::{API_VERSION, CloudProvider, KIND, NodeConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The report of this boot; everybody may read it.
pub const REPORT_FILE: &str = "/run/orlop/platform.json";
/// Directory of what is kept, below /var.
pub const KEPT_DIR: &str = "lib/orlop/config";
/// The accepted user data, in [`KEPT_DIR`]; mode 0600, because it may hold a token.
pub const KEPT_DOCUMENT: &str = "metadata.yaml";
/// The report of the boot in which the metadata service answered, in [`KEPT_DIR`]: once it is there, the service is not asked again.
pub const KEPT_REPORT: &str = "platform.json";
/// A larger report is none, bytes.
pub const REPORT_BYTES_MAX: u64 = 64 << 10;
/// Version of the report's format.
pub const REPORT_VERSION: u32 = 1;

/// A platform that the node knows by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlatformName {
    /// Amazon EC2.
    Aws,
    /// Google Compute Engine.
    Gce,
    /// Microsoft Azure.
    Azure,
    /// OpenStack.
    OpenStack,
    /// Oracle Cloud Infrastructure.
    Oracle,
    /// DigitalOcean.
    DigitalOcean,
    /// Vultr.
    Vultr,
    /// Hetzner Cloud.
    Hetzner,
    /// VMware.
    Vmware,
    /// Hyper-V outside of Azure.
    HyperV,
}

impl PlatformName {
    /// Its name in reports and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PlatformName::Aws => "aws",
            PlatformName::Gce => "gce",
            PlatformName::Azure => "azure",
            PlatformName::OpenStack => "openstack",
            PlatformName::Oracle => "oracle",
            PlatformName::DigitalOcean => "digitalocean",
            PlatformName::Vultr => "vultr",
            PlatformName::Hetzner => "hetzner",
            PlatformName::Vmware => "vmware",
            PlatformName::HyperV => "hyperv",
        }
    }

    /// Whether it has a metadata service that the node asks. The others give their documents by drives.
    #[must_use]
    pub fn has_metadata(self) -> bool {
        !matches!(self, PlatformName::Vmware | PlatformName::HyperV)
    }
}

/// Words of the firmware (SMBIOS), without white space at the ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineWords<'a> {
    /// Type 1, manufacturer.
    pub vendor: &'a str,
    /// Type 1, product.
    pub product: &'a str,
    /// Type 3, asset tag.
    pub chassis_asset_tag: &'a str,
    /// Type 1, UUID; empty if there is none.
    pub uuid: &'a str,
}

/// Chassis asset tag of every machine of Azure.
const AZURE_TAG: &str = "7783-7084-3265-9085-8269-3286-77";

/// Chassis asset tags of clouds that are made of OpenStack and have another manufacturer's name.
const OPENSTACK_TAGS: [&str; 4] =
    ["HUAWEICLOUD", "OpenTelekomCloud", "SAP CCloud VM", "Samsung Cloud Platform"];

/// The platform that these words name. The firmware decides, never what an address answers.
#[must_use]
pub fn identify(words: &MachineWords<'_>) -> Option<PlatformName> {
    let MachineWords { vendor, product, chassis_asset_tag, .. } = *words;
    let platform = match (vendor, product, chassis_asset_tag) {
        (_, _, AZURE_TAG) => PlatformName::Azure,
        (_, _, "OracleCloud.com") => PlatformName::Oracle,
        ("Amazon EC2", ..) => PlatformName::Aws,
        (_, "Google Compute Engine", _) => PlatformName::Gce,
        ("DigitalOcean", ..) => PlatformName::DigitalOcean,
        ("Vultr", ..) => PlatformName::Vultr,
        ("Hetzner", ..) => PlatformName::Hetzner,
        ("Microsoft Corporation", "Virtual Machine", _) => PlatformName::HyperV,
        _ if vendor.starts_with("OpenStack") || product.starts_with("OpenStack") => PlatformName::OpenStack,
        _ if OPENSTACK_TAGS.contains(&chassis_asset_tag) => PlatformName::OpenStack,
        _ if vendor.starts_with("VMware") => PlatformName::Vmware,
        _ => return None,
    };
    Some(platform)
}

/// What became of the user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserDataState {
    /// A local source has a document: the service is not asked for one.
    Local,
    /// The platform has no metadata service.
    Unsupported,
    /// The service has not answered yet, or what it answered was refused.
    Pending,
    /// The service has none.
    None,
    /// It is kept and counts.
    Kept,
}

/// What a platform says about the machine; what it did not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlatformFacts {
    /// The machine's name there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Its identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// Its kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// First address inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_ipv4: Option<String>,
    /// First address outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_ipv4: Option<String>,
    /// `spec.providerID` as the platform's cloud controller manager writes it.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
}

/// `/run/orlop/platform.json`, and the same text as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlatformReport {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// By SMBIOS.
    pub platform: PlatformName,
    /// UUID of the machine (SMBIOS type 1), if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Of this boot.
    pub user_data: UserDataState,
    /// Why the user data do not count, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Empty until the service has answered.
    #[serde(default)]
    pub facts: PlatformFacts,
}

impl PlatformReport {
    /// A report without facts, of a machine without a UUID.
    #[must_use]
    pub fn new(platform: PlatformName, user_data: UserDataState) -> PlatformReport {
        let facts = PlatformFacts::default();
        PlatformReport { version: REPORT_VERSION, platform, machine: None, user_data, problem: None, facts }
    }

    /// Whether it is about this machine, and not about another one of which this disk is a copy. A machine without a UUID cannot be
    /// told from others of its platform.
    #[must_use]
    pub fn is_about(&self, words: &MachineWords<'_>) -> bool {
        let other = |machine: &String| !words.uuid.is_empty() && *machine != words.uuid.to_ascii_lowercase();
        identify(words) == Some(self.platform) && !self.machine.as_ref().is_some_and(other)
    }

    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<PlatformReport, String> {
        let report: PlatformReport = serde_json::from_str(text).map_err(|e| format!("is damaged: {e}"))?;
        if report.version == REPORT_VERSION {
            Ok(report)
        } else {
            Err(format!("has version {}, not {REPORT_VERSION}: another image has written it", report.version))
        }
    }

    /// Its text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// The NodeConfig that follows from the facts, for the lowest place among the sources; `None` if nothing follows. `config` is what
/// the other sources say: the provider id is for nodes that an external cloud provider initialises, labels are for those that ask
/// for them. A fact that is no such name, label or id is left out.
#[must_use]
pub fn document(facts: &PlatformFacts, config: &NodeConfig) -> Option<String> {
    let mut document = Map::new();
    let hostname = facts.hostname.as_ref().map(|name| name.to_ascii_lowercase());
    if let Some(name) = hostname.filter(|name| formats::is_dns_name(name)) {
        document.insert("node".into(), json!({ "name": name }));
    }
    if let Some(id) = &facts.provider_id
        && config.node.cloud_provider == Some(CloudProvider::External)
    {
        document.insert("kubelet".into(), json!({ "providerID": id }));
    }
    if config.platform.labels {
        let places = [
            ("topology.kubernetes.io/region", &facts.region),
            ("topology.kubernetes.io/zone", &facts.zone),
            ("node.kubernetes.io/instance-type", &facts.instance_type),
        ];
        let label = |(key, value): (&str, &Option<String>)| {
            let value = value.as_ref().filter(|value| !value.is_empty() && formats::is_label_value(value))?;
            Some((key.to_owned(), Value::from(value.as_str())))
        };
        let labels: Map<String, Value> = places.into_iter().filter_map(label).collect();
        if !labels.is_empty() {
            document.insert("labels".into(), Value::Object(labels));
        }
    }
    if document.is_empty() {
        return None;
    }
    document.insert("apiVersion".into(), API_VERSION.into());
    document.insert("kind".into(), KIND.into());
    Some(format!("{:#}\n", Value::Object(document)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Source, load};
    use proptest::prelude::*;

    #[test]
    fn the_firmware_names_the_platform() {
        let table = [
            (["Amazon EC2", "m6i.large", "Amazon EC2"], Some(PlatformName::Aws)),
            (["Google", "Google Compute Engine", ""], Some(PlatformName::Gce)),
            (["Microsoft Corporation", "Virtual Machine", AZURE_TAG], Some(PlatformName::Azure)),
            (["Microsoft Corporation", "Virtual Machine", "1234"], Some(PlatformName::HyperV)),
            (["Microsoft Corporation", "Surface", ""], None),
            (["OpenStack Foundation", "OpenStack Nova", ""], Some(PlatformName::OpenStack)),
            (["Huawei", "KVM", "OpenTelekomCloud"], Some(PlatformName::OpenStack)),
            (["QEMU", "Standard PC", "OracleCloud.com"], Some(PlatformName::Oracle)),
            (["DigitalOcean", "Droplet", ""], Some(PlatformName::DigitalOcean)),
            (["Vultr", "VHF", ""], Some(PlatformName::Vultr)),
            (["Hetzner", "vServer", ""], Some(PlatformName::Hetzner)),
            (["VMware, Inc.", "VMware7,1", ""], Some(PlatformName::Vmware)),
            (["QEMU", "Standard PC (Q35 + ICH9, 2009)", ""], None),
            (["", "", ""], None),
        ];
        for ([vendor, product, chassis_asset_tag], want) in table {
            let words = MachineWords { vendor, product, chassis_asset_tag, uuid: "" };
            assert_eq!(identify(&words), want, "{words:?}");
        }
    }

    #[test]
    fn a_copy_of_a_disk_does_not_take_its_model_for_itself() {
        let words = |vendor, uuid| MachineWords { vendor, uuid, ..MachineWords::default() };
        let mut report = PlatformReport::new(PlatformName::Aws, UserDataState::Kept);
        assert!(report.is_about(&words("Amazon EC2", "ec2-1")) && report.is_about(&words("Amazon EC2", "")));
        report.machine = Some("ec2-1".into());
        assert!(report.is_about(&words("Amazon EC2", "EC2-1")));
        assert!(!report.is_about(&words("Amazon EC2", "ec2-2")), "another machine");
        assert!(report.is_about(&words("Amazon EC2", "")), "it cannot be told");
        assert!(!report.is_about(&words("Vultr", "ec2-1")) && !report.is_about(&words("", "ec2-1")));
    }

    fn facts() -> PlatformFacts {
        PlatformFacts {
            hostname: Some("IP-10-0-0-5.ec2.internal".into()),
            region: Some("eu-west-1".into()),
            zone: Some("eu-west-1a".into()),
            instance_type: Some("m7i.large".into()),
            provider_id: Some("aws:///eu-west-1a/i-0123".into()),
            ..PlatformFacts::default()
        }
    }

    fn loaded(body: &str, facts: &PlatformFacts) -> crate::node::Effective {
        let text = format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}");
        let own = Source { name: "metadata".into(), origin: "metadata".into(), text };
        let first = load(std::slice::from_ref(&own), &[]);
        let follows = document(facts, &first.config);
        let follows =
            follows.map(|text| Source { name: "platform".into(), origin: "platform aws".into(), text });
        load(&follows.into_iter().chain([own]).collect::<Vec<_>>(), &[])
    }

    #[test]
    fn facts_are_defaults_and_no_more() {
        let plain = loaded("console: {podOutput: true}\n", &facts());
        assert_eq!(plain.problems, []);
        assert_eq!(plain.config.node.name, "ip-10-0-0-5.ec2.internal");
        assert_eq!(plain.provenance["node.name"], "platform");
        assert!(plain.config.labels.is_empty() && plain.kubelet.provider_id.is_empty());

        let join = "join: {server: 'https://a', caData: YWJj, token: abcdef.0123456789abcdef}\n";
        let asked = format!("node: {{cloudProvider: external}}\nplatform: {{labels: true}}\n{join}");
        let asked = loaded(&asked, &facts());
        assert_eq!(asked.problems, []);
        assert_eq!(asked.kubelet.provider_id, "aws:///eu-west-1a/i-0123");
        assert_eq!(asked.config.labels["topology.kubernetes.io/zone"], "eu-west-1a");
        assert_eq!(asked.config.labels["topology.kubernetes.io/region"], "eu-west-1");
        assert_eq!(asked.config.labels["node.kubernetes.io/instance-type"], "m7i.large");

        let said = "node: {name: n1, cloudProvider: external}\nkubelet: {providerID: x://y}\n";
        let said = loaded(&format!("{said}{join}"), &facts());
        assert_eq!((said.config.node.name.as_str(), said.kubelet.provider_id.as_str()), ("n1", "x://y"));
    }

    #[test]
    fn a_fact_that_is_no_name_is_left_out() {
        let config = NodeConfig::default();
        let odd = PlatformFacts { hostname: Some("not a name".into()), ..PlatformFacts::default() };
        assert_eq!(document(&odd, &config), None);
        assert_eq!(document(&PlatformFacts::default(), &config), None);
    }

    #[test]
    fn a_report_comes_back() {
        let mut report = PlatformReport::new(PlatformName::OpenStack, UserDataState::Kept);
        report.facts = facts();
        report.problem = Some("line 1".into());
        report.machine = Some("ec2-1".into());
        assert_eq!(PlatformReport::parse(&report.render()), Ok(report.clone()));
        assert!(report.render().contains("\"providerID\"") && report.render().contains("\"openstack\""));
        let other = report.render().replace("\"version\": 1", "\"version\": 2");
        assert!(PlatformReport::parse(&other).is_err_and(|e| e.contains("version 2")));
        assert!(PlatformReport::parse("{").is_err());
    }

    proptest! {
        #[test]
        fn any_facts_make_no_refused_document(hostname in ".{0,80}", zone in ".{0,80}", id in ".{0,80}") {
            let facts = PlatformFacts {
                hostname: Some(hostname), zone: Some(zone), provider_id: Some(id), ..PlatformFacts::default()
            };
            let effective = loaded("platform: {labels: true}\n", &facts);
            prop_assert_eq!(effective.problems, []);
        }
    }
}
