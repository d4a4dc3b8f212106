//! The network configuration on standard input, as the reference plugins `bridge` and `host-local` read it. Pure.
//!
//! In: JSON. Out: values with their defaults, or why not. A field that is null counts as left out. What only the
//! reference plugins know is named by [`Config::unsupported`].

use std::net::IpAddr;

use orlop_netlink::link::Mac;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::environment::{Environment, is_identifier};
use crate::failure::Failure;
use crate::ipam::RangeSet;
use crate::range::{self, Range, RangeConfig};

/// Versions of CNI whose results are written here, oldest first.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The name of the address plugin that is built in.
pub const HOST_LOCAL: &str = "host-local";
const DATA_DIR: &str = "/var/lib/cni/networks";

/// The configuration as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    /// Of the result.
    pub cni_version: String,
    /// Of the network.
    pub name: String,
    /// The bridge's name.
    bridge: Option<String>,
    is_gateway: bool,
    /// Pods' default route leads to the gateway.
    pub is_default_gateway: bool,
    /// An address of the bridge that is in the way is taken away.
    pub force_address: bool,
    /// Pods leave the network under the node's address.
    pub ip_masq: bool,
    mtu: u32,
    /// A pod reaches itself through the bridge.
    pub hairpin_mode: bool,
    /// The bridge takes every packet.
    pub promisc_mode: bool,
    /// Pods do not reach each other.
    pub port_isolation: bool,
    /// IPv6 addresses are tried before they are used.
    #[serde(rename = "enabledad")]
    pub enable_dad: bool,
    vlan: i64,
    vlan_trunk: Option<Value>,
    macspoofchk: bool,
    disable_container_interface: bool,
    /// Where addresses come from.
    pub ipam: Ipam,
    /// For the result.
    pub dns: Dns,
    args: Args,
    runtime_config: RuntimeConfig,
    /// Of ADD, for CHECK.
    pub prev_result: Option<Value>,
    /// For GC: who is there.
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Vec<Attachment>,
}

/// host-local's part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ipam {
    #[serde(rename = "type")]
    kind: String,
    data_dir: Option<String>,
    /// A file with name servers for the result.
    pub resolv_conf: String,
    ranges: Vec<Vec<RangeConfig>>,
    /// Routes of the container.
    pub routes: Vec<Route>,
    subnet: String,
    range_start: Option<String>,
    range_end: Option<String>,
    gateway: Option<String>,
}

/// A route, in the form of the result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Route {
    /// `ADDRESS/PREFIX`.
    pub dst: String,
    /// Next hop; the gateway of the family if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gw: Option<String>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Routing table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// rtnetlink's scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

/// Name servers, in the form of the result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Dns {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nameservers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
}

/// An interface of a container that is still there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Attachment {
    /// The container's id.
    #[serde(rename = "containerID")]
    pub container: String,
    /// The interface's name.
    #[serde(rename = "ifname")]
    pub interface: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: ArgsOfCni,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ArgsOfCni {
    mac: String,
    ips: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    mac: String,
    ips: Vec<String>,
    ip_ranges: Vec<Vec<RangeConfig>>,
}

impl Dns {
    /// What a resolv.conf says.
    #[must_use]
    pub fn of_resolv_conf(text: &str) -> Dns {
        let mut dns = Dns::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (key, mut rest) = (words.next().unwrap_or_default(), words.map(str::to_owned));
            match key {
                "nameserver" => dns.nameservers.extend(rest.next()),
                "domain" => dns.domain = rest.next().unwrap_or_default(),
                "search" => dns.search = rest.collect(),
                "options" => dns.options = rest.collect(),
                _ => {}
            }
        }
        dns
    }
}

impl Config {
    /// Reads it.
    ///
    /// # Errors
    /// It is no JSON, has a field of another type, or has no usable name.
    pub fn read(text: &[u8]) -> Result<Config, Failure> {
        let mut value: Value = serde_json::from_slice(text).map_err(|e| Failure::Decode(e.to_string()))?;
        if !value.is_object() {
            return Err(Failure::Decode("it is no JSON object".into()));
        }
        without_nulls(&mut value);
        let config: Config = serde_json::from_value(value).map_err(|e| Failure::Decode(e.to_string()))?;
        if !VERSIONS.contains(&config.cni_version.as_str()) {
            return Err(Failure::Version(config.cni_version));
        }
        if !is_identifier(&config.name) {
            return Err(Failure::Config(format!("name {:?} is no name of a network", config.name)));
        }
        if config.hairpin_mode && config.promisc_mode {
            return Err(Failure::Config("hairpinMode and promiscMode exclude each other".into()));
        }
        Ok(config)
    }

