//! The control plane that is to be made: its nodes, addresses, images and times. Pure.
//!
//! In: words of a command line. Out: [`ClusterPlan`], or what is wrong with them. Invariant: what follows from a plan needs no further
//! check: names are DNS names, addresses differ, ranges are networks of one family that have room and do not overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use orlop_config::formats::{is_dns_name, is_node_address};

use super::ranges::{ApiEndpoint, check, is_host_name, nth};

/// Release of Kubernetes whose images are the default.
const KUBERNETES: &str = "v1.36.3";
/// The etcd that kubeadm of this release takes.
const ETCD: &str = "3.6.8-0";
/// Where the project publishes its images.
const REGISTRY: &str = "registry.k8s.io";
/// Port of the API server on each node.
pub(super) const API_PORT: u16 = 6443;
/// Domain of the names of Services.
pub(super) const CLUSTER_DOMAIN: &str = "cluster.local";
/// Seconds of a day.
const DAY: i64 = 24 * 3600;
/// So long before now certificates begin, seconds: clocks of machines differ.
const BACKDATE: i64 = DAY;
/// Life of authorities, days.
const AUTHORITY_DAYS: u32 = 3650;
/// Earliest time that a clock may show, seconds since 1970: the year of [`KUBERNETES`].
const CLOCK_MIN: i64 = 1_767_225_600;
/// Latest time that a clock may show, seconds since 1970: the year 2100.
const CLOCK_MAX: i64 = 4_102_444_800;
/// Longest name of a node, bytes: the label `kubernetes.io/hostname` has it.
const NODE_NAME_MAX: usize = 63;

/// A program that runs as a static pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Component {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    /// Applies the first objects.
    Kubectl,
}

impl Component {
    pub(super) const ALL: [Component; 5] = [
        Component::Etcd,
        Component::ApiServer,
        Component::ControllerManager,
        Component::Scheduler,
        Component::Kubectl,
    ];

    /// Name of the program, of its image, and in `--images`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Component::Etcd => "etcd",
            Component::ApiServer => "kube-apiserver",
            Component::ControllerManager => "kube-controller-manager",
            Component::Scheduler => "kube-scheduler",
            Component::Kubectl => "kubectl",
        }
    }

    fn published(self) -> String {
        let version = if self == Component::Etcd { ETCD } else { KUBERNETES };
        format!("{REGISTRY}/{}:{version}", self.name())
    }
}

/// A node with the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ControlPlaneNode {
    /// Name of the Node, and of etcd's member.
    pub(super) name: String,
    /// Address in the network of the nodes; none: the one of its default route, which only the machine knows.
    pub(super) address: Option<IpAddr>,
}

/// Who brings the pods' network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PodNetworkChoice {
    /// The node itself, a bridge; other machines reach its pods only if the network routes its range
    Bridge,
    /// An add-on of the cluster; no node is Ready before
    Cluster,
}

impl PodNetworkChoice {
    /// The word of NodeConfig.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            PodNetworkChoice::Bridge => "bridge",
            PodNetworkChoice::Cluster => "cluster",
        }
    }
}

/// Words of a command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanWords<'a> {
    /// Number of nodes with the control plane, if it is not one.
    pub(super) ha: Option<u32>,
    pub(super) nodes: &'a [String],
    pub(super) endpoint: &'a str,
    pub(super) names: &'a [String],
    pub(super) images: &'a [String],
    pub(super) pods: &'a str,
    pub(super) services: &'a str,
    pub(super) network: Option<PodNetworkChoice>,
    /// Life of certificates, days.
    pub(super) days: u32,
    /// Life of the token, hours.
    pub(super) token_hours: u32,
    /// Seconds since 1970.
    pub(super) now: i64,
}

