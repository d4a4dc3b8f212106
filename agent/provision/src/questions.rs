//! The dialects of the platforms as tables: which paths are asked with which headers, and what an answer means.
//!
//! Upstream: each platform's own documentation of its metadata service.

use orlop_config::platform::PlatformName;
use std::net::Ipv6Addr;

/// Address of the metadata service on every platform.
pub const METADATA_ADDRESS: &str = "169.254.169.254";

/// Meaning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FactKey {
    /// Name of the machine.
    Hostname,
    /// Its identifier.
    InstanceId,
    /// Kind of the machine.
    InstanceType,
    /// Region.
    Region,
    /// Zone, as the platform writes it.
    Zone,
    /// Address inside.
    LocalIpv4,
    /// Address outside.
    PublicIpv4,
    /// GCE: the project.
    Project,
    /// Azure: the resource's path.
    ResourcePath,
}

/// One question of a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The user data.
    UserData {
        /// Path.
        target: &'static str,
        /// The platform encodes them.
        base64: bool,
    },
    /// A fact by itself, as text.
    Fact {
        /// Path.
        target: &'static str,
        /// Its meaning.
        key: FactKey,
    },
    /// Several facts in one JSON document.
    Document {
        /// Path.
        target: &'static str,
        /// JSON pointers, and what they tell.
        fields: &'static [(&'static str, FactKey)],
    },
}

impl Question {
    /// Its path.
    #[must_use]
    pub fn target(&self) -> &'static str {
        match self {
            Question::UserData { target, .. }
            | Question::Fact { target, .. }
            | Question::Document { target, .. } => target,
        }
    }
}

/// The token that AWS wants in every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenQuestion {
    /// Path of the PUT.
    pub target: &'static str,
    /// Header of the PUT: how long the token lives, seconds.
    pub ttl: (&'static str, &'static str),
    /// Header that carries the token.
    pub header: &'static str,
}

/// What a platform is asked, in order; the user data first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// `Host`.
    pub host: &'static str,
    /// Its address for machines without IPv4, if it has one.
    pub ipv6: Option<Ipv6Addr>,
    /// Headers of every request.
    pub headers: &'static [(&'static str, &'static str)],
    /// Asked before anything else.
    pub token: Option<TokenQuestion>,
    /// The questions.
    pub questions: &'static [Question],
}

const fn fact(target: &'static str, key: FactKey) -> Question {
    Question::Fact { target, key }
}

const fn user_data(target: &'static str) -> Question {
    Question::UserData { target, base64: false }
}

const fn encoded_user_data(target: &'static str) -> Question {
    Question::UserData { target, base64: true }
}

/// A dialect without token and without headers of its own.
const fn plain(questions: &'static [Question]) -> Dialect {
    Dialect { host: METADATA_ADDRESS, ipv6: None, headers: &[], token: None, questions }
}

const AWS_QUESTIONS: &[Question] = &[
    user_data("/latest/user-data"),
    fact("/latest/meta-data/instance-id", FactKey::InstanceId),
    fact("/latest/meta-data/local-hostname", FactKey::Hostname),
    fact("/latest/meta-data/instance-type", FactKey::InstanceType),
    fact("/latest/meta-data/placement/availability-zone", FactKey::Zone),
    fact("/latest/meta-data/placement/region", FactKey::Region),
    fact("/latest/meta-data/local-ipv4", FactKey::LocalIpv4),
    fact("/latest/meta-data/public-ipv4", FactKey::PublicIpv4),
];

const AWS: Dialect = Dialect {
    ipv6: Some(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254)),
    token: Some(TokenQuestion {
        target: "/latest/api/token",
        ttl: ("x-aws-ec2-metadata-token-ttl-seconds", "300"),
        header: "x-aws-ec2-metadata-token",
    }),
    ..plain(AWS_QUESTIONS)
};

