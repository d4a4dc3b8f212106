//! From a dialect's answers to the facts of the report.
//!
//! Provider ids, regions, zones and kinds of machines are written as the platforms' cloud controller managers write them: a Node keeps
//! what it registers with, and a controller that writes it otherwise would fight with it or not find the machine.

use super::questions::FactKey;
use orlop_config::platform::{PlatformFacts, PlatformName};
use std::collections::BTreeMap;

/// The report's facts, from the answers.
#[must_use]
pub fn facts(platform: PlatformName, answers: &BTreeMap<FactKey, String>) -> PlatformFacts {
    let get = |key: FactKey| answers.get(&key).map(String::as_str);
    let id = get(FactKey::InstanceId);
    let (region, zone) = place(platform, get(FactKey::Region), get(FactKey::Zone));
    // With several domains AWS gives a name in each.
    let hostname = get(FactKey::Hostname).map(|names| match platform {
        PlatformName::Aws => names.split(' ').next().unwrap_or(names),
        _ => names,
    });
    let provider_id = match platform {
        PlatformName::Aws => zone.as_deref().zip(id).map(|(zone, id)| format!("aws:///{zone}/{id}")),
        PlatformName::Gce => {
            let name = hostname.and_then(|name| name.split('.').next());
            let parts = get(FactKey::Project).zip(zone.as_deref()).zip(name);
            parts.map(|((project, zone), name)| format!("gce://{project}/{zone}/{name}"))
        }
        PlatformName::Azure => get(FactKey::ResourcePath).map(|path| format!("azure://{}", azure_path(path))),
        PlatformName::OpenStack => id.map(|id| format!("openstack:///{id}")),
        PlatformName::Oracle => id.map(|id| format!("oci://{id}")),
        PlatformName::DigitalOcean => id.map(|id| format!("digitalocean://{id}")),
        PlatformName::Vultr => id.map(|id| format!("vultr://{id}")),
        PlatformName::Hetzner => id.map(|id| format!("hcloud://{id}")),
        PlatformName::Vmware | PlatformName::HyperV => None,
    };
    // GCE: projects/<number>/machineTypes/<type>. No other platform has a slash in it.
    let instance_type = get(FactKey::InstanceType).and_then(|path| path.rsplit('/').next());
    PlatformFacts {
        hostname: hostname.map(str::to_owned),
        instance_id: id.map(str::to_owned),
        instance_type: instance_type.map(str::to_owned),
        region,
        zone,
        local_ipv4: get(FactKey::LocalIpv4).map(str::to_owned),
        public_ipv4: get(FactKey::PublicIpv4).map(str::to_owned),
        provider_id,
    }
}

/// Region and zone as the platform's cloud controller manager writes them into a Node's labels.
fn place(
    platform: PlatformName,
    region: Option<&str>,
    zone: Option<&str>,
) -> (Option<String>, Option<String>) {
    let owned = |text: &str| text.to_owned();
    match platform {
        PlatformName::Gce => {
            // projects/<number>/zones/<region>-<letter>
            let zone = zone.and_then(|path| path.rsplit('/').next()).filter(|zone| !zone.is_empty());
            let region = zone.and_then(|zone| zone.rsplit_once('-')).map(|(region, _)| region);
            (region.map(owned), zone.map(owned))
        }
        PlatformName::Azure => {
            // The zone is a number in its region.
            let region = region.map(str::to_ascii_lowercase);
            let zone = region.as_deref().zip(zone).map(|(region, zone)| format!("{region}-{zone}"));
            (region, zone)
        }
        // <tenancy>:<availability domain>
        PlatformName::Oracle => {
            (region.map(owned), zone.map(|zone| owned(zone.split_once(':').map_or(zone, |(_, ad)| ad))))
        }
        PlatformName::Vultr => (region.map(str::to_ascii_lowercase), zone.map(owned)),
        PlatformName::Hetzner => {
            // What the service calls the region is the network zone; the label has the location, <location>-<data centre>.
            let location = zone.map(|zone| zone.split_once('-').map_or(zone, |(location, _)| location));
            (location.map(owned), zone.map(owned))
        }
        _ => (region.map(owned), zone.map(owned)),
    }
}