/// The control plane that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterPlan {
    /// One, or several with a member of etcd each.
    pub(super) nodes: Vec<ControlPlaneNode>,
    pub(super) endpoint: ApiEndpoint,
    /// Further names and addresses of the API server.
    pub(super) names: Vec<String>,
    images: BTreeMap<Component, String>,
    /// Range of the pods' addresses.
    pub(super) pods: String,
    /// Range of the Services' addresses.
    pub(super) services: String,
    pub(super) network: PodNetworkChoice,
    /// Seconds since 1970 at which certificates begin.
    pub(super) begins: i64,
    /// Seconds since 1970 at which certificates end.
    pub(super) ends: i64,
    /// The same of new authorities.
    pub(super) authorities_end: i64,
    /// Seconds since 1970 at which the token ends.
    pub(super) token_ends: i64,
}

impl ClusterPlan {
    /// The plan of a command line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn of(words: &PlanWords<'_>) -> Result<ClusterPlan, String> {
        if !(CLOCK_MIN..CLOCK_MAX).contains(&words.now) {
            return Err(
                "this machine's clock is years off, and certificates begin and end by it: set it".to_owned()
            );
        }
        for name in words.names {
            if name.parse::<IpAddr>().is_err() && !is_host_name(name) {
                return Err(format!("--san {name:?} must be a DNS name or an address"));
            }
        }
        let nodes = nodes(words.ha, words.nodes)?;
        check(words.pods, words.services)?;
        nodes.iter().try_for_each(|node| has_family_of(node, words.services))?;
        let alone = nodes.len() == 1;
        let own = if alone { PodNetworkChoice::Bridge } else { PodNetworkChoice::Cluster };
        Ok(ClusterPlan {
            nodes,
            endpoint: ApiEndpoint::parse(words.endpoint)?,
            names: words.names.to_vec(),
            images: images(words.images)?,
            pods: words.pods.to_owned(),
            services: words.services.to_owned(),
            network: words.network.unwrap_or(own),
            begins: words.now.saturating_sub(BACKDATE),
            ends: words.now.saturating_add(i64::from(words.days) * DAY),
            authorities_end: words.now.saturating_add(i64::from(AUTHORITY_DAYS) * DAY),
            token_ends: words.now.saturating_add(i64::from(words.token_hours) * 3600),
        })
    }

    /// One node has everything, so nothing elects a leader, and etcd has no peers.
    pub(super) fn is_single(&self) -> bool {
        self.nodes.len() == 1
    }

    pub(super) fn image(&self, component: Component) -> String {
        self.images.get(&component).cloned().unwrap_or_else(|| component.published())
    }

    /// Address of the Service `kubernetes`.
    pub(super) fn api_service(&self) -> String {
        self.service(1)
    }

    /// Address of the cluster's DNS, as kubeadm has it.
    pub(super) fn dns_service(&self) -> String {
        self.service(10)
    }

    fn service(&self, number: u32) -> String {
        nth(&self.services, number).map_or_else(String::new, |ip| ip.to_string())
    }
}

fn nodes(ha: Option<u32>, words: &[String]) -> Result<Vec<ControlPlaneNode>, String> {
    let default = ["control-plane-1".to_owned()];
    let words: &[String] = if ha.is_none() && words.is_empty() { &default } else { words };
    let wanted = ha.unwrap_or(1);
    if ha.is_some_and(|number| number < 3 || number.is_multiple_of(2)) {
        return Err(
            "--ha must be an odd number of 3 or more: etcd needs more than half of its members".to_owned()
        );
    }
    if u32::try_from(words.len()).ok() != Some(wanted) {
        let found = words.len();
        return Err(match ha {
            Some(_) => format!("--ha {wanted} needs {wanted} times --member NAME=ADDRESS, found {found}"),
            None => format!("--single takes one --member, found {found}"),
        });
    }
    let nodes = words.iter().map(|word| node(word)).collect::<Result<Vec<_>, _>>()?;
    let names: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let addresses: BTreeSet<IpAddr> = nodes.iter().filter_map(|node| node.address).collect();
    if names.len() < nodes.len() {
        return Err("--member: each node needs a name of its own".to_owned());
    }
    if ha.is_some() && addresses.len() < nodes.len() {
        return Err("--ha: each --member needs an ADDRESS of its own, which the others reach".to_owned());
    }
    Ok(nodes)
}