const GCE_QUESTIONS: &[Question] = &[
    user_data("/computeMetadata/v1/instance/attributes/user-data"),
    fact("/computeMetadata/v1/instance/id", FactKey::InstanceId),
    fact("/computeMetadata/v1/instance/name", FactKey::Hostname),
    fact("/computeMetadata/v1/instance/machine-type", FactKey::InstanceType),
    fact("/computeMetadata/v1/instance/zone", FactKey::Zone),
    fact("/computeMetadata/v1/project/project-id", FactKey::Project),
    fact("/computeMetadata/v1/instance/network-interfaces/0/ip", FactKey::LocalIpv4),
    fact(
        "/computeMetadata/v1/instance/network-interfaces/0/access-configs/0/external-ip",
        FactKey::PublicIpv4,
    ),
];

const GCE: Dialect = Dialect {
    host: "metadata.google.internal",
    ipv6: Some(Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254)),
    headers: &[("metadata-flavor", "Google")],
    ..plain(GCE_QUESTIONS)
};

const AZURE_QUESTIONS: &[Question] = &[
    encoded_user_data("/metadata/instance/compute/userData?api-version=2021-01-01&format=text"),
    Question::Document {
        target: "/metadata/instance/compute?api-version=2021-02-01&format=json",
        fields: &[
            ("/osProfile/computerName", FactKey::Hostname),
            ("/vmId", FactKey::InstanceId),
            ("/vmSize", FactKey::InstanceType),
            ("/location", FactKey::Region),
            ("/zone", FactKey::Zone),
            ("/resourceId", FactKey::ResourcePath),
        ],
    },
    Question::Document {
        target: "/metadata/instance/network/interface/0?api-version=2021-02-01&format=json",
        fields: &[
            ("/ipv4/ipAddress/0/privateIpAddress", FactKey::LocalIpv4),
            ("/ipv4/ipAddress/0/publicIpAddress", FactKey::PublicIpv4),
        ],
    },
];

const AZURE: Dialect = Dialect { headers: &[("metadata", "true")], ..plain(AZURE_QUESTIONS) };

const OPENSTACK_QUESTIONS: &[Question] = &[
    user_data("/openstack/latest/user_data"),
    Question::Document {
        target: "/openstack/latest/meta_data.json",
        fields: &[
            ("/name", FactKey::Hostname),
            ("/uuid", FactKey::InstanceId),
            ("/availability_zone", FactKey::Zone),
        ],
    },
    // These exist in the form of EC2 only.
    fact("/latest/meta-data/instance-type", FactKey::InstanceType),
    fact("/latest/meta-data/local-ipv4", FactKey::LocalIpv4),
    fact("/latest/meta-data/public-ipv4", FactKey::PublicIpv4),
];

const OPENSTACK: Dialect = plain(OPENSTACK_QUESTIONS);

const ORACLE_QUESTIONS: &[Question] = &[
    encoded_user_data("/opc/v2/instance/metadata/user_data"),
    Question::Document {
        target: "/opc/v2/instance/",
        fields: &[
            ("/hostname", FactKey::Hostname),
            ("/id", FactKey::InstanceId),
            ("/shape", FactKey::InstanceType),
            ("/region", FactKey::Region),
            ("/availabilityDomain", FactKey::Zone),
        ],
    },
    Question::Document { target: "/opc/v2/vnics/", fields: &[("/0/privateIp", FactKey::LocalIpv4)] },
];

const ORACLE: Dialect = Dialect { headers: &[("authorization", "Bearer Oracle")], ..plain(ORACLE_QUESTIONS) };

const DIGITALOCEAN_QUESTIONS: &[Question] = &[
    user_data("/metadata/v1/user-data"),
    fact("/metadata/v1/id", FactKey::InstanceId),
    fact("/metadata/v1/hostname", FactKey::Hostname),
    fact("/metadata/v1/region", FactKey::Region),
    fact("/metadata/v1/interfaces/private/0/ipv4/address", FactKey::LocalIpv4),
    fact("/metadata/v1/interfaces/public/0/ipv4/address", FactKey::PublicIpv4),
];