/// Azure's path of a resource with its resource group in lower case: the metadata service and the cloud's API write it differently.
fn azure_path(path: &str) -> String {
    let mut parts: Vec<String> = path.split('/').map(str::to_owned).collect();
    let key = parts.iter().position(|part| part.eq_ignore_ascii_case("resourceGroups"));
    if let Some(group) = key.and_then(|key| parts.get_mut(key + 1)) {
        group.make_ascii_lowercase();
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(platform: PlatformName, answers: &[(FactKey, &str)]) -> PlatformFacts {
        facts(platform, &answers.iter().map(|(key, text)| (*key, (*text).to_owned())).collect())
    }

    #[test]
    fn provider_ids_are_those_of_the_cloud_controller_managers() {
        let aws = of(PlatformName::Aws, &[(FactKey::InstanceId, "i-0"), (FactKey::Zone, "eu-west-1a")]);
        assert_eq!(aws.provider_id.as_deref(), Some("aws:///eu-west-1a/i-0"));
        let gce = of(
            PlatformName::Gce,
            &[
                (FactKey::Hostname, "n1"),
                (FactKey::Project, "p"),
                (FactKey::Zone, "projects/7/zones/us-central1-b"),
            ],
        );
        assert_eq!(gce.provider_id.as_deref(), Some("gce://p/us-central1-b/n1"));
        assert_eq!(
            (gce.zone.as_deref(), gce.region.as_deref()),
            (Some("us-central1-b"), Some("us-central1"))
        );
        let azure = of(
            PlatformName::Azure,
            &[
                (FactKey::Region, "WestEurope"),
                (FactKey::Zone, "2"),
                (
                    FactKey::ResourcePath,
                    "/subscriptions/S/resourceGroups/MyGroup/providers/P/virtualMachines/N1",
                ),
            ],
        );
        let path = "azure:///subscriptions/S/resourceGroups/mygroup/providers/P/virtualMachines/N1";
        assert_eq!(azure.provider_id.as_deref(), Some(path));
        assert_eq!(azure.region.as_deref(), Some("westeurope"));
        assert_eq!(azure.zone.as_deref(), Some("westeurope-2"));
        let no_zone = of(PlatformName::Azure, &[(FactKey::Region, "westeurope")]);
        assert_eq!((no_zone.zone, no_zone.provider_id), (None, None));
        let half = of(PlatformName::Aws, &[(FactKey::InstanceId, "i-0")]);
        assert_eq!(half.provider_id, None, "a wrong id is worse than none");
    }

    #[test]
    fn regions_and_zones_are_those_of_the_cloud_controller_managers() {
        for (platform, given, wanted) in [
            (
                PlatformName::Oracle,
                [Some("iad"), Some("EMIr:US-ASHBURN-AD-1")],
                [Some("iad"), Some("US-ASHBURN-AD-1")],
            ),
            (PlatformName::Oracle, [Some("eu-x-1"), Some("AD-1")], [Some("eu-x-1"), Some("AD-1")]),
            (PlatformName::Vultr, [Some("EWR"), None], [Some("ewr"), None]),
            (
                PlatformName::Hetzner,
                [Some("eu-central"), Some("fsn1-dc14")],
                [Some("fsn1"), Some("fsn1-dc14")],
            ),
            (PlatformName::Hetzner, [None, Some("fsn1")], [Some("fsn1"), Some("fsn1")]),
            (PlatformName::Hetzner, [None, None], [None, None]),
            (PlatformName::DigitalOcean, [Some("fra1"), None], [Some("fra1"), None]),
        ] {
            let (region, zone) = place(platform, given[0], given[1]);
            assert_eq!([region.as_deref(), zone.as_deref()], wanted, "{platform:?} {given:?}");
        }
    }

    #[test]
    fn names_and_kinds_of_machines_lose_what_is_no_part_of_them() {
        let aws =
            of(PlatformName::Aws, &[(FactKey::Hostname, "ip-10-0-0-5.a.internal ip-10-0-0-5.b.example")]);
        assert_eq!(aws.hostname.as_deref(), Some("ip-10-0-0-5.a.internal"));
        for (platform, given, wanted) in [
            (PlatformName::Gce, "projects/7/machineTypes/e2-small", "e2-small"),
            (PlatformName::Aws, "m7i.large", "m7i.large"),
        ] {
            let facts = of(platform, &[(FactKey::InstanceType, given)]);
            assert_eq!(facts.instance_type.as_deref(), Some(wanted), "{platform:?}");
        }
    }
}