/// kube-apiserver ends if its own address is not of the family of the Services' range.
fn has_family_of(node: &ControlPlaneNode, services: &str) -> Result<(), String> {
    let name = &node.name;
    match node.address {
        Some(ip) if ip.is_ipv6() != services.contains(':') => {
            Err(format!("--member {name}: its ADDRESS and --service-cidr must be of one family"))
        }
        // The program prefers an IPv4 address.
        None if services.contains(':') => {
            Err(format!("--member {name} needs =ADDRESS, because --service-cidr is of IPv6"))
        }
        _ => Ok(()),
    }
}

fn node(word: &str) -> Result<ControlPlaneNode, String> {
    let (name, address) = word.split_once('=').map_or((word, None), |(name, ip)| (name, Some(ip)));
    // The name of the output's file, too.
    if !is_dns_name(name) || name.len() > NODE_NAME_MAX || name == "worker" || name == "bootstrap" {
        return Err(format!(
            "--member {word:?}: NAME must be a DNS name in lower case of at most {NODE_NAME_MAX} characters, not worker and not bootstrap"
        ));
    }
    let address = address.map(|text| {
        let ip = text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical()).filter(|ip| is_node_address(*ip));
        ip.ok_or_else(|| format!("--member {word:?}: ADDRESS must be an address that other machines reach"))
    });
    Ok(ControlPlaneNode { name: name.to_owned(), address: address.transpose()? })
}