    /// The first field that only the reference plugin knows.
    #[must_use]
    pub fn unsupported(&self) -> Option<String> {
        let fields = [
            ("vlan", self.vlan != 0),
            ("vlanTrunk", self.vlan_trunk.is_some()),
            ("macspoofchk", self.macspoofchk),
            ("disableContainerInterface", self.disable_container_interface),
        ];
        if let Some((name, _)) = fields.iter().find(|(_, used)| *used) {
            return Some((*name).to_owned());
        }
        let kind = self.ipam.kind.as_str();
        (!kind.is_empty() && kind != HOST_LOCAL).then(|| format!("ipam.type {kind}"))
    }

    /// Whether pods get addresses at all.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        self.ipam.kind == HOST_LOCAL
    }

    /// The bridge's name.
    #[must_use]
    pub fn bridge(&self) -> &str {
        self.bridge.as_deref().filter(|name| !name.is_empty()).unwrap_or("cni0")
    }

    /// The bridge has the gateways' addresses.
    #[must_use]
    pub fn is_gateway(&self) -> bool {
        self.is_gateway || self.is_default_gateway
    }

    /// Bytes; the kernel's default if none.
    #[must_use]
    pub fn mtu(&self) -> Option<u32> {
        (self.mtu > 0).then_some(self.mtu)
    }

    /// The directory of all networks' reservations.
    #[must_use]
    pub fn data_dir(&self) -> &str {
        self.ipam.data_dir.as_deref().filter(|dir| !dir.is_empty()).unwrap_or(DATA_DIR)
    }

    /// The range sets, those of the runtime first.
    ///
    /// # Errors
    /// There is none, one contradicts itself, or two have an address in common.
    pub fn range_sets(&self) -> Result<Vec<RangeSet>, Failure> {
        let own = RangeConfig {
            subnet: self.ipam.subnet.clone(),
            range_start: self.ipam.range_start.clone(),
            range_end: self.ipam.range_end.clone(),
            gateway: self.ipam.gateway.clone(),
        };
        let own = (!own.subnet.is_empty()).then(|| vec![own]);
        let all = self.runtime_config.ip_ranges.iter().chain(&own).chain(&self.ipam.ranges);
        let sets: Vec<RangeSet> = all
            .map(|set| set.iter().map(Range::new).collect())
            .collect::<Result<_, _>>()
            .map_err(Failure::Config)?;
        if sets.is_empty() || sets.iter().any(Vec::is_empty) {
            return Err(Failure::Config("ipam has no range of addresses".into()));
        }
        if sets.iter().any(|set| set.iter().any(|r| r.network.is_ipv4() != set[0].network.is_ipv4())) {
            return Err(Failure::Config("a range set of ipam has addresses of both families".into()));
        }
        let ranges: Vec<&Range> = sets.iter().flatten().collect();
        for (n, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges[..n].iter().find(|other| other.overlaps(range)) {
                let why = format!(
                    "ranges {}-{} and {}-{} overlap",
                    other.first, other.last, range.first, range.last
                );
                return Err(Failure::Config(why));
            }
        }
        Ok(sets)
    }

    /// Addresses that were asked for.
    ///
    /// # Errors
    /// One is no address.
    pub fn asked(&self, environment: &Environment) -> Result<Vec<IpAddr>, Failure> {
        let args = environment.args.iter().filter(|(name, _)| name == "IP").map(|(_, value)| value);
        let all = args.chain(&self.args.cni.ips).chain(&self.runtime_config.ips);
        let parsed = all.map(|text| {
            let ip = text.split_once('/').map_or(text.as_str(), |(ip, _)| ip);
            range::parse(ip)
                .ok_or_else(|| Failure::Config(format!("{text:?} was asked for and is no address")))
        });
        parsed.collect()
    }

    /// The Ethernet address that was asked for: the runtime's word counts most.
    ///
    /// # Errors
    /// It is none.
    pub fn mac(&self, environment: &Environment) -> Result<Option<Mac>, Failure> {
        let of_args = environment.args.iter().find(|(name, _)| name == "MAC").map_or("", |(_, value)| value);
        let all = [self.runtime_config.mac.as_str(), &self.args.cni.mac, of_args];
        let Some(text) = all.into_iter().find(|text| !text.is_empty()) else { return Ok(None) };
        let bytes: Vec<u8> = text.split([':', '-']).map_while(|b| u8::from_str_radix(b, 16).ok()).collect();
        let mac = Mac::try_from(bytes.as_slice());
        mac.map(Some).map_err(|_| Failure::Config(format!("{text:?} is no Ethernet address")))
    }
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(rest: &str) -> Result<Config, Failure> {
        Config::read(format!(r#"{{"cniVersion":"1.0.0","name":"n"{rest}}}"#).as_bytes())
    }

    #[test]
    fn the_image_s_own_network() {
        let config = read(
            r#","type":"bridge","bridge":"orlop0","isDefaultGateway":true,"hairpinMode":true,"runtimeConfig":null,
            "ipam":{"type":"host-local","dataDir":"/run/cni/networks","ranges":[[{"subnet":"10.88.0.0/16"}],
            [{"subnet":"fd00::/64"}]]}"#,
        )
        .expect("read");
        assert!(config.unsupported().is_none() && config.is_gateway() && config.has_addresses());
        assert_eq!((config.bridge(), config.mtu(), config.data_dir()), ("orlop0", None, "/run/cni/networks"));
        assert_eq!(config.range_sets().expect("ranges").len(), 2);
    }

    #[test]
    fn what_only_the_reference_plugin_knows_is_named() {
        for (rest, field) in [
            (r#","vlan":5"#, "vlan"),
            (r#","vlanTrunk":[{"id":1}]"#, "vlanTrunk"),
            (r#","macspoofchk":true"#, "macspoofchk"),
            (r#","disableContainerInterface":true"#, "disableContainerInterface"),
            (r#","ipam":{"type":"dhcp"}"#, "ipam.type dhcp"),
        ] {
            assert_eq!(read(rest).expect(rest).unsupported().as_deref(), Some(field));
        }
        assert_eq!(read(r#","vlan":0,"ipam":{}"#).expect("layer 2").unsupported(), None);
    }

    #[test]
    fn what_is_refused_says_why() {
        for (text, code) in [
            ("", 6),
            ("[]", 6),
            (r#"{"cniVersion":"1.0.0","name":"n","mtu":"x"}"#, 6),
            (r#"{"name":"n"}"#, 1),
            (r#"{"cniVersion":"0.2.0","name":"n"}"#, 1),
            (r#"{"cniVersion":"9.0.0","name":"n"}"#, 1),
            (r#"{"cniVersion":"1.0.0","name":"../x"}"#, 7),
            (r#"{"cniVersion":"1.0.0","name":"n","hairpinMode":true,"promiscMode":true}"#, 7),
        ] {
            assert_eq!(Config::read(text.as_bytes()).expect_err(text).code(), code, "{text}");
        }
        for ranges in [
            "[]",
            "[[]]",
            r#"[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.1.0.128/25"}]]"#,
            r#"[[{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}]]"#,
            r#"[[{"subnet":"x"}]]"#,
        ] {
            let config =
                read(&format!(r#","ipam":{{"type":"host-local","ranges":{ranges}}}"#)).expect("JSON");
            assert_eq!(config.range_sets().expect_err(ranges).code(), 7, "{ranges}");
        }
    }

    #[test]
    fn wishes_come_from_three_places() {
        let config = read(
            r#","ipam":{"type":"host-local","subnet":"10.1.0.0/24"},"args":{"cni":{"ips":["10.1.0.5/24"],"mac":"02:00:00:00:00:05"}},
            "runtimeConfig":{"ips":["fd00::5"],"ipRanges":[[{"subnet":"10.2.0.0/24"}]],"mac":"02-00-00-00-00-06"}"#,
        )
        .expect("read");
        let with = |pairs: &[(&str, &str)]| Environment {
            args: pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            ..Environment::default()
        };
        let asked = config.asked(&with(&[("IP", "10.2.0.9")])).expect("addresses");
        assert_eq!(
            asked.iter().map(IpAddr::to_string).collect::<Vec<_>>(),
            ["10.2.0.9", "10.1.0.5", "fd00::5"]
        );
        let firsts: Vec<_> =
            config.range_sets().expect("ranges").iter().map(|s| s[0].network.to_string()).collect();
        assert_eq!(firsts, ["10.2.0.0", "10.1.0.0"]);
        assert_eq!(config.mac(&with(&[])).expect("an address"), Some([2, 0, 0, 0, 0, 6]));
        let plain = read("").expect("read");
        assert_eq!(plain.mac(&with(&[])).expect("none"), None);
        assert_eq!(plain.mac(&with(&[("MAC", "02:00:00:00:00:07")])).expect("one"), Some([2, 0, 0, 0, 0, 7]));
        for bad in ["02:00", "02:00:00:00:00:07:08", "xx"] {
            assert!(plain.mac(&with(&[("MAC", bad)])).is_err(), "{bad}");
        }
        assert!(plain.asked(&with(&[("IP", "ten")])).is_err());
    }

    #[test]
    fn name_servers_of_a_file() {
        let dns = Dns::of_resolv_conf(
            "# x\nnameserver 10.0.0.1\nnameserver ::1\nsearch a b\noptions ndots:2\ndomain d\n",
        );
        let want =
            r#"{"nameservers":["10.0.0.1","::1"],"domain":"d","search":["a","b"],"options":["ndots:2"]}"#;
        assert_eq!(serde_json::to_string(&dns).expect("JSON"), want);
        assert_eq!(serde_json::to_string(&Dns::default()).expect("JSON"), "{}");
    }

    proptest! {
        #[test]
        fn no_input_panics(text in r#"[\[\]{}",:a-z0-9./]{0,80}"#) {
            if let Ok(config) = Config::read(text.as_bytes()) {
                let _ = config.range_sets();
            }
            let _ = Dns::of_resolv_conf(&text);
        }
    }
}