const DIGITALOCEAN: Dialect = plain(DIGITALOCEAN_QUESTIONS);

const VULTR_QUESTIONS: &[Question] = &[
    user_data("/latest/user-data"),
    Question::Document {
        target: "/v1.json",
        fields: &[
            ("/hostname", FactKey::Hostname),
            ("/instance-v2-id", FactKey::InstanceId),
            ("/region/regioncode", FactKey::Region),
            ("/interfaces/0/ipv4/address", FactKey::PublicIpv4),
        ],
    },
];

const VULTR: Dialect = plain(VULTR_QUESTIONS);

const HETZNER_QUESTIONS: &[Question] = &[
    user_data("/hetzner/v1/userdata"),
    fact("/hetzner/v1/metadata/instance-id", FactKey::InstanceId),
    fact("/hetzner/v1/metadata/hostname", FactKey::Hostname),
    fact("/hetzner/v1/metadata/availability-zone", FactKey::Zone),
    fact("/hetzner/v1/metadata/public-ipv4", FactKey::PublicIpv4),
];

const HETZNER: Dialect = plain(HETZNER_QUESTIONS);

/// The dialect of a platform; `None` if it has no metadata service.
#[must_use]
pub fn dialect(platform: PlatformName) -> Option<&'static Dialect> {
    match platform {
        PlatformName::Aws => Some(&AWS),
        PlatformName::Gce => Some(&GCE),
        PlatformName::Azure => Some(&AZURE),
        PlatformName::OpenStack => Some(&OPENSTACK),
        PlatformName::Oracle => Some(&ORACLE),
        PlatformName::DigitalOcean => Some(&DIGITALOCEAN),
        PlatformName::Vultr => Some(&VULTR),
        PlatformName::Hetzner => Some(&HETZNER),
        PlatformName::Vmware | PlatformName::HyperV => None,
    }
}

/// Longest fact, bytes: an Azure resource's path is the longest.
const FACT_BYTES_MAX: usize = 1024;

/// A fact as it may stand in a report: one line of visible ASCII, without white space at the ends.
#[must_use]
pub fn fact_text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.trim();
    let visible = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    (visible && text.len() <= FACT_BYTES_MAX).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [PlatformName; 8] = [
        PlatformName::Aws,
        PlatformName::Gce,
        PlatformName::Azure,
        PlatformName::OpenStack,
        PlatformName::Oracle,
        PlatformName::DigitalOcean,
        PlatformName::Vultr,
        PlatformName::Hetzner,
    ];

    #[test]
    fn every_platform_with_a_service_asks_for_user_data_first_and_once() {
        for platform in ALL {
            assert!(platform.has_metadata());
            let questions = dialect(platform).expect("a dialect").questions;
            let of_user_data = |q: &&Question| matches!(q, Question::UserData { .. });
            assert!(questions.first().is_some_and(|q| of_user_data(&q)), "{platform:?}");
            assert_eq!(questions.iter().filter(of_user_data).count(), 1, "{platform:?}");
            assert!(questions.iter().all(|q| q.target().starts_with('/')), "{platform:?}");
        }
        assert_eq!(dialect(PlatformName::Vmware), None);
    }

    #[test]
    fn two_platforms_have_an_address_for_machines_without_ipv4() {
        let shown = |platform| dialect(platform).and_then(|dialect| dialect.ipv6).map(|ip| ip.to_string());
        assert_eq!(shown(PlatformName::Aws).as_deref(), Some("fd00:ec2::254"));
        assert_eq!(shown(PlatformName::Gce).as_deref(), Some("fd20:ce::254"));
        assert_eq!(shown(PlatformName::Azure), None);
    }

    #[test]
    fn a_fact_is_one_visible_line() {
        assert_eq!(fact_text(b" i-0\n").as_deref(), Some("i-0"));
        for bad in [&b""[..], b" \n", b"a\nb", b"\xff", &[b'a'; 2000]] {
            assert_eq!(fact_text(bad), None);
        }
    }
}