fn images(words: &[String]) -> Result<BTreeMap<Component, String>, String> {
    let mut images = BTreeMap::new();
    for word in words {
        let names = Component::ALL.map(Component::name).join(", ");
        let wrong = || format!("--images {word:?} must be NAME=IMAGE with a NAME of {names}");
        let (name, image) = word.split_once('=').ok_or_else(wrong)?;
        let component = Component::ALL.into_iter().find(|one| one.name() == name).ok_or_else(wrong)?;
        if image.is_empty() || !image.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong());
        }
        if images.insert(component, image.to_owned()).is_some() {
            return Err(format!("--images has {name} twice"));
        }
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: PlanWords<'static> = PlanWords {
        ha: None,
        nodes: &[],
        endpoint: "api.example:6443",
        names: &[],
        images: &[],
        pods: "10.244.0.0/16",
        services: "10.96.0.0/16",
        network: None,
        days: 365,
        token_hours: 24,
        now: 1_800_000_000,
    };

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn one_node_needs_no_address_and_makes_its_own_pod_network() {
        let plan = ClusterPlan::of(&WORDS).unwrap();
        let node = ControlPlaneNode { name: "control-plane-1".to_owned(), address: None };
        assert_eq!((plan.nodes.as_slice(), plan.network), (&[node][..], PodNetworkChoice::Bridge));
        assert_eq!(plan.endpoint.url(), "https://api.example:6443");
        assert_eq!(
            (plan.api_service(), plan.dns_service()),
            ("10.96.0.1".to_owned(), "10.96.0.10".to_owned())
        );
        assert_eq!(plan.image(Component::ApiServer), "registry.k8s.io/kube-apiserver:v1.36.3");
        assert_eq!(plan.image(Component::Etcd), "registry.k8s.io/etcd:3.6.8-0");
        assert_eq!((plan.begins, plan.ends), (1_799_913_600, 1_831_536_000));
    }

    #[test]
    fn several_nodes_have_names_and_addresses_that_differ() {
        let good = owned(&["a=192.0.2.1", "b=192.0.2.2", "c=192.0.2.3"]);
        let plan = ClusterPlan::of(&PlanWords { ha: Some(3), nodes: &good, ..WORDS }).unwrap();
        assert_eq!((plan.nodes.len(), plan.is_single(), plan.network), (3, false, PodNetworkChoice::Cluster));
        for (ha, nodes, words) in [
            (Some(3), &["a=192.0.2.1", "b=192.0.2.2"][..], "--ha 3 needs 3 times"),
            (Some(3), &[], "--ha 3 needs 3 times"),
            (Some(3), &["a=192.0.2.1", "b=192.0.2.2", "b=192.0.2.3"], "a name of its own"),
            (Some(3), &["a=192.0.2.1", "b=192.0.2.2", "c=192.0.2.2"], "ADDRESS of its own"),
            (Some(3), &["a=192.0.2.1", "b=192.0.2.2", "c=::ffff:192.0.2.2"], "ADDRESS of its own"),
            (Some(3), &["a=192.0.2.1", "b=192.0.2.2", "c=2001:db8::3"], "of one family"),
            (Some(3), &["a=192.0.2.1", "b=192.0.2.2", "c"], "ADDRESS of its own"),
            (Some(2), &["a=192.0.2.1", "b=192.0.2.2"], "odd number"),
            (Some(1), &["a=192.0.2.1"], "odd number"),
            (None, &["a", "b"], "--single takes one"),
            (None, &["A"], "DNS name"),
            (None, &["../a"], "DNS name"),
            (None, &["worker"], "not worker"),
            (None, &["a=127.0.0.1"], "other machines reach"),
            (None, &["a=b"], "other machines reach"),
            (None, &["a=2001:db8::1"], "of one family"),
            (None, &["a234567890123456789012345678901234567890123456789012345678901234"], "at most 63"),
        ] {
            let nodes = owned(nodes);
            let error = ClusterPlan::of(&PlanWords { ha, nodes: &nodes, ..WORDS }).unwrap_err();
            assert!(error.contains(words), "{nodes:?}: {error}");
        }
    }

    #[test]
    fn ranges_of_ipv6_need_addresses_of_ipv6() {
        let nodes = owned(&["a=2001:db8::1"]);
        let ipv6 = PlanWords { pods: "fd00:1::/48", services: "fd00:2::/112", ..WORDS };
        let plan = ClusterPlan::of(&PlanWords { nodes: &nodes, ..ipv6 }).unwrap();
        assert_eq!((plan.api_service().as_str(), plan.dns_service().as_str()), ("fd00:2::1", "fd00:2::a"));
        assert!(ClusterPlan::of(&ipv6).unwrap_err().contains("needs =ADDRESS"));
        let nodes = owned(&["a=192.0.2.1"]);
        let error = ClusterPlan::of(&PlanWords { nodes: &nodes, ..ipv6 }).unwrap_err();
        assert!(error.contains("of one family"), "{error}");
    }

    #[test]
    fn a_clock_that_is_years_off_makes_no_certificates() {
        for now in [i64::MIN, 0, CLOCK_MIN - 1, CLOCK_MAX, i64::MAX] {
            let error = ClusterPlan::of(&PlanWords { now, ..WORDS }).unwrap_err();
            assert!(error.contains("clock"), "{now}: {error}");
        }
        assert!(ClusterPlan::of(&PlanWords { now: CLOCK_MIN, ..WORDS }).is_ok());
    }

    #[test]
    fn images_and_names() {
        let words = owned(&["etcd=r.example/etcd:1", "kubectl=k"]);
        let plan = ClusterPlan::of(&PlanWords { images: &words, ..WORDS }).unwrap();
        assert_eq!(plan.image(Component::Etcd), "r.example/etcd:1");
        assert_eq!(plan.image(Component::Scheduler), Component::Scheduler.published());
        for bad in ["etcd", "etcd=", "coredns=a", "etcd=a b"] {
            let words = owned(&[bad]);
            assert!(
                ClusterPlan::of(&PlanWords { images: &words, ..WORDS }).unwrap_err().contains("--images")
            );
        }
        let words = owned(&["etcd=a", "etcd=b"]);
        assert!(ClusterPlan::of(&PlanWords { images: &words, ..WORDS }).unwrap_err().contains("twice"));
        for bad in ["A B", "", "192.0.2.300"] {
            let words = owned(&[bad]);
            let error = ClusterPlan::of(&PlanWords { names: &words, ..WORDS }).unwrap_err();
            assert!(error.contains("--san"), "{error}");
        }
    }
}
